"""Determine the fields of a configuration from the parts of a recorded call, and rename the module's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.identify.fitting.inputs import may_pad, with_further
from transparity_conformance.identify.fitting.masks import read_masks, read_masks_of_recurrences
from transparity_conformance.identify.fitting.mixers import read_recurrences
from transparity_conformance.identify.fitting.parts import Parts, Stack
from transparity_conformance.identify.fitting.reading import read_attention
from transparity_conformance.identify.fitting.structure import Attention, FeedForward
from transparity_conformance.identify.fitting.subject import FitError, FittedModel, RecordedCall
from transparity_conformance.identify.fitting.values.experts import Experts, read_experts
from transparity_conformance.identify.fitting.values.found import FoundFields
from transparity_conformance.identify.fitting.values.head import (
    activation_of,
    pooled_states,
    pooling_fields,
    scale_of_logits,
)
from transparity_conformance.identify.fitting.values.norms import Norm, eps_besides, kind_and_eps
from transparity_conformance.identify.fitting.values.numbers import is_same, settled
from transparity_conformance.identify.fitting.values.scores import Scale
from transparity_numpy.arithmetic.functional import nest
from transparity_numpy.heads import HEADS


def configuration_of(found: FoundFields, subject: FittedModel, parts: Parts, calls: Sequence[RecordedCall]) -> None:
    _sizes(found, subject, parts)
    _biases_and_maps(found, parts)
    _norms(found, subject, parts)
    _embeddings(found, subject, parts)
    _head(found, parts)
    read_attention(found, subject, parts)
    if any(stack.attentions() for stack in parts.stacks.values()):
        read_masks(found, parts, calls)
    read_recurrences(found, subject, parts.heard, parts.last.recurrences, parts.last.mixers)
    if "mask_value" not in found.fields:
        read_masks_of_recurrences(found, subject, calls)
    _pooling(found, subject, parts, calls)


def _sizes(found: FoundFields, subject: FittedModel, parts: Parts) -> None:
    names = list(parts.stacks)
    found.fields["architecture"] = "encoder-decoder" if len(names) == 2 else names[0]
    for name, stack in parts.stacks.items():
        side = "source" if name == "encoder" else "target"
        found.fields |= stack.embedding.fields
        if stack.embedding.reads_tokens:
            found.fields[f"{side}_vocab_size"] = len(subject.values[stack.embedding.table])
        found.fields[f"num_{name}_layers"] = stack.layers
    if not parts.last.embedding.reads_tokens:
        found.fields["pad_id"] = None
    forward = next((each for _, each in parts.last.sublayers if isinstance(each, FeedForward)), None)
    found.fields |= {
        "embed_dim": parts.last.embedding.value.shape[1],
        "feed_forward_dim": 0 if forward is None else forward.down.weight.shape[1],
        "gated": forward is not None and len(forward.ups) == 2,
    }
    attentions = parts.last.attentions()
    if not attentions:
        found.fields["num_heads"] = 1
        return
    first = attentions[0]
    width, heads, head_dim = first.output.weight.shape[0], first.heads, first.head_dim
    is_shared = heads > 1 and first.query.weight.shape == (head_dim, head_dim) != first.output.weight.shape
    key_heads = first.key.made.size // (first.softmax.weights.shape[0] * first.softmax.weights.shape[3] * head_dim)
    found.fields |= {
        "num_heads": heads,
        "num_key_value_heads": None if key_heads == heads else key_heads,
        "attention_head_dim": None if heads * head_dim == width else head_dim,
        "projection": "shared-per-head" if is_shared else "full",
    }


def _biases_and_maps(found: FoundFields, parts: Parts) -> None:
    every = [each for stack in parts.stacks.values() for each in stack.sublayers]
    attentions = [(name, each) for name, each in every if isinstance(each, Attention)]
    forwards = [(name, each) for name, each in every if isinstance(each, FeedForward)]
    projected = [one for _, each in attentions for one in (each.query, each.key, each.value)]
    fields: dict[str, bool] = {}
    if attentions:
        has_bias = any(one.bias is not None for one in projected)
        fields = {
            "qkv_bias": has_bias,
            "key_bias": not has_bias or any(each.key.bias is not None for _, each in attentions),
            "attention_gate": any(each.gate is not None for _, each in attentions),
            "output_bias": any(each.output.bias is not None for _, each in attentions),
        }
    if forwards:
        fields["feed_forward_bias"] = any(
            one.bias is not None for _, each in forwards for one in (*each.ups, each.down)
        )
    found.fields |= fields
    for name, attention in attentions:
        for role in ("query", "key", "value"):
            has_bias = fields["qkv_bias"] and (role != "key" or fields["key_bias"])
            found.put(f"{name}.{role}", getattr(attention, role), bias=has_bias)
        found.used |= set(attention.packed)
        if attention.gate is not None:
            found.put(f"{name}.gate", attention.gate, bias=fields["qkv_bias"])
        found.put(f"{name}.output", attention.output, bias=fields["output_bias"])
    routed = [(name, each) for name, each in every if isinstance(each, Experts)]
    read_experts(found, routed, beside_others=bool(forwards))
    if not forwards:
        return
    activation, is_swapped = activation_of([one.made for one in forwards[0][1].ups], forwards[0][1].down.given)
    found.fields["activation"] = activation
    for name, forward in forwards:
        ups = forward.ups[::-1] if is_swapped else forward.ups
        for role, up in zip(("gate", "up") if len(ups) == 2 else ("up",), ups, strict=True):
            found.put(f"{name}.{role}", up, bias=fields["feed_forward_bias"])
        found.put(f"{name}.down", forward.down, bias=fields["feed_forward_bias"])


def _norms(found: FoundFields, subject: FittedModel, parts: Parts) -> None:
    streams = [stack.stream for stack in parts.stacks.values()]
    named = {
        f"{stack}.{name.removeprefix(stack + '.')}": norm
        for stack, each in parts.stacks.items()
        for name, norm in each.stream.norms.items()
    } | ({} if parts.head.norm is None else {"head_norm": parts.head.norm})
    if not named:
        raise FitError("No norm was found between the sublayers; expected layer, RMS or batch norms.")
    kinds = {(norm.kind, norm.gain) for norm in named.values()}
    if len(kinds) > 1:
        raise FitError(
            f"The norms are of several kinds ({', '.join(sorted(map(' '.join, kinds)))}); expected a single kind."
        )
    kind, eps = _kind_and_eps(found, named, parts.last)
    found.fields |= {
        "norm": kind,
        "norm_bias": kind == "rms" or any("bias" in norm.leaves for norm in named.values()),
        "norm_gain": next(iter(named.values())).gain,
        "norm_eps": eps,
        "norm_position": streams[0].position,
        "branches": streams[0].branches,
        "embedding_norm": streams[0].embedding_norm,
        "final_norm": streams[0].final_norm,
        "memory_norm": streams[-1].memory_norm,
    }
    for name, norm in named.items():
        vectors = {leaf: subject.values[theirs] for leaf, theirs in norm.leaves.items()}
        if found.fields["norm_bias"] and kind != "rms":
            vectors.setdefault("bias", np.zeros_like(vectors["weight"]))
        found.parameters |= {f"{name}.{leaf}": value for leaf, value in vectors.items()}


def _kind_and_eps(found: FoundFields, named: Mapping[str, Norm], last: Stack) -> tuple[str, float]:
    """Return the norms' common kind and eps; add a remark for each norm with another eps."""
    final = f"{last.name}.final_norm"
    kind, eps = kind_and_eps([norm for name, norm in named.items() if name != final] or list(named.values()))
    others = eps_besides(named, kind, eps)
    found.remarks += [f"{name} has eps {each:g}; the other norms have eps {eps:g}" for name, each in others.items()]
    return kind, eps


