"""Attention: queries weigh keys and sum their values."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transparity.config import Projection, TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.arithmetic import fused
from transparity_pytorch.arithmetic.softcap import apply_softcap
from transparity_pytorch.normalization import HeadNorm
from transparity_pytorch.positions import RotaryTables, rotate
from transparity_pytorch.state.cache import Cache, update
from transparity_pytorch.state.context import LayerContext, MaskKind


def split_heads(
    x: Float[Tensor, "batch length embed_dim"], num_heads: int
) -> Float[Tensor, "batch heads length head_dim"]:
    """Split the features into `num_heads` consecutive pieces, one per head (document 003)."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(x: Float[Tensor, "batch heads length head_dim"]) -> Float[Tensor, "batch length embed_dim"]:
    """Concatenate the heads' features: the inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)


def project_heads(
    linear: nn.Linear, x: Float[Tensor, "batch length embed_dim"], num_heads: int, projection: Projection
) -> Float[Tensor, "batch heads length head_dim"]:
    """Query, key or value of every head: projected and split, or split and projected by one map for all heads
    (document 002)."""
    if projection == "shared-per-head":
        return linear(split_heads(x, num_heads))
    return split_heads(linear(x), num_heads)


def repeat_heads(
    x: Float[Tensor, "batch key_heads keys head_dim"], num_heads: int
) -> Float[Tensor, "batch heads keys head_dim"]:
    """Repeat each head of keys or values for the consecutive query heads that share it (Ainslie et al. 2023, §2.2)."""
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def attention_scores(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    scale: float,
    softcap: float | None = None,
    bias: Float[Tensor, "#batch heads #queries keys"] | None = None,
) -> Float[Tensor, "batch heads queries keys"]:
    """query · keyᵀ · scale, soft-capped, plus `bias`."""
    scores = query @ key.transpose(-2, -1) * scale
    scores = scores if softcap is None else apply_softcap(scores, softcap)
    return scores if bias is None else scores + bias


def attention_weights(
    scores: Float[Tensor, "batch heads queries keys"],
    mask: Bool[Tensor, "#batch 1 #queries keys"],
    masked_score: float,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "batch heads queries keys"]:
    """Softmax over the keys, with `masked_score` in place of the scores where `mask` is False, and over each head's
    sink, whose weight is left out (gpt-oss).

    `masked_score` is at least half the lowest number of the dtype: exp(that − largest) is exactly 0, as for −inf, and
    a query with every key masked weighs all keys alike instead of being NaN.
    """
    lowest = torch.finfo(scores.dtype).min / 2
    shown = scores.masked_fill(~mask, max(masked_score, lowest))
    if sinks is not None:
        shown = torch.cat([shown, sinks[:, None, None].expand(*shown.shape[:-1], 1)], dim=-1)
    return shown.softmax(dim=-1)[..., : scores.shape[-1]]


def attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    mask: Bool[Tensor, "#batch 1 #queries keys"],
    *,
    mask_kind: MaskKind | None = None,
    scale: float,
    masked_score: float,
    softcap: float | None = None,
    bias: Float[Tensor, "#batch heads #queries keys"] | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    tap: Tap = identity,
) -> Float[Tensor, "batch queries attention_dim"]:
    """softmax(query · keyᵀ · scale) · value, heads merged (Vaswani et al. 2017, eq. 1)."""
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    if fused.applies(tap, masked_score, softcap, query):
        return merge_heads(
            fused.attention(query, key, value, mask, mask_kind=mask_kind, scale=scale, bias=bias, sinks=sinks)
        )
    scores = tap("scores", attention_scores(query, key, scale, softcap, bias))
    weights = tap("weights", attention_weights(scores, mask, masked_score, sinks))
    return tap("context", merge_heads(weights @ value))


class AttentionProjections(nn.Module):
    """The projections of multi-head attention (Vaswani et al. 2017, §3.2.2)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        queries, into = config.attention_dim, config.embed_dim
        keys, values = (config.key_value_heads * width for width in (config.projected_key_dim, config.value_dim))
        if config.projection == "shared-per-head":
            queries, keys, values, into = (config.head_dim,) * 4
        bias, low = config.qkv_bias, config.kv_lora_rank
        self.query = nn.Linear(config.q_lora_rank or into, queries, bias=bias)
        self.key = nn.Linear(low or into, keys, bias=bias and config.key_bias)
        self.value = nn.Linear(low or into, values, bias=bias)
        for name, rank in (("query", config.q_lora_rank), ("key_value", low)):
            if rank:
                setattr(self, f"{name}_latent", nn.Linear(into, rank, bias=False))
                setattr(self, f"{name}_latent_norm", HeadNorm(config, rank))
        if low:
            self.key_rotary = nn.Linear(into, config.rotated_dim, bias=False)
        if config.query_key_norm:
            heads = (config.num_heads, config.key_value_heads)
            over = heads if config.query_key_norm_over == "projection" else (1, 1)
            self.query_norm, self.key_norm = (HeadNorm(config, count * config.head_dim) for count in over)
        self.sinks = nn.Parameter(torch.zeros(config.num_heads)) if config.attention_sinks else None
        if config.attention_gate:
            self.gate = nn.Linear(config.embed_dim, config.context_dim, bias=config.qkv_bias)
        self.output = nn.Linear(config.context_dim, config.embed_dim, bias=config.output_bias)


