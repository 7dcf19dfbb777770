"""Split a recorded call of a module into stacks, sublayers, norms and the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.identify.fitting.mixers import Recurrence
from transparity_conformance.identify.fitting.stream import End, Stream, Walk
from transparity_conformance.identify.fitting.structure import (
    Attention,
    FeedForward,
    Mixer,
    Sublayer,
    softmaxes,
    sublayers,
)
from transparity_conformance.identify.fitting.subject import FitError, FittedModel, RecordedCall
from transparity_conformance.identify.fitting.values.convolutions import convolutions_in, grouped
from transparity_conformance.identify.fitting.values.embedding import Embedding, embedding
from transparity_conformance.identify.fitting.values.experts import Experts, experts_in
from transparity_conformance.identify.fitting.values.head import Head, activation_between, choices, of_logits
from transparity_conformance.identify.fitting.values.linears import Linear, linears
from transparity_conformance.identify.fitting.values.norms import Norms
from transparity_conformance.identify.fitting.values.numbers import is_same
from transparity_conformance.identify.fitting.values.signals import frame_embedding, image_embedding


@dataclass(frozen=True, eq=False)
class Stack:
    """An encoder or a decoder: the embedding, the sublayers by the reference's names, and the norms."""

    name: str
    embedding: Embedding
    sublayers: Sequence[tuple[str, Sublayer]]
    stream: Stream

    @property
    def layers(self) -> int:
        return len({name.rpartition(".")[0] for name, _ in self.sublayers})

    @property
    def recurrences(self) -> list[tuple[str, Recurrence]]:
        named = ((f"{name.rpartition('.')[0]}.recurrence", each) for name, each in self.sublayers)
        return [(name, each) for name, each in named if isinstance(each, Recurrence)]

    @property
    def mixers(self) -> list[Mixer]:
        return [each for name, each in self.sublayers if name.endswith("self_attention") and isinstance(each, Mixer)]

    def attentions(self) -> list[Attention]:
        return [each for each in self.mixers if isinstance(each, Attention)]


@dataclass(frozen=True, eq=False)
class Parts:
    heard: RecordedCall
    stacks: dict[str, Stack]
    head: Head

    @property
    def last(self) -> Stack:
        return list(self.stacks.values())[-1]


def parts_of(subject: FittedModel, heard: RecordedCall, causal: bool, *, keys_first: bool = False) -> Parts:
    """Split a call into parts; raise a `FitError` that names the first part that the reference lacks. `causal` matters
    only for a single stack. With `keys_first`, the module computes keys before queries."""
    values, tokens, lengths = subject.values, subject.inputs, list(heard.lengths.values())
    embeddings = {name: _embedding(subject, heard, name) for name in tokens}
    width = embeddings[tokens[0]].value.shape[1]
    front = {name for each in embeddings.values() for name in each.used}
    maps = [one for one in linears(heard.operations, values, heard.batch) if one.name not in front]
    weights = softmaxes(heard)
    experts = experts_in(maps, heard.operations, values)
    maps = [one for one in maps if not any(one.name in each.names for each in experts)]
    used = front.union(*(each.names for each in experts), (one.name.partition("[")[0] for one in maps))
    kernels = {name: value for name, value in values.items() if name not in used} if causal else {}
    over_time = grouped(convolutions_in(heard.operations, kernels, heard.batch, lengths[-1]), maps)
    found, rest = sublayers(maps, weights, width, keys_first=keys_first, recurrences=over_time, experts=experts)
    biases = {one.bias_name.partition("[")[0] for one in maps if one.bias_name is not None}
    vectors = {name: value for name, value in values.items() if value.shape == (width,) and name not in biases}
    head = _head(rest, heard.output, width, Norms(vectors, are_biasless=True))
    vectors = {name: value for name, value in vectors.items() if head.norm is None or name not in head.norm.names}
    names = ("encoder", "decoder") if len(tokens) == 2 else ("decoder" if causal else "encoder",)
    split = _split(found, lengths)
    named = {name: _named(name, subs) for name, subs in zip(names, split, strict=True)}
    end = End(head.given(heard.output, width))
    if head.is_pooled and len(end.value) == heard.batch:
        lone = heard.inputs["tokens"] if tokens == ("tokens",) else None
        end = End(end.value, tuple(choices(lone, heard.batch, lengths[-1])))
    embedded = [embeddings[token].value for token in tokens]
    try:
        streams = _streams(embedded, named, end, heard, Norms(vectors))
    except FitError:
        streams = _streams(embedded, named, end, heard, Norms(vectors, are_biasless=True))
    stacks = {
        name: Stack(name, embeddings[token], named[name], streams[name])
        for name, token in zip(names, tokens, strict=True)
    }
    return Parts(heard, stacks, head)


