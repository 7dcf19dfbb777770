"""A fault: a way to be wrong that can be put into the reference, and the taps at which it is made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.oracle.budgets import RULES, epsilon
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.report.describing.causes import meanings


@dataclass
class WalkState:
    """One forward pass as a fault sees it."""

    config: TransformerConfig
    parameters: Arrays
    inputs: Arrays
    taps: MutableMapping[str, Any] = field(default_factory=dict)
    """The activations so far."""


Alter = Callable[[TransformerConfig, Arrays, str], Arrays]
"""From the configuration, the right parameters and a site to the parameters that are wrong."""

Patch = Callable[[WalkState, str, Any], Any]
"""From the state, a site and the right value there to the wrong value."""

Settings = Mapping[str, Any]
"""The parts of a formula in which a fault differs, by name."""

Formula = Callable[[Settings, WalkState, str, Any], Any]
"""From settings, the state, a site and the right value there to the value that the formula has with these settings."""


@dataclass(frozen=True)
class Fault:
    """An entry of the catalogue; a change that is None is not made."""

    id: str
    """Its name in reports."""
    variant: str
    """One of the ways to make it."""
    description: str
    """The wrong behaviour of the port, in words."""
    fields: Mapping[str, Any] | None = None
    """Changed fields of the configuration."""
    alter: Alter | None = None
    """Changes the parameters of a site."""
    patch: Patch | None = None
    """Changes the value at a site."""
    formula: Formula | None = None
    """Changes the value at a site to that of a formula with other `settings`. At one site faults of one formula act
    together, with the settings of each."""
    settings: Settings = field(default_factory=dict)
    also_patched: tuple[str, ...] = ()
    """Further taps of the site's sublayer that `patch` or `formula` changes."""
    downstream: Patch | None = None
    """Changes the value that flows on behind a site, but not the value shown at the site."""
    value: float | None = None
    """The number in it, if it has one."""
    equivalents: tuple[str, ...] = ()
    """Ids of other faults that make exactly the same numbers, whatever the weights and inputs."""
    taken_from: Callable[[str], str] | None = None
    """From a site to the site whose parameters are used there."""
    exchange: Fault | None = None
    """The fault that it is one side of, if the parameters of the site are used at the other in turn."""
    of_ranks: bool = False
    """Whether it is made on several ranks alone, by the way in which a model is sharded."""
    reshapes: str = ""
    """A tap in front of a site to which it gives another shape, with which nothing can be compared."""
    is_mutual: bool = False
    """Whether it is made at a site only if it is also made where that site's parameters are taken from."""

    def patched(self, state: WalkState, site: str, value: Any) -> Any:
        """The value at a site with this fault alone."""
        if self.formula is not None:
            value = self.formula(self.settings, state, site, value)
        return self.patch(state, site, value) if self.patch else value

    def is_complete(self, site: str, sites: Collection[str]) -> bool:
        """Return whether the other side of a mutual fault at `site` is among `sites`."""
        return not (self.is_mutual and self.taken_from) or self.taken_from(site) in sites


@dataclass(frozen=True)
class NumericFault:
    """Faults that differ by a number, which is fitted."""

    is_site: Callable[[str], bool]
    """Whether it can be made at a tap."""
    grid: Sequence[float]
    """Positive numbers, in order, to begin with."""
    make: Callable[[float], Fault]


PARTS = frozenset(Fault.__dataclass_fields__) - {"id", "variant", "description", "settings"}
"""The parts that a fault may have besides its name and its sentence; `settings` are all others."""


def fault(
    identity: str, variant: str, *, says: str = "", words: Mapping[str, Any] | None = None, **change: Any
) -> Fault:
    """Make a fault.

    Args:
        identity: its id.
        variant: its variant, in which `words` may stand.
        says: its description; by default the sentence of causes.toml for the id and the variant.
        words: the words in the variant and the sentence, by name.
        change: what it changes: parts of a fault by their names there, all others are settings of the formula.
    """
    known, parts = words or {}, {name: part for name, part in change.items() if name in PARTS}
    settings = {name: part for name, part in change.items() if name not in PARTS}
    says = (says or meanings()[identity].says[variant]).format(**known)
    return Fault(identity, variant.format(**known), says, settings=settings, **parts)


@dataclass(frozen=True)
class FaultRow:
    """A fault in a table, before it is known for which configuration it is made."""

    id: str
    variant: str
    when: Callable[[TransformerConfig], bool]
    """Whether it can be made with a configuration."""
    change: Mapping[str, Any]
    """What `fault` is told; `{c}` in its sentence is the configuration of the layer."""


