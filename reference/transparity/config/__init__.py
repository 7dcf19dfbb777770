"""The configuration of a transformer, its validation, and the small sizes at which ports are compared."""

from transparity.config.layer_kinds import PER_LAYER as PER_LAYER
from transparity.config.transformer_config import EXACT_MASK_BELOW as EXACT_MASK_BELOW
from transparity.config.transformer_config import FIELD_TYPES as FIELD_TYPES
from transparity.config.transformer_config import Activation as Activation
from transparity.config.transformer_config import Branches as Branches
from transparity.config.transformer_config import MaskOrder as MaskOrder
from transparity.config.transformer_config import NormPosition as NormPosition
from transparity.config.transformer_config import Projection as Projection
from transparity.config.transformer_config import RopeLayout as RopeLayout
from transparity.config.transformer_config import TargetMask as TargetMask
from transparity.config.transformer_config import Timescales as Timescales
from transparity.config.transformer_config import TransformerConfig as TransformerConfig
from transparity.config.transformer_config import WindowKind as WindowKind
