"""Claims that irrelevant changes of the inputs have no effect (metamorphic tests).

These claims need no expected values, so they also test the reference.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from transparity.config import TransformerConfig
from transparity.presets import PRESETS
from transparity_conformance.oracle.budgets import EVERY, WIDE
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, probes
from transparity_conformance.report.comparison import ClaimEvidence, Expectation, as_numbers
from transparity_conformance.suite.bench import Bench, ClaimRecord
from transparity_conformance.suite.claims import claim


def logits(bench: Bench, probe: Probe, inputs: Arrays, parameters: Arrays | None = None) -> np.ndarray:
    return as_numbers(bench.forward(probe.config, parameters or probe.parameters).logits(**inputs))


def budget(bench: Bench, probe: Probe) -> float:
    return 2 * probe.oracle.budget("logits", bench.subject.dtype)


def expected_of(config: TransformerConfig) -> tuple[Expectation, str]:
    if config.mask_value > -1:
        return "breaks", f"a mask value of {config.mask_value:g} hides nothing"
    return "holds", ""


@claim(dtypes=WIDE, of_reference=True, compiled=True, cases="fast_cases", probe="mixed")
def future_tokens_have_no_effect(bench: Bench, probe: Probe, record: ClaimRecord) -> Iterator[ClaimEvidence]:
    """A change of a token changes the logits at the token's position, but no earlier logits."""
    config, name = probe.config, probe.config.input_names[-1]
    inputs = {key: np.repeat(tokens[:1], len(tokens), axis=0) for key, tokens in probe.inputs.items()}
    rows, length = inputs[name].shape
    flipped = range(length)[-(rows - 1) :]
    for row, position in enumerate(flipped, 1):
        inputs[name][row, position] = inputs[name][row, position] % (config.vocab_size - 1) + 1
    result = logits(bench, probe, inputs)
    for row, position in enumerate(flipped, 1):
        if position:
            before, base = result[row, :position], result[0, :position]
            where = f"logits before a flipped token {position}"
            yield record.within(where, before, base, budget(bench, probe), *expected_of(config))
        changed = np.abs(result[row, position] - result[0, position]).max() > budget(bench, probe)
        yield record.exactly(f"logits at a flipped token {position}", changed, True)


@claim(dtypes=WIDE, of_reference=True, compiled=True, cases="fast_cases", probe="mixed")
def padding_content_has_no_effect(bench: Bench, probe: Probe, record: ClaimRecord) -> Iterator[ClaimEvidence]:
    """A change of the padding token's embedding does not change the logits of other tokens."""
    config, inputs, name = probe.config, dict(probe.inputs), probe.config.input_names[-1]
    # Put the decoder's padding at the end, where the causal mask hides the padding.
    inputs[name] = np.where(inputs[name] == config.pad_id, 1, inputs[name])
    inputs[name][1, -2:] = config.pad_id
    parameters = dict(probe.parameters)
    for key in [key for key in parameters if key.endswith("token_embedding.weight")]:
        parameters[key] = parameters[key].copy()
        parameters[key][config.pad_id] += 3
    real = inputs[name] != config.pad_id
    if "source" in inputs:
        real &= (inputs["source"] != config.pad_id).any(1, keepdims=True)
    base, other = logits(bench, probe, inputs)[real], logits(bench, probe, inputs, parameters)[real]
    yield record.within("logits of real tokens", other, base, budget(bench, probe), *expected_of(config))


@claim(dtypes=("float64",), of_reference=True, cases=PRESETS, probe="text")
def padding_length_has_no_effect(bench: Bench, probe: Probe, record: ClaimRecord) -> Iterator[ClaimEvidence]:
    """Additional padding on the right does not change the logits of other tokens."""
    config, longest = probe.config, probe.config.max_length
    padded = {
        name: np.pad(tokens, ((0, 0), (0, longest - tokens.shape[1])), constant_values=config.pad_id or 0)
        for name, tokens in probe.inputs.items()
    }
    base = logits(bench, probe, probe.inputs)
    other = logits(bench, probe, padded)[:, : base.shape[1]]
    yield record.within("logits of real tokens", other, base, budget(bench, probe), *expected_of(config))


