"""Faults of loaders: transposed, swapped, omitted or tied weights, and rows of weights in a wrong order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.catalogue.fault import Fault, confused, fault
from transparity_conformance.catalogue.sites import token_table
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.undetermined import own_config, split

PARTS = {"query": "query", "key": "key", "value": "value", "output": "output", "hidden": "up"}
EXCHANGED = (
    ("query", "key"),
    ("key", "value"),
    ("query", "value"),
    ("value", "output"),
    ("up", "down"),
    ("decay", "beta"),
)


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    for part in parts_at(config, site):
        yield from _of_part(config, part)
    yield from _shared_layers(config, site)
    if site == "logits" and config.head == "logits" and not config.tied_head:
        yield from _head_faults(config)


def _of_part(config: TransformerConfig, part: str) -> Iterator[Fault]:
    shapes, role = parameter_shapes(config), part.rpartition(".")[2]
    shape = shapes.get(f"{part}.weight")
    if shape is not None and shape[0] == shape[1]:
        yield fault("weight-transpose", role, says=f"the {role} weight is transposed", alter=partial(_transposed, role))
    for pair in EXCHANGED:
        if shape is not None and role in pair:
            other = f"{part.rpartition('.')[0]}.{pair[role == pair[0]]}"
            if shapes.get(f"{other}.weight") == shape:
                yield from _taken(role, pair, "weight", "bias")
                if f"{other}.bias" in shapes:
                    yield from _taken(role, pair, "weight")
                    yield from _taken(role, pair, "bias")
    if f"{part}.bias" in shapes:
        yield fault("bias-dropped", role, says=f"the {role} bias is missing", alter=partial(_biased, role, 0))
        yield fault("bias-doubled", role, says=f"the {role} bias is added twice", alter=partial(_biased, role, 2))


FED = {
    "hidden": "up",
    "output": "down",
    "router_logits": "router",
    "shared_expert.hidden": "shared_expert.up",
    "shared_expert.output": "shared_expert.down",
}
"""For each tap of a feed-forward, the linear map that computes the tap, possibly followed by an activation function."""

OF_RECURRENCE = {f"{role}_convolved": role for role in ("query", "key", "value")}
"""The linear map before each convolution of a recurrence."""
OF_RECURRENCE |= {"log_decay": "decay", "time_step": "decay", "beta": "beta", "gated_context": "gate"}
OF_RECURRENCE["output"] = "output"

BESIDE_MAPS: dict[str, tuple[str, ...]] = {
    "self_attention.query_latent": ("query_latent_norm.",),
    "self_attention.key_value_latent": ("key_value_latent_norm.",),
    "self_attention.key": ("key_rotary.",),
    "self_attention.weights": ("sinks",),
    "feed_forward.router_chosen": ("router_score_bias",),
    "feed_forward.output": ("experts.", "shared_expert_gate."),
    "recurrence.time_step": ("dt_bias",),
    "recurrence.log_decay": ("dt_bias", "A_log"),
    "recurrence.context": ("D",),
    "recurrence.gated_context": ("gated_norm.",),
}
"""For each tap, the prefixes of parameters that change the tap, besides the parameters of the tap's linear map."""

TAPS = {role: tap for tap, role in PARTS.items()} | {"down": "output"}


def _taken(role: str, pair: tuple[str, str], *kinds: str) -> Iterator[Fault]:
    other, (which, swapped, used) = pair[role == pair[0]], TAKEN[kinds]
    change = {"alter": partial(_exchanged, pair, kinds), "taken_from": partial(site_of, other)}
    yield from confused("weight", role, pair, swapped.format(*pair), used.format(other, role), which, **change)


TAKEN = {
    ("weight", "bias"): ("", "the weights of {} and {} are swapped", "the weight of {} is also used for {}"),
    ("weight",): (
        " without biases",
        "the weights of {} and {} are swapped, their biases are not",
        "the weight of {} is also used for {}, with its own bias",
    ),
    ("bias",): (
        " without weights",
        "the biases of {} and {} are swapped, their weights are not",
        "the bias of {} is also used for {}, with its own weight",
    ),
}
"""For each choice of parameter kinds: the end of the variants, and descriptions of two faults (swapped, and used
twice)."""


def site_of(role: str, site: str) -> str:
    if split(site)[1] == "recurrence":
        return f"{site.rpartition('.')[0]}.{next(tap for tap, part in OF_RECURRENCE.items() if part == role)}"
    return f"{site.rpartition('.')[0]}.{TAPS[role]}"


def _head_faults(config: TransformerConfig) -> Iterator[Fault]:
    stacks, shapes = config.stacks[::-1], parameter_shapes(config)
    for stack in stacks[:1] if config.shared_embedding else stacks:
        if shapes[token_table(config, stack)] == shapes["head.weight"]:
            tied = partial(fault, "head-tied", words={"stack": stack})
            yield tied("{stack}", alter=partial(_tied, stack))
            if config.head_bias:
                yield tied("{stack} without bias", alter=partial(_tied, stack, bias=False))


