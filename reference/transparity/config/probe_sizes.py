"""The sizes of the models that ports are compared on: small, and all different, so that swapped axes are noticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transparity.parts.tables import INPUTS, SCALINGS

PROBE_SIZES = {
    "source_vocab_size": 37,
    "target_vocab_size": 31,
    "max_length": 11,
    "embed_dim": 24,
    "num_heads": 3,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
}

OVERRIDDEN = {"sliding_window": 3, "rotary_original_length": 64, "feed_forward_dim": 29, "num_experts": 5}
"""Small values for the sizes in `layer_overrides`."""


def probe_sizes(config: Any) -> dict[str, Any]:
    """Return small values for the sizes of a `TransformerConfig` (`Any`, to avoid an import cycle)."""
    sizes: dict[str, Any] = dict(PROBE_SIZES)
    if config.key_value_heads < config.num_heads:
        sizes |= {"num_heads": 4, "num_key_value_heads": 1 if config.key_value_heads == 1 else 2}
    elif config.num_key_value_heads:
        sizes |= {"num_key_value_heads": None}
    if config.shared_embedding:
        sizes |= {"target_vocab_size": PROBE_SIZES["source_vocab_size"]}
    if config.attends_never:  # no layer has attention heads
        sizes |= {"num_heads": 1}
    if config.attention_head_dim:
        sizes |= {"attention_head_dim": None if config.attention_dim == config.embed_dim else 10}
    if config.rotary_dim:
        sizes |= {"rotary_dim": None if config.rotary_dim == config.head_dim else 4}
    if config.kv_lora_rank:
        sizes |= {"attention_head_dim": 10, "rotary_dim": 4, "kv_lora_rank": 9, "num_key_value_heads": None}
        sizes |= {"q_lora_rank": config.q_lora_rank and 7, "value_head_dim": config.value_head_dim and 6}
    for stack in config.stacks:
        sizes |= INPUTS[config.input_kinds[stack]].probe_sizes(config)
    if config.sliding_window:
        sizes |= {"sliding_window": 4}
    if config.head == "classes":
        sizes |= {"num_classes": 5}
    sizes |= _router_sizes(config) | _recurrent_sizes(config)
    if config.layer_types:  # one layer of each kind, in their order
        kinds = tuple(config.layer_kinds)
        layers = max(PROBE_SIZES["num_decoder_layers"], len(kinds))
        sizes |= {"layer_types": kinds, "num_encoder_layers": layers, "num_decoder_layers": layers}
        sizes |= {"layer_overrides": {kind: _small(own) for kind, own in config.layer_overrides.items()}}
    if config.positions == "relative":  # the code of MPNet, which has `relative_bias`, fixes these sizes
        sizes |= {"relative_buckets": 8, "relative_max_distance": 9}
    length = SCALINGS[config.rotary_scaling].probe_length
    sizes |= {"rotary_original_length": length} if length else {}
    return sizes | _temperature_sizes(config)


def _temperature_sizes(config: Any) -> dict[str, Any]:
    """Return a `query_temperature_length` that the longest probe exceeds.

    If `query_temperature_length` equals `rotary_original_length` in `config`, both lengths are also equal in the small
    model.
    """
    if not any(own.query_temperature for own in (config, *config.layer_kinds.values())):
        return {}
    is_scaled = SCALINGS[config.rotary_scaling].probe_length is not None
    is_one = config.query_temperature_length == config.rotary_original_length and is_scaled
    both = ("query_temperature_length", "rotary_original_length")
    return dict.fromkeys(both, 8) if is_one else {"query_temperature_length": 3}


def _recurrent_sizes(config: Any) -> dict[str, Any]:
    """Return small numbers of heads, 3 or 4, and of key heads. Equal numbers stay equal, and 1 stays 1."""
    if not config.is_recurrent:
        return {}
    shares = config.recurrent_heads // config.recurrent_key_heads
    sizes = {"recurrent_heads": 3 if 1 in (shares, config.recurrent_key_heads) else 4}
    sizes |= {"recurrent_key_heads": 3 if shares == 1 else min(2, config.recurrent_key_heads)}
    sizes |= {"recurrent_key_dim": 5, "recurrent_value_dim": 7}
    return sizes | recurrent_width(config, PROBE_SIZES["embed_dim"], sizes["recurrent_heads"])


def recurrent_width(config: Any, embed_dim: int, heads: int) -> dict[str, int]:
    """Return the `recurrent_value_dim` with which heads · `recurrent_value_dim` / `embed_dim` is the same as in
    `config`.

    Mamba-2 calls this ratio `expand`. The result is empty if the ratio or the resulting size is not a whole number, or
    if a layer has attention.
    """
    times, rest = divmod(config.recurrent_dim, config.embed_dim)
    is_fixed = config.attends_never and not rest and not times * embed_dim % heads
    return {"recurrent_value_dim": times * embed_dim // heads} if is_fixed else {}


def _router_sizes(config: Any) -> dict[str, Any]:
    """Return small numbers of experts and groups. If tokens use all experts in `config` and there are no groups, tokens
    also use all experts in the small model."""
    count, chosen = most_experts(config), config.experts_per_token
    if not count:
        return {}
    if config.router_groups > 1:  # three groups of two experts
        groups = 3 if config.topk_groups == config.router_groups else min(config.topk_groups, 2)
        sizes = {"num_experts": 6, "router_groups": 3, "topk_groups": groups}
        return sizes | {"experts_per_token": min(chosen, 2)}
    small = min(count, OVERRIDDEN["num_experts"])
    sizes = {"experts_per_token": small if chosen == count else min(chosen, 2, small)}
    return sizes | {"num_experts": small} if config.num_experts else sizes


def feed_forward_width(config: Any, embed_dim: int) -> int:
    """Return a width in proportion to `embed_dim`; experts get a multiple of 4, which PyTorch's `grouped_mm` needs."""
    width = max(min(1, config.feed_forward_dim), config.feed_forward_dim * embed_dim // config.embed_dim)
    return -(-width // 4) * 4 if most_experts(config) else width


def shared_expert_width(config: Any, embed_dim: int, expert_width: int) -> int:
    """Return the shared expert's width: the same multiple of `expert_width` as in `config`, or else the same share of
    `embed_dim`."""
    if config.shared_expert_dim % config.feed_forward_dim == 0:
        return int(config.shared_expert_dim // config.feed_forward_dim * expert_width)
    return max(1, config.shared_expert_dim * embed_dim // config.embed_dim)


def most_experts(config: Any) -> int:
    """Return the largest number of experts in any layer of a `TransformerConfig`; 0 if no layer has experts."""
    return max(own.num_experts for own in (config, *config.layer_kinds.values()))


def longrope_factors(config: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return LongRoPE's lists of factors for a model with other `sizes`, picked at even spacing from the lists in
    `config`."""
    lists = {name: getattr(config, name) for name in ("rotary_short_factors", "rotary_long_factors")}
    names = ("rotary_dim", "attention_head_dim", "embed_dim", "num_heads")
    rotary_dim, head_dim, embed_dim, heads = own = [sizes.get(name, getattr(config, name)) for name in names]
    if not all(size is None or (isinstance(size, int) and size > 0) for size in own):
        return {}  # the checks of these fields report the mistake
    count = (rotary_dim or head_dim or embed_dim // heads) // 2
    return {
        name: tuple(given[i * len(given) // count] for i in range(count))
        for name, given in lists.items()
        if given and name not in sizes
    }


def _small(overrides: Any) -> dict[str, Any]:
    return {name: OVERRIDDEN.get(name, value) if value else value for name, value in overrides.items()}
