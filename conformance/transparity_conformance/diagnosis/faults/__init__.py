"""The catalogue: every mistake that can be put into the reference, by the kind of tap at which it is made.

A mistake is data and up to three functions (`walk.Mistake`); a new one is a new entry in the file of its subject.
"""

from __future__ import annotations

from collections.abc import Iterator

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.fault import Hypothesis, Mistake
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


def mistakes_at(config: TransformerConfig, site: str) -> Iterator[Mistake]:
    """Every mistake that can be made at the tap `site`, but for those that have a number to be fitted."""
    for subject in (embedding, beside, weights, positions, attention, masks, norms, structure, heads):
        yield from subject.mistakes(config, site)


def whole_model(config: TransformerConfig) -> Iterator[Hypothesis]:
    """Mistakes that are made at no one place."""
    for mistake in structure.everywhere(config):
        yield Hypothesis(mistake)


def hypotheses(config: TransformerConfig, sites: list[str]) -> list[Hypothesis]:
    """Every mistake over every group of `sites`."""
    found: dict[tuple[str, str], dict[str, Mistake]] = {}
    for site in sites:
        for mistake in mistakes_at(config, site):
            found.setdefault((mistake.id, mistake.variant), {})[site] = mistake
    result: list[Hypothesis] = []
    for places in found.values():
        mistake = next(iter(places.values()))
        result += [Hypothesis(mistake, chosen) for chosen in groups(places)]
    return result
