"""Claims that the whole forward pass agrees with the oracle: for presets, all families, and low precision."""

import functools
import re
from collections.abc import Iterator

import numpy as np

from transparity.config.probe_sizes import most_experts
from transparity.presets import PRESETS
from transparity.taps import lengths_of, tap_shapes
from transparity_conformance.oracle.budgets import EVERY, HALF, rounded
from transparity_conformance.oracle.cases import CASES, MODELS
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.oracle.probes import Probe, probes, probes_of
from transparity_conformance.report.comparison import ClaimEvidence, as_numbers, dtype_name
from transparity_conformance.suite.bench import Bench, ClaimRecord
from transparity_conformance.suite.claims import claim

ONE_SHAPE = {"mixed", "text", "tiny", "hot"}
"""Probes with the same configuration and shape, for which one compiled program is enough."""

OF_HALF = ONE_SHAPE - {"hot"}
"""Probes for half precision, which has too few digits for the large scores of the probe `hot`."""

EAGER = {"float64": ONE_SHAPE | {"one", "longest"}, "float32": ONE_SHAPE | {"one", "longest", "square"}}

EVERY_SHAPE = ("notes-lm", "translation")
"""If a backend compiles models, only these presets are tested in float64 on probes outside of `ONE_SHAPE`."""


def probes_for(bench: Bench, case: str) -> Iterator[Probe]:
    """Yield the probes for a subject. Subjects in the mode `eager` and in float64 or float32 are tested on all
    shapes."""
    chosen = OF_HALF if bench.subject.dtype in ("bfloat16", "float16") else ONE_SHAPE
    if bench.subject.mode == "eager":
        chosen = EAGER.get(bench.subject.dtype, chosen)
    compiles = bench.compiles and bench.subject.dtype == "float64"
    shapes = ONE_SHAPE if compiles and case not in EVERY_SHAPE else chosen
    yield from (probe for name, probe in probes(case).items() if name in chosen & shapes)


