"""A fault: an error that can be put into the reference, and the taps at which it is made."""

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
"""Returns the wrong parameters, from the configuration, the right parameters and a site."""

Patch = Callable[[WalkState, str, Any], Any]
"""Returns the wrong value at a site, from the state, the site and the right value."""

Settings = Mapping[str, Any]
"""The parts of a formula that a fault changes, by name."""

Formula = Callable[[Settings, WalkState, str, Any], Any]
"""Returns the value with these settings, from the settings, the state, the site and the right value."""


@dataclass(frozen=True)
class Fault:
    """An entry of the catalogue; only the given changes apply."""

    id: str
    """Its name in reports."""
    variant: str
    """One of the ways to make it."""
    description: str
    """The wrong behavior of the port, in words."""
    fields: Mapping[str, Any] | None = None
    """Changed fields of the configuration."""
    alter: Alter | None = None
    """Changes the parameters of a site."""
    patch: Patch | None = None
    """Changes the value at a site."""
    formula: Formula | None = None
    """Recomputes the value at a site with other `settings`.

    At one site, faults of the same formula act together, each with its settings.
    """
    settings: Settings = field(default_factory=dict)
    also_patched: tuple[str, ...] = ()
    """Further taps of the sublayer that `patch` or `formula` changes."""
    downstream: Patch | None = None
    """Changes the value that continues after a site, but not the value shown there."""
    value: float | None = None
    """The number in it, if any."""
    equivalents: tuple[str, ...] = ()
    """Ids of other faults that give exactly the same results for all weights and inputs."""
    taken_from: Callable[[str], str] | None = None
    """Returns the site whose parameters are used at a site."""
    exchange: Fault | None = None
    """The swap of two parameters to which this one-sided fault belongs."""
    of_ranks: bool = False
    """Whether it exists only on several ranks, because of the sharding."""
    reshapes: str = ""
    """An earlier tap whose shape the fault changes; it cannot be compared."""
    is_mutual: bool = False
    """Whether the fault must also be applied at the site whose parameters it uses."""

    def patched(self, state: WalkState, site: str, value: Any) -> Any:
        """Return the value at a site with only this fault."""
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
    """Returns whether it can be made at a tap."""
    grid: Sequence[float]
    """Positive starting values, in order."""
    make: Callable[[float], Fault]


PARTS = frozenset(Fault.__dataclass_fields__) - {"id", "variant", "description", "settings"}
"""The parts of a fault besides its name and sentence; all other keywords are `settings`."""


def fault(
    identity: str, variant: str, *, says: str = "", words: Mapping[str, Any] | None = None, **change: Any
) -> Fault:
    """Make a fault.

    Args:
        identity: Its id.
        variant: Its variant, which may contain `words`.
        says: Its description; by default the sentence of causes.toml for the id and variant.
        words: The words in the variant and the sentence, by name.
        change: Its changes: parts of a `Fault` by name; all others are settings of the formula.
    """
    known, parts = words or {}, {name: part for name, part in change.items() if name in PARTS}
    settings = {name: part for name, part in change.items() if name not in PARTS}
    says = (says or meanings()[identity].says[variant]).format(**known)
    return Fault(identity, variant.format(**known), says, settings=settings, **parts)


@dataclass(frozen=True)
class FaultRow:
    """A fault in a table, independent of a configuration."""

    id: str
    variant: str
    when: Callable[[TransformerConfig], bool]
    """Returns whether a configuration allows it."""
    change: Mapping[str, Any]
    """Arguments of `fault`; `{c}` in its sentence is the configuration of the layer."""


def row(
    identity: str, variant: str, when: Callable[[TransformerConfig], bool] = lambda c: True, **change: Any
) -> FaultRow:
    """Return a row of a table."""
    return FaultRow(identity, variant, when, change)


def made(rows: Iterable[FaultRow], config: TransformerConfig, formula: Formula, **words: Any) -> Iterator[Fault]:
    """Yield the faults of a table that `config` allows.

    Args:
        formula: The formula to which the settings belong.
        words: Further words of the sentences.
    """
    for each in rows:
        if each.when(config):
            used = None if each.change.keys() <= {*PARTS, "says"} else formula
            yield fault(each.id, each.variant, words={"c": config, **words}, formula=used, **each.change)


def variants(
    identity: str, table: Mapping[str, Any], formula: Formula, setting: str, words: Mapping[str, Any] | None = None
) -> Iterator[Fault]:
    """Yield a fault for each variant of a table, with its value of one setting of `formula`."""
    for name, change in table.items():
        yield fault(identity, name, words=words, formula=formula, **{setting: change})


def is_same(one: float, other: float) -> bool:
    """Return whether two factors, computed in different ways in float64, are equal."""
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
    """The description; `{v}` is the value, and `{instead}` states the right one."""
    formula: Formula
    variant: str = "{v:.6g}"
    setting: str = ""
    """Its name in the settings of the formula, if it differs."""

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
        """Yield the faults with values that are usual in published models."""
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
        """Return all taps that `fault.patch` or `fault.formula` changes."""
        if not (self.fault.patch or self.fault.formula):
            return frozenset()
        scopes = (site.rpartition(".")[0] for site in self.sites)
        return frozenset([*self.sites, *(f"{scope}.{tap}" for scope in scopes for tap in self.fault.also_patched)])

    def __str__(self) -> str:
        return f"{self.fault.id} ({self.fault.variant}) at {', '.join(self.sites) or 'the whole model'}"


def groups(sites: Iterable[str]) -> list[tuple[str, ...]]:
    """Return all sensible sets of `sites`, the widest first.

    A set has all sites, or the sites with the same tokens, of one stack, part, kind of sublayer, layer or sublayer.
    Single sites come last.
    """
    sites = tuple(sites)
    found = [sites] if sites else []
    for scope in (_keys, _stack, _part, _kind, _layer, _sublayer, str):
        members: dict[str, list[str]] = {}
        for site in sites:
            members.setdefault(scope(site), []).append(site)
        found += map(tuple, members.values())
    return list(dict.fromkeys(found))


def _keys(site: str) -> str:
    """Return the input whose padding is masked; the encoder and cross-attention share it."""
    return "source" if site.startswith("encoder") or ".cross_attention." in site else "target"


def _part(site: str) -> str:
    """Return `feed_forward_norm` for that norm in every layer of either stack."""
    return "".join(site.split(".")[3:4])


def _stack(site: str) -> str:
    return site.split(".")[0]


def _layer(site: str) -> str:
    return ".".join(site.split(".")[:3])


def _kind(site: str) -> str:
    """Return `decoder.cross_attention` for `decoder.layers.1.cross_attention.key`; its layers share their code."""
    parts = site.split(".")
    return f"{parts[0]}.{parts[3]}" if len(parts) > 3 else parts[0]


def _sublayer(site: str) -> str:
    return ".".join(site.split(".")[:4])
