"""The walk: the reference, led through the port's own activations.

At each tap the reference computes the next value from what the port had, and goes on from what the port says. So every
segment stands alone: a fault shows where it is made and nowhere behind, and several faults are all found at once. It is
one forward pass under one tap; with nothing to go by but logits, the one segment is the whole model.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.fault import Hypothesis, Patch, Run
from transparity_conformance.diagnosis.resume import Start, depth, start_at
from transparity_conformance.oracle.budgets import RULES, epsilon, rounded
from transparity_conformance.oracle.oracle import Arrays, neighbour
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.comparison import gap
from transparity_numpy.transformer import transformer


class Reached(Exception):  # noqa: N818 - no error
    """The tap that was asked for has been passed: the rest of the forward pass is nobody's concern."""


class Impossible(Exception):  # noqa: N818 - no error
    """Two faults that cannot both be made: one looks at what, with the other, is not there yet."""


@dataclass(frozen=True)
class Base:
    """A walk that others differ from only behind some layer."""

    heard: Arrays
    seen: Arrays


def base_of(probe: Probe, flows: Mapping[str, np.ndarray]) -> Base:
    """The whole walk without any fault, for others to begin in its midst."""
    seen: Arrays = {}
    return Base(walk(probe, flows, seen=seen), seen)


def walk(
    probe: Probe,
    flows: Mapping[str, np.ndarray],
    hypotheses: Sequence[Hypothesis] = (),
    *,
    dtype: str = "float64",
    until: str | None = None,
    index: int = 0,
    base: Base | None = None,
    seen: Arrays | None = None,
) -> Arrays:
    """What the reference, with `hypotheses` put into it, makes of the activations `flows` at every tap up to `until`.

    `dtype` is the precision that it computes in; `index` chooses one of the neighbouring points at which its rounding
    is measured (0: the point itself). What `base` has computed, on the same flows, is not computed again; `seen` takes
    what flows on.
    """
    config, right = probe.config, neighbour(probe.parameters, index)
    parameters = right
    flows = neighbour(dict(flows), index) if index else flows
    touched: list[str] = []
    onward: list[str] = []
    for hypothesis in hypotheses:
        fault = hypothesis.fault
        changed: Arrays = {}
        if fault.fields:
            config = dataclasses.replace(config, **fault.fields)
        if fault.alter:
            # Of the right ones: two that were exchanged are both taken from where they were.
            changes = [fault.alter(config, right, site) for site in hypothesis.sites]
            changed = dict(ChainMap(*changes))
            parameters = parameters | changed
        touched += [*changed, *hypothesis.sites] if not fault.fields else ["encoder.embedding"]
        onward += hypothesis.sites if fault.onward else ["encoder.embedding"] * bool(fault.fields)
    start = _start(config, flows, until, base, touched, onward)
    exact = probe.exact if dtype == "float64" and index == 0 and not probe.is_large else {}
    cast = {
        name: exact[name]
        if name in exact and value is right[name]
        else (value if start.skips(name) else rounded(value, dtype))
        for name, value in parameters.items()
    }
    before = {name: rounded(value, dtype) for name, value in start.given.items()} if start.skipped else {}
    run = Run(config, cast, probe.inputs, before if seen is None else seen)
    heard: Arrays = {} if base is None else dict(base.heard)

    def tap(name: str, value: np.ndarray) -> np.ndarray:
        for hypothesis in hypotheses:
            if name in hypothesis.patched and hypothesis.fault.patch:
                value = _patched(hypothesis.fault.patch, run, name, value)
        heard[name] = rounded(value, dtype)
        if name == until:
            raise Reached
        flow = rounded(flows[name], dtype) if name in flows else heard[name]
        run.seen[name] = flow
        for hypothesis in hypotheses:
            if hypothesis.fault.onward and name in hypothesis.sites:
                flow = _patched(hypothesis.fault.onward, run, name, flow)
        run.seen[name] = flow
        return flow

    tokens: dict[str, Any] = dict(probe.inputs)
    try:
        with np.errstate(all="ignore"):
            transformer(start.shorter, start.shortened(run.parameters), tap=start.tap(tap), **tokens)
    except Reached:
        pass
    return heard


def _patched(patch: Patch, run: Run, name: str, value: np.ndarray) -> Any:
    try:
        return patch(run, name, value)
    except KeyError as missing:
        raise Impossible(f"{name} is patched by what is not there: {missing}") from missing


def _start(
    config: TransformerConfig,
    flows: Mapping[str, np.ndarray],
    until: str | None,
    base: Base | None,
    touched: list[str],
    onward: list[str],
) -> Start:
    """Where the walk begins: behind it nothing is asked for that is not known."""
    if until is None and base is None:
        return Start(config, {})
    end = depth(config, until or "logits")
    # What was done wrong in front of what the port itself shows does not show behind it, unless it is handed on.
    cut = start_at(config, flows, end).depth if until else (0, 0)
    earliest = min([end, *(depth(config, name) for name in touched if depth(config, name) >= cut)])
    earliest = min([earliest, *(depth(config, name) for name in onward)])
    return start_at(config, flows if base is None else base.seen, earliest)


def segment_budgets(
    probe: Probe,
    flows: Mapping[str, np.ndarray],
    dtype: str,
    hypotheses: Sequence[Hypothesis] = (),
    *,
    until: str | None = None,
    neighbours: int = 3,
    truth: Arrays | None = None,
) -> dict[str, float]:
    """How far rounding in `dtype` may take each segment: the reference's own error in it, as every budget here.

    `truth` is the same walk in float64, if that was taken before.
    """
    rule, ulp = RULES[dtype], epsilon(dtype)
    measured = "float32" if dtype == "float64" else dtype
    noise: dict[str, float] = {}
    scale: dict[str, float] = {}
    for index in range(neighbours):
        exact = truth if truth and not index else walk(probe, flows, hypotheses, until=until, index=index)
        jittered = {name: _jittered(value, index, epsilon(measured)) for name, value in flows.items()}
        for name, value in walk(probe, jittered, hypotheses, dtype=measured, until=until, index=index).items():
            noise[name] = max(noise.get(name, 0.0), gap(value, exact[name]))
            finite = exact[name][np.isfinite(exact[name])]
            scale[name] = max(scale.get(name, 0.0), float(np.abs(finite).max(initial=0.0)))
    ratio = epsilon(dtype) / epsilon(measured)
    return {name: rule.budget(noise[name] * ratio, ulp, scale[name]) for name in noise}


def _jittered(value: np.ndarray, index: int, ulp: float) -> np.ndarray:
    """A port rounds what it shows; what it goes on with may not have been."""
    random = np.random.default_rng([index, value.size])
    return value * (1 + random.uniform(-ulp / 2, ulp / 2, value.shape))
