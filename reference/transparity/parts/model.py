"""The parameters and activations of a whole model: its stacks and its head."""

from __future__ import annotations

from transparity.config import TransformerConfig
from transparity.parts.inputs import embedding
from transparity.parts.layer import layer
from transparity.parts.part import NOTHING, Cut, Part, joined, linear, norm, tapped


def model(config: TransformerConfig) -> Part:
    """Return all parameters and activations of `config`.

    They are cached on the object, because a cache by value would hash every field.
    """
    kept = vars(config)
    if "_parts" not in kept:
        lengths = {config.input_stack(name): name for name in config.input_names}
        stacks = (stack(config, name, lengths[name]).under(name) for name in config.stacks)
        kept["_parts"] = joined(*stacks, head(config))
    found: Part = kept["_parts"]
    return found


def stack(config: TransformerConfig, name: str, length: str) -> Part:
    """Return the stack `name`, which reads the input `length`."""
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
    """Return the pooler, the linear map before the head, and the head, as far as the model has them."""
    width, length = config.embed_dim, config.input_names[-1]
    whole = Cut(why_whole="the map before the head is not distributed")
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
