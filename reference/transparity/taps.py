"""The tap: every named activation passes through `tap(name, value) -> value`.

A tap can record, replace, round or perturb the values that pass through it. It is an argument, never a global, so that
functions stay pure for `jax.jit` and `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transparity.config import TransformerConfig

Tap = Callable[[str, Any], Any]

NORMS_BEHIND = {"post": "norm", "sandwich": "post_norm", "post-branch": "norm"}
"""The norm after a sublayer, by `norm_position`."""


ROUTER_CHOSEN = "router_chosen"
"""The tap of a router's choice: 1 for the experts that a token has, 0 for the others."""


def identity(name: str, value: Any) -> Any:
    """Return the value unchanged: the tap of a call without a listener."""
    return value


def scoped(tap: Tap, scope: str) -> Tap:
    """Prefix every name with `scope`; `identity` stays itself, so that a call without a listener costs nothing."""
    if tap is identity:
        return identity

    def scoped_tap(name: str, value: Any) -> Any:
        return tap(f"{scope}.{name}", value)

    return scoped_tap


def recording(into: dict[str, Any]) -> Tap:
    """Return a tap that stores every value in `into` under its name."""

    def record(name: str, value: Any) -> Any:
        into[name] = value
        return value

    return record


def chained(first: Tap, then: Tap) -> Tap:
    """Return a tap that applies `first`, then `then`."""
    return then if first is identity else lambda name, value: then(name, first(name, value))


