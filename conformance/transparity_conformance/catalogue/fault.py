"""The types of the catalogue. A fault is a known mistake that the checker can put into the reference at some taps."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from transparity.config import FIELD_TYPES, TransformerConfig
from transparity_conformance.oracle.budgets import RULES, epsilon
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.report.causes import meanings
from transparity_numpy.arithmetic import functional


@dataclass
class WalkState:
    """The data of a forward pass that faults may use."""

    config: TransformerConfig
    parameters: Arrays
    inputs: Arrays
    taps: MutableMapping[str, Any] = field(default_factory=dict)
    """The activations so far."""


Alter = Callable[[TransformerConfig, Arrays, str], Arrays]
"""(configuration, right parameters, tap) → changed parameters."""

Patch = Callable[[WalkState, str, Any], Any]
"""(forward pass, tap, right value) → the wrong value."""

Settings = Mapping[str, Any]
"""Wrong values of a formula's settings."""

Formula = Callable[[Settings, WalkState, str, Any], Any]
"""(changed settings, forward pass, tap, right value) → the recomputed value."""


@dataclass(frozen=True)
class Fault:
    """A known mistake of ports. Fields that do not apply are empty."""

    id: str
    variant: str
    description: str
    """A clause that says what a faulty port does wrong."""
    fields: Mapping[str, Any] | None = None
    """Configuration fields that have other values in the faulty port."""
    alter: Alter | None = None
    """Changes the parameters that the reference uses at a tap."""
    patch: Patch | None = None
    formula: Formula | None = None
    """Recomputes a tap with changed `settings`. Faults with the same formula can act together."""
    settings: Settings = field(default_factory=dict)
    also_patched: tuple[str, ...] = ()
    """Further taps that `patch` or `formula` changes."""
    downstream: Patch | None = None
    """Changes what later operations read, but not the tap itself."""
    value: float | None = None
    """The wrong number, such as an epsilon, if any."""
    equivalents: tuple[str, ...] = ()
    """Ids of faults with exactly the same effect for all weights and inputs."""
    taken_from: Callable[[str], str] | None = None
    """Tap → the other tap whose parameters the faulty port uses."""
    exchange: Fault | None = None
    """The fault that swaps the parameters of both parts, if this fault uses one part's parameters in both."""
    of_ranks: bool = False
    """Whether only a sharded model can have the fault."""
    reshapes: str = ""
    """An earlier tap whose shape the fault changes, so that it cannot be compared."""
    is_mutual: bool = False
    """Whether the fault swaps the parameters of two taps: `taken_from` returns the second tap, which also changes."""

    def patched(self, state: WalkState, site: str, value: Any) -> Any:
        if self.formula is not None:
            value = self.formula(self.settings, state, site, value)
        return self.patch(state, site, value) if self.patch else value

    def is_complete(self, site: str, sites: Collection[str]) -> bool:
        """Return whether `sites` contains all taps that the fault changes. A swap at `site` also changes the tap
        `taken_from(site)`."""
        return not (self.is_mutual and self.taken_from) or self.taken_from(site) in sites


@dataclass(frozen=True)
class NumericFault:
    """Faults that differ only in a fitted number."""

    is_site: Callable[[str], bool]
    """Whether the fault is possible at a tap."""
    grid: Sequence[float]
    """Positive starting values, in ascending order."""
    make: Callable[[float], Fault]


PARTS = frozenset(Fault.__dataclass_fields__) - {"id", "variant", "description", "settings"}
"""Keywords of `fault` that are fields of `Fault`; other keywords become settings."""


def fault(
    identity: str, variant: str, *, says: str = "", words: Mapping[str, Any] | None = None, **change: Any
) -> Fault:
    """Make a fault, described by `says` or by causes.toml. `words` fill placeholders in variant and description. Other
    keywords are fields of `Fault`, or settings of the formula."""
    known, parts = words or {}, {name: part for name, part in change.items() if name in PARTS}
    settings = {name: part for name, part in change.items() if name not in PARTS}
    says = (says or meanings()[identity].says[variant]).format(**known)
    return Fault(identity, variant.format(**known), says, settings=settings, **parts)


@dataclass(frozen=True)
class FaultRow:
    """A variant of a fault from causes.toml."""

    id: str
    variant: str
    when: Callable[[TransformerConfig], bool]
    """Whether the fault is possible in a configuration."""
    change: Mapping[str, Any]
    """Keywords of `fault`."""


@functools.cache
def listed(of: str, module: str) -> tuple[FaultRow, ...]:
    """Return the rows of the list `of` in causes.toml. Expressions in these rows may use the names of `module`, of this
    file and of `functional`."""
    names = {**vars(functional), **globals(), **vars(sys.modules[module])}
    found = []
    for identity, meaning in meanings().items():
        for variant, row in meaning.variants.items():
            if isinstance(row, str) or of not in (row["of"] if isinstance(row["of"], list) else [row["of"]]):
                continue
            change = {name: row[name] for name in row if name not in ("says", "of", "when")}
            change = {name: eval(text, names) if isinstance(text, str) else text for name, text in change.items()}
            when = eval(f"lambda c: {row.get('when', True)}", names)
            found.append(FaultRow(identity, variant, when, change))
    return tuple(found)


