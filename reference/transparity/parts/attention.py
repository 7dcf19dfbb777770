"""The parameters and activations of attention, with projections from the input or from latent vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transparity.parts.part import NOTHING, Cut, Part, TapShapes, joined, linear, tapped, vector
from transparity.parts.variants import Held, Mixer

if TYPE_CHECKING:
    from transparity.config import TransformerConfig


def attention(config: TransformerConfig, length: str, keys: str) -> Part:
    """Describe multi-head attention; `length` and `keys` name the inputs with the positions of queries and of keys."""
    heads = {"query": config.num_heads, "key": config.key_value_heads, "value": config.key_value_heads}
    cuts = {role: Cut(0, count, why_whole=_why_whole(config, role)) for role, count in heads.items()}
    of_heads = Cut(0, config.num_heads)
    out = Cut(1, config.num_heads, why_whole=_why_whole(config, "output"))
    gate = linear("gate", config.context_dim, config.embed_dim, bias=config.qkv_bias, cut=of_heads)
    return joined(
        *(_projected(config, role, cut) for role, cut in cuts.items()),
        vector("sinks", config.num_heads, of_heads) if config.attention_sinks else NOTHING,
        gate if config.attention_gate else NOTHING,
        linear("output", config.embed_dim, config.context_dim, bias=config.output_bias, cut=out),
        tapped(head_taps(config, length, keys, rotated=keys == length)),
    )


def head_taps(config: TransformerConfig, length: str, keys: str, *, rotated: bool) -> TapShapes:
    steps = ["norm"] * config.query_key_norm + ["rotated"] * (rotated and config.positions == "rotary")
    query = ("batch", config.num_heads, length, config.head_dim)
    key = ("batch", config.key_value_heads, keys, config.head_dim)
    scores, context = ("batch", config.num_heads, length, keys), ("batch", length, config.context_dim)
    return {
        "query": query,
        **{f"query_{step}": query for step in steps},
        "key": key,
        "value": (*key[:-1], config.value_dim),
        **{f"key_{step}": key for step in steps},
        "scores": scores,
        "weights": scores,
        "context": context,
        **({"gated_context": context} if config.attention_gate else {}),
        "output": ("batch", length, config.embed_dim),
    }


def _projected(config: TransformerConfig, role: str, cut: Cut) -> Part:
    heads = cut.heads or 0
    bias = config.qkv_bias and (config.key_bias or role != "key")
    out, into = heads * config.head_dim, config.embed_dim
    if config.projection == "shared-per-head":
        out, into = config.head_dim, config.head_dim
    over = heads if config.query_key_norm_over == "projection" else 1
    has_norm = config.query_key_norm and role != "value"
    normed = vector(f"{role}_norm.weight", over * config.head_dim) if has_norm else NOTHING
    return joined(linear(role, out, into, bias=bias, cut=cut), normed)


def _why_whole(config: TransformerConfig, role: str) -> str | None:
    if config.projection == "shared-per-head" and role != "output":
        return "one map serves all heads"
    if config.query_key_norm and config.query_key_norm_over == "projection":
        return "queries and keys are normalized over all heads"
    return None


LATENTS = {"query": "query_latent", "key": "key_value_latent"}
"""The latent vectors from which the query and the key are projected."""


def latent(config: TransformerConfig, length: str) -> Part:
    """Describe attention whose queries, keys and values are projected from latent vectors."""
    heads, into = config.num_heads, config.embed_dim
    query_rank, rank = config.q_lora_rank, config.kv_lora_rank or 0
    part = joined(
        _rank("query", query_rank, config, length) if query_rank else NOTHING,
        _rank("key_value", rank, config, length),
        linear("key_rotary", config.rotated_dim, into, bias=False),
        linear("query", heads * config.head_dim, query_rank or into, bias=False),
        linear("key", heads * config.projected_key_dim, rank, bias=False),
        linear("value", heads * config.value_dim, rank, bias=False),
        vector("sinks", heads) if config.attention_sinks else NOTHING,
        linear("gate", config.context_dim, into, bias=False) if config.attention_gate else NOTHING,
        linear("output", into, config.context_dim, bias=config.output_bias),
    )
    taps: TapShapes = {}
    for name, shape in head_taps(config, length, length, rotated=True).items():
        if (low := LATENTS.get(name)) in part.taps:
            taps[low] = part.taps[low]
        taps[name] = shape
    whole = Cut(why_whole="latent attention is not distributed")
    return Part(part.parameters, taps, dict.fromkeys(part.parameters, whole))


def _rank(name: str, rank: int, config: TransformerConfig, length: str) -> Part:
    low = linear(f"{name}_latent", rank, config.embed_dim, bias=False)
    taps: TapShapes = {f"{name}_latent": ("batch", length, rank)}
    return joined(low, vector(f"{name}_latent_norm.weight", rank), tapped(taps))


def _self_attention(config: TransformerConfig, length: str) -> Part:
    return latent(config, length) if config.kv_lora_rank else attention(config, length, length)


def _keys_and_values(config: TransformerConfig) -> dict[str, Held]:
    widths = {"key": config.head_dim, "value": config.value_dim}
    shapes = {name: ("batch", config.key_value_heads, "capacity", width) for name, width in widths.items()}
    return {name: Held(shape, cut=("key.weight", 1)) for name, shape in shapes.items()}


ATTENTION = Mixer(_self_attention, _keys_and_values, "self_attention")
