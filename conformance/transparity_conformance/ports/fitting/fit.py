"""The configuration of a module: sizes from its parameters, all else from the values of its operations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.reach.features import exercised
from transparity_conformance.ports.fitting.configuration import configuration_of
from transparity_conformance.ports.fitting.found import Found
from transparity_conformance.ports.fitting.parts import parts_of
from transparity_conformance.ports.fitting.structure import before, softmaxes
from transparity_conformance.ports.fitting.subject import FitError, Heard, ModuleError, Subject, module_of
from transparity_conformance.ports.fitting.templates import SIZES, changed, nearest, templates
from transparity_conformance.ports.fitting.values.embedding import table_of
from transparity_conformance.ports.fitting.values.masks import is_causal
from transparity_conformance.ports.fitting.values.scores import scores_of
from transparity_conformance.report.comparison import gap

LENGTHS = ((31, 29), (19, 17), (13, 11), (9, 7), (5, 4), (3, 2))
"""Lengths of a source, or of a lone stack's tokens, and of a target, the first that the module takes."""

BATCH = 3

FIRST, LAST = 12, 4
"""Tokens at the two ends of a large vocabulary that are tried as padding."""


@dataclass(frozen=True, eq=False)
class Fit:
    """The configuration of a module."""

    config: TransformerConfig
    share: float
    """The largest difference of the reference with this configuration, as a share of the budget."""
    template: str
    """The nearest preset or family."""
    differences: dict[str, tuple[object, object]]
    untold: dict[str, str]
    """Fields of which other values would give the same outputs, with the reason."""
    parameters: Arrays
    """The module's drawn parameters by our names."""
    unused: tuple[str, ...] = ()
    """The module's parameters of which nothing was recognised."""

    @property
    def is_confirmed(self) -> bool:
        """Return whether the reference with this configuration computes what the module does."""
        return self.share <= 1


def fit_port(spec: str) -> Fit:
    """Find the configuration of the module that `path/to/file.py:Model` names; raises `PortError` if there is none."""
    return fit(module_of(spec))


def fit(module: Any, seed: int = 0) -> Fit:
    """Find the configuration of a `torch.nn.Module`, whose own weights are not touched.

    Raises `FitError` with the first part that no configuration has.
    """
    subject = Subject(module, seed)
    lengths, sizes, plain = _first_answer(subject)
    subject.widen(plain)
    heard = subject.hear(plain)
    parts = parts_of(subject, heard, causal=_causal(heard, lengths))
    calls = [heard, subject.hear(_with_further(subject, _paddings(plain, sizes), sizes))]
    if "attention_mask" in subject.names:
        calls.append(subject.hear(_masked(plain)))
    found = configuration_of(subject, parts, calls)
    return dataclasses.replace(_confirmed(found, calls), unused=_unused(subject, found))


def _unused(subject: Subject, found: Found) -> tuple[str, ...]:
    """The module's parameters that are nowhere in ours."""
    ours = list(found.parameters.values())
    is_used = {name: any(np.may_share_memory(value, each) for each in ours) for name, value in subject.values.items()}
    return tuple(name for name, used in is_used.items() if not used)


def _first_answer(subject: Subject) -> tuple[Sequence[int], dict[str, int], Arrays]:
    """The lengths that the module takes, the sizes of the tables that its inputs look up, and plain tokens."""
    error: FitError | None = None
    for each in LENGTHS:
        lengths = dict(zip(subject.tokens, each, strict=False))
        inputs = {name: subject.random.integers(0, 2, (BATCH, length)) for name, length in lengths.items()}
        try:
            heard = subject.hear(_with_further(subject, inputs, {}))
            sizes = _tables(subject, heard)
            plain = {name: _plain(subject.random, sizes[name], length) for name, length in lengths.items()}
            plain = _with_further(subject, plain, sizes)
            subject.call(plain)
        except ModuleError as raised:
            error = error or raised
            continue
        return tuple(lengths.values()), sizes, plain
    assert error is not None
    raise error


def _tables(subject: Subject, heard: Heard) -> dict[str, int]:
    """The rows of the tables that the tokens, and their types, look up."""
    sizes: dict[str, int] = {}
    used: set[str] = set()
    for name in (*subject.tokens, *(["token_types"] if "token_types" in subject.names else [])):
        left = {each: value for each, value in subject.values.items() if name in subject.tokens or each not in used}
        table = table_of(heard.operations, heard.inputs[name], left)
        if table is None and name == "token_types":  # it takes some, but has no table of its own for them
            del subject.names[name]
            continue
        if table is None:
            raise FitError(f"No rows of a parameter are looked up by the {name}; expected a table of embeddings.")
        used.add(table)
        sizes[name] = len(subject.values[table])
    return sizes