def lengths_of(config: TransformerConfig, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of positions of each of the `inputs` by name: its tokens; the patches of an image, with the
    class token; or half of the frames of audio."""
    fixed = {name: config.positions_of(name) for name in config.input_names}
    return {name: fixed.get(name) or value.shape[1] for name, value in inputs.items()}


def tap_shapes(config: TransformerConfig, batch: int, **lengths: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tap of a forward pass, in the order of the pass.

    Args:
        config: the model.
        batch: the number of rows.
        lengths: the positions of each input by name: `source` and `target`, `tokens` or `pixels` (`lengths_of`).
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name in config.input_names:
        stack, length = config.input_stack(name), lengths[name]
        embedded = (batch, length, config.embed_dim)
        if config.reads_frames and stack == "encoder":
            shapes[f"{stack}.first_convolution"] = (batch, config.num_frames, config.embed_dim)
            shapes[f"{stack}.second_convolution"] = embedded
        shapes[f"{stack}.embedding"] = embedded
        if config.embedding_norm:
            shapes[f"{stack}.embedding_norm"] = embedded
        for layer in range(config.stack_num_layers(stack)):
            shapes |= _layer_shapes(f"{stack}.layers.{layer}", config.for_layer(stack, layer), batch, length, lengths)
        shapes[f"{stack}.output"] = embedded
    if config.is_pooled:
        shapes["pooled"] = (batch, config.embed_dim)
    return shapes | {"logits": _logits_shape(config, batch, lengths)}


def logits_shape(config: TransformerConfig, inputs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of the logits of checked `inputs`, or of the other output that `config.head` names."""
    return _logits_shape(config, len(inputs[config.input_names[-1]]), lengths_of(config, inputs))


def _logits_shape(config: TransformerConfig, batch: int, lengths: Mapping[str, int]) -> tuple[int, ...]:
    length = lengths[config.input_names[-1]]
    return (batch, config.head_size) if config.is_pooled else (batch, length, config.head_size)


def _layer_shapes(
    scope: str, config: TransformerConfig, batch: int, length: int, lengths: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """The shapes of the taps of a layer, of which `config` is its own view, for as many tokens as `length`."""
    shapes: dict[str, tuple[int, ...]] = {}
    embedded = (batch, length, config.embed_dim)
    pre, behind = config.norm_position in ("pre", "sandwich"), NORMS_BEHIND.get(config.norm_position)
    crosses = scope.startswith("decoder") and config.has_encoder
    for attention in ["self_attention"] + ["cross_attention"] * crosses:
        keys = lengths["source"] if attention == "cross_attention" else length
        before = pre and (config.attention_norm or attention == "cross_attention")
        shapes |= {f"{scope}.{attention}_norm": embedded} if before else {}
        if attention == "cross_attention" and config.memory_norm:
            shapes[f"{scope}.memory_norm"] = (batch, keys, config.embed_dim)
        if attention == "self_attention" and config.mixer != "attention":
            shapes |= _recurrence_shapes(f"{scope}.{config.mixer_scope}", config, batch, length)
        else:
            shapes |= _attention_shapes(f"{scope}.{attention}", config, batch, length, keys)
        shapes |= {f"{scope}.{attention}_{behind}": embedded} if behind else {}
    if not config.feed_forward_dim:
        return shapes | {f"{scope}.output": embedded}
    before = pre and config.branches != "parallel-one-norm"
    shapes |= {f"{scope}.feed_forward_norm": embedded} if before else {}
    shapes |= _feed_forward_shapes(f"{scope}.feed_forward", config, batch, length)
    shapes |= {f"{scope}.feed_forward_{behind}": embedded} if behind else {}
    return shapes | {f"{scope}.output": embedded}


def _feed_forward_shapes(scope: str, config: TransformerConfig, batch: int, length: int) -> dict[str, tuple[int, ...]]:
    router = ("router_logits", ROUTER_CHOSEN, "router_weights") * (config.num_experts > 0)
    shapes: dict[str, tuple[int, ...]] = {f"{scope}.{name}": (batch, length, config.num_experts) for name in router}
    if not router:
        shapes[f"{scope}.hidden"] = (batch, length, config.feed_forward_dim)
    elif config.shared_expert_dim:
        shapes[f"{scope}.shared_expert.hidden"] = (batch, length, config.shared_expert_dim)
        shapes[f"{scope}.shared_expert.output"] = (batch, length, config.embed_dim)
    return shapes | {f"{scope}.output": (batch, length, config.embed_dim)}


def _attention_shapes(
    scope: str, config: TransformerConfig, batch: int, queries: int, keys: int
) -> dict[str, tuple[int, ...]]:
    heads, head_dim = config.num_heads, config.head_dim
    turned = config.positions == "rotary" and scope.endswith("self_attention")
    steps = ["norm"] * config.query_key_norm + ["rotated"] * turned
    query, key = (batch, heads, queries, head_dim), (batch, config.key_value_heads, keys, head_dim)
    value = (*key[:-1], config.value_dim)
    ranks = {"query": config.q_lora_rank or 0, "key_value": config.kv_lora_rank or 0}
    low = {role: {f"{scope}.{role}_latent": (batch, keys, rank)} if rank else {} for role, rank in ranks.items()}
    return {
        **low["query"],
        f"{scope}.query": query,
        **{f"{scope}.query_{step}": query for step in steps},
        **low["key_value"],
        f"{scope}.key": key,
        f"{scope}.value": value,
        **{f"{scope}.key_{step}": key for step in steps},
        f"{scope}.scores": (batch, heads, queries, keys),
        f"{scope}.weights": (batch, heads, queries, keys),
        f"{scope}.context": (batch, queries, config.context_dim),
        **({f"{scope}.gated_context": (batch, queries, config.context_dim)} if config.attention_gate else {}),
        f"{scope}.output": (batch, queries, config.embed_dim),
    }


def _recurrence_shapes(scope: str, config: TransformerConfig, batch: int, length: int) -> dict[str, tuple[int, ...]]:
    heads = (batch, config.recurrent_key_heads, length, config.recurrent_key_dim)
    numbers, read = (batch, length, config.recurrent_heads), (batch, length, config.recurrent_dim)
    of_delta = {f"{scope}.query_normalized": heads, f"{scope}.key_normalized": heads, f"{scope}.beta": numbers}
    return {
        **{f"{scope}.{role}_convolved": (batch, length, wide) for role, wide in config.convolution_dims.items()},
        **(of_delta if config.mixer == "gated-delta" else {f"{scope}.time_step": numbers}),
        f"{scope}.log_decay": numbers,
        f"{scope}.context": read,
        f"{scope}.gated_context": read,
        f"{scope}.output": (batch, length, config.embed_dim),
    }
