"""Faults at the embedding: its scale, the positions, the padding token's row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.fault import Fault, NumericFault, WalkState
from transparity_conformance.diagnosis.faults.normalization import normed_input
from transparity_conformance.diagnosis.faults.sites import Value, keys_name, padding_at, token_table
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.embeddings import position_ids

OFFSETS = (1, -1, 2, -2, 3, 4)


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if site.endswith(".embedding_norm") and config.positions == "learned":
        says = "the embeddings are normalised before the positions are added"
        yield Fault("norm-placement", "before the positions", says, patch=_positions_behind)
    if not site.endswith(".embedding"):
        return
    for name, factor in SCALES.items():
        if not math.isclose(factor(config), token_scale(config)):
            yield scaled(config, factor(config), name)
    for offset in OFFSETS if config.positions in ("learned", "sinusoidal") else ():
        for edge in ("clipped", "rolled") if config.positions == "learned" else ("",):
            begins = f"positions begin at {offset + config.position_offset} instead of {config.position_offset}"
            says = f"{begins}{f' ({edge} at the end of the table)' if edge else ''}"
            yield Fault(
                "position-offset", f"{offset} {edge}".strip(), says, patch=partial(_moved, offset, edge), value=offset
            )
    if config.positions == "learned" and config.position_offset:
        yield from _count_faults(config, site)
    if config.positions == "sinusoidal":
        yield from _sinusoid_faults(config)
    if config.pad_id is not None:
        says = f"the embedding of the padding token ({config.pad_id}) is zero"
        yield Fault("padding-row", "zeroed", says, alter=_zeroed)
        if config.tied_head or config.shared_embedding:
            says += ", where it is looked up here alone"
            yield Fault("padding-row", "zeroed here", says, patch=_zeroed_here)


def _sinusoid_faults(config: TransformerConfig) -> Iterator[Fault]:
    if config.rope_layout == "interleaved":
        says = "all sines stand before all cosines instead of each beside its cosine"
        yield Fault("position-layout", "concatenated", says, patch=partial(_replaced, concatenated))
    else:
        says = "each sine stands beside its cosine instead of all sines before all cosines"
        yield Fault("position-layout", "interleaved", says, patch=partial(_replaced, interleaved))
    says = "each cosine stands before its sine" if config.rope_layout == "interleaved" else "cosines stand before sines"
    yield Fault("position-layout", "cosine first", says, patch=partial(_replaced, cosine_first))
    for name, exponents in EXPONENTS.items():
        says = f"the exponent of the positions' frequencies is {name} instead of i/embed_dim for even i"
        yield Fault("position-frequency", name, says, patch=partial(_replaced, partial(sinusoids, exponents)))


def _count_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    """Where positions may count what is no padding alone."""
    if config.position_count == "all":
        says = "positions count what is no padding alone, not all tokens"
        yield Fault("position-count", "visible", says, patch=partial(_placed, _counting_visible))
        return
    says = "positions count padding, too"
    yield Fault("position-count", "all", says, patch=partial(_placed, _counting_all))
    says = "padding has the position of the last token before it, not the one in front of the first"
    yield Fault("position-count", "padding goes on", says, patch=partial(_placed, _counting_on))


def token_scale(config: TransformerConfig) -> float:
    return math.sqrt(config.embed_dim) if config.embedding_scale == "embed_dim" else 1.0


SCALES: dict[str, Callable[[TransformerConfig], float]] = {
    "1 (none)": lambda config: 1.0,
    "√embed_dim": lambda config: math.sqrt(config.embed_dim),
    "1/√embed_dim": lambda config: 1 / math.sqrt(config.embed_dim),
    "embed_dim": lambda config: float(config.embed_dim),
    "√head_dim": lambda config: math.sqrt(config.head_dim),
}
"""What people multiply token embeddings by."""


def scaled(config: TransformerConfig, factor: float, named: str) -> Fault:
    """Token embeddings times `factor`; by what has the name, in a model of another size."""
    by = f"{named} ({factor:.4g})" if named in SCALES else f"{factor:.6g}"
    right = "√embed_dim" if config.embedding_scale == "embed_dim" else "1 (none)"
    says = f"token embeddings are multiplied by {by} instead of {right}"
    change = partial(_scaled, SCALES.get(named, lambda config: factor))
    return Fault("embedding-scale", named, says, patch=change, value=factor)


def based(config: TransformerConfig, base: float, named: str) -> Fault:
    """Sinusoids of another base."""
    says = f"the base of the positions' frequencies is {named} instead of {config.rope_theta:g}"
    change = partial(_replaced, partial(sinusoids, usual_exponents, base=base))
    return Fault("position-frequency", f"base {named}", says, patch=change, value=base)


def tokens_of(state: WalkState, site: str) -> np.ndarray:
    """The tokens' own embeddings, unscaled, without positions."""
    table = state.parameters[token_table(state.config, site.split(".")[0])]
    embedded: np.ndarray = table[state.inputs[keys_name(state.config, site)]]
    return embedded


def _scaled(factor: Callable[[TransformerConfig], float], state: WalkState, site: str, value: Value) -> Value:
    return value + (factor(state.config) - token_scale(state.config)) * tokens_of(state, site)


