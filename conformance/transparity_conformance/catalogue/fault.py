"""The parts of the catalogue: a fault is an error that can be put into the reference at some taps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.oracle.budgets import RULES, epsilon
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.report.causes import meanings


@dataclass
class WalkState:
    """The data of one forward pass that a fault may read."""

    config: TransformerConfig
    parameters: Arrays
    inputs: Arrays
    taps: MutableMapping[str, Any] = field(default_factory=dict)
    """The activations computed so far."""


Alter = Callable[[TransformerConfig, Arrays, str], Arrays]
"""A function that returns the wrong parameters, given the configuration, the right parameters and a tap."""

Patch = Callable[[WalkState, str, Any], Any]
"""A function that returns the wrong value, given the forward pass, a tap and its right value."""

Settings = Mapping[str, Any]
"""The names and the wrong values of the settings that a fault changes in a formula."""

Formula = Callable[[Settings, WalkState, str, Any], Any]
"""A function that returns the wrong value, given changed settings, the forward pass, a tap and its right value."""


@dataclass(frozen=True)
class Fault:
    """One entry of the catalogue. The fields that are not empty describe what the fault changes."""

    id: str
    """The fault's name in reports."""
    variant: str
    """The name of one variant of the fault."""
    description: str
    """The port's wrong behavior, in words."""
    fields: Mapping[str, Any] | None = None
    """Configuration fields that the fault changes."""
    alter: Alter | None = None
    """Changes the parameters used at a tap."""
    patch: Patch | None = None
    """Changes the value at a tap."""
    formula: Formula | None = None
    """Recomputes the value at a tap with changed `settings`; faults with the same formula can act together."""
    settings: Settings = field(default_factory=dict)
    also_patched: tuple[str, ...] = ()
    """Other taps of the sublayer that `patch` or `formula` also changes."""
    downstream: Patch | None = None
    """Changes the value that later operations read, but not the value that the tap shows."""
    value: float | None = None
    """The number in the fault, if any."""
    equivalents: tuple[str, ...] = ()
    """Ids of other faults that give exactly the same results for all weights and inputs."""
    taken_from: Callable[[str], str] | None = None
    """For a tap, returns the tap whose parameters the fault uses instead."""
    exchange: Fault | None = None
    """For a fault that uses the same parameters twice: the fault that swaps the parameters of both parts."""
    of_ranks: bool = False
    """Whether the fault exists only in a sharded model on several ranks."""
    reshapes: str = ""
    """An earlier tap whose shape the fault changes, so that it cannot be compared."""
    is_mutual: bool = False
    """Whether the fault must also be applied at the tap whose parameters it uses."""

    def patched(self, state: WalkState, site: str, value: Any) -> Any:
        if self.formula is not None:
            value = self.formula(self.settings, state, site, value)
        return self.patch(state, site, value) if self.patch else value

    def is_complete(self, site: str, sites: Collection[str]) -> bool:
        """Return whether the fault applies at `sites`: a swap also needs its second tap there."""
        return not (self.is_mutual and self.taken_from) or self.taken_from(site) in sites


@dataclass(frozen=True)
class NumericFault:
    """A family of faults that are equal except for one number, which the checker fits."""

    is_site: Callable[[str], bool]
    """Returns whether the fault can occur at a tap."""
    grid: Sequence[float]
    """Positive starting values for the fit, in increasing order."""
    make: Callable[[float], Fault]


PARTS = frozenset(Fault.__dataclass_fields__) - {"id", "variant", "description", "settings"}
"""The fields of `Fault` except its name, variant, description and settings; other keywords of `fault` are settings."""


def fault(
    identity: str, variant: str, *, says: str = "", words: Mapping[str, Any] | None = None, **change: Any
) -> Fault:
    """Make a fault.

    Args:
        identity: The fault's id.
        variant: The fault's variant, which may contain placeholders.
        says: The description; by default the sentence of causes.toml for the id and variant.
        words: The values of placeholders in the variant and the description.
        change: Fields of `Fault`, by name; other keywords are settings of the formula.
    """
    known, parts = words or {}, {name: part for name, part in change.items() if name in PARTS}
    settings = {name: part for name, part in change.items() if name not in PARTS}
    says = (says or meanings()[identity].says[variant]).format(**known)
    return Fault(identity, variant.format(**known), says, settings=settings, **parts)


@dataclass(frozen=True)
class FaultRow:
    """A row in a table of faults. The row holds for every configuration that `when` accepts."""

    id: str
    variant: str
    when: Callable[[TransformerConfig], bool]
    """Returns whether the fault is possible with a configuration."""
    change: Mapping[str, Any]
    """Keyword arguments of `fault`; `{c}` in the description stands for the layer's configuration."""


def row(
    identity: str, variant: str, when: Callable[[TransformerConfig], bool] = lambda c: True, **change: Any
) -> FaultRow:
    return FaultRow(identity, variant, when, change)


def made(rows: Iterable[FaultRow], config: TransformerConfig, formula: Formula, **words: Any) -> Iterator[Fault]:
    """Yield the faults of a table that are possible with `config`; `words` are values of further placeholders."""
    for each in rows:
        if each.when(config):
            used = None if each.change.keys() <= {*PARTS, "says"} else formula
            yield fault(each.id, each.variant, words={"c": config, **words}, formula=used, **each.change)


