"""Faults in the capabilities of a model, the likeliest first: edits of the reference's source, as TOML rows.

A row has an `id`, a sentence `says` about the port's apparent behavior, and `edits`. Each edit has text that occurs
exactly once in the reference, and its replacement. `also` names edits that rows share. A port with the fault gives the
answers of the edited reference.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from types import ModuleType
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity_conformance.oracle.differentiation.gradients import loss_and_gradients
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.decoding.steps import prefill

Run = Callable[..., Any]

Edits = tuple[tuple[str, str], ...]
"""Pairs of old and new text."""


@dataclass(frozen=True)
class SimulatedFault:
    """A fault in a capability, with the answers of a port that has it."""

    id: str
    """Its name in the catalogue, shared by variants of one fault."""
    says: str
    """A sentence about the port's apparent behavior."""
    simulate: Run
    """The reference's function with this fault."""


def edited(edits: Edits, function: str, imported: Sequence[str] = (), **names: Any) -> Run:
    """Return `module.function` of the NumPy column with edited source, which may use `names`.

    Copies of the modules that it imports may be edited too, in the order of their imports. Raises `ValueError` if text
    does not occur exactly once.
    """
    last, _, name = f"transparity_numpy.{function}".rpartition(".")
    texts = {
        each: inspect.getsource(import_module(each))
        for each in (*(f"transparity_numpy.{each}" for each in imported), last)
    }
    for old, new in edits:
        places = [each for each, text in texts.items() for _ in range(text.count(old))]
        if len(places) != 1:
            raise ValueError(f"{', '.join(texts)} have {len(places)} places with {shown(old)}; expected one.")
        texts[places[0]] = texts[places[0]].replace(old, new)
    copies = {each: ModuleType(each) for each in texts}

    def load(name: str, *given: Any) -> ModuleType:
        return copies.get(name) or __import__(name, *given)

    for each, text in texts.items():
        vars(copies[each])["__builtins__"] = vars(builtins) | {"__import__": load} | names
        exec(compile(text, f"<edited {each}>", "exec"), vars(copies[each]))
    run: Run = getattr(copies[last], name)
    return run


def decode(
    step: Run, config: TransformerConfig, parameters: Arrays, inputs: Arrays, sizes: Sequence[int]
) -> np.ndarray:
    """Return the logits (batch, length, vocab) of a `step` that receives `sizes` tokens at a time."""
    tokens, given = inputs[config.input_names[-1]], inputs.get("attention_mask")
    of_source, of_tokens = (given, None) if config.has_encoder else (None, given)
    source = inputs.get("source")
    cache = prefill(config, parameters, len(tokens), config.max_length, source=source, attention_mask=of_source)
    logits, ends = [], np.cumsum(sizes)
    for begin, end in zip(ends - sizes, ends, strict=True):
        mask = None if of_tokens is None else of_tokens[:, begin:end]
        logits.append(step(config, parameters, tokens[:, begin:end], cache, attention_mask=mask))
    return np.concatenate(logits, axis=1)


def _train(train: Run, *given: Any) -> tuple[list[float], Arrays]:
    trained: tuple[list[float], Arrays] = train(*given, differentiate=loss_and_gradients)
    return trained


def _call(run: Run, *given: Any, **named: Any) -> Any:
    return run(*given, **named)


@dataclass(frozen=True)
class Edited:
    """A function of the reference with edited source, and its use by `call`."""

    edits: Edits
    function: str
    imported: tuple[str, ...]
    call: Run = _call

    @functools.cached_property
    def run(self) -> Run:
        """Return the function, edited on first use."""
        return edited(self.edits, self.function, self.imported)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.call(self.run, *given, **named)


def _read(file: str, table: str, function: str, *imported: str, call: Run = _call) -> tuple[SimulatedFault, ...]:
    """Return the faults in a table of `file`.toml: edits of `function` and of the modules `imported` by it."""
    tables = tomllib.loads(files(__package__).joinpath(f"{file}.toml").read_text(encoding="utf-8"))
    faults = []
    for row in tables[table]:
        shared = [pair for name in row.get("also", ()) for pair in tables["shared"][name]]
        edits = tuple((old, new) for old, new in (*shared, *row.get("edits", ())))
        faults.append(SimulatedFault(row["id"], row["says"], Edited(edits, function, imported, call)))
    return tuple(faults)


GREEDY_FAULTS = _read("generation", "greedy", "decoding.generation.generate", "decoding.steps")
RAGGED_FAULTS = _read("generation", "ragged", "decoding.generation.generate", "decoding.steps")
SAMPLING_FAULTS = _read("sampling", "drawing", "decoding.generation.generate")
BEAM_FAULTS = _read("beams", "beams", "decoding.beams.beam_search", "decoding.steps")
LOSS_FAULTS = _read("loss", "losses", "training.loss.cross_entropy")
OPTIMIZER_FAULTS = _read("optimization", "optimizers", "training.optimization.train", call=_train)
CACHE_FAULTS = _read(
    "cache",
    "cache",
    "decoding.steps.step",
    *("mixers.attention", "mixers.convolution", "mixers.recurrence", "mixers.gated_delta", "mixers.state_space"),
    *("mixers.latent", "mixers.table", "layers", "transformer"),
    call=decode,
)
