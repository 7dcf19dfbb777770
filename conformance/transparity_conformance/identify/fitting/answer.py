"""The answer of `transparity fit`, in sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from transparity.config import FIELD_TYPES
from transparity.presets import departures
from transparity.text import listed
from transparity_conformance.identify.fitting.fit import Fit
from transparity_conformance.identify.fitting.subject import FitError
from transparity_conformance.identify.fitting.templates import NOT_RUN, SIZES, templates


def sentences(fit: Fit, port: str) -> Iterator[str]:
    """Yield sentences: the nearest template, the differences from it, the evidence, and undetermined fields."""
    pairs = fit.differences.items()
    fields = "; ".join(f"{name} is {_shown(ours)}, not {_shown(theirs)}" for name, (theirs, ours) in pairs)
    yield f"{port} is {fit.template}{f', but {fields}' if fields else ', apart from its sizes'}."
    if fit.is_confirmed:
        yield "Confirmed: the reference with this configuration agrees with the module within rounding."
    else:
        yield (
            f"Not confirmed: the reference with this configuration differs from the module by {fit.share:.2g} × the "
            "budget; some part has no field, or was not recognized."
        )
    yield from (f"{remark}." for remark in fit.remarks)
    yield f"Departures from the paper: {'; '.join(departures(fit.config)) or 'none'}."
    if fit.unused:
        yield f"Not understood, because no recognized operation uses them: {', '.join(fit.unused)}."
    for name, reason in fit.untold.items():
        yield f"Undetermined: {name} ({reason}); the configuration uses {_shown(getattr(fit.config, name))}."


AGAINST = "If another implementation is at hand, `check PORT --against REFERENCE` needs no configuration."


def unfinished(error: FitError) -> tuple[str, str]:
    """Return the incomplete configuration of a fit that stopped, and a sentence with the nearest template.

    If the templates differ in an unknown field, its value is "?".
    """
    known = {name: value for name, value in error.known.items() if name not in SIZES}
    others = {name: each for name, each in templates().items() if each.architecture == known.get("architecture")}
    if not others:
        return "", AGAINST
    run = {name: value for name, value in known.items() if name not in NOT_RUN}
    apart: dict[str, dict[str, tuple[object, object]]] = {}
    for name, each in others.items():
        pairs = {field: (getattr(each, field), value) for field, value in run.items()}
        apart[name] = {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
    name = min(apart, key=lambda each: len(apart[each]))
    but = listed([f"{field} is {_shown(ours)}, not {_shown(theirs)}" for field, (theirs, ours) in apart[name].items()])
    open_fields = [
        field
        for field in FIELD_TYPES
        if field not in error.known and len({str(getattr(each, field)) for each in others.values()}) > 1
    ]
    fields = {**error.known, **dict.fromkeys(open_fields, "?")}
    written = {field: "-inf" if value == -math.inf else value for field, value in fields.items()}
    nearest = f"The nearest template is {name}{f', but {but}' if but else ''}. " if len(known) > 1 else ""
    return json.dumps(written, indent=2) + "\n", f"{nearest}{AGAINST}"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
