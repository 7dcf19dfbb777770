"""The data flow between the reference's taps, which the port's values must follow."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from transparity_conformance.diagnosis.segment import Combination
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.oracle.near_ties import is_choice
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.oracle.reach.models import small_system


@dataclass(frozen=True)
class Flow:
    """For each tap, the taps directly before and directly after it in the data flow."""

    inputs: Mapping[str, frozenset[str]]
    outputs: Mapping[str, frozenset[str]]

    @functools.cached_property
    def behind(self) -> Mapping[str, frozenset[str]]:
        """Return, for each tap, all taps that depend on it."""
        found: dict[str, frozenset[str]] = {}
        for tap in reversed([*self.outputs]):
            found[tap] = self.outputs[tap].union(*(found.get(name, frozenset()) for name in self.outputs[tap]))
        return found

    def reached(self, tap: str, found: Collection[str]) -> set[str]:
        """Return the taps that depend on `tap` directly, or only through taps that are not found."""
        reached: set[str] = set()
        waiting = [tap]
        while waiting:
            new = self.outputs[waiting.pop()] - reached
            reached |= new
            waiting += [name for name in new if name not in found]
        return reached

    def without_consequence(self, found: Collection[str], confirming: Collection[str]) -> list[str]:
        """Return, in order, the missing taps on which no `confirming` tap directly depends.

        A choice of experts confirms nothing, because other numbers may lead to the same choice.
        """
        telling = {tap for tap in confirming if not is_choice(tap)}
        return [tap for tap in self.outputs if tap not in found and not self.reached(tap, found) & telling]


def flow_of(probe: Probe, known: Combination = ()) -> Flow:
    """Return the data flow of the reference, by perturbing each tap and observing which taps change.

    A large model is replaced by a small model with the same layers. The small model has none of the `known` faults.
    """
    if probe.is_large:
        known = ()
        layers = {name: getattr(probe.config, name) for name in ("num_encoder_layers", "num_decoder_layers")}
        small = small_system(probe.config, **layers)
        probe = Probe(
            probe.case, "flow", "the flow of data", small, probe_parameters(small), mixed_inputs(small, 0, 9, 7)
        )
    ours = walk(probe, {}, known)
    outputs = {tap: frozenset(dependents(probe, ours, ours, tap, known)) - {tap} for tap in ours}
    inputs = {tap: frozenset(name for name in ours if tap in outputs[name]) for tap in ours}
    return Flow(inputs, outputs)


def dependents(
    probe: Probe,
    values: Mapping[str, np.ndarray],
    ours: Mapping[str, np.ndarray],
    tap: str,
    known: Combination = (),
) -> set[str]:
    """Return the taps that depend on `tap` without passing through another tap of `values`."""
    moved = walk(probe, {**values, tap: perturbed(values[tap])}, known)
    return {name for name in ours if not np.array_equal(moved[name], ours[name], equal_nan=True)}


def perturbed(value: np.ndarray) -> np.ndarray:
    """Return other numbers of about the same magnitude: reversed along every axis, scaled and shifted a little."""
    value = np.nan_to_num(value)
    return np.flip(value) * 1.01 + 0.01 * float(np.abs(value).max(initial=0.0))
