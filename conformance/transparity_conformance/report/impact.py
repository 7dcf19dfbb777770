"""The effect of a divergence on what users see: real tokens whose logits change, and predictions that do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from transparity_conformance.report.formatting import count


@dataclass(frozen=True)
class Impact:
    """The effect of one divergence, or of all with the same cause, over all probes."""

    positions: Mapping[str, int]
    """`changed` of the real positions (`of`) have logits beyond their budget."""
    argmax_changes: int
    """The real positions whose largest logit is another one."""
    at_padding_only: bool
    """Whether logits change at padded positions and at no real one."""

    @property
    def sentence(self) -> str:
        """`Effect: 31 of 56 tokens change; the predicted token changes for 4.`"""
        if self.at_padding_only:
            return "Effect: logits change at padding only."
        if not self.positions["changed"]:
            return "Effect: no logit changes."
        changed = f"Effect: {self.positions['changed']:,} of {count(self.positions['of'], 'token')} change"
        return f"{changed}; the predicted token changes for {self.argmax_changes or 'none'}."


def largest(impacts: Iterable[Impact | None]) -> Impact | None:
    """The impact that changes most."""
    known = [impact for impact in impacts if impact is not None]
    return max(known, key=lambda impact: (impact.positions["changed"], impact.argmax_changes), default=None)
