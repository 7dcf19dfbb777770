"""A small model of each family."""

from __future__ import annotations

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.checkpoints.importing import configuration, family_called
from transparity_conformance.checkpoints.tables.values import Fields

EXAMPLES: dict[str, Fields] = {model_type: family.example for model_type, family in FAMILIES.items()}
"""The fields of each `model_type`; the others are those that transformers takes for missing ones."""


def example_config(model_type: str) -> TransformerConfig:
    """Return the small model of a family; raises `CheckpointError` for a family that cannot be imported."""
    family = family_called(model_type)
    return configuration(family, family.example, set(family.names) - set(family.computed))
