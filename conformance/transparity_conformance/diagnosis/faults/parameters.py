"""Faults in carrying weights over: transposed, exchanged, left out, tied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.diagnosis.fault import Fault
from transparity_conformance.diagnosis.faults.sites import split, token_table
from transparity_conformance.oracle.oracle import Arrays

PARTS = {"query": "query", "key": "key", "value": "value", "output": "output", "hidden": "up"}
EXCHANGED = (("query", "key"), ("key", "value"), ("query", "value"), ("up", "down"))


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    for part in _parts(config, site):
        yield from _of_part(config, part)
    if site == "logits" and config.head == "logits" and not config.tied_head:
        yield from _head_faults(config)
    if _is_packed(config, site):
        description = "queries, keys and values are packed head by head, but read one after the other"
        yield Fault("packed-order", "head by head", description, alter=_packed_by_head)
        description = "queries, keys and values are packed one after the other, but read head by head"
        yield Fault("packed-order", "one behind the other", description, alter=_packed_in_turn)


def _of_part(config: TransformerConfig, part: str) -> Iterator[Fault]:
    """Faults with the weight and the bias of one linear map."""
    shapes, role = parameter_shapes(config), part.rpartition(".")[2]
    shape = shapes.get(f"{part}.weight")
    if shape is not None and shape[0] == shape[1]:
        yield Fault("weight-transpose", role, f"the {role} weight is transposed", alter=partial(_transposed, role))
    for pair in EXCHANGED:
        if shape is not None and role in pair:
            other = f"{part.rpartition('.')[0]}.{pair[role == pair[0]]}"
            if shapes.get(f"{other}.weight") == shape:
                description = f"the weights of {pair[0]} and {pair[1]} are exchanged"
                yield Fault("weight-swapped", " and ".join(pair), description, alter=partial(_exchanged, pair))
                if f"{other}.bias" in shapes:
                    description += ", their biases are not"
                    change = partial(_exchanged, pair, biases=False)
                    yield Fault("weight-swapped", f"{' and '.join(pair)} without biases", description, alter=change)
    if f"{part}.bias" in shapes:
        yield Fault("bias-dropped", role, f"the {role} bias is missing", alter=partial(_unbiased, role))


def _head_faults(config: TransformerConfig) -> Iterator[Fault]:
    stacks = ["decoder", "encoder"] if config.architecture == "encoder-decoder" else [scope_of_head(config)]
    shapes = parameter_shapes(config)
    for stack in stacks[:1] if config.shared_embedding else stacks:
        if shapes[token_table(config, stack)] == shapes["head.weight"]:
            description = f"the head's weight is tied to the {stack}'s token embedding"
            yield Fault("head-tied", stack, description, alter=partial(_tied, stack))
            if config.head_bias:
                description += ", and its bias is missing"
                yield Fault("head-tied", f"{stack} without bias", description, alter=partial(_tied, stack, bias=False))


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


def _parts(config: TransformerConfig, site: str) -> list[str]:
    """Every linear map whose parameters act at `site`."""
    part = _part(site)
    if part is None or (part == "head" and config.head == "hidden"):
        return []
    gates = [part.replace(".up", ".gate")] * (config.gated and part.endswith(".up"))
    return [part if part != "head" or config.head == "logits" else "pooler", *gates]


def _named(site: str, role: str) -> str:
    """The linear map of a role that acts at `site`."""
    part = _part(site)
    assert part is not None
    return f"{part.rpartition('.')[0]}.{role}".removeprefix(".")


def _transposed(role: str, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    name = f"{_named(site, role)}.weight"
    rows, columns = parameters[name].shape
    return {name: parameters[name].T} if rows == columns else {}


def _exchanged(
    pair: tuple[str, str], config: TransformerConfig, parameters: Arrays, site: str, *, biases: bool = True
) -> Arrays:
    part = _part(site)
    assert part is not None
    scope, role = part.rpartition(".")[::2]
    other = f"{scope}.{pair[role == pair[0]]}"
    if parameters[f"{other}.weight"].shape != parameters[f"{part}.weight"].shape:
        return {}  # in a model of another size it cannot be made
    kinds = ("weight", "bias") if biases else ("weight",)
    return {f"{part}.{kind}": parameters[f"{other}.{kind}"] for kind in kinds if f"{other}.{kind}" in parameters}


def _unbiased(role: str, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    name = f"{_named(site, role)}.bias"
    return {name: np.zeros_like(parameters[name])}


def _tied(stack: str, config: TransformerConfig, parameters: Arrays, site: str, *, bias: bool = True) -> Arrays:
    table = parameters[token_table(config, stack)]
    changed = {"head.weight": table} if table.shape == parameters["head.weight"].shape else {}
    return changed if bias else changed | {"head.bias": np.zeros_like(parameters["head.bias"])}


def _is_packed(config: TransformerConfig, site: str) -> bool:
    """Return whether the tap may come from packed queries, keys and values, as in checkpoints of BLOOM and GPT-NeoX."""
    _, sublayer, tap = split(site)
    whole = config.projection == "full" and config.key_value_heads == config.num_heads
    inside = config.architecture == "decoder" and config.positions in ("rotary", "alibi")
    return sublayer == "self_attention" and tap in ROLES and whole and inside


ROLES = ("query", "key", "value")


def _packed_by_head(config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    """Read rows that are packed as (heads, role, features) as (role, heads, features)."""
    return _repacked(config, parameters, site, lambda packed: packed.swapaxes(0, 1).reshape(packed.shape))


def _packed_in_turn(config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    """Read rows that are packed as (role, heads, features) as (heads, role, features)."""
    heads = config.num_heads
    return _repacked(
        config,
        parameters,
        site,
        lambda packed: packed.reshape(heads, len(ROLES), *packed.shape[2:]).swapaxes(0, 1),
    )


def _repacked(
    config: TransformerConfig, parameters: Arrays, site: str, read: Callable[[np.ndarray], np.ndarray]
) -> Arrays:
    """The weight and bias that are read for the role at `site`."""
    scope, role = site.rpartition(".")[::2]
    changed = {}
    for kind in ("weight", "bias"):
        if f"{site}.{kind}" in parameters:
            roles = [parameters[f"{scope}.{name}.{kind}"] for name in ROLES]
            packed = np.stack([each.reshape(config.num_heads, config.head_dim, *each.shape[1:]) for each in roles])
            changed[f"{site}.{kind}"] = read(packed)[ROLES.index(role)].reshape(parameters[f"{site}.{kind}"].shape)
    return changed
