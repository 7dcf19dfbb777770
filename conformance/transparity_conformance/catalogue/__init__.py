"""The catalogue of faults: every error that the checker can put into the reference. Each file covers one subject."""

from __future__ import annotations

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
"""Functions that yield the faults at a tap. Equally good causes are listed in this order."""

WITH_A_NUMBER: tuple[Callable[[TransformerConfig], Iterator[NumericFault]], ...] = (
    embedding.numeric_faults,
    rotary.numeric_faults,
    attention.numeric_faults,
    normalization.numeric_faults,
    output_head.numeric_faults,
)
"""Functions that yield faults with a number to be fitted."""


def faults_at(config: TransformerConfig, site: str, ranks: int = 1) -> Iterator[Fault]:
    """Yield every fault at the tap `site` without a fitted number; faults of sharding over `ranks` ranks come first."""
    yield from sharding.faults(config, site, ranks)
    for faults in OF_A_SITE:
        yield from faults(config, site)


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    for faults in WITH_A_NUMBER:
        yield from faults(config)


def whole_model(config: TransformerConfig) -> Iterator[Hypothesis]:
    """Yield faults of the whole model, which belong to no tap."""
    for fault in residuals.whole_model_faults(config):
        yield Hypothesis(fault, (PARAMETERS,) if fault.alter else ())


PARAMETERS = "parameters"
"""The site of faults that change all parameters, in place of a tap."""


def hypotheses(config: TransformerConfig, sites: list[str], ranks: int = 1) -> list[Hypothesis]:
    """Return a hypothesis for each fault and each plausible group of `sites`, for a model on `ranks` ranks."""
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


OF_ONE_LAYER = ("layer-missing",)
"""Faults that no port has in all layers."""


def widest(some: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Return, for each fault, the hypothesis in `some` with the most taps.

    For faults in one layer, return all hypotheses.
    """
    found: dict[tuple[object, ...], Hypothesis] = {}
    for each in some:
        key = each.fault.id, each.fault.variant, each.sites if each.fault.id in OF_ONE_LAYER else ()
        if key not in found or len(each.sites) > len(found[key].sites):
            found[key] = each
    return list(found.values())
