"""Determine the fields of a configuration from the parts of a recorded call, and rename the module's parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.identify.fitting.inputs import may_pad, with_further
from transparity_conformance.identify.fitting.masks import read_masks, read_masks_of_recurrences
from transparity_conformance.identify.fitting.mixers import Recurrence, read_recurrences
from transparity_conformance.identify.fitting.parts import Parts
from transparity_conformance.identify.fitting.reading import read_attention
from transparity_conformance.identify.fitting.structure import Attention, FeedForward
from transparity_conformance.identify.fitting.subject import FitError, FittedModel, ForeignError, RecordedCall
from transparity_conformance.identify.fitting.values.embedding import PLACES, TABLE
from transparity_conformance.identify.fitting.values.experts import Experts
from transparity_conformance.identify.fitting.values.found import FoundFields
from transparity_conformance.identify.fitting.values.head import (
    activation_of,
    pooling_fields,
    scale_of_logits,
)
from transparity_conformance.identify.fitting.values.norms import eps_besides, kind_and_eps
from transparity_conformance.identify.fitting.values.numbers import settled
from transparity_conformance.identify.fitting.values.scores import Scale


def configuration_of(found: FoundFields, subject: FittedModel, parts: Parts, calls: Sequence[RecordedCall]) -> None:
    _read_sizes(found, parts)
    _read_sublayers(found, parts)
    _read_norms(found, subject, parts)
    _read_embeddings(found, subject, parts)
    _read_head(found, parts)
    read_attention(found, parts, subject.values)
    if recurrences := parts.every(Recurrence):
        kinds = [type(each) for name, each in parts.sublayers.items() if name.endswith("self_attention")]
        read_recurrences(found, parts.heard.operations, subject.values, recurrences, kinds)
        found.read_names("convolution_bias", "recurrent_bias")
    found.fill_biases()
    if parts.every(Attention):
        read_masks(found, parts, calls)
    else:
        read_masks_of_recurrences(found, calls)
    if parts.head.is_pooled:
        _read_pooling(found, subject, parts, calls)


def _read_sizes(found: FoundFields, parts: Parts) -> None:
    found.fields |= parts.head.fields
    for name, each in parts.embeddings.items():
        layers = {own.rpartition(".")[0] for own in parts.sublayers if own.startswith(name)}
        found.fields[f"num_{name}_layers"] = len(layers)
        found.fields |= {field: value for field, value in each.fields.items() if "position" not in field}
    last, (*_, longest) = parts.embeddings[parts.last], parts.heard.lengths.values()
    if not last.reads_tokens:
        found.fields |= {"pad_id": None, "max_length": longest}
    elif PLACES in last.parameters:
        found.fields["max_length"] = len(last.parameters[PLACES]) - last.fields["position_offset"]
    else:
        found.fields["max_length"] = max(longest, TransformerConfig.max_length)
        found.untold["max_length"] = "no table has one row per position"
    found.fields["embed_dim"] = width = last.value.shape[1]
    own = {name: each for name, each in parts.every(Attention, "self").items() if name.startswith(parts.last)}
    if not own:
        found.fields["num_heads"] = 1
        return
    first = next(iter(own.values()))
    heads, head_dim, shape = first.heads, first.head_dim, first.maps["query"].weight.shape
    is_shared = heads > 1 and shape == (head_dim, head_dim) != first.maps["output"].weight.shape
    key_heads = first.by_head("key").shape[1]
    found.fields |= {
        "num_heads": heads,
        "num_key_value_heads": None if key_heads == heads else key_heads,
        "attention_head_dim": None if heads * head_dim == width else head_dim,
        "projection": "shared-per-head" if is_shared else "full",
    }


def _read_sublayers(found: FoundFields, parts: Parts) -> None:
    """Add the parameters of attentions, feed-forwards and experts, and the activation."""
    forwards, experts = parts.every(FeedForward), list(parts.every(Experts).values())
    found.fields |= {"feed_forward_dim": 0} if forwards or not experts else experts[0].fields
    is_swapped = False
    for each in list(forwards.values())[:1]:
        *ups, down = each.maps.values()
        activation, is_swapped = activation_of([one.made for one in ups], down.given)
        found.fields |= {"feed_forward_dim": down.weight.shape[1], "activation": activation}
    for name, part in parts.sublayers.items():
        maps = dict(part.maps)
        if isinstance(part, FeedForward) and is_swapped:
            maps |= {"gate": maps["up"], "up": maps["gate"]}
        for role, linear in maps.items() if not isinstance(part, Recurrence) else ():
            found.put(f"{name}.{role}", linear)
        if isinstance(part, Attention):
            found.used |= set(part.packed)
        if isinstance(part, Experts):
            for role, own in part.weights.items():
                found.parameters |= {f"{name}.experts.{i}.{role}.weight": each for i, each in enumerate(own)}
            found.used |= set(part.names)
    if parts.every(Attention):
        found.read_names("qkv_bias", "key_bias", "attention_gate", "output_bias")
    found.read_names("gated", "feed_forward_bias", *(["router_bias"] if experts else []))
    if experts and (forwards or any(each.fields != experts[0].fields for each in experts)):
        raise ForeignError(
            "The experts differ between layers, or some layers have none; expected equal experts in every layer."
        )


def _read_norms(found: FoundFields, subject: FittedModel, parts: Parts) -> None:
    first = next(iter(parts.streams.values()))
    named = {name: norm for stream in parts.streams.values() for name, norm in stream.norms.items()}
    named |= {} if parts.head.norm is None else {"head_norm": parts.head.norm}
    if not named:
        raise FitError("No norm was found between the sublayers; expected layer, RMS or batch norms.")
    kinds = {(norm.kind, norm.gain) for norm in named.values()}
    if len(kinds) > 1:
        raise FitError(
            f"The norms are of several kinds ({', '.join(sorted(map(' '.join, kinds)))}); expected a single kind."
        )
    final = f"{parts.last}.final_norm"
    kind, eps = kind_and_eps([norm for name, norm in named.items() if name != final] or list(named.values()))
    others = eps_besides(named, kind, eps)
    found.remarks += [f"{name} has eps {each:g}; the other norms have eps {eps:g}" for name, each in others.items()]
    ((_, gain),) = kinds
    found.fields |= {"norm": kind, "norm_gain": gain, "norm_eps": eps}
    found.fields |= {"norm_position": first.position, "branches": first.branches}
    for name, norm in named.items():
        found.parameters |= {f"{name}.{leaf}": subject.values[theirs] for leaf, theirs in norm.leaves.items()}
    found.read_names("norm_bias", "embedding_norm", "final_norm", "memory_norm")


def _read_embeddings(found: FoundFields, subject: FittedModel, parts: Parts) -> None:
    first, last = next(iter(parts.embeddings.values())), parts.embeddings[parts.last]
    for name, each in parts.embeddings.items():
        own = dict(each.parameters)
        found.fields["shared_embedding"] = last is not first and last.table == first.table
        if found.fields["shared_embedding"] and each is last:
            del own[TABLE]
        found.parameters |= {f"{name}.{leaf}": value for leaf, value in own.items()}
        found.fields |= each.fields
        found.used |= set(each.used)
        if "token_type_embedding.weight" in own:
            found.fields["num_token_types"] = len(own["token_type_embedding.weight"])
    if first.positions != last.positions and "none" not in (first.positions, last.positions):
        found.fields["encoder_positions"] = first.positions
    found.put_factor("embedding", last.scale, {"none": 1.0, "embed_dim": last.value.shape[1] ** 0.5})
    for name in subject.loose:
        field, what = ("max_length", "patches") if name == "pixels" else ("num_frames", "frames")
        found.untold[field] = f"the module takes any number of {what}"


def _read_head(found: FoundFields, parts: Parts) -> None:
    head, stream = parts.head, parts.streams[parts.last]
    scale = scale_of_logits(head.maps["head"].made, parts.heard.output) if head.kind == "logits" else Scale()
    bases = {"none": 1.0, "embed_dim": stream.output.shape[1] ** -0.5}
    found.put_factor("head", settled(stream.head_factor * scale.factor), bases)
    found.fields |= {"residual_multiplier": stream.multiplier, "final_softcap": scale.softcap}
    for name, linear in head.maps.items():
        found.put(name, linear)
        if name == "head" and linear.name == parts.embeddings[parts.last].table and not head.is_pooled:
            del found.parameters["head.weight"]  # a tied head
    if "head" in head.maps:
        found.read_names("tied_head", "head_bias")
    if "head_transform" in head.maps:
        found.read_names("head_transform", "head_transform_bias")


def _read_pooling(found: FoundFields, subject: FittedModel, parts: Parts, calls: Sequence[RecordedCall]) -> None:
    tokens = parts.heard.inputs.get("tokens")
    ends, pads = list[int](), [dict[str, int | None]()]
    if tokens is not None:
        by_tokens = found.fields["padding"] == "token"
        if by_tokens:  # only padding at the end shows that the last token before the padding is pooled
            padding = may_pad(found.fields[f"{'target' if parts.stacks[0] == 'decoder' else 'source'}_vocab_size"])
            rows = np.concatenate([np.tile(tokens[:1, :-1], (len(padding), 1)), padding[:, None]], axis=1)
            given = with_further(subject, {"tokens": rows}, {})
            calls = [*calls, RecordedCall(given, subject.call(given), (), {})]
        ends = np.unique(np.concatenate([call.inputs["tokens"].ravel() for call in calls])).tolist()
        if by_tokens:
            pads = [{"pad_id": each} for each in dict.fromkeys((found.fields.get("pad_id"), None, *ends))]
    found.choose(pooling_fields(ends, pads), lambda fields: found.computes(calls, **fields))
