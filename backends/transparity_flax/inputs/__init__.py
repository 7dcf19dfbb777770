"""The embedding of a stack's input: tokens, patches of images or frames of audio."""

from collections.abc import Callable
from typing import Any

from transparity_flax.inputs.frames import EmbedFrames
from transparity_flax.inputs.patches import EmbedPatches
from transparity_flax.inputs.tokens import EmbedTokens

INPUTS: dict[str, Callable[..., Any]] = {"tokens": EmbedTokens, "patches": EmbedPatches, "frames": EmbedFrames}
"""The class for each value of `config.input_kinds[stack]`."""
