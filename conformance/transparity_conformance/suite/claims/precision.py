"""Low precision: weights, activations or both in fewer bits than the computation uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from transparity.presets import PRESETS
from transparity_conformance.oracle.budgets import EVERY, HALF, rounded
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.oracle.probes import probes
from transparity_conformance.report.comparison import Evidence, as_numbers
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim
from transparity_conformance.suite.claims.families import mixed
from transparity_conformance.suite.claims.forward import probes_for

HELD = [(weights, activations) for half in HALF for weights, activations in ((half, None), (None, half), (half, half))]

RECURRENT = tuple(case for case, config in CASES.items() if config.is_recurrent)


@claim(
    dtypes=("float32",),
    quick=("float32",),
    cases=("notes-lm", "qwen3-next"),
    all_cases=(*PRESETS, *RECURRENT),
    all_in=("float32",),
)
def low_precision_weights_and_activations(bench: Bench, cases: Iterable[str]) -> Iterator[Evidence]:
    """With weights, activations or both in half precision, every tap is within the rounding error of that precision."""
    for case in cases:
        probe = mixed(case) if case in CASES else probes(case)["mixed"]
        for weights, activations in HELD:
            # Rounded weights are merely other weights: only rounding during the computation may differ.
            parameters = {name: rounded(value, weights or "float32") for name, value in probe.parameters.items()}
            oracle = forward_oracle(probe.config, parameters, probe.inputs, neighbours=probe.neighbours)
            forward = bench.forward(probe.config, probe.parameters, weights=weights, activations=activations)
            dtype = f"{bench.subject.dtype}:{activations}" if activations else bench.subject.dtype
            taps, what = forward(**probe.inputs), f"weights {weights}, activations {activations}"
            record = bench.evidence("precision.low_precision_weights_and_activations", f"{case}: {what}")
            for name, expected in oracle.expected.items():
                yield record.within(name, taps.get(name, np.empty(0)), expected, oracle.budget(name, dtype))
            logits = forward.logits(**probe.inputs)
            budget = oracle.budget("logits", dtype)
            yield record.within("logits by the fast path", logits, oracle.expected["logits"], budget)


@claim(dtypes=EVERY, quick=())
def taps_in_every_precision(bench: Bench) -> Iterator[Evidence]:
    """Every tap and the logits of every preset agree in every precision."""
    for probe in probes_for(bench, PRESETS):
        record, taps = bench.evidence("precision.taps_in_every_precision", probe.case), bench.traced(probe)
        for name in probe.oracle.expected:
            yield record.oracle(probe.oracle, f"{name} ({probe.name})", taps.get(name, np.empty(0)), name)
        logits = bench.logits(probe)
        yield record.oracle(probe.oracle, f"logits by the fast path ({probe.name})", logits, "logits")


@claim(dtypes=("float32",), of_reference=True)
def activations_are_rounded(bench: Bench) -> Iterator[Evidence]:
    """Activations in half precision are not changed by rounding them to it once more."""
    probe = probes("notes-lm")["mixed"]
    for half in HALF:
        if half in bench.backend.dtypes:
            forward = bench.forward(probe.config, probe.parameters, activations=half)
            record = bench.evidence("precision.activations_are_rounded", half)
            for name, value in forward(**probe.inputs).items():
                numbers = as_numbers(value)
                yield record.exactly(name, numbers, rounded(numbers, half))


@claim(dtypes=HALF, of_reference=True, quick=())
def decays_are_not_rounded(bench: Bench) -> Iterator[Evidence]:
    """In half precision, the logarithm of a recurrence's decay is in float32: errors of it grow with the positions that
    a state stays for."""
    probe, half = mixed("qwen3-next"), bench.subject.dtype
    record, taps = bench.evidence("precision.decays_are_not_rounded", "qwen3-next"), bench.traced(probe)
    for name in (name for name in probe.oracle.expected if name.endswith(".log_decay")):
        numbers = as_numbers(taps[name])
        yield record.exactly(name, (numbers != rounded(numbers, half)).any(), True)


@claim(dtypes=("float32",), quick=())
def subnormal_numbers(bench: Bench) -> Iterator[Evidence]:
    """Values below float16's smallest normal number are rounded to its subnormal numbers, not to zero."""
    probe = probes("notes-lm")["mixed"]
    least = float(np.finfo(np.float16).smallest_normal)
    parameters = {
        name: value * np.float32(least / 8) if ".value." in name else value for name, value in probe.parameters.items()
    }
    oracle = forward_oracle(probe.config, parameters, probe.inputs)
    taps = bench.forward(probe.config, parameters, activations="float16")(**probe.inputs)
    record = bench.evidence("precision.subnormal_numbers", "values near float16's smallest")
    for name, expected in oracle.expected.items():
        yield record.within(name, taps.get(name, np.empty(0)), expected, oracle.budget(name, "float32:float16"))
