"""The parameters and activations of latent attention."""

from __future__ import annotations

from transparity.config import TransformerConfig
from transparity.parts.attention import head_taps
from transparity.parts.part import NOTHING, Cut, Part, TapShapes, joined, linear, tapped, vector

LATENTS = {"query": "query_latent", "key": "key_value_latent"}
"""The latent vector that the query and the key are projected from; its activation precedes theirs."""


def latent(config: TransformerConfig, length: str) -> Part:
    """Return attention whose queries, keys and values are projected from latent vectors."""
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
    whole = Cut(why_whole="latent attention is not distributed yet")
    return Part(part.parameters, taps, dict.fromkeys(part.parameters, whole))


def _rank(name: str, rank: int, config: TransformerConfig, length: str) -> Part:
    low = linear(f"{name}_latent", rank, config.embed_dim, bias=False)
    taps: TapShapes = {f"{name}_latent": ("batch", length, rank)}
    return joined(low, vector(f"{name}_latent_norm.weight", rank), tapped(taps))
