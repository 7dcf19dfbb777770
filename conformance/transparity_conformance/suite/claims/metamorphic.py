"""Metamorphic claims: irrelevant changes have no effect. They need no oracle, so they also test the reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from transparity.config import TransformerConfig
from transparity.presets import PRESETS
from transparity_conformance.oracle.budgets import EVERY, WIDE
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, probes
from transparity_conformance.report.comparison import Evidence, Expectation, as_numbers
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim


def logits(bench: Bench, probe: Probe, inputs: Arrays, parameters: Arrays | None = None) -> np.ndarray:
    """Return the logits of the probe's model on other `inputs`, by the fast path."""
    return as_numbers(bench.forward(probe.config, parameters or probe.parameters).logits(**inputs))


def budget(bench: Bench, probe: Probe) -> float:
    """Budget for rounding between two computations of the same logits."""
    return 2 * probe.oracle.budget("logits", bench.subject.dtype)


def expected_of(config: TransformerConfig) -> tuple[Expectation, str]:
    """Return the expected outcome: claims about masks must break for a mask that hides nothing."""
    if config.mask_value > -1:
        return "breaks", f"the mask's {config.mask_value:g} hides nothing"
    return "holds", ""


def decoder_input(config: TransformerConfig) -> str:
    return config.input_names[-1]


@claim(dtypes=WIDE, of_reference=True, compiled=True)
def future_tokens_have_no_effect(bench: Bench) -> Iterator[Evidence]:
    """Changing a token at any position changes its own output and nothing before it."""
    for case in bench.fast_cases:
        probe = probes(case)["mixed"]
        config, name = probe.config, decoder_input(probe.config)
        inputs = {key: np.repeat(tokens[:1], len(tokens), axis=0) for key, tokens in probe.inputs.items()}
        rows, length = inputs[name].shape
        flipped = range(length)[-(rows - 1) :]
        for row, position in enumerate(flipped, 1):
            inputs[name][row, position] = inputs[name][row, position] % (config.vocab_size - 1) + 1
        result = logits(bench, probe, inputs)
        expectation, note = expected_of(config)
        record = bench.evidence("metamorphic.future_tokens_have_no_effect", case)
        for row, position in enumerate(flipped, 1):
            if position:
                before, base = result[row, :position], result[0, :position]
                where = f"logits before a flipped token {position}"
                yield record.within(where, before, base, budget(bench, probe), expectation, note)
            changed = np.abs(result[row, position] - result[0, position]).max() > budget(bench, probe)
            yield record.exactly(f"logits at a flipped token {position}", changed, True)


@claim(dtypes=WIDE, of_reference=True, compiled=True)
def padding_content_has_no_effect(bench: Bench) -> Iterator[Evidence]:
    """Another embedding of the padding token changes nothing at other tokens."""
    for case in bench.fast_cases:
        probe = probes(case)["mixed"]
        config, inputs = probe.config, dict(probe.inputs)
        name = decoder_input(config)
        # Padding in the decoder's input is masked by the causal mask only, so it is at the end here.
        inputs[name] = np.where(inputs[name] == config.pad_id, 1, inputs[name])
        inputs[name][1, -2:] = config.pad_id
        parameters = dict(probe.parameters)
        for key in [key for key in parameters if key.endswith("token_embedding.weight")]:
            parameters[key] = parameters[key].copy()
            parameters[key][config.pad_id] += 3
        real = inputs[name] != config.pad_id
        if "source" in inputs:
            real &= (inputs["source"] != config.pad_id).any(1, keepdims=True)
        base, other = logits(bench, probe, inputs), logits(bench, probe, inputs, parameters)
        expectation, note = expected_of(config)
        record = bench.evidence("metamorphic.padding_content_has_no_effect", case)
        yield record.within("logits of real tokens", other[real], base[real], budget(bench, probe), expectation, note)


@claim(dtypes=("float64",), of_reference=True)
def padding_length_has_no_effect(bench: Bench) -> Iterator[Evidence]:
    """Padding added on the right changes nothing at other tokens."""
    for case in PRESETS:
        probe = probes(case)["text"]
        config, longest = probe.config, probe.config.max_length
        padded = {
            name: np.pad(tokens, ((0, 0), (0, longest - tokens.shape[1])), constant_values=config.pad_id or 0)
            for name, tokens in probe.inputs.items()
        }
        length = probe.inputs[decoder_input(config)].shape[1]
        base, other = logits(bench, probe, probe.inputs), logits(bench, probe, padded)[:, :length]
        expectation, note = expected_of(config)
        record = bench.evidence("metamorphic.padding_length_has_no_effect", case)
        yield record.within("logits of real tokens", other, base, budget(bench, probe), expectation, note)