def _part(site: str) -> str:
    if site == "logits":
        return "head"
    if site.endswith("_convolution"):
        return site
    scope, sublayer, tap = split(site)
    if sublayer == "feed_forward" and (role := FED.get(site.partition(".feed_forward.")[2])):
        return f"{scope}.feed_forward.{role}"
    if sublayer == "recurrence" and tap in OF_RECURRENCE:
        return f"{scope}.recurrence.{OF_RECURRENCE[tap]}"
    if sublayer.endswith("attention") and tap == "gated_context":
        return f"{scope}.{sublayer}.gate"
    return f"{scope}.{sublayer}.{tap}" if sublayer.endswith("attention") and tap in PARTS else ""


def parts_at(config: TransformerConfig, site: str) -> list[str]:
    """Return all linear maps between the previous taps and `site`."""
    part = _part(site)
    if not part:
        return []
    if site.endswith("recurrence.log_decay") and own_config(config, site).mixer == "state-space":
        return []  # In a state-space model, the faults of these maps already act at the time step.
    if site.endswith("_convolved"):
        return [part, f"{part}_convolution"]
    gates = [part.replace(".up", ".gate")] * (config.gated and part.endswith(".up"))
    if part == "head":
        return ["pooler"] * config.has_pooler + ["head"] * (config.head in ("logits", "classes"))
    return [part, *gates]


def _named(site: str, role: str) -> str:
    return f"{_part(site).rpartition('.')[0]}.{role}".removeprefix(".")


