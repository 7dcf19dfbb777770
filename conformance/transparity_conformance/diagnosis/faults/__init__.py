"""The catalogue: every fault that can be put into the reference, by the kind of tap at which it is made.

A fault is data and up to three functions (`walk.Fault`); a new one is a new entry in the file of its subject.
"""

from __future__ import annotations

from collections.abc import Iterator

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.fault import Fault, Hypothesis
from transparity_conformance.diagnosis.faults import (
    attention,
    embedding,
    masks,
    positions,
)
from transparity_conformance.diagnosis.faults import (
    auxiliary_inputs as beside,
)
from transparity_conformance.diagnosis.faults import (
    normalization as norms,
)
from transparity_conformance.diagnosis.faults import (
    output_head as heads,
)
from transparity_conformance.diagnosis.faults import (
    parameters as weights,
)
from transparity_conformance.diagnosis.faults import (
    residuals_and_activations as structure,
)
from transparity_conformance.diagnosis.faults.scopes import groups


def faults_at(config: TransformerConfig, site: str) -> Iterator[Fault]:
    """Every fault that can be made at the tap `site`, but for those that have a number to be fitted."""
    for subject in (embedding, beside, weights, positions, attention, masks, norms, structure, heads):
        yield from subject.faults(config, site)


def whole_model(config: TransformerConfig) -> Iterator[Hypothesis]:
    """Faults that are made at no one place."""
    for fault in structure.everywhere(config):
        yield Hypothesis(fault)


def hypotheses(config: TransformerConfig, sites: list[str]) -> list[Hypothesis]:
    """Every fault over every group of `sites`."""
    found: dict[tuple[str, str], dict[str, Fault]] = {}
    for site in sites:
        for fault in faults_at(config, site):
            found.setdefault((fault.id, fault.variant), {})[site] = fault
    result: list[Hypothesis] = []
    for places in found.values():
        fault = next(iter(places.values()))
        result += [Hypothesis(fault, chosen) for chosen in groups(places)]
    return result
