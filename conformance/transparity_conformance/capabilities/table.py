"""The table of all capabilities of a port besides its forward pass.

Checks in this process, bundles, the command line and the documentation use this table. The name of a capability is the
name of a section in a bundle and of an option in the command line.
"""

from __future__ import annotations

from transparity_conformance.capabilities.capability import Capability
from transparity_conformance.capabilities.decoding.generation import (
    BEAMS,
    BEAMS_OF_GIVEN,
    GENERATION,
    GENERATION_OF_GIVEN,
)
from transparity_conformance.capabilities.decoding.steps import STEPS
from transparity_conformance.capabilities.faults import (
    BEAM_FAULTS,
    CACHE_FAULTS,
    GREEDY_FAULTS,
    LOSS_FAULTS,
    OPTIMIZER_FAULTS,
    RAGGED_FAULTS,
    SAMPLING_FAULTS,
)
from transparity_conformance.capabilities.faults.sharding import OF_TWO_RANKS
from transparity_conformance.capabilities.learning.gradients import GRADIENTS, GRADIENTS_OF_GIVEN
from transparity_conformance.capabilities.learning.loss import LOSS
from transparity_conformance.capabilities.learning.training import TRAINING
from transparity_conformance.capabilities.port_calls import has_method

CAPABILITIES = {row.name: row for row in (LOSS, GRADIENTS, GENERATION, BEAMS, STEPS, TRAINING)}

OF_GIVEN = (LOSS, GRADIENTS_OF_GIVEN, GENERATION_OF_GIVEN, BEAMS_OF_GIVEN, STEPS)
"""The capabilities that can be compared with given parameters, such as a checkpoint's."""

FAULTS = {
    "beams": BEAM_FAULTS,
    "cache": CACHE_FAULTS,
    "generation": (*GREEDY_FAULTS, *RAGGED_FAULTS),
    "loss": LOSS_FAULTS,
    "optimization": OPTIMIZER_FAULTS,
    "sampling": SAMPLING_FAULTS,
    "sharding": OF_TWO_RANKS,
}
"""The known faults by subject; the faults of sharding assume two ranks."""

ATTRIBUTES = tuple(row.attribute for row in CAPABILITIES.values())


def offered_by(forward: object) -> list[Capability]:
    """Return the capabilities that a port has."""
    return [row for row in CAPABILITIES.values() if has_method(forward, row.attribute)]
