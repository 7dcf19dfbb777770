"""The pool `equivalents`: mutations of the columns that do not change results.

`equivalents.toml` lists the mutated lines, each with the reason. On every preset, a mutated column must return the same
taps, logits, losses, gradients, generated tokens and beams as the original column. The claims about the mutated file
must also hold."""

import argparse
import functools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meta.mutation.mutants import Mutant, mutants
from meta.planting.planted import REFERENCE_COLUMN, as_reference, caught, file_path, harness_beside, planted, topic
from meta.pool.bug import rows
from meta.trial import Measure
from transparity.presets import PRESETS
from transparity.protocol import Backend
from transparity.taps import lengths_of
from transparity.training import dropout_masks
from transparity_conformance.capabilities.decoding.teacher_forcing import true_scores
from transparity_conformance.capabilities.requests import Request
from transparity_conformance.oracle.backends import REFERENCE, backend
from transparity_conformance.oracle.probes import probes
from transparity_conformance.report.comparison import as_numbers, difference
from transparity_conformance.suite.claims import all_claims
from transparity_conformance.suite.claims.generation import NEW, ROWS, SAMPLINGS, prompted

SEARCHES = ((2, 0.0), (3, 0.8))
"""Pairs of a number of beams and a length penalty."""


@dataclass(frozen=True)
class Equivalent:
    column: str
    file: str
    becomes: str
    why: str

    def __str__(self) -> str:
        return f"{self.column}/{self.file}.py: {self.becomes}"

    def run(self) -> dict[str, Any]:
        return {"differs": difference_made(self)}


@functools.cache
def equivalents() -> tuple[Equivalent, ...]:
    listed = rows(Path(__file__).with_name("equivalents.toml"), "equivalent")
    return tuple(Equivalent(it["column"], it["file"], line, it["why"]) for it in listed for line in it["becomes"])


def mutants_of(entry: Equivalent) -> list[Mutant]:
    return [mutant for mutant in _mutants_of(entry.column, entry.file) if mutant.becomes == entry.becomes]


@functools.cache
def _mutants_of(column: str, file: str) -> tuple[Mutant, ...]:
    made = mutants(file, file_path(column, file).read_text())
    return tuple({mutant.source: mutant for mutant in made}.values())


def difference_made(entry: Equivalent) -> str:
    """Return the first answer or claim that a mutant of the entry changes; empty if no mutant changes any."""
    made = mutants_of(entry)
    return next(filter(None, (_difference(entry.column, mutant) for mutant in made)), "") if made else "no such mutant"


def _difference(column: str, mutant: Mutant) -> str:
    near = {name: claim for name, claim in all_claims().items() if name.startswith(f"{topic(mutant.file)}.")}
    with ExitStack() as stack:
        build = stack.enter_context(planted(column, mutant.file, mutant.source))
        for case in PRESETS:
            if place := _first_other_answer(build, case):
                return f"{case}: {place}"
        subjects: list[Backend] = [build]
        if column == REFERENCE_COLUMN:
            stack.enter_context(as_reference(build))
            subjects.append(backend("pytorch"))
        for subject in subjects:
            for name, claim in near.items():
                is_made = claim.quick and (claim.of_reference or subject.name != REFERENCE)
                if is_made and caught(name, subject):
                    return name
    return ""


def _first_other_answer(build: Backend, case: str) -> str:
    found, allowed = answers(build, case), budgets(case)
    for name, right in right_answers(build.name, case).items():
        if not difference(found.get(name, np.empty(0)), right) <= allowed.get(name, 0.0):
            return name
    return ""


@functools.cache
def budgets(case: str) -> dict[str, float]:
    """Return the float64 budgets of activations, the loss and beams' scores. Other answers must be exactly equal."""
    oracle = probes(case)["mixed"].oracle
    found = {name: oracle.budget(name, "float64") for name in oracle.expected}
    found |= {"logits by the fast path": found["logits"], "loss": 2 * found["logits"]}
    config, parameters, prompt, source = prompted(case)
    for beams, power in SEARCHES:
        asked = Request("beams", config, parameters, prompt, NEW, source, beams=beams, length_penalty=power)
        tokens = right_answers(REFERENCE, case)[f"tokens of {beams} beams"]
        found[f"scores of {beams} beams"] = true_scores(asked, tokens).budget("scores", "float64")
    return found


@functools.cache
def right_answers(name: str, case: str) -> dict[str, np.ndarray]:
    return answers(backend(name), case)


def answers(build: Backend, case: str) -> dict[str, np.ndarray]:
    probe = probes(case)["mixed"]
    config, inputs = probe.config, dict[str, Any](probe.inputs)
    with harness_beside(build).pinned():
        forward = build(config, probe.parameters, dtype="float64", mode="eager")
        found = {name: as_numbers(value) for name, value in forward(**inputs).items()}
        found["logits by the fast path"] = as_numbers(forward.logits(**inputs))
        targets = np.roll(inputs[config.input_names[-1]], -1, axis=1)
        found["loss"] = np.asarray(forward.loss(targets, **inputs))
        if hasattr(forward, "loss_and_gradients"):
            lengths = lengths_of(config, inputs)
            masks = dropout_masks(config, np.random.default_rng(0), len(targets), **lengths)
            gradients = forward.loss_and_gradients(targets, masks=masks, **inputs)[1]
            found |= {f"gradient of {name}": value for name, value in gradients.items()}
        return found | dict(_generated(build, case))


def _generated(build: Backend, case: str) -> Iterator[tuple[str, np.ndarray]]:
    config, parameters, prompt, source = prompted(case)
    forward = build(config, parameters, dtype="float64", mode="eager")
    uniforms = np.random.default_rng(5).random((ROWS, NEW))
    yield "tokens, greedily", forward.generate(prompt, NEW, source=source)
    for name, sampling in SAMPLINGS.items():
        drawn = forward.generate(prompt, NEW, source=source, uniforms=uniforms, sampling=sampling)
        yield f"tokens, {name}", drawn
    if config.prefixes_agree:
        ragged = np.random.default_rng(8).integers(3, config.vocab_size, (ROWS, 3))
        yield "tokens, ragged", forward.generate(ragged, NEW, lengths=[1, 3, 2], source=source)
    for beams, power in SEARCHES:
        tokens, scores = forward.beam_search(prompt, NEW, beams, length_penalty=power, source=source)
        yield f"tokens of {beams} beams", tokens
        yield f"scores of {beams} beams", scores


def trials(options: argparse.Namespace) -> list[Equivalent]:
    return list(equivalents())


MEASURES = (Measure("compute the same", lambda _, answer: not answer["differs"], 1.0),)