def right_ids(state: WalkState, site: str, visible: np.ndarray | None = None) -> np.ndarray:
    """The rows (batch or 1, length) of the table of positions; `visible` is what is counted, if not all is."""
    visible = padding_at(state, site)[:, 0, 0] if visible is None else visible
    return position_ids(state.config, visible, np.arange(visible.shape[1])[None])


def right_positions(state: WalkState, site: str) -> np.ndarray:
    if state.config.positions == "learned":
        table: np.ndarray = state.parameters[f"{site.split('.')[0]}.position_embedding.weight"]
        return table[right_ids(state, site)]
    return sinusoids(usual_exponents, state.config, _standing(state, site))


def _standing(state: WalkState, site: str) -> np.ndarray:
    return np.arange(state.inputs[keys_name(state.config, site)].shape[1])


def _moved(offset: int, edge: str, state: WalkState, site: str, value: Value) -> Value:
    right = right_positions(state, site)
    if state.config.positions == "learned":
        table = state.parameters[f"{site.split('.')[0]}.position_embedding.weight"]
        moved = right_ids(state, site) + offset
        return value - right + table[moved % len(table) if edge == "rolled" else np.clip(moved, 0, len(table) - 1)]
    return value - right + sinusoids(usual_exponents, state.config, _standing(state, site) + offset)


def _placed(ids: Callable[[WalkState, str], np.ndarray], state: WalkState, site: str, value: Value) -> Value:
    """With other learned positions; what is none is the first or the last."""
    table = state.parameters[f"{site.split('.')[0]}.position_embedding.weight"]
    return value - right_positions(state, site) + table[np.clip(ids(state, site), 0, len(table) - 1)]


def _counting_all(state: WalkState, site: str) -> np.ndarray:
    return _standing(state, site)[None] + state.config.position_offset


def _counting_visible(state: WalkState, site: str) -> np.ndarray:
    visible = padding_at(state, site)[:, 0, 0]
    counted: np.ndarray = np.cumsum(visible, axis=1) * visible
    return counted + state.config.position_offset - 1


def _counting_on(state: WalkState, site: str) -> np.ndarray:
    counted: np.ndarray = np.cumsum(padding_at(state, site)[:, 0, 0], axis=1)
    return counted + state.config.position_offset - 1


def _replaced(positions: Value, state: WalkState, site: str, value: Value) -> Value:
    return value - right_positions(state, site) + positions(state.config, _standing(state, site))


def usual_exponents(dim: int) -> np.ndarray:
    exponents: np.ndarray = np.arange(0, dim, 2) / dim
    return exponents


def _waves(config: TransformerConfig, positions: np.ndarray, base: float, exponents: Value) -> list[np.ndarray]:
    angles = positions[:, None] / base ** exponents(config.embed_dim)
    return [np.sin(angles), np.cos(angles)]


def sinusoids(
    exponents: Value, config: TransformerConfig, positions: np.ndarray, base: float | None = None
) -> np.ndarray:
    """Sines and cosines, laid out as they should be, at the frequencies base^−exponent."""
    both = _waves(config, positions, config.rope_theta if base is None else base, exponents)
    return _beside(both) if config.rope_layout == "interleaved" else np.concatenate(both, axis=-1)


def _beside(both: list[np.ndarray]) -> np.ndarray:
    return np.stack(both, axis=-1).reshape(len(both[0]), -1)


def concatenated(config: TransformerConfig, positions: np.ndarray) -> np.ndarray:
    return np.concatenate(_waves(config, positions, config.rope_theta, usual_exponents), axis=-1)


def interleaved(config: TransformerConfig, positions: np.ndarray) -> np.ndarray:
    return _beside(_waves(config, positions, config.rope_theta, usual_exponents))


def cosine_first(config: TransformerConfig, positions: np.ndarray) -> np.ndarray:
    both = _waves(config, positions, config.rope_theta, usual_exponents)[::-1]
    return _beside(both) if config.rope_layout == "interleaved" else np.concatenate(both, axis=-1)


EXPONENTS = {
    "2i/embed_dim": lambda dim: 2 * np.arange(0, dim, 2) / dim,
    "i/(2·embed_dim)": lambda dim: np.arange(0, dim, 2) / (2 * dim),
    "j/(embed_dim/2 − 1) for the j-th pair": lambda dim: np.arange(dim // 2) / max(1, dim // 2 - 1),
}


def _positions_behind(state: WalkState, site: str, value: Value) -> Value:
    right = right_positions(state, site.removesuffix("_norm"))
    return normed_input(state, site, state.taps[site.removesuffix("_norm")] - right) + right


def _zeroed(config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    name = token_table(config, site.split(".")[0])
    table = parameters[name].copy()
    table[config.pad_id] = 0
    return {name: table}


def _zeroed_here(state: WalkState, site: str, value: Value) -> Value:
    is_padding = (state.inputs[keys_name(state.config, site)] == state.config.pad_id)[..., None]
    return value - is_padding * token_scale(state.config) * tokens_of(state, site)


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    grid = [2.0**power for power in range(-10, 11)]
    yield NumericFault(_is_embedding, grid, lambda factor: scaled(config, factor, f"{factor:.6g}"))
    if config.positions == "sinusoidal":
        grid = [10.0**power for power in np.linspace(0.5, 8, 31)]
        yield NumericFault(_is_embedding, grid, lambda base: based(config, base, f"{base:.6g}"))


def _is_embedding(site: str) -> bool:
    return site.endswith(".embedding")