def _plain(random: np.random.Generator, size: int, length: int) -> np.ndarray:
    """Tokens of which none is likely to be padding, all different in a row if there are as many."""
    usual = np.arange(4, size - 1) if size > 8 else np.arange(size)
    rows = [random.permutation(np.resize(random.permutation(usual), length)) for _ in range(BATCH)]
    return np.stack(rows)


def _with_further(subject: Subject, inputs: Arrays, sizes: Mapping[str, int]) -> Arrays:
    first = inputs[subject.tokens[0]]
    further: Arrays = {}
    if "attention_mask" in subject.names:
        further["attention_mask"] = np.ones_like(first)
    if "token_types" in subject.names:
        further["token_types"] = (np.arange(first.shape[1]) + np.arange(len(first))[:, None]) % sizes.get(
            "token_types", 1
        )
    return {name: inputs[name] for name in subject.tokens} | further


def _masked(inputs: Arrays) -> Arrays:
    """The inputs with some tokens masked, in each row others."""
    mask = np.ones_like(inputs["attention_mask"])
    for row in range(len(mask)):
        mask[row, 1 + row :: 3] = 0
    return {**inputs, "attention_mask": mask}


def _paddings(plain: Arrays, sizes: Mapping[str, int]) -> Arrays:
    """Rows in which every token that may be padding is behind one that is plain."""
    rows: dict[str, list[np.ndarray]] = {}
    for name, size in sizes.items():
        if name == "token_types":
            continue
        tokens = plain[name]
        length = tokens.shape[1]
        tried = np.arange(size) if size <= 256 else np.r_[:FIRST, size - LAST : size]
        most = max(1, length - 2)
        chunks = [tried[begin : begin + most] for begin in range(0, len(tried), most)]
        rows[name] = []
        for chunk in chunks:
            for first in (tokens[0, 0], tokens[1, 0] if tokens[1, 0] != tokens[0, 0] else tokens[0, 1]):
                row = np.full(length, first)
                row[1 : 1 + len(chunk)] = chunk[: length - 1]
                rows[name].append(row)
    most = max(map(len, rows.values()))
    return {name: np.stack([each[i % len(each)] for i in range(most)]) for name, each in rows.items()}


def _causal(heard: Heard, lengths: Sequence[int]) -> bool:
    """Return whether the last stack's attentions mask the future; token types, which only an encoder has, tell where
    every token sees itself alone."""
    batch = len(next(iter(heard.inputs.values())))
    found = softmaxes(heard.operations, batch, lengths)
    own = [softmax for softmax in found if softmax.weights.shape[2:] == (lengths[-1], lengths[-1])]
    if not own:
        raise FitError("No operation is a softmax over the tokens; expected attention.")
    masked = [scores_of(each, heard.operations, before(found, each)).masked for each in own]
    is_blind = all(is_causal(each.swapaxes(1, 2)) for each in masked)
    return all(map(is_causal, masked)) and not (is_blind and "token_types" in heard.inputs)


def _confirmed(found: Found, calls: Sequence[Heard]) -> Fit:
    """The fit, held to all calls; fields that cannot be told have the values of the nearest template, if these fit."""
    config = found.config()
    probes = _probes(config, found, calls)
    share, untold = _share(probes, calls), dict(found.untold)
    name, differ = nearest(config, untold)
    if share <= 1:
        unseen = exercised(config, probes)[1]
        config = _as_usual(config, name, found, calls)
        untold |= {each: "no call shows it" for each in unseen if each not in untold}
    return Fit(config, share, name, differ, untold, found.parameters)


def _as_usual(config: TransformerConfig, template: str, found: Found, calls: Sequence[Heard]) -> TransformerConfig:
    """The configuration with those fields of the template that cannot be told, if the calls are then the same."""
    every = {name: getattr(templates()[template], name) for name in found.untold if name not in SIZES}
    for fields in (every, *({name: value} for name, value in every.items())):
        usual = changed(config, fields)
        if usual is not None and _share(_probes(usual, found, calls), calls) <= 1:
            config = usual
        if fields is every and usual == config:
            return config
    return config


def _probes(config: TransformerConfig, found: Found, calls: Sequence[Heard]) -> list[Probe]:
    return [Probe("fit", f"call {i}", "", config, found.parameters, call.inputs) for i, call in enumerate(calls)]


def _share(probes: Sequence[Probe], calls: Sequence[Heard]) -> float:
    """The largest difference of the calls' outputs, as a share of its budget."""
    return max(_share_of(probe, call.output) for probe, call in zip(probes, calls, strict=True))


def _share_of(probe: Probe, output: np.ndarray) -> float:
    """The difference of a call's output as a share of its budget."""
    oracle = probe.oracle
    expected = oracle.expected["logits"]
    if expected.shape != output.shape:
        return math.inf
    budget = oracle.budget("logits", "float32")
    return float(gap(output, expected)) / budget if budget else math.inf
