"""The embedding of a stack's input: tokens, patches of images or frames of audio."""

from collections.abc import Callable

from torch import nn

from transparity_pytorch.inputs.frames import embed_frames, frame_parts
from transparity_pytorch.inputs.patches import embed_patches, patch_parts
from transparity_pytorch.inputs.tokens import embed_tokens, token_parts
from transparity_pytorch.shapes import Hidden

INPUTS: dict[str, tuple[Callable[..., dict[str, nn.Module]], Callable[..., Hidden]]] = {
    "tokens": (token_parts, embed_tokens),
    "patches": (patch_parts, embed_patches),
    "frames": (frame_parts, embed_frames),
}
"""For each `config.input_kinds[stack]`, a function that makes modules, and a function that applies the modules."""
