"""Mistakes at the embedding: its scale, the positions, the padding token's row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.mistakes.places import Value
from transparity_conformance.oracle import Arrays
from transparity_conformance.walk import Mistake, Run

OFFSETS = (1, -1, 2, -2, 3, 4)


def mistakes(config: TransformerConfig, site: str) -> Iterator[Mistake]:
    if not site.endswith(".embedding"):
        return
    for name, factor in SCALES.items():
        if not math.isclose(factor(config), token_scale(config)):
            yield scaled(config, factor(config), name)
    for offset in OFFSETS:
        for edge in ("clipped", "rolled") if config.positions == "learned" else ("",):
            says = f"positions begin at {offset} instead of 0{f' ({edge} at the end of the table)' if edge else ''}"
            yield Mistake(
                "position-offset", f"{offset} {edge}".strip(), says, patch=partial(_moved, offset, edge), value=offset
            )
    if config.positions == "sinusoidal":
        says = "all sines stand before all cosines instead of each beside its cosine"
        yield Mistake("position-layout", "concatenated", says, patch=partial(_replaced, concatenated))
        says = "each cosine stands before its sine"
        yield Mistake("position-layout", "cosine first", says, patch=partial(_replaced, cosine_first))
        for name, exponents in EXPONENTS.items():
            says = f"the exponent of the positions' frequencies is {name} instead of i/embed_dim for even i"
            yield Mistake("position-frequency", name, says, patch=partial(_replaced, partial(sinusoids, exponents)))
    if config.pad_id is not None:
        says = f"the embedding of the padding token ({config.pad_id}) is zero"
        yield Mistake("padding-row", "zeroed", says, alter=_zeroed)


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


def scaled(config: TransformerConfig, factor: float, named: str) -> Mistake:
    """Token embeddings times `factor`; by what has the name, in a model of another size."""
    by = f"{named} ({factor:.4g})" if named in SCALES else f"{factor:.6g}"
    right = "√embed_dim" if config.embedding_scale == "embed_dim" else "1 (none)"
    says = f"token embeddings are multiplied by {by} instead of {right}"
    change = partial(_scaled, SCALES.get(named, lambda config: factor))
    return Mistake("embedding-scale", named, says, patch=change, value=factor)


def based(base: float, named: str) -> Mistake:
    """Sinusoids of another base."""
    says = f"the base of the positions' frequencies is {named} instead of 10000"
    change = partial(_replaced, partial(sinusoids, lambda dim: np.arange(0, dim, 2) / dim, base=base))
    return Mistake("position-frequency", f"base {named}", says, patch=change, value=base)


def tokens_of(run: Run, site: str) -> np.ndarray:
    """The tokens' own embeddings, unscaled, without positions."""
    stack = site.split(".")[0]
    name = next(name for name in run.config.input_names if run.config.input_stack(name) == stack)
    embedded: np.ndarray = run.parameters[f"{stack}.token_embedding.weight"][run.inputs[name]]
    return embedded


def _scaled(factor: Callable[[TransformerConfig], float], run: Run, site: str, value: Value) -> Value:
    return value + (factor(run.config) - token_scale(run.config)) * tokens_of(run, site)


def _right_positions(run: Run, site: str, length: int) -> np.ndarray:
    if run.config.positions == "learned":
        return run.parameters[f"{site.split('.')[0]}.position_embedding.weight"][:length]
    return sinusoids(lambda dim: np.arange(0, dim, 2) / dim, np.arange(length), run.config.embed_dim)


def _moved(offset: int, edge: str, run: Run, site: str, value: Value) -> Value:
    length = value.shape[1]
    moved = np.arange(length) + offset
    if run.config.positions == "learned":
        table = run.parameters[f"{site.split('.')[0]}.position_embedding.weight"]
        moved = moved % len(table) if edge == "rolled" else np.clip(moved, 0, len(table) - 1)
        return value - table[:length] + table[moved]
    new = sinusoids(lambda dim: np.arange(0, dim, 2) / dim, moved, run.config.embed_dim)
    return value - _right_positions(run, site, length) + new


def _replaced(positions: Value, run: Run, site: str, value: Value) -> Value:
    length, dim = value.shape[1], run.config.embed_dim
    return value - _right_positions(run, site, length) + positions(np.arange(length), dim)


def sinusoids(exponents: Value, positions: np.ndarray, dim: int, base: float = 10_000.0) -> np.ndarray:
    """Sines and cosines side by side, at the frequencies base^−exponent."""
    angles = positions[:, None] / base ** exponents(dim)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(positions), dim)


def concatenated(positions: np.ndarray, dim: int) -> np.ndarray:
    angles = positions[:, None] / 10_000.0 ** (np.arange(0, dim, 2) / dim)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def cosine_first(positions: np.ndarray, dim: int) -> np.ndarray:
    angles = positions[:, None] / 10_000.0 ** (np.arange(0, dim, 2) / dim)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(len(positions), dim)


EXPONENTS = {
    "2i/embed_dim": lambda dim: 2 * np.arange(0, dim, 2) / dim,
    "i/(2·embed_dim)": lambda dim: np.arange(0, dim, 2) / (2 * dim),
    "j/(embed_dim/2 − 1) for the j-th pair": lambda dim: np.arange(dim // 2) / max(1, dim // 2 - 1),
}


def _zeroed(config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    name = f"{site.split('.')[0]}.token_embedding.weight"
    table = parameters[name].copy()
    table[config.pad_id] = 0
    return {name: table}
