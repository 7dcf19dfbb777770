"""The answer of a fit, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from transparity.presets import departures
from transparity_conformance.identify.fitting.fit import Fit


def sentences(fit: Fit, port: str) -> Iterator[str]:
    """Which template is nearest, what differs from it, how sure that is, and what cannot be told."""
    pairs = fit.differences.items()
    fields = "; ".join(f"{name} is {_shown(ours)}, not {_shown(theirs)}" for name, (theirs, ours) in pairs)
    yield f"{port} is {fit.template}{f', but {fields}' if fields else ', in all but its sizes'}."
    if fit.is_confirmed:
        yield "Confirmed: the reference with this configuration computes what the module does, within rounding."
    else:
        yield (
            f"Not confirmed: the reference with this configuration differs from the module by {fit.share:.2g} × the "
            "budget; something in the module is in no configuration, or was read wrongly."
        )
    yield from (f"{remark}." for remark in fit.remarks)
    yield f"Departures from the paper: {'; '.join(departures(fit.config)) or 'none'}."
    if fit.unused:
        yield f"Not understood, since no operation that was recognised uses them: {', '.join(fit.unused)}."
    for name, reason in fit.untold.items():
        yield f"Cannot be told: {name} ({reason}); {_shown(getattr(fit.config, name))} is written."


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
