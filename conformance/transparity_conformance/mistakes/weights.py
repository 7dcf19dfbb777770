"""Mistakes in carrying weights over: transposed, exchanged, left out, tied."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.mistakes.places import split
from transparity_conformance.oracle import Arrays
from transparity_conformance.walk import Mistake

PARTS = {"query": "query", "key": "key", "value": "value", "output": "output", "hidden": "up"}
EXCHANGED = (("query", "key"), ("key", "value"), ("query", "value"), ("up", "down"))


def mistakes(config: TransformerConfig, site: str) -> Iterator[Mistake]:
    part = _part(site)
    if part is None:
        return
    scope, shapes = part, parameter_shapes(config)
    role = scope.rpartition(".")[2]
    rows, columns = shapes[f"{scope}.weight"]
    if rows == columns:
        says = f"the {role} weight is transposed"
        yield Mistake("weight-transpose", role, says, alter=_transposed)
    for pair in EXCHANGED:
        if role in pair:
            other = f"{scope.rpartition('.')[0]}.{pair[role == pair[0]]}"
            if shapes.get(f"{other}.weight") == (rows, columns):
                says = f"the weights of {pair[0]} and {pair[1]} are exchanged"
                yield Mistake("weight-swapped", " and ".join(pair), says, alter=partial(_exchanged, pair))
                if f"{other}.bias" in shapes:
                    says += ", their biases are not"
                    change = partial(_exchanged, pair, biases=False)
                    yield Mistake("weight-swapped", f"{' and '.join(pair)} without biases", says, alter=change)
    if f"{scope}.bias" in shapes:
        yield Mistake("bias-dropped", role, f"the {role} bias is missing", alter=_unbiased)
    if site == "logits":
        stacks = ["decoder", "encoder"] if config.architecture == "encoder-decoder" else [scope_of_head(config)]
        for stack in stacks:
            if shapes[f"{stack}.token_embedding.weight"] == (rows, columns):
                says = f"the head's weight is tied to the {stack}'s token embedding"
                yield Mistake("head-tied", stack, says, alter=partial(_tied, stack))
                says += ", and its bias is missing"
                yield Mistake("head-tied", f"{stack} without bias", says, alter=partial(_tied, stack, bias=False))


def scope_of_head(config: TransformerConfig) -> str:
    return "decoder" if config.has_decoder else "encoder"


def _part(site: str) -> str | None:
    """The linear map whose result is tapped as `site`."""
    if site == "logits":
        return "head"
    scope, sublayer, tap = split(site)
    if sublayer == "feed_forward" and tap in ("hidden", "output"):
        return f"{scope}.feed_forward.{'up' if tap == 'hidden' else 'down'}"
    return f"{scope}.{sublayer}.{tap}" if sublayer.endswith("attention") and tap in PARTS else None


def _named(site: str) -> str:
    part = _part(site)
    assert part is not None
    return part


def _transposed(config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    name = f"{_named(site)}.weight"
    rows, columns = parameters[name].shape
    return {name: parameters[name].T} if rows == columns else {}


def _exchanged(
    pair: tuple[str, str], config: TransformerConfig, parameters: Arrays, site: str, *, biases: bool = True
) -> Arrays:
    part = _named(site)
    scope, role = part.rpartition(".")[::2]
    other = f"{scope}.{pair[role == pair[0]]}"
    if parameters[f"{other}.weight"].shape != parameters[f"{part}.weight"].shape:
        return {}  # in a model of another size it cannot be made
    kinds = ("weight", "bias") if biases else ("weight",)
    return {f"{part}.{kind}": parameters[f"{other}.{kind}"] for kind in kinds if f"{other}.{kind}" in parameters}


def _unbiased(config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    name = f"{_named(site)}.bias"
    return {name: np.zeros_like(parameters[name])}


def _tied(stack: str, config: TransformerConfig, parameters: Arrays, site: str, *, bias: bool = True) -> Arrays:
    table = parameters[f"{stack}.token_embedding.weight"]
    changed = {"head.weight": table} if table.shape == parameters["head.weight"].shape else {}
    return changed if bias else changed | {"head.bias": np.zeros_like(parameters["head.bias"])}
