"""Gradients of a model of PyTorch that `load(folder)` returned, by our names: its own graph is differentiated.

A parameter of the model is told by its name in the folder, or by its numbers: every row of a tensor is looked for among
the rows and the columns of all parameters, so that transposed, fused and permuted ones are found, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import is_learned, parameter_shapes
from transparity_conformance.capabilities.stranger import call_stranger
from transparity_conformance.checkpoints.importing import Opened, open_checkpoint, parts_in
from transparity_conformance.checkpoints.reading import load_tensors
from transparity_conformance.ports.loader.free import answer_in
from transparity_conformance.ports.loader.held import module_in
from transparity_conformance.ports.loader.rows import Taken, found_by_rows
from transparity_conformance.report.comparison import as_numbers

Arrays = dict[str, np.ndarray]

FEW = 16
"""Rows by which most tensors are told apart."""

NO_GRAPH = "the answer of the model cannot be differentiated, as one that is computed without gradients"
FROZEN = "the model's parameter needs no gradient"
UNKNOWN = "no parameter of the model has its name in the folder, or its numbers"


def with_gradients(
    forward: Callable[..., Any], model: Any, folder: Path, config: TransformerConfig
) -> Callable[..., Any]:
    """The forward pass with `loss_and_gradients`, if a module of PyTorch computes it and has logits."""
    module = call_stranger(module_in, model)
    if module is None or config.head != "logits" or not hasattr(forward, "with_graph"):
        return forward

    with_graph = forward.with_graph  # not `forward`: a function that holds itself outlives its last use

    def loss_and_gradients(targets: np.ndarray, **tokens: np.ndarray) -> tuple[None, Arrays, dict[str, str]]:
        return None, *_gradients(with_graph, module, folder, config, targets, tokens)

    forward.loss_and_gradients = loss_and_gradients  # type: ignore[attr-defined]
    return forward


def _gradients(
    with_graph: Callable[..., Any],
    module: Any,
    folder: Path,
    config: TransformerConfig,
    targets: np.ndarray,
    tokens: Mapping[str, np.ndarray],
) -> tuple[Arrays, dict[str, str]]:
    """The gradients of the cross-entropy of the model's logits by our names, and the reasons for which others are not
    known."""
    import torch

    learned = [name for name in parameter_shapes(config) if is_learned(name)]
    with torch.enable_grad():
        logits = answer_in(with_graph(**tokens))
        if not logits.requires_grad:
            return {}, dict.fromkeys(learned, NO_GRAPH)
        ignored = -100 if config.pad_id is None else config.pad_id
        given = torch.from_numpy(np.asarray(targets)).reshape(-1).to(logits.device)
        loss = torch.nn.functional.cross_entropy(logits.reshape(len(given), -1), given, ignore_index=ignored)
        parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    gradients = {
        name: np.zeros(tuple(value.shape), np.float32) if gradient is None else as_numbers(gradient)
        for (name, value), gradient in zip(parameters.items(), found, strict=True)
    }
    return _by_our_names(open_checkpoint(folder), config, module, gradients, learned)


def _by_our_names(
    opened: Opened, config: TransformerConfig, module: Any, gradients: Arrays, learned: Collection[str]
) -> tuple[Arrays, dict[str, str]]:
    """The gradients of the module's parameters, converted as the tensors of its folder are."""
    places = {name: as_numbers(value) for name, value in module.named_parameters()}
    parts = parts_in(opened.family, config, opened.where, learned)
    tensors = load_tensors(opened.where, parts, parts, opened.block)
    taken = _by_name(tensors, places)
    others = {theirs: np.asarray(tensor) for theirs, tensor in tensors.items() if theirs not in taken}
    used = {name for each in taken.values() for name in each.names}
    taken |= found_by_rows(others, {name: value for name, value in places.items() if name not in used})
    known: Arrays = {}
    unknown = dict.fromkeys(learned, UNKNOWN)
    for theirs, each in taken.items():
        is_frozen = not set(each.names) <= set(gradients)
        for ours, convert in parts[theirs]:
            if is_frozen:
                unknown[ours] = FROZEN
                continue
            gradient = convert(each.take(gradients))
            known[ours] = known[ours] + gradient if ours in known else gradient
    return known, {ours: why for ours, why in unknown.items() if ours not in known}


def _by_name(tensors: Mapping[str, Any], places: Arrays) -> dict[str, Taken]:
    """The tensors that are parameters of the module under their own names, with or without a prefix; and beside each
    any parameter of another name that has the same numbers, for its gradient is a part of that of both."""
    named: dict[str, str] = {}
    for theirs, tensor in tensors.items():
        alike = [name for name in places if f".{name}".endswith(f".{theirs}") or f".{theirs}".endswith(f".{name}")]
        same = [name for name in alike if places[name].shape == tensor.shape]
        if len(same) == 1 and np.array_equal(places[same[0]][:FEW], tensor[:FEW]):
            named[theirs] = same[0]
    found = {}
    for theirs, name in named.items():
        copies = [other for other in places if other not in named.values() and _is_copy(places[other], places[name])]
        found[theirs] = Taken((name, *copies), functools.partial(_sum_of, (name, *copies)))
    return found


def _is_copy(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two matrices are equal; a few rows tell that most are not."""
    return (
        one.ndim == 2
        and one.shape == other.shape
        and np.array_equal(one[:FEW], other[:FEW])
        and np.array_equal(one, other)
    )


def _sum_of(names: tuple[str, ...], gradients: Mapping[str, np.ndarray]) -> np.ndarray:
    first, *others = (gradients[name] for name in names)
    return sum(others, first)
