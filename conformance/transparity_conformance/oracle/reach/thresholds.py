"""Thresholds: numbers at which a model, or a typical port of it, may change its behavior.

The lengths are 1 to 17, powers of two and their neighbors, and the neighbors of every threshold of a configuration.
The tokens are the first, the last, the special ones, and those around the limits of each kind of integer.
"""

from __future__ import annotations

from collections.abc import Iterable

from transparity.config import TransformerConfig

LONGEST = 1025
"""The longest sequence, unless a threshold is beyond it."""

LARGEST_POWER = 9
"""Powers of two up to this one are tried with both neighbors; near 2¹⁰, only the longest length is tried."""

LONGEST_THRESHOLD = 4097
"""A sequence up to this length is tried if a threshold needs it; its scores take 0.13 GB per head."""

SHORT = 17
"""All lengths up to this one are tried."""

BATCHES = (1, 2, 3, 5, 13, 8)
"""Rows of the short calls, in turn: one, few, primes, a power of two."""


CHUNKS = (64, 256)
"""Tokens per chunk of published recurrences: the gated delta rule, and Mamba-2 (`chunk_size`)."""


def thresholds(config: TransformerConfig) -> dict[str, int]:
    """Return the distances and lengths at which a field takes effect, by field."""
    found = {}
    for kind, own in config.layer_kinds.items():
        of_kind = f" of {kind}" if config.layer_types else ""
        if own.sliding_window is not None:
            found[f"sliding_window{of_kind}"] = own.sliding_window
        if own.query_temperature:
            found[f"query_temperature_length{of_kind}"] = own.query_temperature_length
        if own.positions == "rotary" and own.rotary_scaling != "none":
            found[f"rotary_original_length{of_kind}"] = own.rotary_original_length
    if config.has_relative_bias:
        found["relative_buckets"] = config.relative_buckets // 2
        found["relative_max_distance"] = config.relative_max_distance
    return found | ({f"chunk of {size}": size for size in CHUNKS} if config.is_recurrent else {})


def longest_length(config: TransformerConfig) -> int:
    """Return the longest sequence that is tried with `config`."""
    reached = [value + 1 for value in thresholds(config).values() if value < LONGEST_THRESHOLD]
    return min(config.max_length, max([LONGEST, *reached]))


def lengths_up_to(longest: int, crossed: Iterable[int]) -> list[int]:
    """Return the lengths to try, in order, with the neighbors of the thresholds that are `crossed`."""
    around = [2**power for power in range(5, LARGEST_POWER + 1)]
    near = {number + step for number in (*around, *crossed) for step in (-1, 0, 1)}
    return sorted({length for length in (*range(1, SHORT + 1), *near, longest) if 1 <= length <= longest})


def edge_tokens(config: TransformerConfig, size: int) -> list[int]:
    """Return tokens at the limits of integer types, the first, the last and the special ones, without padding."""
    ends = [2**power + step for power in (7, 8, 15, 16) for step in (-1, 0, 1)]
    special = [token for token in (config.bos_id, config.eos_id) if token is not None]
    chosen = dict.fromkeys([size - 1, 0, 1, *special, size - 2, *reversed(ends)])
    return [token for token in chosen if 0 <= token < size and token != config.pad_id]
