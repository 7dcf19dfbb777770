"""The parts of attention."""

from __future__ import annotations

from transparity.config import TransformerConfig
from transparity.parts.part import NOTHING, Cut, Part, TapShapes, joined, linear, tapped, vector


def attention(config: TransformerConfig, length: str, keys: str) -> Part:
    """Return multi-head attention from positions of `length` to positions of `keys`."""
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
    """Return the taps of attention."""
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
    """The projection `query`, `key` or `value`, and its norm."""
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
