"""The whole forward pass, compared with the oracle: every tap by the traced path, the logits by the fast one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from transparity.taps import lengths_of, tap_shapes
from transparity_conformance.oracle.probes import Probe, probes
from transparity_conformance.report.comparison import Evidence, as_numbers, dtype_name
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim

ONE_SHAPE = {"mixed", "text", "tiny", "hot"}
"""Probes that share a configuration and a shape, so that they share a compiled program."""

HALF = ONE_SHAPE - {"hot"}
"""Probes for half precision, which has no fractional digits left in scores of some thousands."""

EAGER = {"float64": ONE_SHAPE | {"one", "longest"}, "float32": ONE_SHAPE | {"one", "longest", "square"}}

EVERY_SHAPE = ("notes-lm", "translation")
"""Presets for which float64 is tested on other shapes if every operation is compiled per shape; float32 is tested on
them for all presets."""


def probes_for(bench: Bench, cases: Iterable[str]) -> Iterator[Probe]:
    """Return the probes of a subject; uncompiled in float64 and float32, those of every shape."""
    chosen = HALF if bench.subject.dtype in ("bfloat16", "float16") else ONE_SHAPE
    if bench.subject.mode == "eager":
        chosen = EAGER.get(bench.subject.dtype, chosen)
    compiles = bench.backend.modes[0] != "eager" and bench.subject.dtype == "float64"
    for case in cases:
        shapes = ONE_SHAPE if compiles and case not in EVERY_SHAPE else chosen
        yield from (probe for name, probe in probes(case).items() if name in chosen & shapes)


def taps_agree(bench: Bench, claim: str, pattern: str) -> Iterator[Evidence]:
    """Compare every tap whose name matches `pattern`, of every probe."""
    for probe in probes_for(bench, bench.traced_cases):
        record, taps = bench.evidence(claim, probe.case), bench.traced(probe)
        for name in probe.oracle.expected:
            if re.fullmatch(pattern, name):
                yield record.oracle(probe.oracle, f"{name} ({probe.name})", taps.get(name, np.empty(0)), name)


def _about(name: str, pattern: str, says: str) -> None:
    def check(bench: Bench) -> Iterator[Evidence]:
        yield from taps_agree(bench, f"forward.{name}", pattern)

    check.__name__, check.__doc__ = name, says
    claim(compiled=True)(check)


for _name, _pattern, _says in (
    ("embedding", r"\w+\.embedding", "The embedding of tokens and positions agrees."),
    ("query_key_value", r".*attention\.(query|key|value)", "Queries, keys and values of every head agree."),
    ("scores", r".*\.scores", "Scaled scores before the mask agree."),
    ("weights", r".*\.weights", "Attention weights agree."),
    ("context", r".*\.context", "The context of all heads, merged, agrees."),
    ("attention_output", r".*attention\.output", "Attention's output agrees."),
    ("norms", r".*_norm", "The output of every norm agrees."),
    ("feed_forward", r".*feed_forward\.(hidden|output)", "The feed-forward's hidden features and output agree."),
    ("encoder_layers", r"encoder\.layers\.\d+\.output", "The output of every encoder layer agrees."),
    ("decoder_layers", r"decoder\.layers\.\d+\.output", "The output of every decoder layer agrees."),
    ("stacks", r"\w+\.output", "The output of each stack agrees."),
    ("logits", r"logits", "The logits by the traced path agree."),
):
    _about(_name, _pattern, _says)


@claim(of_reference=True, compiled=True)
def fast_logits(bench: Bench) -> Iterator[Evidence]:
    """The logits by the fast path agree: fused attention, without taps."""
    for probe in probes_for(bench, bench.fast_cases):
        record = bench.evidence("forward.fast_logits", probe.case)
        yield record.oracle(probe.oracle, f"logits ({probe.name})", bench.logits(probe), "logits")


@claim(of_reference=True, compiled=True)
def taps_are_complete(bench: Bench) -> Iterator[Evidence]:
    """Exactly the contract's taps are there, in order, with their shapes and in the requested dtype."""
    for case in bench.traced_cases:
        probe = probes(case)["mixed"]
        lengths = lengths_of(probe.config, probe.inputs)
        shapes = tap_shapes(probe.config, len(probe.inputs[probe.config.input_names[0]]), **lengths)
        taps = bench.traced(probe)
        record = bench.evidence("forward.taps_are_complete", case)
        wrong = [
            name for name in {*shapes, *taps} if name not in taps or shapes.get(name) != as_numbers(taps[name]).shape
        ]
        yield record.exactly("names and shapes", len(wrong), 0, note=", ".join(sorted(wrong)[:3]))
        yield record.exactly("order", list(taps) == list(shapes), True)
        other = [name for name, value in taps.items() if dtype_name(value) != bench.subject.dtype]
        other += ["fast logits"] if dtype_name(bench.logits(probe)) != bench.subject.dtype else []
        yield record.exactly("dtype", len(other), 0, note=", ".join(other[:3]))
