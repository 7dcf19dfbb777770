"""Long prompts, whose attention and logits are computed in blocks, to limit memory."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np

from transparity.config import EXACT_MASK_BELOW, TransformerConfig
from transparity.errors import ConfigError
from transparity.limits.memory import check_fits
from transparity.parameters import parameter_shapes, shared
from transparity.taps import identity
from transparity_conformance.oracle.budgets import HALF, RULES, epsilon, rounded
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.reach.models import PURPOSE, ReachModel, ReachProbe, few_calls, reach_inputs
from transparity_conformance.oracle.variants import IN_BLOCKS, farthest_formula, variant
from transparity_conformance.report.comparison import gap, less
from transparity_numpy.arithmetic.functional import nest
from transparity_numpy.heads import HEADS
from transparity_numpy.masks import target_mask
from transparity_numpy.mixers import attention as of_reference
from transparity_numpy.mixers.attention import repeat_heads
from transparity_numpy.positions.in_attention import score_bias, window_mask
from transparity_numpy.state.context import Context
from transparity_numpy.transformer import transformer

BLOCK = 128
"""Queries per block, as in the reference's fused attention."""


@dataclass(frozen=True)
class Rows:
    keys: int
    make: Callable[[slice, slice], np.ndarray]

    __array_ufunc__ = None  # NumPy arrays then call `__rand__` for `&`

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, 1, 1, self.keys)

    def __and__(self, other: Rows | np.ndarray) -> Rows:
        return Rows(self.keys, lambda queries, keys: self.make(queries, keys) & part(other, queries, keys))

    __rand__ = __and__


def part(value: Rows | np.ndarray, queries: slice, keys: slice) -> np.ndarray:
    """Return some queries and keys of an array (batch, heads, queries, keys)."""
    if isinstance(value, Rows):
        return value.make(queries, keys)
    return value[:, :, queries if value.shape[2] > 1 else slice(None), keys]


def _target_mask(positions: np.ndarray, visible: np.ndarray, kind: Any) -> Rows:
    return Rows(
        visible.shape[1], lambda queries, keys: target_mask(positions[:, queries] - keys.start, visible[:, keys], kind)
    )


def _window_mask(positions: np.ndarray, keys: int, window: int, kind: Any) -> Rows:
    return Rows(keys, lambda queries, keys: window_mask(positions[:, queries], keys.stop, window, kind)[..., keys])


def _score_bias(
    config: TransformerConfig, parameters: Any, positions: np.ndarray, keys: int, dtype: Any, *, both: bool
) -> Rows:
    def make(queries: slice, keys: slice) -> np.ndarray:
        shifted, count = positions[:, queries] - keys.start, keys.stop - keys.start
        return score_bias(config, parameters, shifted, count, dtype, both=both)

    return Rows(keys, make)


def _seen_keys(mask: Rows | np.ndarray, queries: slice, count: int, masked_score: float) -> slice:
    """Return a range of keys that a block of queries sees. The range has all keys if masked keys have nonzero weights,
    or if a query sees no key."""
    every = slice(0, count)
    if masked_score >= EXACT_MASK_BELOW:
        return every
    first, last = (
        np.flatnonzero(part(mask, slice(query, query + 1), every).any(axis=(0, 1, 2)))
        for query in (queries.start, queries.stop - 1)
    )
    seen = slice(int(first.min(initial=count)), int(last.max(initial=-1)) + 1)
    sees_something = seen.start < seen.stop and part(mask, queries, seen).any(axis=-1).all()
    return seen if sees_something else every


