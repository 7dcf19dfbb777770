"""Simulated ports that the checker is tried on: with faults, with pairs of faults, or correct in some style.

Each is a port, a configuration, and what the checker sees of it: its taps, or its logits alone. Nothing here depends on
how the checker imitates a fault.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from meta.power import family_faults, family_port, plain_faults, right
from meta.power.family_port import FamilyFault
from meta.power.plain_faults import styles, uncatalogued
from meta.power.plain_port import PLAIN, PlainFault, Style
from meta.power.plain_port import build_port as build_plain
from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity.taps import tap_shapes
from transparity_conformance.oracle.cases import MODELS as FAMILIES
from transparity_conformance.oracle.probes import Probe, probes_of

Build = Callable[..., Callable[..., dict[str, np.ndarray]]]
"""`build(config, parameters)` of a port."""

Fault = PlainFault | FamilyFault

View = Literal["taps", "logits", "operations"]
"""What the checker sees of a port: the taps that it returns; its logits alone; these, and its operations."""

VIEWS: tuple[View, ...] = get_args(View)

FURTHER = {
    "batch-norm": dataclasses.replace(preset("notes-attention"), norm="batch").resized(),
    "weak-mask": dataclasses.replace(
        preset("translation"), mask_value=-3.0, target_mask="causal-and-padding"
    ).resized(),
    "lone-encoder": dataclasses.replace(
        preset("translation"), architecture="encoder", target_vocab_size=None, final_norm=True, mask_order="after-scale"
    ).resized(),
}
"""Configurations for what no preset has: batch statistics, a mask whose order matters, an encoder alone."""

CASES: dict[str, TransformerConfig] = {name: preset(name).resized() for name in PRESETS} | FURTHER
"""The configurations that the plain port serves; `FAMILIES` has the others."""

SEVERAL = {2: 120, 3: 30}
"""How many ports with two faults, and with three, of the presets."""

FAMILY_SEVERAL = {2: 80, 3: 20}
"""The same of the families: 200 and 50 in all."""

KINDS = {2: "pair", 3: "triple"}


@dataclass(frozen=True)
class SimulatedPort:
    """One port to be checked, and how."""

    kind: str
    """`fault`, `pair`, `triple`, `uncatalogued`, or `style` for a correct port."""
    case: str
    faults: tuple[Fault, ...] = ()
    style: Style = PLAIN
    view: View = "taps"

    @property
    def config(self) -> TransformerConfig:
        return CASES[self.case] if self.case in CASES else FAMILIES[self.case]

    @property
    def build(self) -> Build:
        """The port, in float32 or in the precision of its style."""
        built = build_of(self.faults, self.style)
        return of_logits(built) if self.view == "operations" else built

    def __str__(self) -> str:
        made = " and ".join(map(str, self.faults)) or str(self.style)
        return f"{self.case}, {self.view}: {made}"


def build_of(faults: Sequence[Fault], style: Style = PLAIN, dtype: str = "float32") -> Build:
    """The port with all of these faults."""
    of_family = [fault for fault in faults if isinstance(fault, FamilyFault)]
    if of_family:
        return family_port.build_port(functools.reduce(family_port.together, of_family), dtype)
    return build_plain([fault for fault in faults if isinstance(fault, PlainFault)], style, dtype=dtype)


def of_logits(build: Build) -> Build:
    """The same port, which returns its logits alone."""

    def built(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Callable[..., dict[str, np.ndarray]]:
        forward = build(config, parameters)
        return lambda **inputs: {"logits": forward(**inputs)["logits"]}

    return built


def shows_at(fault: Fault, config: TransformerConfig, tap: str) -> bool:
    """Return whether a divergence at `tap` is rightly placed."""
    if isinstance(fault, PlainFault):
        return plain_faults.placed_at(fault, config, tap)
    return re.fullmatch(fault.place, tap) is not None


def taps_of(fault: Fault, config: TransformerConfig) -> frozenset[str]:
    """Every tap of `config` at which the fault may show."""
    names = tap_shapes(config, 1, **dict.fromkeys(config.input_names, 1))
    return frozenset(name for name in names if shows_at(fault, config, name))


@functools.cache
def case_probes(case: str) -> Mapping[str, Probe]:
    """The probes that a check of the case uses."""
    return plain_faults.probes_for(CASES[case]) if case in CASES else probes_of(FAMILIES[case], case)


@functools.cache
def plain_ports(cases: tuple[str, ...] = tuple(CASES), seed: int = 0) -> tuple[SimulatedPort, ...]:
    """Every port of the presets."""
    ports: list[SimulatedPort] = []
    for case in cases:
        config = CASES[case]
        for view in VIEWS:
            acting = plain_faults.acting(config)
            ports += [SimulatedPort("fault", case, (fault,), view=view) for fault in acting]
            unknown = uncatalogued(config)
            ports += [SimulatedPort("uncatalogued", case, (fault,), view=view) for fault in unknown]
        ports += [SimulatedPort("style", case, style=style) for style in styles(config)]
    return (*ports, *_of_several(cases, SEVERAL, seed))


def family_ports(cases: Sequence[str] = tuple(FAMILIES)) -> list[SimulatedPort]:
    """Every port of the families with one catalogued fault."""
    single = [(case, fault) for case in cases for fault in family_faults.acting(case)]
    return [SimulatedPort("fault", *_one(each), view=view) for each in single for view in VIEWS]


def further_family_ports(
    cases: Sequence[str] = tuple(FAMILIES), several: Mapping[int, int] = FAMILY_SEVERAL, seed: int = 0
) -> list[SimulatedPort]:
    """Every port of the families with a fault that no catalogue has, with two or three catalogued faults, and
    without any, in other styles."""
    unknown = [(case, fault) for case in cases for fault in family_faults.UNCATALOGUED if fault.acts(FAMILIES[case])]
    styled = [(case, style) for case in cases for style in right.styles() if style.acts(FAMILIES[case])]
    found = [SimulatedPort("uncatalogued", *_one(each), view=view) for each in unknown for view in VIEWS]
    found += [SimulatedPort("style", *_one(each), view=view) for each in styled for view in VIEWS]
    return found + _of_several(cases, several, seed)


def _one(single: tuple[str, Fault]) -> tuple[str, tuple[Fault]]:
    return single[0], (single[1],)


def _of_several(cases: Sequence[str], several: Mapping[int, int], seed: int) -> list[SimulatedPort]:
    return [
        SimulatedPort(KINDS[size], case, faults, view=view)
        for size, number in several.items()
        for case, faults in itertools.islice(_together(cases, size, seed), number if cases else 0)
        for view in VIEWS
    ]


def _together(cases: Sequence[str], size: int, seed: int) -> Iterator[tuple[str, tuple[Fault, ...]]]:
    """So many faults at different taps, each of which shows beside the others, drawn at random without end."""
    draw = random.Random(seed)
    while True:
        case = draw.choice(cases)
        faults = tuple(draw.sample(_combinable(case), size))
        if all(_are_apart(case, *pair) for pair in itertools.combinations(faults, 2)) and _all_act(case, faults):
            yield case, faults


def _combinable(case: str) -> Sequence[Fault]:
    if case in FAMILIES:
        return family_faults.acting(case)
    acting = plain_faults.acting(CASES[case])
    return [fault for fault in acting if fault.id not in ("low-precision", "dropout-active")]


def _are_apart(case: str, one: Fault, other: Fault) -> bool:
    if isinstance(one, FamilyFault) and isinstance(other, FamilyFault):
        distinct = not set(one.exchanged) & set(other.exchanged)
    else:
        distinct = one.ids != other.ids
    config = CASES[case] if case in CASES else FAMILIES[case]
    return distinct and not taps_of(one, config) & taps_of(other, config)


def _all_act(case: str, faults: tuple[Fault, ...]) -> bool:
    without = itertools.combinations(faults, len(faults) - 1)
    ports = [build_of(made, dtype="float64") for made in (faults, *without)]
    return none_hides(case_probes(case).values(), *ports)


def none_hides(probes: Iterable[Probe], every: Build, *without: Build) -> bool:
    """Return whether the logits of the port with `every` fault differ from those of each that is `without` one."""
    seen = set()
    for probe in probes:
        with np.errstate(all="ignore"):
            together, *others = (
                build(probe.config, probe.parameters)(**probe.inputs)["logits"] for build in (every, *without)
            )
        budget = probe.oracle.budget("logits", "float32")
        seen |= {index for index, logits in enumerate(others) if (np.abs(together - logits) > budget).any()}
    return len(seen) == len(without)


def not_acting() -> set[str]:
    """Plain faults that act nowhere, on which every measure would be silent."""
    made = {fault.id for config in CASES.values() for fault in plain_faults.faults(config)}
    return made - {fault.id for config in CASES.values() for fault in plain_faults.acting(config)}


def sampled(ports: Sequence[SimulatedPort], size: int, seed: int = 0) -> list[SimulatedPort]:
    """At most `size` of each kind and view, every fault and every configuration as often as the next."""
    shuffled = random.Random(seed).sample(ports, len(ports))
    seen: dict[object, int] = {}
    ranked = []
    for port in shuffled:
        first = port.faults[0] if port.faults else None
        names = [first.ids[0] if first.ids and port.kind != "uncatalogued" else first.variant] if first else []
        group = (port.kind, port.view)
        keys = (" ".join([*names, port.style.kind]), port.case)
        rank = tuple(seen.get((*group, key), 0) for key in keys)
        seen |= {(*group, key): count + 1 for key, count in zip(keys, rank, strict=True)}
        ranked.append((rank, group, port))
    chosen: list[SimulatedPort] = []
    for group in sorted({group for _, group, _ in ranked}):
        of_group = sorted((item for item in ranked if item[1] == group), key=lambda item: item[0])
        chosen += [port for _, _, port in of_group[:size]]
    return chosen
