"""Long prompts that a port is asked to answer: compared at every position, and shortened where they are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from transparity.limits.memory import available_memory
from transparity.taps import tap_shapes
from transparity_conformance.checking.calls import Comparison, Reached, call_model
from transparity_conformance.checking.stages.evidence import Evidence
from transparity_conformance.oracle.memory import BYTES_OF_AN_ACTIVATION
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.reach.long import LongProbe, has_prefixes
from transparity_conformance.oracle.reach.thresholds import LONGEST
from transparity_conformance.report.comparison import share


def call_long(evidence: Evidence) -> None:
    """Call a port on long prompts, the shortest first, up to one that is wrong; that is shortened, too."""
    forward, probes, reached = evidence.ran.forward, evidence.arguments.long, evidence.reached
    dtype, progress = evidence.arguments.dtype, evidence.progress
    for number, probe in enumerate(probes):
        if reached.wrong:
            leave_out(probes[number:], reached)
            return
        progress("calling the port at long prompts", number, len(probes))
        errors = _errors(forward, probe, reached)
        progress("measuring rounding at long prompts", number, len(probes))
        found = _comparison(probe, errors, dtype)
        reached.compared.append(found)
        if errors is not None and found.is_wrong:
            reached.notes.append(_where(probe, errors, found.budget))
            if has_prefixes(probe.config):
                _shorten(forward, probe, errors, dtype, reached)
            if not can_be_walked(shortest := reached.wrong[0].probe):
                reached.notes.append(f"{shortest.name}: the cause is not searched, for all activations are too large")


def leave_out(probes: Sequence[LongProbe], reached: Reached) -> None:
    """List long prompts that are not tried, for shorter ones are wrong."""
    reached.refused.extend(f"{probe.name}: shorter prompts diverge" for probe in probes)


def can_be_walked(probe: Probe) -> bool:
    """Return whether all activations of a wrong call are affordable, so that its cause can be searched."""
    if not isinstance(probe, LongProbe):
        return True
    length = max(probe.lengths)
    taps = tap_shapes(probe.config, 1, **dict.fromkeys(probe.config.input_names, length))
    needed = sum(map(math.prod, taps.values())) * BYTES_OF_AN_ACTIVATION
    return length <= LONGEST and needed <= available_memory()


def _errors(forward: Callable[..., Any], probe: LongProbe, reached: Reached) -> np.ndarray | None:
    """The largest error of the port at each position; None for logits of another shape."""
    taps = call_model(forward, probe, reached, False, logits_only=True)
    assert taps is not None  # a port that fails at a length that was asked for has raised
    logits = taps["logits"]
    return probe.oracle.errors(logits) if logits.shape == probe.oracle.shape else None


def _comparison(probe: LongProbe, errors: np.ndarray | None, dtype: str) -> Comparison:
    budget = probe.budget(dtype)
    if errors is None:
        return Comparison(probe, np.inf, budget, {})
    error = float(errors.max())
    is_shown = share(error, budget) > 1 and len(errors) <= LONGEST
    return Comparison(probe, error, budget, {"row": [error]} | ({"position": errors.tolist()} if is_shown else {}))


def _where(probe: LongProbe, errors: np.ndarray, budget: float) -> str:
    wrong = np.flatnonzero(~(errors <= budget))
    says = f"{probe.name}: {len(wrong):,} of {len(errors):,} positions are wrong, from position {wrong[0]:,} on"
    return says if len(wrong) > 1 else f"{probe.name}: position {wrong[0]:,} alone is wrong"


def _shorten(forward: Callable[..., Any], probe: LongProbe, errors: np.ndarray, dtype: str, reached: Reached) -> None:
    """Find the shortest wrong prompt: it ends at the first wrong position, unless the port goes by the length."""
    right, wrong = 0, len(errors)
    middle = 1 + int(np.argmax(~(errors <= probe.budget(dtype))))
    while right < middle < wrong:
        part = probe.prefix(middle)
        found = _comparison(part, _errors(forward, part, reached), dtype)
        reached.compared.append(found)
        if found.is_wrong and right == 0:
            return
        right, wrong = (right, middle) if found.is_wrong else (middle, wrong)
        middle = (right + wrong) // 2
