"""Generation with given weights, such as a checkpoint's: as many tokens as cost no more than the first probe."""

from __future__ import annotations

import dataclasses

from transparity_conformance.capabilities.capability import Way
from transparity_conformance.capabilities.decoding.beams import BEAMS
from transparity_conformance.capabilities.decoding.generation import (
    GENERATION,
    numbered,
    why_no_decoder,
    why_not_coarse,
)
from transparity_conformance.capabilities.faults.beams import BEAM_FAULTS
from transparity_conformance.capabilities.faults.generation import GREEDY_FAULTS
from transparity_conformance.capabilities.requests import given_beam_requests, given_requests
from transparity_conformance.oracle.probes import Probe

GENERATION_OF_GIVEN = dataclasses.replace(
    GENERATION,
    ways=(Way("generate", numbered("generate", given_requests), GREEDY_FAULTS),),
    why_not=why_no_decoder,
    is_long=False,
)
BEAMS_OF_GIVEN = dataclasses.replace(
    BEAMS,
    ways=(Way("beam_search", numbered("beam_search", given_beam_requests), BEAM_FAULTS, why_not=why_not_coarse),),
    is_long=False,
)


def what_is_generated(probe: Probe) -> str:
    """What is compared of `generate` with given weights, and what is not, in one line."""
    (request,) = given_requests(probe)
    rows, length = request.prompt.shape
    return (
        f"generate: of given parameters {request.steps} new tokens of {rows} prompts of {length} are compared, "
        "greedily; draws, prompts of different lengths and the end of the cache are with drawn ones, by --config"
    )
