"""What was found beside the forward pass: of a loss, of gradients, of generation, of steps or of training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from transparity_conformance.report.report import Divergence, Held, Report


@dataclass(frozen=True)
class Besides:
    """Claims, faults, and what was not compared."""

    claims: tuple[Held, ...] = ()
    faults: tuple[Divergence, ...] = ()
    not_compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: Besides) -> Besides:
        return Besides(
            self.claims + other.claims,
            self.faults + other.faults,
            self.not_compared + other.not_compared,
            self.notes + other.notes,
        )


def not_compared(*reasons: str) -> Besides:
    """Nothing but the reasons."""
    return Besides(not_compared=reasons)


class Catalogued(Protocol):
    """A mistake of a catalogue; variants of one share its id."""

    @property
    def id(self) -> str: ...


def rivals(explaining: Sequence[Catalogued]) -> tuple[str, ...]:
    """The ids of the mistakes that explain as much as the first one does, and are no variants of it."""
    return tuple(dict.fromkeys(how.id for how in explaining[1:] if how.id != explaining[0].id))


def with_offers(report: Report, found: Besides) -> Report:
    """The report on the forward pass, and what was found beside it."""
    first = report.first_divergence or next((fault.where for fault in found.faults), None)
    return dataclasses.replace(
        report,
        verdict="diverges" if found.faults else report.verdict,
        first_divergence=first,
        faults=(*report.faults, *found.faults),
        claims=(*report.claims, *found.claims),
        not_compared=(*found.not_compared, *report.not_compared),
        notes=(*report.notes, *found.notes),
    )
