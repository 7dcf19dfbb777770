"""Faults of image patches, audio frames, the attention mask and token types. A missing key bias (as in Whisper) is no
fault, because a key bias shifts all scores of a query equally."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.embedding import right_positions
from transparity_conformance.catalogue.fault import Fault, Settings, WalkState, fault, made
from transparity_conformance.catalogue.feed_forward import ACTIVATIONS, other_activations
from transparity_conformance.catalogue.masks import weighed
from transparity_conformance.catalogue.sites import Value
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.undetermined import Call, Mask, given_mask, padding_at
from transparity_numpy.inputs.patches import patches


def patch_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if not config.reads_pixels or not site.endswith(".embedding"):
        return
    yield from made("patches", config, __name__)


Change = Callable[[TransformerConfig, np.ndarray], np.ndarray]
"""(configuration, right patches (batch, patches, elements)) → wrong patches."""


def of_patches(change: Change, state: WalkState, site: str, value: Value) -> Value:
    config, weight = state.config, state.parameters["encoder.patch_projection.weight"]
    right = patches(config, state.inputs["pixels"].astype(weight.dtype))
    changed: np.ndarray = np.array(value)
    changed[:, int(config.class_token) :] += (change(config, right) - right) @ weight.T
    return changed


def ordered(axes: tuple[int, ...] | None, config: TransformerConfig, right: np.ndarray) -> np.ndarray:
    side = config.image_size // (config.patch_size or 1)
    grid = right.reshape(len(right), side, side, -1)
    return (grid[:, ::-1] if axes is None else grid.transpose(axes)).reshape(right.shape)


def laid_out(axes: tuple[int, ...] | None, config: TransformerConfig, right: np.ndarray) -> np.ndarray:
    size = config.patch_size or 1
    cut = right.reshape(*right.shape[:2], config.image_channels, size, size)
    other = cut[:, :, ::-1] if axes is None else cut.transpose(0, 1, *(2 + axis for axis in axes))
    return other.reshape(right.shape)


def without_patch_bias(config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    bias = "encoder.patch_projection.bias"
    return {bias: np.zeros_like(parameters[bias])}


def class_token_last(state: WalkState, site: str, value: Value) -> Value:
    placed = _rows_of_positions(state)
    return np.roll(value - placed, -1, axis=1) + placed


def without_position(state: WalkState, site: str, value: Value, shift: int) -> Value:
    placed = _rows_of_positions(state)
    others = placed[1 - shift : len(placed) - shift]
    return value - placed + np.concatenate([np.zeros_like(placed[:1]), others])


def _rows_of_positions(state: WalkState) -> np.ndarray:
    if state.config.positions != "learned":
        return np.zeros(())
    table: np.ndarray = state.parameters["encoder.position_embedding.weight"]
    return table[state.config.position_offset :]


FIRST = "encoder.first_convolution"
SECOND = "encoder.second_convolution"


def with_ends(left: int, right: int, mode: str, x: np.ndarray) -> np.ndarray:
    """Pad (batch, frames, features) with `left` and `right` frames."""
    return np.pad(x, ((0, 0), (left, right), (0, 0)), mode=mode)  # type: ignore[call-overload] # a name of NumPy's


def frame_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if site not in (FIRST, SECOND):
        return
    yield from other_activations("convolution-activation", "gelu", convolution, " after the convolution")
    yield from made("convolutions of frames", config, convolution)
    if site == FIRST:
        yield from made("frames", config, convolution)
        return
    yield fault("convolution-stride", "of the first", patch=_first_with_stride, reshapes=FIRST)


def convolution(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    if site == FIRST:
        given = state.inputs["source"].astype(value.dtype)
        x = settings["frames"](given) if "frames" in settings else given.swapaxes(1, 2)
        return _convolved(settings, state, site, x, 1).astype(value.dtype)
    return _convolved(settings, state, site, state.taps[FIRST], 2).astype(value.dtype)


def _convolved(settings: Settings, state: WalkState, site: str, x: np.ndarray, stride: int) -> np.ndarray:
    kernel = state.parameters[f"{site}.weight"]
    kernel = settings["kernel"](kernel) if "kernel" in settings else kernel
    padded = settings.get("ends", partial(with_ends, 1, 1, "constant"))(x)
    parts = [padded[:, i : i + x.shape[1] : stride] @ kernel[..., i].T for i in range(3)]
    function = settings.get("function", ACTIVATIONS["gelu"][0])
    return function(sum(parts) + state.parameters.get(f"{site}.bias", 0))


def _first_with_stride(state: WalkState, site: str, value: Value) -> Value:
    x = state.inputs["source"].astype(value.dtype).swapaxes(1, 2)
    return _convolved({}, state, SECOND, _convolved({}, state, FIRST, x, 2), 1).astype(value.dtype)


OtherTypes = Callable[[np.ndarray, int], np.ndarray]
"""(right token types, highest type) → wrong token types."""

EXCHANGED = "token_types"

MASKS: dict[str, Callable[[Call, str], Mask]] = {
    "tokens": lambda state, site: padding_at(state, site, by_token=True),
    "none": lambda state, site: np.ones_like(padding_at(state, site)),
    "inverted": lambda state, site: ~padding_at(state, site),
    EXCHANGED: lambda state, site: (state.inputs["token_types"] != 0)[:, None, None],
}
"""Wrong masks (batch, 1, 1, keys) in place of the given attention mask."""


def token_type_and_mask_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if site.endswith(".embedding") and config.num_token_types:
        yield from made("token types", config, __name__)
    if site.endswith((".embedding", ".weights")) and given_mask(config, site):
        yield from _mask_faults(config, is_embedding=site.endswith(".embedding"))


def _mask_faults(config: TransformerConfig, *, is_embedding: bool) -> Iterator[Fault]:
    counts = config.position_count == "visible"
    for name in MASKS:
        # `masks` contains the faults in which only attention ignores or inverts the mask.
        acts = {"tokens": config.pad_id is not None, EXCHANGED: config.num_token_types > 1}.get(name, counts)
        if acts and (counts or name == EXCHANGED or not is_embedding):
            padding = lambda parts, name=name: MASKS[name](parts.state, parts.site)
            patch = partial(_embedded_otherwise, name)
            yield fault("attention-mask", name, patch=patch, formula=weighed, padding=padding)


def typed(wrong: OtherTypes | None, state: WalkState, site: str, value: Value) -> Value:
    table, types = state.parameters[f"{site.split('.')[0]}.token_type_embedding.weight"], state.inputs["token_types"]
    return value - table[types] + (0 if wrong is None else table[wrong(types, state.config.num_token_types - 1)])


def _embedded_otherwise(name: str, state: WalkState, site: str, value: Value) -> Value:
    if not site.endswith(".embedding"):
        return value
    mask = MASKS[name](state, site)
    if state.config.position_count == "visible":
        value = value - right_positions(state, site) + right_positions(state, site, mask[:, 0, 0])
    if name == EXCHANGED:
        value = typed(lambda _, most: state.inputs["attention_mask"], state, site, value)
    return value