def made(of: str, config: TransformerConfig, formula: Formula | str, module: str = "", **words: Any) -> Iterator[Fault]:
    """Yield the faults in the list `of` of causes.toml that are possible in `config`.

    Args:
        formula: The formula whose settings the rows contain; a module's name if the rows contain only functions.
        module: The module whose names the rows use; by default, the module of the formula.
        words: Values of further placeholders in descriptions.
    """
    for each in listed(of, module or (formula if isinstance(formula, str) else formula.__module__)):
        if each.when(config):
            change = each.change if each.change.keys() <= PARTS else {"formula": formula, **each.change}
            yield fault(each.id, each.variant, words={"c": config, **words}, **change)


@functools.cache
def factors(identity: str) -> Mapping[str, Callable[[TransformerConfig], float]]:
    """Return the wrong factors of a fault in causes.toml, most likely first. If a configuration does not define a
    factor, the function returns the right factor."""
    return {name: eval(f"lambda c: {value}") for name, value in meanings()[identity].factors.items()}


def other_factors(identity: str, config: TransformerConfig, right: float) -> dict[str, float]:
    return {name: value for name, each in factors(identity).items() if not is_same(value := each(config), right)}


def with_fields(config: TransformerConfig, settings: Settings) -> TransformerConfig:
    """Return `config` with the settings that are fields of a configuration. If a setting is a function of `config`, use
    the function's result."""
    fields = {name: value for name, value in settings.items() if name in FIELD_TYPES}
    fields = {name: value(config) if callable(value) else value for name, value in fields.items()}
    return _replaced(config, **fields) if fields else config


@functools.lru_cache(maxsize=2**8)  # making a configuration takes longer than a rotation
def _replaced(config: TransformerConfig, **fields: Any) -> TransformerConfig:
    return dataclasses.replace(config, **fields)


def confused(
    kind: str, name: str, pair: tuple[str, str], swapped: str, used: str, which: str = "", **change: Any
) -> Iterator[Fault]:
    """Yield two faults of the two parts `pair`: the parts swap their parameters, or the part `name` uses the parameters
    of the other part.

    `kind` starts the ids of both faults, and `which` ends their variants. `swapped` and `used` are the descriptions.
    """
    both = fault(f"{kind}-swapped", f"{' and '.join(pair)}{which}", says=swapped, is_mutual=True, **change)
    yield both
    variant = f"{pair[name == pair[0]]} for {name}{which}"
    yield fault(f"{kind}-duplicated", variant, says=used, exchange=both, **change)


def is_same(one: float, other: float) -> bool:
    return abs(one - other) <= RULES["float64"].budget(0.0, epsilon("float64"), max(abs(one), abs(other)))


def usual(name: str) -> tuple[float, ...]:
    return TransformerConfig.__dataclass_fields__[name].metadata["usual"]


@dataclass(frozen=True)
class Number:
    """Faults in which a numeric field is wrong."""

    id: str
    field: str
    says: str
    """The description of a fault, in which `{v}` is the wrong value, and `{instead}` names the right value."""
    formula: Formula
    variant: str = "{v:.6g}"

    def fault(self, config: TransformerConfig, v: float) -> Fault:
        right = getattr(config, self.field)
        instead = ", although the configuration has no such value" if right is None else f" instead of {right:g}"
        says, settings = self.says.format(v=v, instead=instead), {self.field: v}
        return Fault(self.id, self.variant.format(v=v), says, formula=self.formula, settings=settings, value=v)

    def fitted(
        self, config: TransformerConfig, is_site: Callable[[str], bool], times: float, powers: range, around: float = 0
    ) -> NumericFault:
        """Return faults with a fitted number. The grid contains `around` · `times` ** power; if `around` is 0, the
        right value replaces `around`."""
        grid = [(around or getattr(config, self.field)) * times**power for power in powers]
        return NumericFault(is_site, grid, partial(self.fault, config))

    def usual(self, config: TransformerConfig) -> Iterator[Fault]:
        for v in usual(self.field):
            if v != getattr(config, self.field):
                yield self.fault(config, v)


@dataclass(frozen=True)
class Hypothesis:
    """A fault, and the taps at which a port may have it."""

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
    """Return groups of taps: all taps and, for each function in `SCOPES`, the taps with an equal key."""
    sites = tuple(sites)
    found = [sites] if sites else []
    for scope in SCOPES:
        members: dict[Any, list[str]] = {}
        for site in sites:
            members.setdefault(scope(site, site.split(".")), []).append(site)
        found += map(tuple, members.values())
    return list(dict.fromkeys(found))


SCOPES: tuple[Callable[[str, list[str]], Any], ...] = (
    # whether the keys are source tokens or target tokens
    lambda site, parts: parts[0] == "encoder" or "cross_attention" in parts,
    lambda site, parts: parts[0],  # the stack
    lambda site, parts: len(parts) > 4,  # whether the tap is inside a sublayer, such as the norm of a query
    lambda site, parts: tuple(parts[3:4]),  # the part of a layer, such as `feed_forward_norm`
    lambda site, parts: parts[-1],  # the name of the activation, such as `key`
    lambda site, parts: tuple(parts[3:]),  # the sublayer and the name
    lambda site, parts: (parts[0], *parts[3:4]),  # the stack and the sublayer
    lambda site, parts: tuple(parts[1:3]),  # the layer's number, in encoder and decoder
    lambda site, parts: tuple(parts[:3]),  # the layer
    lambda site, parts: tuple(parts[:4]),  # the sublayer
    lambda site, parts: site,
)
"""(tap, parts of its name) → key; taps with an equal key form a group."""
