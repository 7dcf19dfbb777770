"""The catalogue: every fault that can be put into the reference, in one file for each subject.

A subject is a module with `faults(config, site)`, every fault that can be made at a tap, and, if a fault has a number
to be fitted, `numeric_faults(config)`.
"""

from __future__ import annotations

from collections.abc import Iterator

from transparity.config import TransformerConfig
from transparity_conformance.catalogue import (
    attention,
    auxiliary_inputs,
    embedding,
    experts,
    frames,
    latent,
    masks,
    normalization,
    output_head,
    packing,
    parameters,
    patches,
    position_bias,
    recurrence,
    residuals_and_activations,
    rotary,
    sharding,
    sinks,
    temperature,
)
from transparity_conformance.catalogue.fault import Fault, Hypothesis
from transparity_conformance.catalogue.scopes import groups

SUBJECTS = (
    embedding,
    patches,
    frames,
    auxiliary_inputs,
    parameters,
    packing,
    latent,
    rotary,
    position_bias,
    attention,
    recurrence,
    temperature,
    masks,
    sinks,
    normalization,
    residuals_and_activations,
    experts,
    output_head,
)
"""The subjects, in the order in which equally good causes are listed."""


def faults_at(config: TransformerConfig, site: str, ranks: int = 1) -> Iterator[Fault]:
    """Every fault that can be made at the tap `site`, except those with a number to be fitted; first those of a model
    that is sharded over several `ranks`."""
    yield from sharding.faults(config, site, ranks)
    for subject in SUBJECTS:
        yield from subject.faults(config, site)


def whole_model(config: TransformerConfig) -> Iterator[Hypothesis]:
    """Faults of the whole model, which have no site."""
    for fault in residuals_and_activations.whole_model_faults(config):
        yield Hypothesis(fault)


def hypotheses(config: TransformerConfig, sites: list[str], ranks: int = 1) -> list[Hypothesis]:
    """Every fault at every group of `sites`, of a model on so many `ranks`."""
    found: dict[tuple[str, str], dict[str, Fault]] = {}
    for site in sites:
        for fault in faults_at(config, site, ranks):
            found.setdefault((fault.id, fault.variant), {})[site] = fault
    return [
        Hypothesis(fault, chosen)
        for by_site in found.values()
        for fault in [next(iter(by_site.values()))]
        for chosen in groups(by_site)
        if all(by_site[site].is_complete(site, chosen) for site in chosen)
    ]
