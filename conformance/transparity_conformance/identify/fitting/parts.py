"""Split a recorded call of a module into stacks, sublayers, norms and the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from transparity_conformance.identify.fitting.mixers import Recurrence
from transparity_conformance.identify.fitting.stream import End, Stream, streams_of
from transparity_conformance.identify.fitting.structure import Attention, FeedForward, softmaxes, sublayers
from transparity_conformance.identify.fitting.subject import FitError, FittedModel, RecordedCall
from transparity_conformance.identify.fitting.values.convolutions import convolutions_in, grouped
from transparity_conformance.identify.fitting.values.embedding import Embedding, embedding
from transparity_conformance.identify.fitting.values.experts import Experts, experts_in
from transparity_conformance.identify.fitting.values.head import Head, head_of, pooling_fields
from transparity_conformance.identify.fitting.values.linears import Sublayer, linears
from transparity_conformance.identify.fitting.values.norms import Norms
from transparity_conformance.identify.fitting.values.signals import frame_embedding, image_embedding

Kind = TypeVar("Kind", bound=Sublayer)


@dataclass(frozen=True, eq=False)
class Parts:
    """The embedding and the residual stream of each stack, the sublayers by the reference's names, and the head."""

    heard: RecordedCall
    embeddings: Mapping[str, Embedding]
    sublayers: Mapping[str, Sublayer]
    streams: Mapping[str, Stream]
    head: Head

    @property
    def stacks(self) -> list[str]:
        return list(self.embeddings)

    @property
    def last(self) -> str:
        return self.stacks[-1]

    def every(self, kind: type[Kind], where: str = "") -> dict[str, Kind]:
        return {name: each for name, each in self.sublayers.items() if isinstance(each, kind) and where in name}


def parts_of(subject: FittedModel, heard: RecordedCall, causal: bool, *, keys_first: bool = False) -> Parts:
    """Split a call into parts; raise a `FitError` that names the first part that the reference lacks. `causal` matters
    only for a single stack. With `keys_first`, the module computes keys before queries."""
    values, lengths = subject.values, list(heard.lengths.values())
    names = ("encoder", "decoder") if len(lengths) == 2 else ("decoder" if causal else "encoder",)
    embeddings = {name: _embedding(subject, heard, token) for name, token in zip(names, subject.inputs, strict=True)}
    width = next(iter(embeddings.values())).value.shape[1]
    front = {name for each in embeddings.values() for name in each.used}
    maps = [one for one in linears(heard.operations, values, heard.batch) if one.name not in front]
    experts = experts_in(maps, heard.operations, values)
    of_experts = {name for each in experts for name in each.names}
    maps = [one for one in maps if one.name not in of_experts]
    used = front | of_experts | {one.name.partition("[")[0] for one in maps}
    kernels = {name: value for name, value in values.items() if name not in used} if causal else {}
    over_time = grouped(convolutions_in(heard.operations, kernels, heard.batch, lengths[-1]), maps)
    found, rest = sublayers(maps, [*softmaxes(heard), *over_time], width, experts, keys_first=keys_first)
    biases = {one.bias_name.partition("[")[0] for one in maps if one.bias_name is not None}
    vectors = {name: value for name, value in values.items() if value.shape == (width,) and name not in biases}
    head = head_of(rest, heard.output, width, Norms(vectors, are_biasless=True))
    vectors = {name: value for name, value in vectors.items() if head.norm is None or name not in head.norm.names}
    split = _split(found, lengths)
    named = {name: _named(name, own) for name, own in zip(names, split, strict=True)}
    end = End(head.given(heard.output, width), heard.inputs)
    if head.is_pooled and len(end.value) == heard.batch:
        tokens = np.unique(heard.inputs["tokens"]).tolist() if subject.inputs == ("tokens",) else []
        end = End(
            end.value, heard.inputs, tuple(pooling_fields(tokens, [{}, *({"pad_id": token} for token in tokens)]))
        )
    stacks = {name: (embeddings[name].value, named[name]) for name in names}
    try:
        streams = streams_of(stacks, end, heard.operations, Norms(vectors))
    except FitError:
        streams = streams_of(stacks, end, heard.operations, Norms(vectors, are_biasless=True))
    return Parts(heard, embeddings, {name: each for own in named.values() for name, each in own.items()}, streams, head)


def _embedding(subject: FittedModel, heard: RecordedCall, name: str) -> Embedding:
    if name == "pixels":
        return image_embedding(heard, subject.values)
    if name in subject.positions:
        return frame_embedding(heard, subject.values)
    types = heard.inputs.get("token_types") if name != "target" else None
    return embedding(heard, heard.inputs[name], types, subject.values)


def _split(found: Sequence[Sublayer], lengths: Sequence[int]) -> list[list[Sublayer]]:
    if len(lengths) == 1:
        return [list(found)]
    split: list[list[Sublayer]] = [[], []]
    of = 0
    for each in found:
        if isinstance(each, Attention):
            of = int(each.softmax.weights.shape[2] != lengths[0])
        split[of].append(each)
    return split


def _named(stack: str, found: Sequence[Sublayer]) -> dict[str, Sublayer]:
    """Return the sublayers by name. Raise `FitError` unless each layer or no layer ends with a feed-forward."""
    named: dict[str, Sublayer] = {}
    layer, position, kinds = 0, 0, ["self_attention", "cross_attention", "feed_forward"]
    has_none = not any(isinstance(each, FeedForward | Experts) for each in found)
    for each in found:
        if has_none and position:
            layer, position = layer + 1, 0
        kind = "feed_forward"
        if isinstance(each, Recurrence):
            kind = "self_attention"
        elif isinstance(each, Attention):
            _, _, queries, keys = each.softmax.weights.shape
            kind = "self_attention" if queries == keys and position == 0 else "cross_attention"
        named[f"{stack}.layers.{layer}.{kind}"] = each
        position = kinds.index(kind) + 1
        if kind == "feed_forward":
            layer, position = layer + 1, 0
    if (position and not has_none) or not found:
        raise FitError(f"Layer {layer} of the {stack} does not end with a feed-forward of two or three linear maps.")
    return named
