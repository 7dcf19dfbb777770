"""Faults of the embedding: the scale, the positions and the embedding of the padding token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import (
    Fault,
    NumericFault,
    Settings,
    WalkState,
    factors,
    fault,
    made,
    other_factors,
)
from transparity_conformance.catalogue.normalization import normed_input
from transparity_conformance.catalogue.sites import Value, reads_tokens, stack_config, token_table
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.undetermined import keys_name, length_at, padding_at
from transparity_numpy.arithmetic.functional import nest
from transparity_numpy.inputs.patches import embed_patches
from transparity_numpy.positions.learned import position_ids

OFFSETS = (1, -1, 2, -2, 3, 4)
EDGES = {
    "clipped": "",
    "rolled": ", and positions before or after the table wrap around",
    "kept": ", but padding keeps its position",
}
"""Treatments of shifted positions, each with the end of the fault's description. Outside of the table, `clipped` reads
the nearest row, and `rolled` continues at the opposite end. With `kept`, the positions of padding do not shift."""


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    config, is_padded = stack_config(config, site), config.pad_id is not None and reads_tokens(config, site)
    if site.endswith(".embedding_norm"):
        yield from made("norms of embeddings", config, __name__)
    if not site.endswith(".embedding"):
        return
    what = "token embeddings" if reads_tokens(config, site) else "patches" if config.reads_pixels else "frames"
    for name, factor in other_factors("embedding-scale", config, config.token_scale).items():
        yield scaled(config, factor, name, what)
    if config.positions in ("learned", "sinusoidal"):
        yield from made("added positions", config, __name__)
        yield from _offset_faults(config)
    if config.positions == "learned":
        yield from made("counts of positions", config, __name__)
    if config.positions == "sinusoidal":
        yield from made("sinusoids", config, __name__)
        yield from _frequency_faults(config)
    if is_padded:
        yield from made("padding tokens", config, __name__)


def scaled_with_positions(state: WalkState, site: str, value: Value) -> Value:
    return value + (state.config.token_scale - 1) * right_positions(state, site)


def _offset_faults(config: TransformerConfig) -> Iterator[Fault]:
    for offset in OFFSETS:
        begins = f"positions begin at {offset + config.position_offset} instead of {config.position_offset}"
        if config.positions == "sinusoidal":
            patch = partial(replaced, {"offset": offset})
            yield fault("position-offset", f"{offset}", says=begins, patch=patch, value=offset)
            continue
        for edge, words in EDGES.items():
            if edge != "kept" or config.position_count == "visible":
                change = partial(_moved, offset, edge)
                yield fault("position-offset", f"{offset} {edge}", says=f"{begins}{words}", patch=change, value=offset)
        if config.position_count == "visible":
            counted = partial(placed, COUNTS["all"], offset=offset)
            says = f"{begins}, and count padding"
            yield fault("position-offset", f"{offset} all", says=says, patch=counted, value=offset)


def _frequency_faults(config: TransformerConfig) -> Iterator[Fault]:
    right = TIMESCALES[config.sinusoidal_timescales]
    for name, exponents in EXPONENTS.items():
        if name != right:
            words, patch = {"name": name, "right": right}, partial(replaced, {"exponents": exponents})
            yield fault("position-frequency", "{name}", words=words, patch=patch)


COUNTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "visible": lambda visible: np.cumsum(visible, axis=1) * visible - 1,
    "all": lambda visible: np.arange(visible.shape[1])[None],
    "padding goes on": lambda visible: np.cumsum(visible, axis=1) - 1,
}
"""Ways to count positions, given a mask (batch, length) of the visible tokens."""


def scaled(config: TransformerConfig, factor: float, named: str, what: str = "token embeddings") -> Fault:
    """Return the fault that embeddings are multiplied by `factor`. For models of other sizes, the formula with the name
    `named` computes the factor."""
    by = f"{named} ({factor:.4g})" if named in factors("embedding-scale") else f"{factor:.6g}"
    right = "√embed_dim" if config.embedding_scale == "embed_dim" else ""
    if config.embedding_multiplier != 1:
        right += f"{' · ' if right else ''}{config.embedding_multiplier:g}"
    description = f"{what} are multiplied by {by}" + f" instead of {right}" * bool(right)
    if factor == 1:
        description = f"{what} are not multiplied by {right}"
    change = partial(_scaled, factors("embedding-scale").get(named, lambda config: factor))
    return fault("embedding-scale", named, says=description, patch=change, value=factor)


def based(config: TransformerConfig, base: float) -> Fault:
    words, change = {"base": f"{base:.6g}", "c": config}, partial(replaced, {"base": base})
    return fault("position-frequency", "base {base}", words=words, patch=change, value=base)


def tokens_of(state: WalkState, site: str) -> np.ndarray:
    """Return the embedded tokens, patches or frames, before scale and positions."""
    if state.config.reads_pixels:
        return embed_patches(state.config, nest(state.parameters)["encoder"], state.inputs["pixels"])
    if state.config.reads_frames and site.startswith("encoder"):
        return state.taps["encoder.second_convolution"]
    table = state.parameters[token_table(state.config, site.split(".")[0])]
    return table[state.inputs[keys_name(state.config, site)]]


def _scaled(factor: Callable[[TransformerConfig], float], state: WalkState, site: str, value: Value) -> Value:
    return value + (factor(state.config) - state.config.token_scale) * tokens_of(state, site)


def right_ids(state: WalkState, site: str, visible: np.ndarray | None = None) -> np.ndarray:
    """Return the row of the table for each position, with the shape (batch or 1, length). Some models count only tokens
    in the mask `visible`; by default, these are all tokens except padding."""
    visible = padding_at(state, site)[:, 0, 0] if visible is None else visible
    return position_ids(stack_config(state.config, site), visible, np.arange(visible.shape[1])[None])


def right_positions(state: WalkState, site: str, visible: np.ndarray | None = None) -> np.ndarray:
    config = stack_config(state.config, site)
    if config.positions == "learned":
        ids = right_ids(state, site, visible)
        return position_table(state, site)[ids] * (ids >= 0)[..., None]
    return sinusoids({}, config, length_at(state, site))


def position_table(state: WalkState, site: str) -> np.ndarray:
    return state.parameters[f"{site.split('.')[0]}.position_embedding.weight"]


def _moved(offset: int, edge: str, state: WalkState, site: str, value: Value) -> Value:
    table, ids = position_table(state, site), right_ids(state, site)
    moved = np.where(padding_at(state, site)[:, 0, 0] | (edge != "kept"), ids + offset, ids)
    rows = moved % len(table) if edge == "rolled" else np.clip(moved, 0, len(table) - 1)
    return value - right_positions(state, site) + table[rows] * ((moved >= 0) | (edge != "kept"))[..., None]


def placed(
    count: Callable[[np.ndarray], np.ndarray], state: WalkState, site: str, value: Value, offset: int = 0
) -> Value:
    table, ids = position_table(state, site), count(padding_at(state, site)[:, 0, 0])
    ids = ids + state.config.position_offset + offset
    return value - right_positions(state, site) + table[np.clip(ids, 0, len(table) - 1)]


def replaced(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    return value - right_positions(state, site) + sinusoids(settings, state.config, length_at(state, site))


def sinusoids(settings: Settings, config: TransformerConfig, length: int) -> np.ndarray:
    """Return sinusoids with frequencies base^−exponent; `settings` may change each part."""
    exponents = settings.get("exponents", EXPONENTS[TIMESCALES[config.sinusoidal_timescales]])(config)
    positions = np.arange(length) + settings.get("offset", 0)
    angles = positions[:, None] / settings.get("base", config.rope_theta) ** exponents
    both = [np.sin(angles), np.cos(angles)][:: settings.get("order", 1)]
    if settings.get("layout", config.rope_layout) == "interleaved":
        return np.stack(both, axis=-1).reshape(length, -1)
    return np.concatenate(both, axis=-1)


EXCLUSIVE, INCLUSIVE = "i/embed_dim for even i", "j/(embed_dim/2 − 1) for the j-th pair"

TIMESCALES = {"exclusive": EXCLUSIVE, "inclusive": INCLUSIVE}
"""For each value of `sinusoidal_timescales`, the key of the right formula in `EXPONENTS`."""

EXPONENTS: dict[str, Callable[[TransformerConfig], np.ndarray]] = {
    "2i/embed_dim": lambda config: 2 * np.arange(0, config.embed_dim, 2) / config.embed_dim,
    "i/(2·embed_dim)": lambda config: np.arange(0, config.embed_dim, 2) / (2 * config.embed_dim),
    INCLUSIVE: lambda config: np.arange(config.embed_dim // 2) / max(1, config.embed_dim // 2 - 1),
    EXCLUSIVE: lambda config: np.arange(0, config.embed_dim, 2) / config.embed_dim,
}


def token_types(state: WalkState, site: str) -> np.ndarray:
    return state.parameters[f"{site.split('.')[0]}.token_type_embedding.weight"][state.inputs["token_types"]]


def added_behind(added: Callable[[WalkState, str], np.ndarray], state: WalkState, site: str, value: Value) -> Value:
    right = added(state, site.removesuffix("_norm"))
    return normed_input(state, site, state.taps[site.removesuffix("_norm")] - right) + right


def zeroed(config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    name = token_table(config, site.split(".")[0])
    table = parameters[name].copy()
    table[config.pad_id] = 0
    return {name: table}


def zeroed_here(state: WalkState, site: str, value: Value) -> Value:
    is_padding = (state.inputs[keys_name(state.config, site)] == state.config.pad_id)[..., None]
    return value - is_padding * state.config.token_scale * tokens_of(state, site)


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    def is_site(site: str) -> bool:
        return site.endswith(".embedding")

    grid = [2.0**power for power in range(-10, 11)]
    yield NumericFault(is_site, grid, lambda factor: scaled(config, factor, f"{factor:.6g}"))
    if "sinusoidal" in (config.positions, config.encoder_positions):
        grid = [10.0**power for power in np.linspace(0.5, 8, 31)]
        is_sinusoidal = lambda site: is_site(site) and stack_config(config, site).positions == "sinusoidal"
        yield NumericFault(is_sinusoidal, grid, partial(based, config))