def query_key_norm(
    config: TransformerConfig, norm: HeadNorm, x: Float[Tensor, "batch any_heads length head_dim"]
) -> Float[Tensor, "batch any_heads length head_dim"]:
    """RMS norm of each head (Qwen 3), or of the features of all heads together (OLMo 2)."""
    return norm(x) if config.query_key_norm_over == "head" else split_heads(norm(merge_heads(x)), x.shape[1])


def rotate_features(
    config: TransformerConfig, x: Float[Tensor, "batch any_heads length head_dim"], rotary: RotaryTables
) -> Float[Tensor, "batch any_heads length head_dim"]:
    """Rotate the first features of each head, or, in latent attention, the last."""
    if config.kv_lora_rank is None:
        return rotate(x, rotary, config.rope_layout)
    rest = config.head_dim - config.rotated_dim
    return torch.cat([x[..., :rest], rotate(x[..., rest:], rotary, config.rope_layout)], dim=-1)


def latent(
    heads: AttentionProjections, name: str, x: Float[Tensor, "batch length embed_dim"], tap: Tap = identity
) -> Float[Tensor, "batch length features"]:
    """Few features that the `query`, or the key and value (`key_value`), of every head are projected from, normalised
    (DeepSeek-V2)."""
    return tap(f"{name}_latent", getattr(heads, f"{name}_latent_norm")(getattr(heads, f"{name}_latent")(x)))


def latent_key_value(
    heads: AttentionProjections, x: Float[Tensor, "batch keys embed_dim"], tap: Tap = identity
) -> tuple[Float[Tensor, "batch heads keys head_dim"], Float[Tensor, "batch heads keys value_dim"]]:
    """Key and value of every head, of a latent; the rotated features of the key are those of all heads."""
    low = latent(heads, "key_value", x, tap)
    own = split_heads(heads.key(low), heads.config.num_heads)
    shared = heads.key_rotary(x)[:, None]
    key = tap("key", torch.cat([own, shared.expand(*own.shape[:-1], -1)], dim=-1))
    return key, tap("value", split_heads(heads.value(low), heads.config.num_heads))


def normalize_and_rotate(
    heads: AttentionProjections,
    name: str,
    x: Float[Tensor, "batch any_heads length head_dim"],
    rotary: RotaryTables | None,
    tap: Tap,
) -> Float[Tensor, "batch any_heads length head_dim"]:
    """Apply QK-norm and RoPE to the `query` or `key`, if configured."""
    if heads.config.query_key_norm:
        x = tap(f"{name}_norm", query_key_norm(heads.config, getattr(heads, f"{name}_norm"), x))
    return x if rotary is None else tap(f"{name}_rotated", rotate_features(heads.config, x, rotary))


