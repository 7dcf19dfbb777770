"""Ports that are right, each with one part written in another way: there has to be no alarm on any."""

from __future__ import annotations

from collections.abc import Iterator

from meta.power.family_port import FamilyFault
from meta.power.right import attending, experts, inputs, normalizing, recurring


def styles() -> Iterator[FamilyFault]:
    """One port for each part and way, with the configurations that have the part."""
    yield from experts.styles()
    yield from attending.styles()
    yield from normalizing.styles()
    yield from recurring.styles()
    yield from inputs.styles()
