"""A walk: a forward pass of the reference that computes each activation from the port's earlier activations. A fault
makes only its own segment wrong, so one walk can show several faults."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import Tap
from transparity.text import describe_error
from transparity_conformance import work
from transparity_conformance.catalogue.fault import Fault, Formula, Hypothesis, WalkState
from transparity_conformance.diagnosis.resume import Start, depth, start_at
from transparity_conformance.oracle.budgets import RULES, epsilon, rounded
from transparity_conformance.oracle.near_ties import is_choice
from transparity_conformance.oracle.oracle import Arrays, neighbour
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.variants import variant
from transparity_conformance.report.comparison import gap
from transparity_conformance.storage.on_disk import changed
from transparity_numpy.transformer import transformer


class TapReached(Exception):  # noqa: N818 - not an error
    """Raised to end a forward pass after the requested tap."""


class Impossible(Exception):  # noqa: N818 - not an error
    """Faults exclude each other: for example, one fault removes a tap that another changes."""


@contextlib.contextmanager
def under_hypothesis(*errors: type[Exception]) -> Iterator[None]:
    """Convert all exceptions except `errors` to `Impossible`, because faults may make the computation fail."""
    passed: tuple[type[Exception], ...] = (Impossible, MemoryError, *errors)
    try:
        yield
    except passed:
        raise
    except Exception as error:
        raise Impossible(describe_error(error)) from error


@dataclass(frozen=True)
class Base:
    """A walk without faults, whose values other walks reuse before their first fault."""

    computed: MutableMapping[str, np.ndarray]
    taps: Mapping[str, np.ndarray]
    """The port's values at recorded taps, computed values at all others."""


def base_of(probe: Probe, recorded: Mapping[str, np.ndarray]) -> Base:
    taps = probe.room()
    return Base(walk(probe, recorded, taps=taps), taps)


def walk(
    probe: Probe,
    recorded: Mapping[str, np.ndarray],
    hypotheses: Sequence[Hypothesis] = (),
    *,
    dtype: str = "float64",
    until: str | None = None,
    index: int = 0,
    base: Base | None = None,
    taps: MutableMapping[str, np.ndarray] | None = None,
    choices: Mapping[str, np.ndarray] | None = None,
) -> MutableMapping[str, np.ndarray]:
    """Run the reference with faults, and continue with the port's values at `recorded` taps; return the computed
    values. The walk ends after the tap `until`. `index` selects slightly changed weights, to measure rounding; 0 means
    the probe's own. `base` is a walk without faults whose values are reused. `taps` receives the values of the walk.
    `choices` has the walk's values in float64, which determine the chosen experts."""
    with under_hypothesis() if hypotheses else contextlib.nullcontext():
        right, tokens = neighbour(probe.parameters, index), dict[str, Any](probe.inputs)
        recorded = neighbour(dict(recorded), index) if index else recorded
        model = applied(hypotheses, probe.config, right)
        start = _start(model.config, recorded, until, base, model.touched, model.downstream)
        exact = probe.exact if dtype == "float64" and index == 0 and probe.keeps_exact else {}
        parameters = _cast(
            model, {name: exact[name] for name in exact if model.parameters[name] is right[name]}, start, dtype
        )
        state = WalkState(model.config, parameters, probe.inputs, _flow(probe, start, dtype) if taps is None else taps)
        # A fault that changes the configuration may change every value.
        computed = probe.room() if base is None or model.config is not probe.config else copy.copy(base.computed)
        tap = start.tap(_walking(state, computed, recorded, hypotheses, dtype, until, choices))
        computing = variant(index) if dtype != "float64" else contextlib.nullcontext()
        with np.errstate(all="ignore"), contextlib.suppress(TapReached), computing:
            transformer(start.shorter, start.shortened(state.parameters), tap=tap, **tokens)
        return computed


def _cast(model: Model, known: Arrays, start: Start, dtype: str) -> Arrays:
    others = {name: value for name, value in model.parameters.items() if name not in known}
    return known | {name: value if start.skips(name) else rounded(value, dtype) for name, value in others.items()}


def _flow(probe: Probe, start: Start, dtype: str) -> MutableMapping[str, np.ndarray]:
    if not start.skipped:
        return probe.room()
    given = changed(start.given, lambda value: rounded(value, dtype))
    return given if isinstance(given, dict) else ChainMap(probe.room(), given)  # type: ignore[arg-type] # is not written


@dataclass
class Model:
    config: TransformerConfig
    parameters: Arrays
    touched: list[str] = field(default_factory=list)
    downstream: list[str] = field(default_factory=list)
    """The taps at which a fault changes the value with which the walk continues."""


def applied(hypotheses: Sequence[Hypothesis], config: TransformerConfig, right: Arrays) -> Model:
    model = Model(config, right)
    for hypothesis in hypotheses:
        fault = hypothesis.fault
        if fault.fields:
            model.config = dataclasses.replace(model.config, **fault.fields)
            model.touched.append("encoder.embedding")
            model.downstream.append("encoder.embedding")
        changed: Arrays = {}
        if fault.alter:
            # Each change reads the right parameters. Otherwise, half of a swap would undo the other half.
            changed = dict(ChainMap(*[fault.alter(model.config, right, site) for site in hypothesis.sites]))
            model.parameters = model.parameters | changed
        if not fault.fields:
            model.touched += [*changed, *hypothesis.sites]
        if fault.downstream:
            model.downstream += hypothesis.sites
    return model


