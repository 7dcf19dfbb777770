"""Known faults in the capabilities of a model, written as edits of the reference's source in TOML files.

A row has an `id`, a sentence `says` about the faulty port, and `edits`. Each edit has a text that occurs exactly once
in the source, and the replacement of this text. `also` names edits that several rows share. A port with the fault
returns the same results as the edited reference. In each table, the most likely fault comes first.

Functions in this file create the faults in the loss and in gradient clipping that depend on the number of ranks.
"""

import builtins
import functools
import inspect
import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.resources import files
from types import ModuleType
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity_conformance.capabilities.sharding import Placement, Sharding, join, split
from transparity_conformance.oracle.differentiation.derivatives import loss_and_gradients
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.decoding.steps import prefill
from transparity_numpy.training.loss import cross_entropy
from transparity_numpy.training.optimization import clip_by_global_norm

Run = Callable[..., Any]

Edits = tuple[tuple[str, str], ...]
"""The pair (old text, new text) of each edit."""


@dataclass(frozen=True)
class SimulatedFault:
    """A known fault, with a function that computes what a port with this fault returns."""

    id: str
    """The id in the catalogue, which variants of the fault share."""
    says: str
    simulate: Run
    """A function of the reference that has this fault."""


def edited(edits: Edits, function: str, imported: Sequence[str] = (), **names: Any) -> Run:
    """Return a function of the NumPy column with edited source, which may refer to the objects in `names`. Edits may
    also change copies of the modules `imported`, which must be listed in the order of their imports. Raise `ValueError`
    unless the text of each edit occurs exactly once."""
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
    return getattr(copies[last], name)


def decode(
    step: Run, config: TransformerConfig, parameters: Arrays, inputs: Arrays, sizes: Sequence[int]
) -> np.ndarray:
    """Decode the inputs with a cache, `sizes` tokens per step; return the logits (batch, length, vocab)."""
    tokens, given = inputs[config.input_names[-1]], inputs.get("attention_mask")
    of_source, of_tokens = (given, None) if config.has_encoder else (None, given)
    source = inputs.get("source")
    cache = prefill(config, parameters, len(tokens), config.max_length, source=source, attention_mask=of_source)
    logits, ends = [], np.cumsum(sizes)
    for begin, end in zip(ends - sizes, ends, strict=True):
        mask = None if of_tokens is None else of_tokens[:, begin:end]
        logits.append(step(config, parameters, tokens[:, begin:end], cache, attention_mask=mask))
    return np.concatenate(logits, axis=1)


@dataclass(frozen=True)
class Edited:
    edits: Edits
    function: str
    imported: tuple[str, ...]
    call: Run | None = None
    """A function whose first argument is the edited function; None if the fault only needs the edited function."""

    @functools.cached_property
    def run(self) -> Run:
        return edited(self.edits, self.function, self.imported)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.call(self.run, *given, **named) if self.call else self.run(*given, **named)


def _read(file: str, table: str, function: str, *imported: str, call: Run | None = None) -> tuple[SimulatedFault, ...]:
    """Read the faults in a table of `file`.toml; their edits change `function` and the modules `imported`."""
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
OPTIMIZER_FAULTS = _read(
    "optimization",
    "optimizers",
    "training.optimization.train",
    call=lambda train, *given: train(*given, differentiate=loss_and_gradients),
)
CACHE_FAULTS = _read(
    "cache",
    "cache",
    "decoding.steps.step",
    *("mixers.attention", "mixers.recurrence", "mixers.gated_delta", "mixers.state_space"),
    *("mixers.latent", "mixers", "layers.sequential", "layers.parallel", "layers"),
    *("positions.in_attention", "transformer"),
    call=decode,
)


PADDED_TO = (8, 16, 32, 64, 128)
"""Implementations pad a vocabulary to a multiple of a number in this tuple, possibly times the number of ranks."""

Split = Callable[[np.ndarray, int], list[np.ndarray]]
"""A function that splits an array into a number of parts."""

PARTS: dict[str, Split] = {
    "rows": np.array_split,
    "interleaved rows": lambda x, count: [x[part::count] for part in range(count)],
    "positions": lambda x, count: np.array_split(x, count, axis=1),
}
"""Common ways to split a batch of tokens over ranks or micro-batches."""


def loss_faults(sharding: Sharding) -> list[SimulatedFault]:
    """Return the known faults of a loss on several ranks, most likely first. Return no faults for one rank."""
    ranks = sharding.ranks
    if ranks == 1:
        return []
    widths = sorted({size * each for size in PADDED_TO for each in (1, ranks)} | {ranks})
    says = "the softmax of the loss includes the padding that extends the vocabulary to a multiple of"
    padded = [SimulatedFault("vocabulary-padded", f"{says} {width}", partial(_over_padding, width)) for width in widths]
    return [*averaged_in_parts("loss-per-rank", "rank", ranks), *padded]


