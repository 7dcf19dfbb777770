"""The catalogue of faults: known mistakes that the checker can put into the reference. Each file has one subject."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from transparity.config import TransformerConfig
from transparity_conformance.catalogue import (
    attention,
    embedding,
    feed_forward,
    inputs,
    masks,
    normalization,
    output_head,
    parameters,
    position_bias,
    recurrence,
    residuals,
    rotary,
    sharding,
)
from transparity_conformance.catalogue.fault import Fault, Hypothesis, NumericFault, groups

OF_A_SITE: tuple[Callable[[TransformerConfig, str], Iterator[Fault]], ...] = (
    embedding.faults,
    inputs.patch_faults,
    inputs.frame_faults,
    inputs.token_type_and_mask_faults,
    parameters.faults,
    parameters.packing_faults,
    normalization.latent_faults,
    rotary.faults,
    position_bias.faults,
    attention.faults,
    recurrence.faults,
    attention.temperature_faults,
    masks.faults,
    masks.sink_faults,
    normalization.faults,
    residuals.faults,
    feed_forward.faults,
    output_head.faults,
)
"""Functions that yield the faults at a tap. Reports prefer earlier functions among equally good faults."""

WITH_A_NUMBER: tuple[Callable[[TransformerConfig], Iterator[NumericFault]], ...] = (
    embedding.numeric_faults,
    rotary.numeric_faults,
    attention.numeric_faults,
    normalization.numeric_faults,
    output_head.numeric_faults,
)
"""Functions that yield faults with a fitted number, such as an epsilon."""


def faults_at(config: TransformerConfig, site: str, ranks: int = 1) -> Iterator[Fault]:
    """Yield the faults without a fitted number, faults of sharding over `ranks` first."""
    yield from sharding.faults(config, site, ranks)
    for faults in OF_A_SITE:
        yield from faults(config, site)


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    for faults in WITH_A_NUMBER:
        yield from faults(config)


def whole_model(config: TransformerConfig) -> Iterator[Hypothesis]:
    for fault in residuals.whole_model_faults(config):
        yield Hypothesis(fault, (PARAMETERS,) if fault.alter else ())


PARAMETERS = "parameters"
"""The site of a fault that changes all parameters."""


def hypotheses(config: TransformerConfig, sites: list[str], ranks: int = 1) -> list[Hypothesis]:
    """Return a hypothesis for each fault and each plausible group of `sites` (see `groups`)."""
    found: dict[tuple[str, str], dict[str, Fault]] = {}
    for site in sites:
        for fault in faults_at(config, site, ranks):
            found.setdefault((fault.id, fault.variant), {})[site] = fault
    return [
        Hypothesis(_of_sites([by_site[site] for site in chosen]), chosen)
        for by_site in found.values()
        for chosen in groups(by_site)
        if all(by_site[site].is_complete(site, chosen) for site in chosen)
    ]


def _of_sites(alike: list[Fault]) -> Fault:
    says = "; ".join(dict.fromkeys(fault.description for fault in alike))
    return alike[0] if says == alike[0].description else dataclasses.replace(alike[0], description=says)


OF_ONE_LAYER = ("layer-missing",)
"""Faults that are possible in single layers, but not in all layers."""


def widest(some: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Return the hypothesis with the most taps for each fault. For faults in `OF_ONE_LAYER`, return all hypotheses."""
    found: dict[tuple[object, ...], Hypothesis] = {}
    for each in some:
        key = each.fault.id, each.fault.variant, each.sites if each.fault.id in OF_ONE_LAYER else ()
        if key not in found or len(each.sites) > len(found[key].sites):
            found[key] = each
    return list(found.values())