@claim(dtypes=("float64",), of_reference=True)
def rows_are_independent(bench: Bench) -> Iterator[Evidence]:
    """A row alone has the same output as in its batch."""
    for case in PRESETS:
        probe = probes(case)["mixed"]
        whole = logits(bench, probe, probe.inputs)
        record = bench.evidence("metamorphic.rows_are_independent", case)
        for row in (0, 1, 5):
            alone = logits(bench, probe, {name: tokens[row : row + 1] for name, tokens in probe.inputs.items()})
            yield record.within(f"logits of row {row}", alone, whole[row : row + 1], budget(bench, probe))


@claim(dtypes=WIDE, of_reference=True, compiled=True)
def batch_order_permutes_output(bench: Bench) -> Iterator[Evidence]:
    """Permuting the rows of a batch permutes the output."""
    for case in bench.fast_cases:
        probe = probes(case)["mixed"]
        base = logits(bench, probe, probe.inputs)
        order = np.random.default_rng(8).permutation(len(base))
        other = logits(bench, probe, {name: tokens[order] for name, tokens in probe.inputs.items()})
        record = bench.evidence("metamorphic.batch_order_permutes_output", case)
        yield record.within("logits", other, base[order], budget(bench, probe))


@claim(dtypes=EVERY, of_reference=True, compiled=True)
def runs_are_bitwise_equal(bench: Bench) -> Iterator[Evidence]:
    """Two runs are equal to the bit, also with other runs between them."""
    for case in bench.fast_cases:
        probe = probes(case)["mixed"]
        first = logits(bench, probe, probe.inputs)
        other = {name: value[::-1].copy() for name, value in probe.parameters.items()}
        logits(bench, probe, probes(case)["text"].inputs, other)
        record = bench.evidence("metamorphic.runs_are_bitwise_equal", case)
        yield record.exactly("logits", logits(bench, probe, probe.inputs), first)


@claim(dtypes=EVERY, of_reference=True, compiled=True)
def fully_padded_source_is_finite(bench: Bench) -> Iterator[Evidence]:
    """Rows whose keys are all masked stay finite: attention weighs all keys equally."""
    for case in bench.traced_cases:
        probe = probes(case)["mixed"]
        if probe.config.has_encoder:
            (row,) = np.flatnonzero((probe.inputs["source"] == probe.config.pad_id).all(1))
            taps = bench.traced(probe)
            record = bench.evidence("metamorphic.fully_padded_source_is_finite", case)
            finite = bool(np.isfinite(as_numbers(taps["logits"])[row].astype(np.float64)).all())
            yield record.exactly("finite logits", finite, True)
            if expected_of(probe.config)[0] == "holds":
                weights = as_numbers(taps["decoder.layers.0.cross_attention.weights"])[row]
                alike = np.full_like(weights, 1 / weights.shape[-1])
                name = "decoder.layers.0.cross_attention.weights"
                yield record.within(name, weights, alike, probe.oracle.budget(name, bench.subject.dtype))


@claim(dtypes=("float64",), of_reference=True)
def no_padding_without_pad_id(bench: Bench) -> Iterator[Evidence]:
    """Without a `pad_id`, token 0 is a token like any other."""
    for case in PRESETS:
        probe = probes(case)["text"]
        config = dataclasses.replace(probe.config, pad_id=None)
        swapped, parameters = (
            {name: np.where(t == 0, 3, np.where(t == 3, 0, t)) for name, t in probe.inputs.items()},
            {},
        )
        for name, value in probe.parameters.items():
            table = name.endswith("token_embedding.weight")
            parameters[name] = value[[3, 1, 2, 0, *range(4, len(value))]] if table else value
        base = as_numbers(bench.forward(config, dict(probe.parameters)).logits(**probe.inputs))
        other = as_numbers(bench.forward(config, parameters).logits(**swapped))
        record = bench.evidence("metamorphic.no_padding_without_pad_id", case)
        yield record.within("logits with tokens 0 and 3 exchanged", other, base, budget(bench, probe))