def averaged_in_parts(name: str, part: str, count: int) -> list[SimulatedFault]:
    return [
        SimulatedFault(
            name,
            f"each {part} averages the loss over its own {parts}, and the loss is the mean of these {count} means, "
            f"although the numbers of targets differ{says}",
            partial(_of_parts, lambda means: sum(means) / means[0].dtype.type(count), split, count, empty),
        )
        for parts, split in PARTS.items()
        for empty, says in ((0.0, ""), (math.nan, ", and the mean of no targets is NaN"))
    ]


def _of_parts(
    combine: Callable[[list[Any]], Any], split: Split, count: int, empty: float, logits: Any, targets: Any, pad_id: Any
) -> np.ndarray:
    """Return the loss of a port that splits the tokens into `count` parts and combines the mean losses of the parts."""
    means = [
        cross_entropy(x, y, pad_id) if (y != pad_id).any() else logits.dtype.type(empty)
        for x, y in zip(split(logits, count), split(targets, count), strict=True)
    ]
    return np.asarray(combine(means))


def _over_padding(width: int, logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    """Return the loss of a port that pads the vocabulary to a multiple of `width`, with logits of 0."""
    more = np.zeros((*logits.shape[:-1], -logits.shape[-1] % width), logits.dtype)
    return cross_entropy(np.concatenate([logits, more], axis=-1), targets, pad_id)


OF_RANKS = "clip-norm-of-ranks"


def optimizer_faults(sharding: Sharding) -> list[SimulatedFault]:
    """Return the known faults of gradient clipping. Return no faults for one rank, or without sharded parameters."""
    kinds = {placement.kind for placement in sharding.placements.values()}
    if sharding.ranks == 1 or "sharded" not in kinds:
        return []
    counts = f"the norm for clipping counts each replicated gradient on every rank ({sharding.ranks} ×)"
    misses = "each rank clips by the norm of its own shards, without the shards of the other ranks"
    return [
        SimulatedFault(OF_RANKS, says, partial(_train_clipped, partial(clip, sharding)))
        for says, clip in ((counts, _counted), (misses, _by_rank))
    ]


def _train_clipped(clip: Callable[[Arrays, float], Arrays], *given: Any) -> tuple[list[float], Arrays]:
    edits = (("clip_by_global_norm(gradients,", "clip(gradients,"),)
    run = edited(edits, "training.optimization.train", clip=clip)
    losses, learned = run(*given, differentiate=loss_and_gradients)
    return losses, learned


def _counted(sharding: Sharding, gradients: Arrays, max_norm: float) -> Arrays:
    times = {name: 1 if sharding.is_sharded(name) else sharding.ranks for name in gradients}
    norm = math.sqrt(sum(times[name] * float((value * value).sum()) for name, value in gradients.items()))
    factor = min(1.0, max_norm / norm) if norm else 1.0
    return {name: value * value.dtype.type(factor) for name, value in gradients.items()}


def _by_rank(sharding: Sharding, gradients: Arrays, max_norm: float) -> Arrays:
    """Clip the gradients of each rank by their norm on this rank only. Take replicated gradients from rank 0."""
    parts = {name: split(value, sharding.of(name), sharding.ranks) for name, value in gradients.items()}
    clipped = [
        clip_by_global_norm({name: parts[name][rank] for name in parts}, max_norm) for rank in range(sharding.ranks)
    ]
    return {
        name: join(name, [each[name] for each in clipped], sharding.of(name)).value
        if sharding.is_sharded(name)
        else clipped[0][name]
        for name in gradients
    }


_EXAMPLE = Sharding(2, {"*": Placement("sharded")})

OF_TWO_RANKS = (*loss_faults(_EXAMPLE), *optimizer_faults(_EXAMPLE))

MICRO_BATCH_FAULTS = (
    *averaged_in_parts("loss-per-micro-batch", "micro-batch", 2),
    *(
        SimulatedFault("loss-per-micro-batch", says, partial(_of_parts, combine, PARTS[rows], 2, 0.0))
        for says, combine in (
            ("the mean losses of the micro-batches are added, not averaged", sum),
            ("only the last micro-batch counts", lambda means: means[-1]),
        )
        for rows in ("rows", "interleaved rows")
    ),
)
"""Known faults in the loss of two micro-batches."""

FAULTS = {
    "beams": BEAM_FAULTS,
    "cache": CACHE_FAULTS,
    "generation": (*GREEDY_FAULTS, *RAGGED_FAULTS),
    "loss": LOSS_FAULTS,
    "micro-batches": MICRO_BATCH_FAULTS,
    "optimization": OPTIMIZER_FAULTS,
    "sampling": SAMPLING_FAULTS,
    "sharding": OF_TWO_RANKS,
}
"""The known faults by subject. The faults of sharding are for two ranks."""
