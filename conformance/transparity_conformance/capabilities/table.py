"""The capabilities of a port besides its forward pass, one row each.

The check of a port in this process, bundles, the command line and the documentation all read this table; the name of a
row is a section of a bundle and an option of the command line.
"""

from __future__ import annotations

from transparity_conformance.capabilities.beams import BEAMS
from transparity_conformance.capabilities.capability import Capability
from transparity_conformance.capabilities.generation import GENERATION
from transparity_conformance.capabilities.gradients import GRADIENTS
from transparity_conformance.capabilities.loss import LOSS
from transparity_conformance.capabilities.steps import STEPS
from transparity_conformance.capabilities.stranger import has_method
from transparity_conformance.capabilities.training import TRAINING

CAPABILITIES = {row.name: row for row in (LOSS, GRADIENTS, GENERATION, BEAMS, STEPS, TRAINING)}

ATTRIBUTES = tuple(row.attribute for row in CAPABILITIES.values())


def offered_by(forward: object) -> list[Capability]:
    """The capabilities that a port has."""
    return [row for row in CAPABILITIES.values() if has_method(forward, row.attribute)]