def _about(name: str, pattern: str, says: str) -> None:
    """Register the claim that, on each probe, the activations whose names match `pattern` agree."""

    def check(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
        for probe in probes_for(bench, case):
            record, taps = bench.evidence(probe.case), bench.traced(probe)
            for name in probe.oracle.expected:
                if re.fullmatch(pattern, name):
                    yield record.oracle(probe.oracle, f"{name} ({probe.name})", taps.get(name, np.empty(0)), name)

    check.__name__, check.__doc__ = name, says
    claim(compiled=True, cases="traced_cases")(check)


for _name, _pattern, _says in (
    ("embedding", r"\w+\.embedding", "The embedding of tokens and positions agrees."),
    ("query_key_value", r".*attention\.(query|key|value)", "Queries, keys and values of every head agree."),
    ("scores", r".*\.scores", "Scaled scores before the mask agree."),
    ("weights", r".*\.weights", "Attention weights agree."),
    ("context", r".*\.context", "The merged context of all heads agrees."),
    ("attention_output", r".*attention\.output", "Attention's output agrees."),
    ("norms", r".*_norm", "The output of every norm agrees."),
    (
        "feed_forward",
        r".*feed_forward\.(hidden|output)",
        "The hidden features and the output of the feed-forward network agree.",
    ),
    ("encoder_layers", r"encoder\.layers\.\d+\.output", "The output of every encoder layer agrees."),
    ("decoder_layers", r"decoder\.layers\.\d+\.output", "The output of every decoder layer agrees."),
    ("stacks", r"\w+\.output", "The output of each stack agrees."),
    ("logits", r"logits", "The logits of the traced path agree with the oracle."),
):
    _about(_name, _pattern, _says)


@claim(of_reference=True, compiled=True, cases="fast_cases")
def fast_logits(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """The logits of the fast path, which has fused attention and no taps, agree with the oracle."""
    for probe in probes_for(bench, case):
        yield bench.evidence(probe.case).oracle(probe.oracle, f"logits ({probe.name})", bench.logits(probe), "logits")


@claim(of_reference=True, compiled=True, cases="traced_cases", probe="mixed")
def taps_are_complete(bench: Bench, probe: Probe, record: ClaimRecord) -> Iterator[ClaimEvidence]:
    """A model returns exactly the activations that the contract lists, in order, with the right shapes and dtype."""
    lengths = lengths_of(probe.config, probe.inputs)
    shapes = tap_shapes(probe.config, len(probe.inputs[probe.config.input_names[0]]), **lengths)
    taps = bench.traced(probe)
    wrong = [name for name in {*shapes, *taps} if name not in taps or shapes.get(name) != as_numbers(taps[name]).shape]
    yield record.exactly("names and shapes", len(wrong), 0, note=", ".join(sorted(wrong)[:3]))
    yield record.exactly("order", list(taps) == list(shapes), True)
    other = [name for name, value in taps.items() if dtype_name(value) != bench.subject.dtype]
    other += ["fast logits"] if dtype_name(bench.logits(probe)) != bench.subject.dtype else []
    yield record.exactly("dtype", len(other), 0, note=", ".join(other[:3]))


FEW = (
    *("llama", "qwen", "gemma", "olmo2", "gpt-j", "gpt-neox", "t5", "bart", "bert", "roberta", "modern-bert", "bloom"),
    *("qwen-moe", "deepseek", "gpt-oss", "masked-bert", "mpnet", "classifier", "last-token", "yarn", "phi3"),
    *("llama4", "qwen3-next", "mamba2", "vit", "whisper", "clip-text", "clip-vision"),
)
"""The only families to test if a backend compiles models; with the presets, these families cover all features."""


@functools.cache
def mixed(case: str) -> Probe:
    return probes_of(MODELS[case], case)["mixed"]


@claim(topic="families", quick=("float32",), cases=MODELS, few=FEW)
def taps_and_logits(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """All activations, and the logits of the fast path, agree with the oracle for a model of each family.

    In half precision, models with experts are left out, because rounding changes the choice of experts.
    """
    if bench.subject.dtype in HALF and most_experts(MODELS[case]):
        return
    probe, record = mixed(case), bench.evidence(case)
    forward = bench.forward(probe.config, probe.parameters)
    yield from record.forward(probe.oracle, forward, probe.inputs)
    if case == "llama":  # with as many keys as heads, code that confuses the two axes raises no error
        inputs = {name: tokens[:, : probe.config.num_heads] for name, tokens in probe.inputs.items()}
        oracle = forward_oracle(probe.config, probe.parameters, inputs)
        where = "logits of a text with as many tokens as heads"
        yield record.oracle(oracle, where, forward(**inputs)["logits"], "logits")


HELD = [(weights, activations) for half in HALF for weights, activations in ((half, None), (None, half), (half, half))]

RECURRENT = tuple(case for case, config in CASES.items() if config.is_recurrent)


@claim(
    topic="precision",
    dtypes=("float32",),
    quick=("float32",),
    cases=("notes-lm", "qwen3-next"),
    all_cases=(*PRESETS, *RECURRENT),
    all_in=("float32",),
)
def low_precision_weights_and_activations(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """With weights, activations or both in half precision, all activations agree with the oracle within rounding."""
    probe = mixed(case) if case in CASES else probes(case)["mixed"]
    for weights, activations in HELD:
        # Also round the oracle's weights, so that only the rounding of activations causes differences.
        parameters = {name: rounded(value, weights or "float32") for name, value in probe.parameters.items()}
        oracle = forward_oracle(probe.config, parameters, probe.inputs, neighbours=probe.neighbours)
        forward = bench.forward(probe.config, probe.parameters, weights=weights, activations=activations)
        dtype = f"{bench.subject.dtype}:{activations}" if activations else bench.subject.dtype
        record = bench.evidence(f"{case}: weights {weights}, activations {activations}", dtype)
        yield from record.forward(oracle, forward, probe.inputs)


@claim(topic="precision", dtypes=EVERY, quick=(), cases=PRESETS)
def taps_in_every_precision(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """All activations and the logits of every preset agree with the oracle in every precision."""
    for probe in probes_for(bench, case):
        record, logits = bench.evidence(probe.case), bench.logits(probe)
        yield from record.taps(probe.oracle, bench.traced(probe), f"{{}} ({probe.name})")
        yield record.oracle(probe.oracle, f"logits by the fast path ({probe.name})", logits, "logits")


@claim(topic="precision", dtypes=("float32",), of_reference=True)
def activations_are_rounded(bench: Bench) -> Iterator[ClaimEvidence]:
    """Half-precision activations are really rounded: rounding them again does not change them."""
    probe = probes("notes-lm")["mixed"]
    for half in HALF:
        if half in bench.backend.dtypes:
            forward = bench.forward(probe.config, probe.parameters, activations=half)
            record = bench.evidence(half)
            for name, value in forward(**probe.inputs).items():
                numbers = as_numbers(value)
                yield record.exactly(name, numbers, rounded(numbers, half))


@claim(topic="precision", dtypes=HALF, of_reference=True, quick=())
def decays_are_not_rounded(bench: Bench) -> Iterator[ClaimEvidence]:
    """In half precision, the logarithm of a decay stays in float32, because a rounding error would grow with the
    length."""
    probe, half = mixed("qwen3-next"), bench.subject.dtype
    record, taps = bench.evidence("qwen3-next"), bench.traced(probe)
    for name in (name for name in probe.oracle.expected if name.endswith(".log_decay")):
        numbers = as_numbers(taps[name])
        yield record.exactly(name, (numbers != rounded(numbers, half)).any(), True)


@claim(topic="precision", dtypes=("float32",), quick=())
def subnormal_numbers(bench: Bench) -> Iterator[ClaimEvidence]:
    """Values below float16's smallest normal number are rounded to subnormal numbers, not to zero."""
    probe = probes("notes-lm")["mixed"]
    least = float(np.finfo(np.float16).smallest_normal)
    parameters = {
        name: value * np.float32(least / 8) if ".value." in name else value for name, value in probe.parameters.items()
    }
    oracle = forward_oracle(probe.config, parameters, probe.inputs)
    taps = bench.forward(probe.config, parameters, activations="float16")(**probe.inputs)
    yield from bench.evidence("values near float16's smallest number", "float32:float16").taps(oracle, taps)