def variants(
    identity: str, table: Mapping[str, Any], formula: Formula, setting: str, words: Mapping[str, Any] | None = None
) -> Iterator[Fault]:
    """Yield one fault for each entry of a table. The key is the variant; the value is the changed setting."""
    for name, change in table.items():
        yield fault(identity, name, words=words, formula=formula, **{setting: change})


def confused(
    kind: str, name: str, pair: tuple[str, str], swapped: str, used: str, which: str = "", **change: Any
) -> Iterator[Fault]:
    """Yield the swap of the parameters of a pair of parts, and the use of one part's parameters in both.

    Args:
        kind: The start of both ids, such as `weight`.
        name: The part of the pair that the tap shows. One fault gives it the other part's parameters.
        pair: The names of both parts.
        swapped, used: The descriptions of both faults.
        which: The end of both variants.
        change: Fields of `Fault`, by name.
    """
    both = fault(f"{kind}-swapped", f"{' and '.join(pair)}{which}", says=swapped, is_mutual=True, **change)
    yield both
    variant = f"{pair[name == pair[0]]} for {name}{which}"
    yield fault(f"{kind}-duplicated", variant, says=used, exchange=both, **change)


OTHER_FACTORS: Mapping[str, Callable[[float], float]] = {
    "missing": lambda right: 1.0,
    "inverse": lambda right: 1 / right,
    "twice": lambda right: right**2,
}
"""Factors that ports use in place of the right one."""


def is_same(one: float, other: float) -> bool:
    return abs(one - other) <= RULES["float64"].budget(0.0, epsilon("float64"), max(abs(one), abs(other)))


def usual(name: str) -> tuple[float, ...]:
    """Return the usual values of a numeric field, the most likely values first."""
    return TransformerConfig.__dataclass_fields__[name].metadata["usual"]


@dataclass(frozen=True)
class Number:
    """Faults that differ by the value of one numeric field of the configuration."""

    id: str
    field: str
    """The field of the configuration."""
    says: str
    """The description; `{v}` is the wrong value, and `{instead}` names the right value."""
    formula: Formula
    variant: str = "{v:.6g}"

    def fault(self, config: TransformerConfig, v: float) -> Fault:
        right = getattr(config, self.field)
        instead = ", and should not be" if right is None else f" instead of {right:g}"
        says, settings = self.says.format(v=v, instead=instead), {self.field: v}
        return Fault(self.id, self.variant.format(v=v), says, formula=self.formula, settings=settings, value=v)

    def fitted(
        self, config: TransformerConfig, is_site: Callable[[str], bool], times: float, powers: range, around: float = 0
    ) -> NumericFault:
        """Return these faults, with their number to be fitted; the grid has powers of `times` around the right value,
        or around another number."""
        grid = [(around or getattr(config, self.field)) * times**power for power in powers]
        return NumericFault(is_site, grid, functools.partial(self.fault, config))

    def usual(self, config: TransformerConfig) -> Iterator[Fault]:
        for v in usual(self.field):
            if v != getattr(config, self.field):
                yield self.fault(config, v)


@dataclass(frozen=True)
class Hypothesis:
    """A fault and the taps at which it occurs."""

    fault: Fault
    sites: tuple[str, ...] = ()

    @functools.cached_property
    def patched(self) -> frozenset[str]:
        if not (self.fault.patch or self.fault.formula):
            return frozenset()
        scopes = (site.rpartition(".")[0] for site in self.sites)
        return frozenset([*self.sites, *(f"{scope}.{tap}" for scope in scopes for tap in self.fault.also_patched)])

    def __str__(self) -> str:
        return f"{self.fault.id} ({self.fault.variant}) at {', '.join(self.sites) or 'the whole model'}"


def groups(sites: Iterable[str]) -> list[tuple[str, ...]]:
    """Return plausible groups of `sites`, the largest first: all, those with equal `SCOPES`, and single sites."""
    sites = tuple(sites)
    found = [sites] if sites else []
    for scope in SCOPES:
        members: dict[Any, list[str]] = {}
        for site in sites:
            members.setdefault(scope(site, site.split(".")), []).append(site)
        found += map(tuple, members.values())
    return list(dict.fromkeys(found))


SCOPES: tuple[Callable[[str, list[str]], Any], ...] = (
    # the tokens that the keys come from: source or target
    lambda site, parts: parts[0] == "encoder" or "cross_attention" in parts,
    lambda site, parts: parts[0],  # the stack
    lambda site, parts: len(parts) > 4,  # whether the tap is inside a sublayer, such as the norm of a query
    lambda site, parts: tuple(parts[3:4]),  # the part of a layer, such as `feed_forward_norm`
    lambda site, parts: parts[-1],  # the name of the activation, such as `key`
    lambda site, parts: tuple(parts[3:]),  # the sublayer and the name
    lambda site, parts: (parts[0], *parts[3:4]),  # the stack and the sublayer
    lambda site, parts: tuple(parts[1:3]),  # the number of the layer, in both stacks
    lambda site, parts: tuple(parts[:3]),  # the layer
    lambda site, parts: tuple(parts[:4]),  # the sublayer
    lambda site, parts: site,
)
"""Each function returns what a tap has in common with other taps, given its name and the parts of this name."""
