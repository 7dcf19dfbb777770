"""Faults of the patches of an image: their order, the order of the numbers in one, and the token in front of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import Fault, WalkState
from transparity_conformance.catalogue.sites import Value
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.embeddings import patches

ORDERS = {
    "column by column": ("patches are taken column by column, not row by row", (0, 2, 1, 3)),
    "from below": ("the rows of patches begin at the lower edge of the image", None),
}
"""Orders of the patches (batch, rows, columns, numbers)."""

LAYOUTS = {
    "channels last": ("a patch is read pixel by pixel with all channels of each, not channel by channel", (1, 2, 0)),
    "columns first": ("the pixels of a patch are read column by column, not row by row", (0, 2, 1)),
}
"""Orders of the numbers of a patch (channels, rows, columns)."""


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if not config.reads_pixels or not site.endswith(".embedding"):
        return
    for name, (description, axes) in ORDERS.items():
        yield Fault("patch-order", name, description, patch=partial(_exchanged, partial(_ordered, axes)))
    for name, (description, inner) in LAYOUTS.items():
        if name != "channels last" or config.image_channels > 1:
            yield Fault("patch-layout", name, description, patch=partial(_exchanged, partial(_laid_out, inner)))
    if config.image_channels > 1:
        description = "the channels of the image are in the opposite order (BGR, not RGB)"
        yield Fault("patch-layout", "channels turned", description, patch=partial(_exchanged, _turned))
    if config.patch_bias:
        description = "the bias of the linear map of patches is missing"
        yield Fault("bias-dropped", "patches", description, alter=_unbiased)
    if config.class_token:
        description = "the class token is behind the patches, not in front of them"
        yield Fault("class-token", "behind", description, patch=_behind)
        if config.positions == "learned":
            description = "the class token has no position, and patches begin at the first"
            yield Fault("class-token", "without position", description, patch=_without_position)


def _unbiased(config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    name = "encoder.patch_projection.bias"
    return {name: np.zeros_like(parameters[name])}


Change = Callable[[TransformerConfig, np.ndarray], np.ndarray]
"""From the right patches (batch, patches, numbers) to the wrong ones."""


def _exchanged(change: Change, state: WalkState, site: str, value: Value) -> Value:
    """The embedding with the wrong patches in place of the right ones."""
    config, weight = state.config, state.parameters["encoder.patch_projection.weight"]
    right = patches(config, state.inputs["pixels"].astype(weight.dtype))
    changed: np.ndarray = np.array(value)
    changed[:, int(config.class_token) :] += (change(config, right) - right) @ weight.T
    return changed


def _ordered(axes: tuple[int, ...] | None, config: TransformerConfig, right: np.ndarray) -> np.ndarray:
    side = config.image_size // (config.patch_size or 1)
    grid = right.reshape(len(right), side, side, -1)
    return (grid[:, ::-1] if axes is None else grid.transpose(axes)).reshape(right.shape)


def _laid_out(axes: tuple[int, ...], config: TransformerConfig, right: np.ndarray) -> np.ndarray:
    size = config.patch_size or 1
    cut = right.reshape(*right.shape[:2], config.image_channels, size, size)
    return cut.transpose(0, 1, *(2 + axis for axis in axes)).reshape(right.shape)


def _turned(config: TransformerConfig, right: np.ndarray) -> np.ndarray:
    return right.reshape(*right.shape[:2], config.image_channels, -1)[:, :, ::-1].reshape(right.shape)


def _behind(state: WalkState, site: str, value: Value) -> Value:
    placed = _positions(state)
    return np.roll(value - placed, -1, axis=1) + placed


def _without_position(state: WalkState, site: str, value: Value) -> Value:
    placed = _positions(state)
    moved = np.concatenate([np.zeros_like(placed[:1]), placed[:-1]]) if placed.ndim else placed
    return value - placed + moved


def _positions(state: WalkState) -> np.ndarray:
    """The rows (length, embed_dim) of learned positions; 0 for others."""
    if state.config.positions != "learned":
        return np.zeros(())
    table: np.ndarray = state.parameters["encoder.position_embedding.weight"]
    return table[state.config.position_offset :]
