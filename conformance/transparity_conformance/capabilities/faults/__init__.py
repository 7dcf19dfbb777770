"""Known faults in the capabilities of a model, as edits of the reference's source in TOML files.

A row has an `id`, a sentence `says` about the port's behavior, and `edits`. Each edit has a text that occurs exactly
once in the reference's source, and the text that replaces it. `also` names edits that several rows share. A port with
this fault returns the same results as the edited reference. In each table, the most likely fault comes first.
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
from transparity_conformance.oracle.differentiation.derivatives import loss_and_gradients
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.decoding.steps import prefill

Run = Callable[..., Any]

Edits = tuple[tuple[str, str], ...]
"""Pairs of a text and its replacement."""


@dataclass(frozen=True)
class SimulatedFault:
    """A known fault in a capability, with a function that returns the results of a port with this fault."""

    id: str
    """The name of the fault in the catalogue; its variants share the name."""
    says: str
    """A sentence about the port's behavior."""
    simulate: Run
    """The reference's function with this fault."""


def edited(edits: Edits, function: str, imported: Sequence[str] = (), **names: Any) -> Run:
    """Return `module.function` of the NumPy column with edited source, which may use the objects in `names`.

    The edits may also change copies of the modules in `imported`, which must be in the order of their imports. Raises
    `ValueError` unless each text occurs exactly once.
    """
    last, _, name = f"transparity_numpy.{function}".rpartition(".")
    texts = {
        each: inspect.getsource(import_module(each))
        for each in (*(f"transparity_numpy.{each}" for each in imported), last)
    }
    for old, new in edits:
        places = [each for each, text in texts.items() for _ in range(text.count(old))]
        if len(places) != 1:
            raise ValueError(f"{', '.join(texts)} contain {shown(old)} {len(places)} times; expected once.")
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
    """Decode `sizes` tokens at a time with a `step` function; return the logits (batch, length, vocab)."""
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
    """A function of the reference with edited source; `call` calls it with the right arguments."""

    edits: Edits
    function: str
    imported: tuple[str, ...]
    call: Run = _call

    @functools.cached_property
    def run(self) -> Run:
        """Return the edited function; the source is edited on first use."""
        return edited(self.edits, self.function, self.imported)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.call(self.run, *given, **named)


def _read(file: str, table: str, function: str, *imported: str, call: Run = _call) -> tuple[SimulatedFault, ...]:
    """Return the faults in one table of `file`.toml, which edit `function` and the modules `imported`."""
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
    *("mixers.attention", "mixers.recurrence", "mixers.gated_delta", "mixers.state_space"),
    *("mixers.latent", "layers", "transformer"),
    call=decode,
)