def _in_blocks(whole: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return an attention function that runs `whole` for one block of queries at a time."""

    def attention(
        config: TransformerConfig,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        context: Context,
        sinks: np.ndarray | None = None,
    ) -> np.ndarray:
        mask, bias = context.mask, context.bias
        key, value, length = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1]), query.shape[2]
        parts = []
        for begin in range(0, length, BLOCK):
            queries = slice(begin, min(begin + BLOCK, length))
            keys = _seen_keys(mask, queries, key.shape[2], config.masked_score)
            near = None if bias is None else part(bias, queries, keys)
            given = context._replace(mask=part(mask, queries, keys), bias=near)
            parts.append(whole(config, query[:, :, queries], key[:, :, keys], value[:, :, keys], given, sinks))
        return np.concatenate(parts, axis=1)

    return attention


@contextlib.contextmanager
def blocks_of_queries() -> Iterator[None]:
    # Patch the reference, which has no option for blocks of queries, because only long prompts need blocks.
    with (
        mock.patch("transparity_numpy.transformer.target_mask", _target_mask),
        mock.patch("transparity_numpy.positions.in_attention.window_mask", _window_mask),
        mock.patch("transparity_numpy.positions.in_attention.score_bias", _score_bias),
        mock.patch("transparity_numpy.mixers.attention.attention", _in_blocks(of_reference.attention)),
    ):
        yield


NUMBERS = 2**23
"""The largest number of logits in a block: 64 MB in float64."""


@dataclass(eq=False)
class LongOracle:
    """A call's logits in float64, and the reference's own error, by blocks of positions."""

    config: TransformerConfig
    parameters: Arrays
    inputs: Arrays
    _noise: dict[str, float] = field(default_factory=dict, init=False)

    @functools.cached_property
    def states(self) -> np.ndarray:
        """The input of the head in float64, (batch, length, embed_dim); with pooling, the length is 1."""
        return self._states(self.config, "float64")

    @functools.cached_property
    def scale(self) -> float:
        return max(float(np.abs(self.logits(block)).max(initial=0.0)) for block in self.blocks())

    def blocks(self) -> Iterator[slice]:
        """Yield ranges of positions with at most `NUMBERS` logits."""
        batch, length, width = self.states.shape
        size = max(1, NUMBERS // (batch * max(width, self.config.vocab_size)))
        for begin in range(0, length, size):
            yield slice(begin, min(begin + size, length))

    def logits(self, positions: slice) -> np.ndarray:
        return self._head(self.states[:, positions], "float64")

    def errors(self, actual: np.ndarray) -> np.ndarray:
        """Return the largest absolute error at each position; a pooled model has one position."""
        actual = actual[:, None] if self.config.is_pooled else actual
        with np.errstate(all="ignore"):
            apart = (np.abs(less(actual[:, block], self.logits(block))) for block in self.blocks())
            return np.concatenate([np.atleast_1d(each.max(axis=(0, -1))) for each in apart])

    @property
    def shape(self) -> tuple[int, ...]:
        batch, length, _ = self.states.shape
        return (batch, self.config.head_size) if self.config.is_pooled else (batch, length, self.config.head_size)

    def noise(self, dtype: str) -> float:
        """Return the reference's own error in `dtype`, with position tables by the least exact formula."""
        if dtype not in self._noise:
            measured = "float32" if dtype == "float64" else dtype
            index = IN_BLOCKS[farthest_formula(self.config)]
            with variant(index):
                states = self._states(self.config, measured)
            errors = (gap(self._head(states[:, block], measured), self.logits(block)) for block in self.blocks())
            self._noise[dtype] = max(errors) * (epsilon(dtype) / epsilon(measured))
        return self._noise[dtype]

    def shows(self, other: TransformerConfig, tolerance: float) -> bool:
        """Return whether another configuration, with the same parameters, changes a logit by more than `tolerance`."""
        changed = LongOracle(other, self.parameters, self.inputs)
        try:
            with np.errstate(all="ignore"):
                return any(not gap(changed.logits(block), self.logits(block)) <= tolerance for block in self.blocks())
        except (IndexError, ValueError):  # for example, a table of positions is too short
            return False

    def prefix(self, length: int) -> LongOracle:
        """Return the oracle of the first `length` tokens; use this method only if `has_prefixes` is true."""
        inputs = {name: value[:, :length] for name, value in self.inputs.items()}
        part = LongOracle(self.config, self.parameters, inputs)
        part.states = self.states[:, :length]
        part._noise.update(self._noise)
        return part

    def _states(self, config: TransformerConfig, dtype: str) -> np.ndarray:
        held = {name: rounded(self.parameters[name], dtype) for name in parameter_shapes(config)}
        tokens: dict[str, Any] = {name: self.inputs[name] for name in (*config.input_names, *config.further_inputs)}
        tap = (lambda name, value: rounded(value, dtype)) if dtype in HALF else identity
        # Replace the head by the identity, because `_head` applies the head to blocks of positions.
        with blocks_of_queries(), mock.patch.dict(HEADS, {self.config.head: lambda config, tree, x: x}):
            states = transformer(config, held, **tokens, tap=tap)
        return states[:, None] if config.is_pooled else states

    def _head(self, states: np.ndarray, dtype: str) -> np.ndarray:
        read = ("head.", "head_", "pooler.", f"{self.config.stacks[-1]}.token_embedding.")
        complete = shared(self.config, self.parameters)
        tree = nest({name: rounded(value, dtype) for name, value in complete.items() if name.startswith(read)})
        return rounded(HEADS[self.config.head](self.config, tree, states), dtype)


@dataclass(frozen=True, eq=False)
class LongProbe(ReachProbe):
    @functools.cached_property
    def oracle(self) -> LongOracle:  # type: ignore[override]
        return LongOracle(self.config, self.parameters, self.inputs)

    def budget(self, dtype: str, *, in_sequence: bool = False) -> float:
        noise = max(self.oracle.noise(dtype), self.model.typical_noise(dtype))
        return RULES[dtype].budget(noise, epsilon(dtype), self.oracle.scale)

    def prefix(self, length: int) -> LongProbe:
        oracle = self.oracle.prefix(length)
        part = replace(self, name=_named(length), inputs=oracle.inputs)
        vars(part)["oracle"] = oracle
        return part


def long_probes(config: TransformerConfig, parameters: Arrays, lengths: Collection[int]) -> list[LongProbe]:
    """Return long prompts, shortest first. Raise `ConfigError` beyond `max_length` or the memory."""
    for length in lengths:
        if not 1 <= length <= config.max_length:
            raise ConfigError(
                f"The length {length:,} was given for a model whose max_length is {config.max_length:,}; expected 1 to "
                f"{config.max_length:,}."
            )
        check_fits(f"A prompt of {length:,} tokens", _needed(config, length), ConfigError)
    model = ReachModel("the model itself", config, parameters, few_calls(config), is_asked=True)
    return [long_probe(model, length) for length in sorted(set(lengths))]


def _needed(config: TransformerConfig, length: int) -> int:
    """Return a lower bound of a prompt's bytes: the logits, a float64 copy, and one layer's activations."""
    width = 0 if config.is_pooled else config.head_size
    of_a_layer = 3 * config.feed_forward_dim + 8 * config.embed_dim
    return length * (width * (4 + 8) + of_a_layer * 8)


def long_probe(model: ReachModel, length: int) -> LongProbe:
    inputs = reach_inputs(model.config, 1, (length,) * len(model.config.input_names))
    return LongProbe(model.name, _named(length), PURPOSE, model.config, model.parameters, inputs, model=model)


def _named(length: int) -> str:
    return f"length {length}, batch 1"


def has_prefixes(config: TransformerConfig) -> bool:
    """Return whether no logits depend on later tokens. The model is a decoder with an exact mask, its rotary angles do
    not depend on the length, and its positions count all tokens."""
    return config.architecture == "decoder" and config.prefixes_agree and config.position_count == "all"
