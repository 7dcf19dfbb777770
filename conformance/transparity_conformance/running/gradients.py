"""Compute the gradients of a PyTorch or Flax model that `load(folder)` returned, named by the reference's parameters.

The framework differentiates the model's own code. To rename the gradients, the checker matches the folder's tensors
with the model's parameters, by name or by value. The checker looks up each row of a tensor among the rows and columns
of all parameters. This search also finds transposed, fused and permuted parameters.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.config.probe_sizes import most_experts
from transparity.parameters import is_learned, parameter_shapes
from transparity_conformance.capabilities.port_calls import call_port
from transparity_conformance.checkpoints.importing import Opened, open_checkpoint, parts_in
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.running.frameworks.modules import module_in
from transparity_conformance.running.inputs import answer_in, is_instance
from transparity_conformance.running.ways import LABELS

Arrays = dict[str, np.ndarray]
Inputs = Mapping[str, np.ndarray]
Differentiated = tuple[Arrays, Arrays | None, float | None]
"""The model's parameters, its gradients, and the loss, which is None unless the loss contains the auxiliary loss of
routers. The value is ({}, None, None) if the loss cannot be computed or differentiated."""


Named = tuple[float | None, Arrays, dict[str, str]]
"""The loss or None, the gradients by the reference's names, and the reasons for missing gradients."""

ROUTER_LOGITS = "output_router_logits"
"""The argument with which models of `transformers` return `aux_loss`, the auxiliary loss of their routers."""

COEFFICIENT = "router_aux_loss_coef"
"""The field of config.json by which a model multiplies the auxiliary loss in the loss that it computes from labels."""


def ignored(config: TransformerConfig) -> int:
    """Return the target that the loss ignores: the padding token, or −100 without a padding token."""
    return -100 if config.pad_id is None else config.pad_id


def in_pytorch(
    with_graph: Callable[..., Any],
    module: Any,
    config: TransformerConfig,
    targets: np.ndarray,
    tokens: Inputs,
    router_aux_loss_coef: float = 0.0,
    of_labels: float | None = None,
) -> Differentiated:
    """Differentiate the loss with `torch.autograd`; the gradient of an unused parameter is 0.

    The loss contains the auxiliary loss of routers times `router_aux_loss_coef`. If the loss that the model computes
    from labels contains another multiple of the auxiliary loss than `of_labels`, add the difference.
    """
    import torch

    with torch.enable_grad():
        answer = with_graph({ROUTER_LOGITS: True} if router_aux_loss_coef else {}, **tokens)
        logits: Any = answer_in(answer)
        of_routers: Any = getattr(answer, "aux_loss", None)
        if not logits.requires_grad or (router_aux_loss_coef and of_routers is None):
            return {}, None, None
        given = torch.from_numpy(np.asarray(targets)).reshape(-1).to(logits.device)
        rows = logits.reshape(len(given), -1)
        loss = torch.nn.functional.cross_entropy(rows, given, ignore_index=ignored(config))
        loss = loss + router_aux_loss_coef * of_routers if router_aux_loss_coef else loss
        if router_aux_loss_coef and of_labels is not None:
            labels = given.reshape(targets.shape)
            answers = [with_graph({ROUTER_LOGITS: is_on, LABELS: labels}, **tokens) for is_on in (True, False)]
            with_routers, without = (getattr(each, "loss", None) for each in answers)
            if with_routers is not None and without is not None:
                loss = loss + (with_routers - without - of_labels * of_routers)
        parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    places = {name: as_numbers(value) for name, value in module.named_parameters()}
    gradients = {
        name: np.zeros(tuple(value.shape), np.float32) if gradient is None else as_numbers(gradient)
        for (name, value), gradient in zip(parameters.items(), found, strict=True)
    }
    return places, gradients, loss.item() if router_aux_loss_coef else None