def project_query(
    heads: AttentionProjections,
    x: Float[Tensor, "batch queries embed_dim"],
    tap: Tap = identity,
    rotary: RotaryTables | None = None,
) -> Float[Tensor, "batch heads queries head_dim"]:
    """Query of every head."""
    x = latent(heads, "query", x, tap) if heads.config.q_lora_rank else x
    query = tap("query", project_heads(heads.query, x, heads.config.num_heads, heads.config.projection))
    return normalize_and_rotate(heads, "query", query, rotary, tap)


def project_key_value(
    heads: AttentionProjections,
    x: Float[Tensor, "batch keys embed_dim"],
    tap: Tap = identity,
    rotary: RotaryTables | None = None,
) -> tuple[Float[Tensor, "batch key_heads keys head_dim"], Float[Tensor, "batch key_heads keys value_dim"]]:
    """Key and value of every head."""
    if heads.config.kv_lora_rank:
        key, value = latent_key_value(heads, x, tap)
        return normalize_and_rotate(heads, "key", key, rotary, tap), value
    num_heads, projection = heads.config.key_value_heads, heads.config.projection
    key = tap("key", project_heads(heads.key, x, num_heads, projection))
    value = tap("value", project_heads(heads.value, x, num_heads, projection))
    return normalize_and_rotate(heads, "key", key, rotary, tap), value


class SelfAttention(AttentionProjections):
    """Multi-head attention from `x` to itself (Vaswani et al. 2017, §3.2.2); with a `cache`, to every token in it,
    `x` included."""

    def project(
        self, x: Float[Tensor, "batch queries embed_dim"], rotary: RotaryTables | None, tap: Tap
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of every head."""
        return project_query(self, x, tap, rotary), *project_key_value(self, x, tap, rotary)

    def forward(
        self,
        x: Float[Tensor, "batch queries embed_dim"],
        context: LayerContext,
        tap: Tap = identity,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch queries embed_dim"]:
        query, key, value = self.project(x, context.rotary, tap)
        query = query if context.temperature is None else query * context.temperature
        if cache is not None:
            key, value = update(cache, key, value, context.positions)
        return _attend(self, x, (query, key, value), context.mask, tap, context.bias, mask_kind=context.mask_kind)


class CrossAttention(AttentionProjections):
    """Multi-head attention from `x` to the encoder's output; with a `cache`, to its keys and values there."""

    def forward(
        self,
        x: Float[Tensor, "batch queries embed_dim"],
        context: LayerContext,
        tap: Tap = identity,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch queries embed_dim"]:
        query = project_query(self, x, tap)
        if cache is not None:
            key, value = cache["key"], cache["value"]
        else:
            assert context.memory is not None
            key, value = project_key_value(self, context.memory, tap)
        assert context.memory_mask is not None
        return _attend(self, x, (query, key, value), context.memory_mask, tap, mask_kind=context.memory_mask_kind)


def _attend(
    heads: AttentionProjections,
    x: Float[Tensor, "batch queries embed_dim"],
    projected: tuple[Tensor, Tensor, Tensor],
    mask: Bool[Tensor, "#batch 1 #queries keys"],
    tap: Tap,
    bias: Float[Tensor, "#batch heads #queries keys"] | None = None,
    *,
    mask_kind: MaskKind | None = None,
) -> Float[Tensor, "batch queries embed_dim"]:
    """Attention of the heads' query, key and value, its gate by `x` if configured, then the output projection."""
    scale, masked = heads.config.score_scale, heads.config.masked_score
    cap, sinks = heads.config.attention_softcap, heads.sinks
    context = attention(
        *projected,
        mask,
        mask_kind=mask_kind,
        scale=scale,
        masked_score=masked,
        softcap=cap,
        bias=bias,
        sinks=sinks,
        tap=tap,
    )
    if heads.config.attention_gate:
        context = tap("gated_context", context * torch.sigmoid(heads.gate(x)))
    return tap("output", heads.output(context))