def tensor_of(sublayer: Sublayer) -> str:
    if isinstance(sublayer, Attention):
        return sublayer.query.name
    if isinstance(sublayer, Experts):
        return next(iter(sublayer.names))
    return sublayer.ups[0].name if isinstance(sublayer, FeedForward) else sublayer.output.name


def _streams(
    embedded: Sequence[np.ndarray],
    named: dict[str, list[tuple[str, Sublayer]]],
    end: End,
    heard: RecordedCall,
    norms: Norms,
) -> dict[str, Stream]:
    *memories, last = named
    options: list[Stream | None] = [None]
    for name in memories:
        options = list(Walk(embedded[0], named[name], None, heard.operations).streams(norms))
    reached = 0
    for first in options:
        used = {each for norm in first.norms.values() for each in norm.names} if first else set()
        memory = None if first is None else first.output
        walk = Walk(embedded[-1], named[last], end, heard.operations, memory)
        for second in walk.streams(norms.having(used)):
            if first is None:
                return {last: second}
            if all(
                getattr(first, each) == getattr(second, each) for each in ("position", "embedding_norm", "final_norm")
            ):
                return {memories[0]: first, last: second}
        reached = max(reached, walk.reached)
    name, sublayer = named[last][reached] if named[last] else (last, None)
    at = f" at {name} ({tensor_of(sublayer)})" if sublayer is not None else ""
    raise FitError(
        f"The residuals and norms of the {last} were not recognized{at}; expected layer, RMS or batch norms before, "
        "after or around each sublayer."
    )


def _embedding(subject: FittedModel, heard: RecordedCall, name: str) -> Embedding:
    if name == "pixels":
        return image_embedding(heard, subject.values)
    if name in subject.positions:
        return frame_embedding(heard, subject.values)
    types = heard.inputs.get("token_types") if name != "target" else None
    return embedding(heard.operations, heard.inputs[name], types, subject.values)


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


def _named(stack: str, found: Sequence[Sublayer]) -> list[tuple[str, Sublayer]]:
    """Return the sublayers by name. Raise `FitError` unless each layer or no layer ends with a feed-forward."""
    named: list[tuple[str, Sublayer]] = []
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
        named.append((f"{stack}.layers.{layer}.{kind}", each))
        position = kinds.index(kind) + 1
        if kind == "feed_forward":
            layer, position = layer + 1, 0
    if (position and not has_none) or not found:
        raise FitError(f"Layer {layer} of the {stack} does not end with a feed-forward of two or three linear maps.")
    return named


def _head(rest: Sequence[Linear], output: np.ndarray, embed_dim: int, norms: Norms) -> Head:
    last = rest[-1] if rest else None
    if output.ndim == 2:
        return _pooled_head(rest, output, embed_dim)
    if last is None:
        return Head("hidden")
    if output.size == last.made.size:
        return of_logits(rest, norms)
    if output.ndim == 3 and output.shape[-1] == last.given.shape[-1]:  # the linear map is an unused pooler
        return Head("hidden")
    raise FitError(
        f"The output has the shape {output.shape}, but the last linear map returns {last.made.shape}; expected logits, "
        "hidden states, classes or a pooled state."
    )


def _pooled_head(rest: Sequence[Linear], output: np.ndarray, embed_dim: int) -> Head:
    """Return the head of a model with one vector per row: a pooled state or classes."""
    for one in reversed(rest):
        activation = activation_between(one, output)
        if activation is not None:
            return Head("pooled", pooler=one, activation=activation)
        is_of_rows = one.made.shape[1] == output.shape[1] and len(one.made) % len(output) == 0
        own = zip(np.split(one.made, len(output)), output, strict=True) if is_of_rows else ()
        # The map's result may have one vector per row, or several positions, of which one is the output.
        if is_same(one.made, output) or (
            is_of_rows and all(any(is_same(row, wanted) for row in rows) for rows, wanted in own)
        ):
            before = rest[: rest.index(one)]
            activation = activation_between(before[-1], one.given) if before else None
            pooler = None if activation is None else before[-1]
            return Head("classes", one, pooler, activation or "none")
    if output.shape[1] == embed_dim:
        return Head("pooled")
    raise FitError(f"No linear map after the last layer returns the output, which has the shape {output.shape}.")