def in_flax(
    called: Callable[[Any], Any], module: Any, config: TransformerConfig, targets: np.ndarray, tokens: Inputs
) -> Differentiated:
    """Differentiate the loss with `jax.grad`, with respect to all `nnx.Param`. `called(module)` is a forward pass."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    graph, *states = nnx.split(module, nnx.Param, ...)
    parameters, rest = states
    given = jnp.asarray(targets).reshape(-1)
    counts = given != ignored(config)

    def loss(parameters: Any) -> Any:
        logits = answer_in(called(nnx.merge(graph, parameters, rest))(**tokens))
        rows = jax.nn.log_softmax(logits.reshape(len(given), -1).astype(jnp.float32))
        chosen = jnp.take_along_axis(rows, jnp.where(counts, given, 0)[:, None], axis=1)[:, 0]
        return -jnp.where(counts, chosen, 0).sum() / counts.sum()

    def by_path(state: Any) -> Arrays:
        return {".".join(map(str, path)): as_numbers(each.get_value()) for path, each in nnx.to_flat_state(state)}

    return by_path(parameters), by_path(jax.grad(loss)(parameters)), None


ROWS_COMPARED = 16
"""The number of rows to compare first, because a few rows distinguish most tensors."""

NO_GRAPH = "the model computes its output without gradients, so the output cannot be differentiated"
FROZEN = "the model's parameter is frozen (requires_grad is false)"
NO_AUXILIARY = "the model returns no aux_loss that can be differentiated"
UNKNOWN = "the model has neither a parameter with this name nor a parameter with these values"


def offer_gradients(
    forward: Callable[..., Any],
    model: Any,
    folder: Path,
    config: TransformerConfig,
    called: Callable[[Any, TransformerConfig], Any],
) -> Callable[..., Any]:
    """Add a method `loss_and_gradients` to a forward pass if a PyTorch or Flax module computes the logits."""
    differentiate = _differentiation(forward, model, config, called)
    if differentiate is None or config.head != "logits":
        return forward

    def differentiated(targets: np.ndarray, tokens: Inputs, *coefficient: Any) -> Named:
        learned, opened = [name for name in parameter_shapes(config) if is_learned(name)], open_checkpoint(folder)
        if coefficient and takes is not None and LABELS in takes.parameters:
            own = getattr(getattr(model, "config", None), COEFFICIENT, None)
            coefficient = (*coefficient, opened.given.get(COEFFICIENT, own))
        places, gradients, loss = differentiate(config, targets, tokens, *coefficient)
        if gradients is None:
            return None, {}, dict.fromkeys(learned, NO_AUXILIARY if coefficient else NO_GRAPH)
        return loss, *_by_our_names(opened, config, places, gradients, learned)

    def loss_and_gradients(targets: np.ndarray, **tokens: np.ndarray) -> Named:
        return differentiated(targets, tokens)

    def with_routers(targets: np.ndarray, router_aux_loss_coef: float | None = None, **tokens: np.ndarray) -> Named:
        return differentiated(targets, tokens, *[router_aux_loss_coef] if router_aux_loss_coef else [])

    takes: inspect.Signature | None = getattr(forward, "__signature__", None)
    is_able = "router_aux_loss_coef" in inspect.signature(differentiate).parameters
    has_routers = is_able and takes is not None and ROUTER_LOGITS in takes.parameters and most_experts(config) > 0
    forward.loss_and_gradients = with_routers if has_routers else loss_and_gradients  # type: ignore[attr-defined]
    return forward


def _differentiation(
    forward: Any, model: Any, config: TransformerConfig, called: Callable[[Any, TransformerConfig], Any]
) -> Callable[..., Differentiated] | None:
    if not hasattr(forward, "with_graph"):
        return None
    if is_instance(model, "flax.nnx", "Module"):
        return functools.partial(in_flax, lambda other: called(other, config).with_graph, model)
    module = call_port(module_in, model)
    # Do not refer to `forward`, because an object that refers to itself is not freed after its last use.
    return None if module is None else functools.partial(in_pytorch, forward.with_graph, module)


def _by_our_names(
    opened: Opened, config: TransformerConfig, places: Arrays, gradients: Arrays, learned: Collection[str]
) -> tuple[Arrays, dict[str, str]]:
    """Return the gradients by the reference's names, and the reason for each missing gradient. The code that converts a
    folder's tensor to a parameter also converts the tensor's gradient."""
    parts = parts_in(opened.family, config, opened.files, learned)
    taken = located(opened.tensors(parts, parts), places)
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


def located(tensors: Mapping[str, Any], places: Arrays) -> dict[str, Located]:
    taken = _by_name(tensors, places)
    others = {theirs: np.asarray(tensor) for theirs, tensor in tensors.items() if theirs not in taken}
    used = {name for each in taken.values() for name in each.names}
    return taken | found_by_rows(others, {name: value for name, value in places.items() if name not in used})


def _by_name(tensors: Mapping[str, Any], places: Arrays) -> dict[str, Located]:
    """Find the parameter with the values of each tensor in the folder. Both names are equal, or one name has an
    additional prefix. If other parameters are copies of the found parameter, their gradients are added."""
    named: dict[str, str] = {}
    for theirs, tensor in tensors.items():
        alike = [name for name in places if f".{name}".endswith(f".{theirs}") or f".{theirs}".endswith(f".{name}")]
        same = [name for name in alike if places[name].shape == tensor.shape]
        if len(same) == 1 and np.array_equal(places[same[0]][:ROWS_COMPARED], tensor[:ROWS_COMPARED]):
            named[theirs] = same[0]
    others, found = [name for name in places if name not in named.values()], {}
    for theirs, name in named.items():
        names = (name, *(other for other in others if _is_copy(places[other], places[name])))
        # `reduce` does not copy a single gradient
        take = lambda given, names=names: functools.reduce(np.add, [given[name] for name in names])
        found[theirs] = Located(names, take)
    return found


def _is_copy(one: np.ndarray, other: np.ndarray) -> bool:
    is_near = one.ndim == 2 and np.array_equal(one[:ROWS_COMPARED], other[:ROWS_COMPARED])
    return is_near and np.array_equal(one, other)


@dataclass(frozen=True, eq=False)
class Located:
    names: tuple[str, ...]
    take: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    """Computes the folder's tensor, or its gradient, from the module's parameters or their gradients."""


@dataclass(frozen=True, eq=False)
class Lines:
    """The rows or the columns of a tensor that is reshaped to a matrix; a vector is one row."""

    name: str
    matrix: tuple[int, int]
    is_columns: bool
    hashes: np.ndarray

    def of(self, tensor: np.ndarray) -> np.ndarray:
        """Return the rows or columns of another tensor of the same shape, as rows of a matrix."""
        rows = tensor.reshape(self.matrix)
        return rows.T if self.is_columns else rows


def found_by_rows(wanted: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]) -> dict[str, Located]:
    """Find the rows or columns of each `wanted` tensor among the rows and columns of the `given` tensors.

    If a single given tensor has the same rows or columns in the same order, the wanted tensor is read from the given
    tensor. Otherwise, each row or column must occur exactly once in all given tensors together. Leave out tensors that
    are not found."""
    vectors = {value.size for value in wanted.values() if value.ndim == 1}
    every = [lines for name, value in given.items() for lines in _lines(name, value, vectors)]
    if not every:
        return {}
    owners = np.repeat(np.arange(len(every)), [len(each.hashes) for each in every])
    indices = np.concatenate([np.arange(len(each.hashes)) for each in every])
    hashes = np.concatenate([each.hashes for each in every])
    unique, first, counts = np.unique(hashes, return_index=True, return_counts=True)

    def located(own: list[Lines], shape: tuple[int, ...]) -> Located | None:
        for lines in own:
            whole = [each for each in every if np.array_equal(each.hashes, lines.hashes)]
            if len({each.name for each in whole}) == 1:
                return _whole(whole[0], lines, shape)
        for lines in own:
            at = np.minimum(np.searchsorted(unique, lines.hashes), len(unique) - 1)
            if np.array_equal(unique[at], lines.hashes) and (counts[at] == 1).all():
                return _in_parts(every, owners[first[at]], indices[first[at]], lines, shape)
        return None

    found = {name: located(_lines(name, value), value.shape) for name, value in wanted.items()}
    return {name: taken for name, taken in found.items() if taken is not None}


def _whole(place: Lines, own: Lines, shape: tuple[int, ...]) -> Located:
    return Located((place.name,), lambda tensors: _shaped(place.of(tensors[place.name]), own, shape))


def _in_parts(
    every: list[Lines], owners: np.ndarray, indices: np.ndarray, own: Lines, shape: tuple[int, ...]
) -> Located:
    def take(tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        parts = {owner: every[owner].of(tensors[every[owner].name]) for owner in np.unique(owners)}
        found = [parts[owner][index] for owner, index in zip(owners, indices, strict=True)]
        return _shaped(np.stack(found), own, shape)

    return Located(tuple(dict.fromkeys(every[owner].name for owner in np.unique(owners))), take)


def _shaped(lines: np.ndarray, own: Lines, shape: tuple[int, ...]) -> np.ndarray:
    return (lines.T if own.is_columns else lines).reshape(shape)


def _lines(name: str, tensor: np.ndarray, vectors: Collection[int] = ()) -> list[Lines]:
    """Return the rows and columns of every matrix into which a tensor can be reshaped. A tensor with three axes can be
    reshaped to two matrices. If `vectors` contains the tensor's size, the tensor is also compared as a vector."""
    found = []
    for matrix in dict.fromkeys(_matrices(tensor, vectors)):
        rows = tensor.reshape(matrix)
        found.append(Lines(name, matrix, False, _hashes(rows)))
        if matrix[0] > 1:
            found.append(Lines(name, matrix, True, _hashes(rows.T)))
    return found


def _matrices(tensor: np.ndarray, vectors: Collection[int]) -> Iterator[tuple[int, int]]:
    if tensor.size and (tensor.ndim == 1 or tensor.size in vectors):
        yield 1, tensor.size
    for axis in range(1, tensor.ndim if tensor.size and tensor.ndim in (2, 3) else 0):
        yield math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis:])


def _hashes(rows: np.ndarray) -> np.ndarray:
    """Return a hash for each row of a matrix; the hash does not depend on the layout in memory."""
    factors = np.random.default_rng(rows.shape[1]).integers(2**63, size=rows.shape[1], dtype=np.uint64) | np.uint64(1)
    found, size = np.zeros(len(rows), np.uint64), max(1, 2**22 // max(1, rows.shape[1]))
    for begin in range(0, len(rows), size):
        some = np.ascontiguousarray(rows[begin : begin + size] + np.float32(0), np.float32)  # + 0 turns −0 into 0
        found[begin : begin + size] = (some.view(np.uint32).astype(np.uint64) * factors).sum(1)
    return found