def _walking(
    state: WalkState,
    computed: MutableMapping[str, np.ndarray],
    recorded: Mapping[str, np.ndarray],
    hypotheses: Sequence[Hypothesis],
    dtype: str,
    until: str | None,
    choices: Mapping[str, np.ndarray] | None,
) -> Tap:
    def tap(name: str, value: np.ndarray) -> np.ndarray:
        if choices is not None and is_choice(name):
            value = choices[name]
        elif any(name in each.patched for each in hypotheses):
            value = made_with(hypotheses, state, name, value)
        made = rounded(value, dtype)
        work.count(made.size, state.config.embed_dim)
        computed[name] = made
        if name == until:
            raise TapReached
        flow = rounded(recorded[name], dtype) if name in recorded else made
        state.taps[name] = flow
        for each in hypotheses:
            if each.fault.downstream and name in each.sites:
                flow = each.fault.downstream(state, name, flow)
        state.taps[name] = flow
        return flow

    return tap


@under_hypothesis()
def made_with(hypotheses: Sequence[Hypothesis], state: WalkState, name: str, value: np.ndarray) -> np.ndarray:
    made = [each.fault for each in hypotheses if name in each.patched]
    for formula, settings in _formulas(made).items():
        value = formula(settings, state, name, value)
    for fault in made:
        value = fault.patch(state, name, value) if fault.patch else value
    return value


def _formulas(faults: Sequence[Fault]) -> dict[Formula, dict[str, Any]]:
    formulas: dict[Formula, dict[str, Any]] = {}
    for fault in faults:
        if fault.formula is not None:
            settings = formulas.setdefault(fault.formula, {})
            if twice := settings.keys() & fault.settings.keys():
                raise Impossible(f"{min(twice)} cannot have two values")
            settings |= fault.settings
    return formulas


def _start(
    config: TransformerConfig,
    recorded: Mapping[str, np.ndarray],
    until: str | None,
    base: Base | None,
    touched: list[str],
    downstream: list[str],
) -> Start:
    if until is None and base is None:
        return Start(config, {})
    end = depth(config, until or "logits")
    # After a recorded activation, earlier faults have no effect, except faults with a `downstream` function.
    cut = start_at(config, recorded, end).depth if until else (0, 0)
    earliest = min([end, *(depth(config, name) for name in touched if depth(config, name) >= cut)])
    earliest = min([earliest, *(depth(config, name) for name in downstream)])
    return start_at(config, recorded if base is None else base.taps, earliest)


def dependents(
    probe: Probe,
    values: Mapping[str, np.ndarray],
    ours: Mapping[str, np.ndarray],
    tap: str,
    known: Sequence[Hypothesis] = (),
) -> set[str]:
    """Return the taps that depend on `tap` without another tap of `values` in between."""
    moved = walk(probe, {**values, tap: perturbed(values[tap])}, known)
    return {name for name in ours if not np.array_equal(moved[name], ours[name], equal_nan=True)}


def perturbed(value: np.ndarray) -> np.ndarray:
    """Return different values of similar size: reverse every axis, then scale and shift a little."""
    value = np.nan_to_num(value)
    return np.flip(value) * 1.02 + 0.01 * (float(np.abs(value).max(initial=0.0)) or 1.0)


def segment_budgets(
    probe: Probe,
    recorded: Mapping[str, np.ndarray],
    dtype: str,
    hypotheses: Sequence[Hypothesis] = (),
    *,
    until: str | None = None,
    neighbours: int = 3,
    truth: Mapping[str, np.ndarray] | None = None,
) -> dict[str, float]:
    """Return each segment's budget, from rounding in `dtype`. `truth` is the same walk in float64, if known."""
    rule, ulp = RULES[dtype], epsilon(dtype)
    measured = "float32" if dtype == "float64" else dtype
    noise: dict[str, float] = {}
    scale: dict[str, float] = {}
    for index in range(neighbours):
        exact = truth if truth and not index else walk(probe, recorded, hypotheses, until=until, index=index)
        jittered = changed(recorded, partial(_jittered, index=index, ulp=epsilon(measured)))
        options: dict[str, Any] = {"dtype": measured, "until": until, "index": index, "choices": exact}
        for name, value in walk(probe, jittered, hypotheses, **options).items():
            noise[name] = max(noise.get(name, 0.0), gap(value, exact[name]))
            finite = exact[name][np.isfinite(exact[name])]
            scale[name] = max(scale.get(name, 0.0), float(np.abs(finite).max(initial=0.0)))
    ratio = epsilon(dtype) / epsilon(measured)
    return {name: rule.budget(noise[name] * ratio, ulp, scale[name]) for name in noise}


def _jittered(value: np.ndarray, index: int, ulp: float) -> np.ndarray:
    """Change elements by up to half an ulp, because a port may continue with unrounded values."""
    return value * (1 + np.random.default_rng([index, value.size]).uniform(-ulp / 2, ulp / 2, value.shape))
