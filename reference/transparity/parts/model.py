"""The parameters and activations of layers, of stacks, and of a whole model with its head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transparity.parts.attention import attention
from transparity.parts.feed_forward import experts, feed_forward
from transparity.parts.part import NOTHING, Cut, Part, joined, linear, norm, tapped
from transparity.parts.tables import INPUTS, MIXERS

if TYPE_CHECKING:
    from transparity.config import TransformerConfig

NORMS = {
    "pre": ("norm", None),
    "post": (None, "norm"),
    "sandwich": ("norm", "post_norm"),
    "post-branch": (None, "norm"),
}
"""The last parts of the names of the norms before and after a sublayer, by `config.norm_position`."""


def layer(config: TransformerConfig, length: str, memory: str | None) -> Part:
    """Describe a layer with its kind's configuration; `memory` names the encoder's input, if there is an encoder."""
    mixer = MIXERS[config.mixer].part(config, length).under(config.mixer_scope)
    parts = [_sublayer(config, "self_attention", length, mixer, has_norm=config.attention_norm)]
    if memory:
        inner = attention(config, length, memory).under("cross_attention")
        before = norm("memory_norm", config, length=memory) if config.memory_norm else NOTHING
        parts.append(_sublayer(config, "cross_attention", length, inner, before=before))
    if config.feed_forward_dim:
        inner = (experts if config.num_experts else feed_forward)(config, length).under("feed_forward")
        has_norm = config.branches != "parallel-one-norm"
        parts.append(_sublayer(config, "feed_forward", length, inner, has_norm=has_norm))
    return joined(*parts, tapped({"output": ("batch", length, config.embed_dim)}))


def _sublayer(
    config: TransformerConfig, name: str, length: str, inner: Part, *, before: Part = NOTHING, has_norm: bool = True
) -> Part:
    """Describe the sublayer `name`, with parameters of norms last, and activations in the order of computation."""
    ends = [end for end in NORMS[config.norm_position] if end and has_norm]
    norms = {end: norm(f"{name}_{end}", config, length=length) for end in sorted(ends)}
    first, last = NORMS[config.norm_position]
    taps = [norms[end].taps if end in norms else {} for end in (first, last)]
    parameters = joined(inner, *norms.values(), before)
    return parameters._replace(taps=taps[0] | before.taps | inner.taps | taps[1])


def model(config: TransformerConfig) -> Part:
    """Return all parameters and activations of `config`.

    The configuration object stores the result, because a cache that compares configurations would hash every field.
    """
    kept = vars(config)
    if "_parts" not in kept:
        lengths = {config.input_stack(name): name for name in config.input_names}
        stacks = (stack(config, name, lengths[name]).under(name) for name in config.stacks)
        kept["_parts"] = joined(*stacks, head(config))
    found: Part = kept["_parts"]
    return found


def embedding(config: TransformerConfig, stack: str, length: str) -> Part:
    """Describe the embedding of a stack: the tables or maps of its input, its token types and its positions."""
    stack_config, width = config.for_stack(stack), config.embed_dim
    types, rows = config.num_token_types, stack_config.num_positions
    return joined(
        INPUTS[config.input_kinds[stack]].part(config, stack, length),
        linear("token_type_embedding", types, width, bias=False) if types else NOTHING,
        linear("position_embedding", rows, width, bias=False) if stack_config.positions == "learned" else NOTHING,
        tapped({"embedding": ("batch", length, width)}),
    )


def stack(config: TransformerConfig, name: str, length: str) -> Part:
    """Describe the encoder or the decoder (`name`); `length` is the name of the stack's input."""
    memory = "source" if name == "decoder" and config.has_encoder else None
    buckets = linear(
        "relative_bias", config.relative_buckets, config.num_heads, bias=False, cut=Cut(1, config.num_heads)
    )
    return joined(
        embedding(config, name, length),
        norm("embedding_norm", config, length=length) if config.embedding_norm else NOTHING,
        buckets if config.has_relative_bias else NOTHING,
        *(
            layer(config.for_layer(name, i), length, memory).under(f"layers.{i}")
            for i in range(config.stack_num_layers(name))
        ),
        norm("final_norm", config) if config.final_norm else NOTHING,
        tapped({"output": ("batch", length, config.embed_dim)}),
    )


def head(config: TransformerConfig) -> Part:
    """Describe the head, with any pooler and any linear map before the head."""
    width, length = config.embed_dim, config.input_names[-1]
    whole = Cut(why_whole="the linear map before the head is not distributed")
    transform = linear("head_transform", width, width, bias=config.head_transform_bias, cut=whole)
    made = linear("head", config.head_size, width, bias=config.head_bias, cut=Cut(0))
    if config.has_tied_head:
        del made.parameters["head.weight"], made.cuts["head.weight"]
    shape = ("batch", config.head_size) if config.is_pooled else ("batch", length, config.head_size)
    return joined(
        linear("pooler", width, width, bias=True) if config.has_pooler else NOTHING,
        joined(transform, norm("head_norm", config)) if config.head_transform else NOTHING,
        made if config.head in ("logits", "classes") else NOTHING,
        tapped(({"pooled": ("batch", width)} if config.is_pooled else {}) | {"logits": shape}),
    )
