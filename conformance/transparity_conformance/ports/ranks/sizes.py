"""Sizes of probes that divide among ranks, as most sharded ports require."""

from __future__ import annotations

import functools
import math
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.oracle.reach.models import small_system

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


def sized(name: str, config: TransformerConfig, ranks: int) -> TransformerConfig:
    """The configuration that is checked on `ranks`: the user's own, which is called `config`, as it is."""
    return config if name == "config" else divisible(config, ranks)


def _multiple(size: int, ranks: int) -> int:
    return ranks * math.ceil(size / ranks)