def _embeddings(found: FoundFields, subject: FittedModel, parts: Parts) -> None:
    stacks = parts.stacks
    tables = [stack.embedding.table for stack in stacks.values()]
    found.fields["shared_embedding"] = len(tables) == 2 and tables[0] == tables[1]
    for name, stack in stacks.items():
        each = stack.embedding
        if not (found.fields["shared_embedding"] and name == "decoder"):
            read = {"token_embedding.weight": subject.values[each.table]} if each.reads_tokens else each.parameters
            found.parameters |= {f"{name}.{leaf}": value for leaf, value in read.items()}
            found.used |= set(each.used)
        if each.type_table is not None:
            found.parameters[f"{name}.token_type_embedding.weight"] = subject.values[each.type_table]
            found.fields["num_token_types"] = len(subject.values[each.type_table])
        if each.position_table is not None:
            table = subject.values[each.position_table]
            found.parameters[f"{name}.position_embedding.weight"] = table.reshape(-1, table.shape[-1])
    last = parts.last.embedding
    found.put_factor("embedding", last.scale, {"none": 1.0, "embed_dim": last.value.shape[1] ** 0.5})
    _positions(found, subject, parts)


def _positions(found: FoundFields, subject: FittedModel, parts: Parts) -> None:
    first, last = next(iter(parts.stacks.values())).embedding, parts.last.embedding
    longest = parts.heard.lengths[list(parts.heard.lengths)[-1]]
    found.fields |= {
        "positions": last.positions,
        "position_offset": last.offset,
        "max_length": max(longest, TransformerConfig.max_length),
    }
    if not last.reads_tokens:
        found.fields["max_length"] = longest
    elif last.position_table is not None:
        table = subject.values[last.position_table]
        found.fields["max_length"] = table.size // table.shape[-1] - last.offset
    else:
        found.untold["max_length"] = "no table has one row per position"
    for name in subject.loose:
        field, what = ("max_length", "patches") if name == "pixels" else ("num_frames", "frames")
        found.untold[field] = f"the module takes any number of {what}"
    if first.positions != last.positions and "none" not in (first.positions, last.positions):
        found.fields["encoder_positions"] = first.positions
    for each in (first, last):
        if each.positions == "sinusoidal":
            found.fields |= {"rope_theta": each.theta, "rope_layout": each.layout}
            found.fields["sinusoidal_timescales"] = each.timescales