def row(
    identity: str, variant: str, when: Callable[[TransformerConfig], bool] = lambda c: True, **change: Any
) -> FaultRow:
    """Return a row of a table."""
    return FaultRow(identity, variant, when, change)


def made(rows: Iterable[FaultRow], config: TransformerConfig, formula: Formula, **words: Any) -> Iterator[Fault]:
    """Make the faults of a table that are possible with `config`.

    Args:
        formula: what the settings of the rows belong to.
        words: further words of the sentences.
    """
    for each in rows:
        if each.when(config):
            used = None if each.change.keys() <= {*PARTS, "says"} else formula
            yield fault(each.id, each.variant, words={"c": config, **words}, formula=used, **each.change)


def variants(
    identity: str, table: Mapping[str, Any], formula: Formula, setting: str, words: Mapping[str, Any] | None = None
) -> Iterator[Fault]:
    """Make a fault of each variant of a table, which has the value of one setting of `formula`."""
    for name, change in table.items():
        yield fault(identity, name, words=words, formula=formula, **{setting: change})


def is_same(one: float, other: float) -> bool:
    """Return whether two factors are one, computed in two ways in float64."""
    return abs(one - other) <= RULES["float64"].budget(0.0, epsilon("float64"), max(abs(one), abs(other)))


def usual(name: str) -> tuple[float, ...]:
    """Return the usual values of a number of the configuration, the likeliest first."""
    found: tuple[float, ...] = TransformerConfig.__dataclass_fields__[name].metadata["usual"]
    return found


@dataclass(frozen=True)
class Number:
    """Faults that differ by the value of one number of the configuration."""

    id: str
    field: str
    """Its name in the configuration."""
    says: str
    """The description, in which `{v}` is the value, and `{instead}` says what is right."""
    formula: Formula
    variant: str = "{v:.6g}"
    setting: str = ""
    """Its name in the settings of the formula, if that is another."""

    def fault(self, config: TransformerConfig, v: float) -> Fault:
        """Return the fault with the value `v`."""
        right = getattr(config, self.field)
        instead = ", and should not be" if right is None else f" instead of {right:g}"
        says, made = (
            self.says.format(v=v, instead=instead),
            {"formula": self.formula, "settings": {self.setting or self.field: v}},
        )
        return Fault(self.id, self.variant.format(v=v), says, value=v, **made)  # type: ignore[arg-type]

    def usual(self, config: TransformerConfig) -> Iterator[Fault]:
        """Return the faults with the values that are usual in published models."""
        for v in usual(self.field):
            if v != getattr(config, self.field):
                yield self.fault(config, v)


@dataclass(frozen=True)
class Hypothesis:
    """A fault and the taps at which it is made."""

    fault: Fault
    sites: tuple[str, ...] = ()

    @functools.cached_property
    def patched(self) -> frozenset[str]:
        """All taps that `fault.patch` or `fault.formula` changes."""
        if not (self.fault.patch or self.fault.formula):
            return frozenset()
        scopes = (site.rpartition(".")[0] for site in self.sites)
        return frozenset([*self.sites, *(f"{scope}.{tap}" for scope in scopes for tap in self.fault.also_patched)])

    def __str__(self) -> str:
        return f"{self.fault.id} ({self.fault.variant}) at {', '.join(self.sites) or 'the whole model'}"


def groups(sites: Iterable[str]) -> list[tuple[str, ...]]:
    """Every sensible set of `sites`, the widest first: all of them, those that look at the same tokens, those of one
    stack, of one part in both stacks, of one kind of sublayer, of one layer, of one sublayer, and each alone."""
    sites = tuple(sites)
    found = [sites] if sites else []
    for scope in (_keys, _stack, _part, _kind, _layer, _sublayer, str):
        members: dict[str, list[str]] = {}
        for site in sites:
            members.setdefault(scope(site), []).append(site)
        found += map(tuple, members.values())
    return list(dict.fromkeys(found))


def _keys(site: str) -> str:
    """The input whose padding is masked: the encoder and cross-attention share theirs."""
    return "source" if site.startswith("encoder") or ".cross_attention." in site else "target"


def _part(site: str) -> str:
    """`feed_forward_norm` of every layer of either stack."""
    return "".join(site.split(".")[3:4])


def _stack(site: str) -> str:
    return site.split(".")[0]


def _layer(site: str) -> str:
    return ".".join(site.split(".")[:3])


def _kind(site: str) -> str:
    """`decoder.cross_attention` of `decoder.layers.1.cross_attention.key`: all layers of it share their code."""
    parts = site.split(".")
    return f"{parts[0]}.{parts[3]}" if len(parts) > 3 else parts[0]


def _sublayer(site: str) -> str:
    return ".".join(site.split(".")[:4])
