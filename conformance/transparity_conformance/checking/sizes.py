"""Sizes of probes that divide among ranks, as most sharded ports require."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.oracle.probes import Probe, probe_parameters
from transparity_conformance.oracle.reach.models import small_system

SEED = 5

LEAST_OF_A_HEAD = 4
"""Features of a head: two pairs that are rotated by different angles."""

LEAST_OF_A_RANK = 2
"""Heads of a rank: of one alone, an order of its own would not show."""


def divisible(config: TransformerConfig, ranks: int) -> TransformerConfig:
    """The same system at the size of a probe whose heads, features, tokens and layers divide among `ranks`.

    Grouped keys and values have a head for each rank, if they have more than one.
    """
    resize = functools.partial(small_system, config) if config.shared_embedding else config.resized
    small = resize()
    heads = max(_multiple(small.num_heads, ranks), LEAST_OF_A_RANK * ranks)
    sizes: dict[str, Any] = {"num_heads": heads}
    if small.attention_head_dim is None:
        sizes["embed_dim"] = heads * small.head_dim
    if 1 < small.key_value_heads < small.num_heads:
        sizes["num_key_value_heads"] = heads // math.ceil(heads / _multiple(small.key_value_heads, ranks))
    wide = sizes.get("embed_dim", small.embed_dim)
    sizes["feed_forward_dim"] = _multiple(max(1, small.feed_forward_dim * wide // small.embed_dim), ranks)
    for name in ("source_vocab_size", "target_vocab_size", "num_encoder_layers", "num_decoder_layers"):
        if (size := getattr(small, name)) is not None:
            sizes[name] = _multiple(size, ranks)
    return resize(**sizes)


def square(config: TransformerConfig, ranks: int) -> TransformerConfig:
    """The system with every weight square, as `other_sizes` has it, in sizes that divide among ranks."""
    heads = LEAST_OF_A_RANK * ranks
    shared = {1: 1, config.num_heads: None}.get(config.key_value_heads, ranks)
    width = LEAST_OF_A_HEAD * heads
    sizes: dict[str, Any] = {"attention_head_dim": None, "embed_dim": width, "feed_forward_dim": width}
    sizes["rotary_dim"] = None if config.rotary_dim is None else LEAST_OF_A_HEAD // 2
    return config.with_sizes(num_heads=heads, num_key_value_heads=shared, **sizes)


def probes_on(probes: Mapping[str, Probe], ranks: int) -> dict[str, Probe]:
    """The probes of a port on `ranks`: sizes that the checker chose divide among them."""
    made = dict(probes)
    if ranks > 1 and "square" in made:
        probe, first = made["square"], next(iter(made.values()))
        sizes = square(first.config, ranks)
        made["square"] = dataclasses.replace(probe, config=sizes, parameters=probe_parameters(sizes, SEED))
    return made


def sized(name: str, config: TransformerConfig, ranks: int) -> TransformerConfig:
    """The configuration that is checked on `ranks`: the user's own, which is called `config`, as it is."""
    return config if name == "config" else divisible(config, ranks)


def _multiple(size: int, ranks: int) -> int:
    return ranks * math.ceil(size / ranks)