def _transposed(role: str, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    name = f"{_named(site, role)}.weight"
    rows, columns = parameters[name].shape
    return {name: parameters[name].T} if rows == columns else {}


def _exchanged(
    pair: tuple[str, str], kinds: Sequence[str], config: TransformerConfig, parameters: Arrays, site: str
) -> Arrays:
    part = _part(site)
    scope, role = part.rpartition(".")[::2]
    other = f"{scope}.{pair[role == pair[0]]}"
    if parameters[f"{other}.weight"].shape != parameters[f"{part}.weight"].shape:
        return {}  # The maps can be confused only if their weights have the same shape.
    ends = [f"{of}.{kind}" for of in ("", "_convolution") for kind in kinds]
    return {f"{part}{end}": parameters[f"{other}{end}"] for end in ends if f"{other}{end}" in parameters}


def _biased(role: str, times: int, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    name = f"{_named(site, role)}.bias"
    return {name: times * parameters[name]}


def _tied(stack: str, config: TransformerConfig, parameters: Arrays, site: str, *, bias: bool = True) -> Arrays:
    table = parameters[token_table(config, stack)]
    changed = {"head.weight": table} if table.shape == parameters["head.weight"].shape else {}
    return changed if bias else changed | {"head.bias": np.zeros_like(parameters["head.bias"])}


def _shared_layers(config: TransformerConfig, site: str) -> Iterator[Fault]:
    parts = site.split(".")
    if len(parts) < 4:
        return
    last = config.stack_num_layers(parts[0]) - 1
    for name, layer in {"first": 0, "last": last}.items():
        if int(parts[2]) != layer and (name == "first" or last > 1 or layer != 0):
            yield fault("layer-shared", "{name}", words={"name": name}, alter=partial(of_layer, layer))


def of_layer(layer: int, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    parts = site.split(".")
    stack, rest = parts[0], [".".join(part.split(".")[3:]) for part in parts_at(config, site)] or [".".join(parts[3:])]
    own, other = ".".join(parts[:3]), f"{stack}.layers.{layer}"
    beside = tuple(f"{parts[3]}.{start}" for start in _beside_maps(config, site))
    found = {}
    for name in parameters:
        end = name.removeprefix(f"{own}.")
        is_here = end != name and (end.rpartition(".")[0] in rest or end.startswith(beside))
        if is_here and f"{other}.{end}" in parameters:
            found[name] = parameters[f"{other}.{end}"]
    return found


def _beside_maps(config: TransformerConfig, site: str) -> tuple[str, ...]:
    starts = BESIDE_MAPS.get(".".join(site.split(".")[3:]), ())
    if site.endswith("recurrence.log_decay") and own_config(config, site).mixer == "state-space":
        return starts[1:]  # the time step uses `dt_bias`
    return starts


def packing_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    # Meta's checkpoints order the rows for another rotary layout. With two features, both layouts are equal.
    is_rotary = own_config(config, site).positions == "rotary" and not config.kv_lora_rank and config.rotated_dim > 2
    if is_rotary and split(site)[2] in ("query", "key"):
        yield from (fault("rotary-rows", each, alter=partial(_with_rows, each)) for each in ("neighbours", "halves"))
    _, sublayer, tap = split(site)
    if sublayer != "self_attention":
        return
    if tap in (pair := _pair(config)):
        words, maps = {"roles": " and ".join(pair.values())}, [*pair.values()]
        yield fault("packed-order", "pairs", words=words, alter=partial(_packed, maps, _by_head))
        if config.kv_lora_rank:
            yield fault("packed-order", "values first", alter=partial(_packed, maps, _second_first))
    if tap in PACKED and config.projection == "full" and not config.kv_lora_rank:  # packed into one matrix, as in GPT-2
        each = "head by head" if config.key_value_heads == config.num_heads else "group of heads by group"
        packed = partial(fault, "packed-order", words={"each": each})
        yield packed("head by head", alter=partial(_packed, PACKED, _by_group))
        yield packed("one behind the other", alter=partial(_packed, PACKED, _blocks))
        if config.key_value_heads == config.num_heads:
            for order in (("key", "value", "query"), ("value", "query", "key")):
                yield _cut_in_order(order)


Rows = Callable[..., np.ndarray]
"""(configuration, rows of each linear map in a packed matrix) → the rows in the order that a port reads."""


def repacked(maps: Sequence[str], order: Rows, config: TransformerConfig, parameters: Arrays) -> Arrays:
    """Return the parameters of the linear maps `maps`, if a port reads the rows of their packed matrix in another
    `order`."""
    ends = np.cumsum([len(parameters[f"{name}.weight"]) for name in maps])
    rows = order(config, *np.split(np.arange(ends[-1]), ends[:-1]))
    changed: Arrays = {}
    for kind in ("weight", "bias"):
        if any(f"{name}.{kind}" in parameters for name in maps):
            read = np.concatenate([_packed_part(parameters, name, kind) for name in maps])[rows]
            changed |= {f"{name}.{kind}": part for name, part in zip(maps, np.split(read, ends[:-1]), strict=True)}
    return changed


def _packed_part(parameters: Arrays, part: str, kind: str) -> np.ndarray:
    weight = parameters[f"{part}.weight"]
    return weight if kind == "weight" else parameters.get(f"{part}.bias", np.zeros(len(weight), weight.dtype))


def in_groups(count: int, *rows: np.ndarray) -> np.ndarray:
    """Interleave the rows of several maps: cut each map into `count` parts, and join the nth parts of all maps.
    `np.argsort` of the result inverts the order."""
    return np.concatenate([each.reshape(count, -1) for each in rows], axis=1).ravel()


_by_head: Rows = lambda config, *rows: in_groups(config.num_heads, *rows)
_by_group: Rows = lambda config, *rows: in_groups(config.key_value_heads, *rows)
_blocks: Rows = lambda config, *rows: np.argsort(_by_group(config, *rows))


def _second_first(config: TransformerConfig, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the rows in the order of a port that expects the rows of the second map first in each head."""
    heads = in_groups(config.num_heads, first, second).reshape(config.num_heads, -1)
    width = len(second) // config.num_heads
    return np.concatenate([heads[:, width:].ravel(), heads[:, :width].ravel()])


def _with_rows(layout: str, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    pairs = (2, -1) if layout == "neighbours" else (-1, 2)
    turned = np.arange(config.rotated_dim).reshape(pairs).T.ravel()
    order = [*turned, *range(config.rotated_dim, config.head_dim)]
    return repacked([site], lambda _, rows: rows.reshape(-1, config.head_dim)[:, order].ravel(), config, parameters)


def _packed(maps: Sequence[str], order: Rows, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    own, scope = _part(site), site.rpartition(".")[0]
    changed = repacked([f"{scope}.{name}" for name in maps], order, config, parameters)
    return {name: value for name, value in changed.items() if name.rpartition(".")[0] == own}


PACKED = ("query", "key", "value")


def _pair(config: TransformerConfig) -> dict[str, str]:
    """Return {tap: linear map} for the two linear maps that files pack head by head; {} for most models."""
    if config.kv_lora_rank:
        return {"key": "key", "value": "value"}
    return {"query": "query", "gated_context": "gate"} if config.attention_gate else {}


def _cut_in_order(order: tuple[str, ...]) -> Fault:
    source = dict(zip(order, PACKED, strict=True))
    rows_of: Rows = lambda config, *rows: np.concatenate([rows[PACKED.index(source[role])] for role in PACKED])
    return fault(
        "packed-order",
        "{order}",
        words={"order": ", ".join(order)},
        alter=partial(_packed, PACKED, rows_of),
        taken_from=lambda site: site_of(source[site.rpartition(".")[2]], site),
        is_mutual=True,
    )
