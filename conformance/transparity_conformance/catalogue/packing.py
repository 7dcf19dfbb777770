"""Faults in the order of rows: packed queries, keys and values, and the rotated features of heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import Fault, fault
from transparity_conformance.catalogue.parameters import site_of
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.undetermined import split


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if config.positions == "rotary" and not config.kv_lora_rank and split(site)[2] in ("query", "key"):
        yield from _permuted_rows(config)
    if _is_packed(config, site):
        each = "head by head" if config.key_value_heads == config.num_heads else "group of heads by group"
        description = f"queries, keys and values are packed {each}, but read one after the other"
        yield fault("packed-order", "head by head", says=description, alter=_packed_by_head)
        description = f"queries, keys and values are packed one after the other, but read {each}"
        yield fault("packed-order", "one behind the other", says=description, alter=_packed_in_turn)
    if _is_packed(config, site) and config.key_value_heads == config.num_heads:
        for order in (("key", "value", "query"), ("value", "query", "key")):
            yield _cut_in_order(order)


def _permuted_rows(config: TransformerConfig) -> Iterator[Fault]:
    """Yield faults of weights whose rows have the order of the other rotary layout.

    Converters of Meta's checkpoints reorder rows in this way.
    """
    for layout in ("neighbours", "halves"):
        if config.rotated_dim > 2:  # With two features, both layouts are the same.
            says = f"the rows of each head's weights are permuted, as for a rotation of {layout}"
            yield fault("rotary-rows", layout, says=says, alter=partial(_with_rows, layout))


def _with_rows(layout: str, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    pairs = (2, -1) if layout == "neighbours" else (-1, 2)
    turned = np.arange(config.rotated_dim).reshape(pairs).T.ravel()
    order = [*turned, *range(config.rotated_dim, config.head_dim)]
    kinds = [kind for kind in ("weight", "bias") if f"{site}.{kind}" in parameters]
    changed = {}
    for kind in kinds:
        value = parameters[f"{site}.{kind}"]
        changed[f"{site}.{kind}"] = value.reshape(-1, config.head_dim, *value.shape[1:])[:, order].reshape(value.shape)
    return changed


def _is_packed(config: TransformerConfig, site: str) -> bool:
    """Return whether a tap may come from packed queries, keys and values.

    Checkpoints of GPT-2, BLOOM, GPT-NeoX, Falcon and InternLM pack them; any port may do so.
    """
    _, sublayer, tap = split(site)
    is_plain = config.projection == "full" and not config.kv_lora_rank
    return sublayer == "self_attention" and tap in ROLES and is_plain


ROLES = ("query", "key", "value")


def _cut_in_order(order: tuple[str, ...]) -> Fault:
    """Return the fault of reading rows, packed as query, key and value, in another order."""
    source = dict(zip(order, ROLES, strict=True))
    says = f"queries, keys and values are packed one after the other, but read in the order {', '.join(order)}"
    return fault(
        "packed-order",
        ", ".join(order),
        says=says,
        alter=partial(_from_role, source),
        taken_from=lambda site: site_of(source[site.rpartition(".")[2]], site),
        is_mutual=True,
    )


def _from_role(source: Mapping[str, str], config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    scope, role = site.rpartition(".")[::2]
    kinds = [kind for kind in ("weight", "bias") if any(f"{scope}.{name}.{kind}" in parameters for name in ROLES)]
    return {f"{site}.{kind}": _packed_part(parameters, f"{scope}.{source[role]}", kind) for kind in kinds}


def _packed_by_head(config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    """Read rows packed as (groups, heads and roles, features) as if they were (roles, heads, features)."""

    def read(roles: list[np.ndarray]) -> list[np.ndarray]:
        packed = np.concatenate([_by_group(config, each) for each in roles], axis=1)
        ends = np.cumsum([each.shape[0] * each.shape[1] for each in map(partial(_by_group, config), roles)])
        return np.split(packed.reshape(-1, *packed.shape[2:]), ends[:-1])

    return _repacked(config, parameters, site, read)


def _packed_in_turn(config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    """Read rows packed as (roles, heads, features) as if they were (groups, heads and roles, features)."""

    def read(roles: list[np.ndarray]) -> list[np.ndarray]:
        packed = _by_group(config, np.concatenate(roles))
        ends = np.cumsum([len(each) // config.key_value_heads for each in roles])
        return np.split(packed, ends[:-1], axis=1)

    return _repacked(config, parameters, site, read)


def _packed_part(parameters: Arrays, part: str, kind: str) -> np.ndarray:
    """Return a weight or bias; a missing key bias (Whisper) is zeros."""
    weight = parameters[f"{part}.weight"]
    return weight if kind == "weight" else parameters.get(f"{part}.bias", np.zeros(len(weight), weight.dtype))


def _by_group(config: TransformerConfig, heads: np.ndarray) -> np.ndarray:
    """Return the heads of queries, keys or values as (groups, heads of each group, features …)."""
    return heads.reshape(config.key_value_heads, -1, *heads.shape[1:])


def _repacked(
    config: TransformerConfig, parameters: Arrays, site: str, read: Callable[[list[np.ndarray]], list[np.ndarray]]
) -> Arrays:
    """Return the weight and bias of the query, key or value `site`, as `read` cuts them from packed rows."""
    scope, role = site.rpartition(".")[::2]
    changed = {}
    for kind in ("weight", "bias"):
        if any(f"{scope}.{name}.{kind}" in parameters for name in ROLES):
            roles = [_packed_part(parameters, f"{scope}.{name}", kind) for name in ROLES]
            heads = [each.reshape(-1, config.head_dim, *each.shape[1:]) for each in roles]
            changed[f"{site}.{kind}"] = read(heads)[ROLES.index(role)].reshape(roles[ROLES.index(role)].shape)
    return changed
