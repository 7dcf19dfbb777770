"""Faults of image patches, audio frames, the attention mask and token types. A missing key bias (as in Whisper) is no
fault, because a key bias shifts all scores of a query equally."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.embedding import right_positions
from transparity_conformance.catalogue.fault import Alter, Fault, Settings, WalkState, fault, variants
from transparity_conformance.catalogue.feed_forward import ACTIVATIONS, other_activations
from transparity_conformance.catalogue.masks import weighed
from transparity_conformance.catalogue.sites import Value
from transparity_conformance.oracle.undetermined import Call, Mask, given_mask, padding_at
from transparity_numpy.inputs.patches import patches

ORDERS = {"column by column": (0, 2, 1, 3), "from below": None}
"""Permutations of (batch, rows, columns, elements), or None for rows in reverse order."""

PATCH_LAYOUTS = {"channels last": (1, 2, 0), "columns first": (0, 2, 1)}
"""Permutations of a patch's (channels, rows, columns)."""


def patch_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if not config.reads_pixels or not site.endswith(".embedding"):
        return
    for name, axes in ORDERS.items():
        yield fault("patch-order", name, patch=partial(_of_patches, partial(_ordered, axes)))
    for name, inner in PATCH_LAYOUTS.items():
        if name != "channels last" or config.image_channels > 1:
            yield fault("patch-layout", name, patch=partial(_of_patches, partial(_laid_out, inner)))
    if config.image_channels > 1:
        yield fault("patch-layout", "channels turned", patch=partial(_of_patches, partial(_laid_out, None)))
    if config.patch_bias:
        bias = "encoder.patch_projection.bias"
        without: Alter = lambda config, parameters, site: {bias: np.zeros_like(parameters[bias])}
        yield fault("bias-dropped", "patches", alter=without)
    if config.class_token:
        yield fault("class-token", "behind", patch=_behind)
        if config.positions == "learned":
            yield fault("class-token", "without position", patch=partial(_without_position, shift=1))
            yield fault("class-token", "no position", patch=partial(_without_position, shift=0))


Change = Callable[[TransformerConfig, np.ndarray], np.ndarray]
"""(configuration, right patches (batch, patches, elements)) → wrong patches."""


def _of_patches(change: Change, state: WalkState, site: str, value: Value) -> Value:
    config, weight = state.config, state.parameters["encoder.patch_projection.weight"]
    right = patches(config, state.inputs["pixels"].astype(weight.dtype))
    changed: np.ndarray = np.array(value)
    changed[:, int(config.class_token) :] += (change(config, right) - right) @ weight.T
    return changed


def _ordered(axes: tuple[int, ...] | None, config: TransformerConfig, right: np.ndarray) -> np.ndarray:
    side = config.image_size // (config.patch_size or 1)
    grid = right.reshape(len(right), side, side, -1)
    return (grid[:, ::-1] if axes is None else grid.transpose(axes)).reshape(right.shape)


def _laid_out(axes: tuple[int, ...] | None, config: TransformerConfig, right: np.ndarray) -> np.ndarray:
    size = config.patch_size or 1
    cut = right.reshape(*right.shape[:2], config.image_channels, size, size)
    other = cut[:, :, ::-1] if axes is None else cut.transpose(0, 1, *(2 + axis for axis in axes))
    return other.reshape(right.shape)


def _behind(state: WalkState, site: str, value: Value) -> Value:
    placed = _rows_of_positions(state)
    return np.roll(value - placed, -1, axis=1) + placed


def _without_position(state: WalkState, site: str, value: Value, shift: int) -> Value:
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

LAYOUTS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "reshaped": lambda given: given.reshape(len(given), given.shape[2], given.shape[1]),
    "mel bins turned": lambda given: given[:, ::-1].swapaxes(1, 2),
    "frames turned": lambda given: given[:, :, ::-1].swapaxes(1, 2),
}
"""Audio (batch, mel_bins, frames) → wrong inputs of convolutions (batch, frames, mel_bins)."""

KERNELS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "turned": lambda kernel: kernel[..., ::-1],
    "reshaped": lambda kernel: kernel.reshape(len(kernel), 3, -1).swapaxes(1, 2),
}
"""The right kernel (features_out, features_in, 3) → a wrong kernel."""


def _with_ends(left: int, right: int, mode: str, x: np.ndarray) -> np.ndarray:
    return np.pad(x, ((0, 0), (left, right), (0, 0)), mode=mode)  # type: ignore[call-overload] # a name of NumPy's


ENDS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "behind": partial(_with_ends, 0, 2, "constant"),
    "in front": partial(_with_ends, 2, 0, "constant"),
    "edge": partial(_with_ends, 1, 1, "edge"),
    "circular": partial(_with_ends, 1, 1, "wrap"),
}
"""Wrong ways to pad (batch, frames, features) with two frames."""


def frame_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if site not in (FIRST, SECOND):
        return
    yield from other_activations("convolution-activation", "gelu", convolution, " after the convolution")
    yield from variants("convolution-kernel", KERNELS, convolution, "kernel")
    yield from variants("convolution-padding", ENDS, convolution, "ends")
    if site == FIRST:
        yield from variants("frame-layout", LAYOUTS, convolution, "frames")
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
    padded = settings.get("ends", partial(_with_ends, 1, 1, "constant"))(x)
    parts = [padded[:, i : i + x.shape[1] : stride] @ kernel[..., i].T for i in range(3)]
    function = settings.get("function", ACTIVATIONS["gelu"][0])
    return function(sum(parts) + state.parameters.get(f"{site}.bias", 0))


def _first_with_stride(state: WalkState, site: str, value: Value) -> Value:
    x = state.inputs["source"].astype(value.dtype).swapaxes(1, 2)
    return _convolved({}, state, SECOND, _convolved({}, state, FIRST, x, 2), 1).astype(value.dtype)


OtherTypes = Callable[[np.ndarray, int], np.ndarray]
"""(right token types, highest type) → wrong token types."""

TYPES: dict[str, OtherTypes | None] = {
    "none": None,
    "all 0": lambda types, most: 0 * types,
    "all 1": lambda types, most: 0 * types + min(1, most),
    "turned": lambda types, most: most - types,
}

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
        for name, wrong in TYPES.items():
            yield fault("token-types", name, patch=partial(_typed, wrong))
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


def _typed(wrong: OtherTypes | None, state: WalkState, site: str, value: Value) -> Value:
    table, types = state.parameters[f"{site.split('.')[0]}.token_type_embedding.weight"], state.inputs["token_types"]
    return value - table[types] + (0 if wrong is None else table[wrong(types, state.config.num_token_types - 1)])


def _embedded_otherwise(name: str, state: WalkState, site: str, value: Value) -> Value:
    if not site.endswith(".embedding"):
        return value
    mask = MASKS[name](state, site)
    if state.config.position_count == "visible":
        value = value - right_positions(state, site) + right_positions(state, site, mask[:, 0, 0])
    if name == EXCHANGED:
        value = _typed(lambda _, most: state.inputs["attention_mask"], state, site, value)
    return value
