"""Thresholds: lengths at which a model, or a typical port of a model, starts to behave differently."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from transparity.config import TransformerConfig

LONGEST = 1025
"""The largest length, unless a threshold is larger."""

LARGEST_POWER = 9
"""The exponent of the largest power of two."""

LONGEST_THRESHOLD = 4097
"""The largest length beyond a threshold; its attention scores take 0.13 GB per head."""

SHORT = 17

BATCHES = (1, 2, 3, 5, 13, 8)
"""Batch sizes of short calls, in turn."""


CHUNKS = (64, 256)
"""Tokens per chunk in published code of the gated delta rule and of Mamba-2."""


def thresholds(config: TransformerConfig) -> dict[str, int]:
    """Return the lengths and distances at which fields start to have an effect."""
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


def becomes_wrong(right: Collection[int], wrong: Collection[int], config: TransformerConfig | None) -> str:
    """Return the lengths between which calls become wrong, and the thresholds there. Return an empty text unless all
    wrong calls are longer than all right calls."""
    if not right or not wrong or max(right) >= min(wrong):
        return ""
    crossed = thresholds(config) if config else {}
    names = ", ".join(name for name, value in crossed.items() if max(right) <= value <= min(wrong))
    at = f" (threshold: {names})" if names else ""
    return f"; right up to length {max(right)}, wrong from length {min(wrong)} on{at}"


def longest_length(config: TransformerConfig) -> int:
    reached = [value + 1 for value in thresholds(config).values() if value < LONGEST_THRESHOLD]
    return min(config.max_length, max([LONGEST, *reached]))


def lengths_up_to(longest: int, crossed: Iterable[int]) -> list[int]:
    """Return lengths in ascending order, including the thresholds `crossed` and their neighbors."""
    around = [2**power for power in range(5, LARGEST_POWER + 1)]
    near = {number + step for number in (*around, *crossed) for step in (-1, 0, 1)}
    return sorted({length for length in (*range(1, SHORT + 1), *near, longest) if 1 <= length <= longest})


def edge_tokens(config: TransformerConfig, size: int) -> list[int]:
    """Return the first, last and special tokens, and tokens at limits of integer types."""
    ends = [2**power + step for power in (7, 8, 15, 16) for step in (-1, 0, 1)]
    special = [token for token in (config.bos_id, config.eos_id) if token is not None]
    chosen = dict.fromkeys([size - 1, 0, 1, *special, size - 2, *reversed(ends)])
    return [token for token in chosen if 0 <= token < size and token != config.pad_id]
