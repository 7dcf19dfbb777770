"""The embedding of a stack's input: tokens, patches of images or frames of audio."""

from collections.abc import Callable

from transparity_numpy.inputs.frames import embed_frames
from transparity_numpy.inputs.patches import embed_patches
from transparity_numpy.inputs.tokens import embed_tokens
from transparity_numpy.shapes import Hidden

INPUTS: dict[str, Callable[..., Hidden]] = {"tokens": embed_tokens, "patches": embed_patches, "frames": embed_frames}
"""The function for each value of `config.input_kinds[stack]`."""