def _head(found: FoundFields, parts: Parts) -> None:
    head, stream = parts.head, parts.last.stream
    scale = scale_of_logits(head.linear.made, parts.heard.output) if head.linear and head.kind == "logits" else Scale()
    bases = {"none": 1.0, "embed_dim": stream.output.shape[1] ** -0.5}
    found.put_factor("head", settled(stream.head_factor * scale.factor), bases)
    found.fields |= {"head": head.kind, "residual_multiplier": stream.multiplier, "final_softcap": scale.softcap}
    if head.is_pooled:
        found.fields["pooler"] = head.activation
    if head.pooler is not None:
        found.put("pooler", head.pooler, bias=True)
    if head.transform is not None:
        has_bias = head.transform.bias is not None
        found.fields |= {"head_transform": True, "head_transform_bias": has_bias}
        found.put("head_transform", head.transform, bias=has_bias)
    if head.linear is None:
        return
    linear = head.linear
    is_tied = linear.name == parts.last.embedding.table and not head.is_pooled
    found.fields |= {"tied_head": is_tied, "head_bias": linear.bias is not None}
    if head.kind == "classes":
        found.fields["num_classes"] = len(linear.weight)
    found.put("head", linear, bias=linear.bias is not None)
    if is_tied:
        del found.parameters["head.weight"]


def _pooling(found: FoundFields, subject: FittedModel, parts: Parts, calls: Sequence[RecordedCall]) -> None:
    head = parts.head
    if not head.is_pooled:
        return
    tokens, stack = parts.heard.inputs.get("tokens"), next(iter(parts.stacks))
    size = 0 if tokens is None else found.fields[f"{'target' if stack == 'decoder' else 'source'}_vocab_size"]
    pads: list[dict[str, int | None]] = [{}]
    if tokens is not None and found.fields["padding"] == "token":
        pads = [{"pad_id": each} for each in dict.fromkeys((found.fields.get("pad_id"), None, *range(size)))]
        ends = np.tile(tokens[:1], (len(may_pad(size)), 1))
        ends[:, -1] = may_pad(size)  # only padding at the end shows that the last token before the padding is pooled
        given = with_further(subject, {"tokens": ends}, {})
        calls = [*calls, RecordedCall(given, subject.call(given), (), {})]
    states, tree = [found.computed(call.inputs, f"{stack}.output") for call in calls], nest(found.parameters)
    for fields in pooling_fields(tokens, size, pads):
        config = found.config(**fields)
        pooled = (pooled_states(config, each, call.inputs) for each, call in zip(states, calls, strict=True))
        if all(
            is_same(HEADS[config.head](config, tree, x), call.output) for x, call in zip(pooled, calls, strict=True)
        ):
            found.take(fields)
            return