@claim(dtypes=("float64",), of_reference=True, cases=PRESETS, probe="mixed")
def rows_are_independent(bench: Bench, probe: Probe, record: ClaimRecord) -> Iterator[ClaimEvidence]:
    """A row has the same logits in a batch and without other rows."""
    whole = logits(bench, probe, probe.inputs)
    for row in (0, 1, 5):
        alone = logits(bench, probe, {name: tokens[row : row + 1] for name, tokens in probe.inputs.items()})
        yield record.within(f"logits of row {row}", alone, whole[row : row + 1], budget(bench, probe))


@claim(dtypes=WIDE, of_reference=True, compiled=True, cases="fast_cases", probe="mixed")
def batch_order_permutes_output(bench: Bench, probe: Probe, record: ClaimRecord) -> Iterator[ClaimEvidence]:
    """A permutation of a batch's rows permutes the rows of the output in the same way."""
    base = logits(bench, probe, probe.inputs)
    order = np.random.default_rng(8).permutation(len(base))
    other = logits(bench, probe, {name: tokens[order] for name, tokens in probe.inputs.items()})
    yield record.within("logits", other, base[order], budget(bench, probe))


@claim(dtypes=EVERY, of_reference=True, compiled=True, cases="fast_cases", probe="mixed")
def runs_are_bitwise_equal(bench: Bench, probe: Probe, record: ClaimRecord) -> Iterator[ClaimEvidence]:
    """Two runs on the same inputs are bitwise equal, even with a run on other inputs in between."""
    first = logits(bench, probe, probe.inputs)
    other = {name: value[::-1].copy() for name, value in probe.parameters.items()}
    logits(bench, probe, probes(probe.case)["text"].inputs, other)
    yield record.exactly("logits", logits(bench, probe, probe.inputs), first)


@claim(dtypes=EVERY, of_reference=True, compiled=True, cases="traced_cases", probe="mixed")
def fully_padded_source_is_finite(bench: Bench, probe: Probe, record: ClaimRecord) -> Iterator[ClaimEvidence]:
    """If all keys of a row are masked, the results stay finite, because all keys get the same weight."""
    if not probe.config.has_encoder:
        return
    (row,) = np.flatnonzero((probe.inputs["source"] == probe.config.pad_id).all(1))
    taps, name = bench.traced(probe), "decoder.layers.0.cross_attention.weights"
    yield record.exactly("finite logits", np.isfinite(as_numbers(taps["logits"])[row].astype(np.float64)).all(), True)
    if expected_of(probe.config)[0] == "holds":
        weights = as_numbers(taps[name])[row]
        alike = np.full_like(weights, 1 / weights.shape[-1])
        yield record.within(name, weights, alike, probe.oracle.budget(name, bench.subject.dtype))


@claim(dtypes=("float64",), of_reference=True, cases=PRESETS, probe="text")
def no_padding_without_pad_id(bench: Bench, probe: Probe, record: ClaimRecord) -> Iterator[ClaimEvidence]:
    """Without a `pad_id`, token 0 is treated like any other token."""
    config, parameters = dataclasses.replace(probe.config, pad_id=None), dict(probe.parameters)
    swapped = {name: np.where(t == 0, 3, np.where(t == 3, 0, t)) for name, t in probe.inputs.items()}
    base = as_numbers(bench.forward(config, parameters).logits(**probe.inputs))
    exchanged = {
        name: value[[3, 1, 2, 0, *range(4, len(value))]] if name.endswith("token_embedding.weight") else value
        for name, value in parameters.items()
    }
    other = as_numbers(bench.forward(config, exchanged).logits(**swapped))
    yield record.within("logits with tokens 0 and 3 swapped", other, base, budget(bench, probe))
