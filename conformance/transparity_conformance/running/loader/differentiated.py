"""The gradients of the cross-entropy of a model's own logits, by the framework that computed them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.running.loader.free import answer_in

Arrays = dict[str, np.ndarray]
Inputs = Mapping[str, np.ndarray]
Differentiated = tuple[Arrays, Arrays | None]
"""The model's parameters by its own names, and the gradients of those that have one; without a graph neither."""


def ignored(config: TransformerConfig) -> int:
    """The target that counts for nothing."""
    return -100 if config.pad_id is None else config.pad_id


def in_pytorch(
    with_graph: Callable[..., Any],
    module: Any,
    config: TransformerConfig,
    targets: np.ndarray,
    tokens: Inputs,
) -> Differentiated:
    """Differentiate with `torch.autograd`; a parameter that nothing came of has a gradient of zeros."""
    import torch

    with torch.enable_grad():
        logits = answer_in(with_graph(**tokens))
        if not logits.requires_grad:
            return {}, None
        given = torch.from_numpy(np.asarray(targets)).reshape(-1).to(logits.device)
        rows = logits.reshape(len(given), -1)
        loss = torch.nn.functional.cross_entropy(rows, given, ignore_index=ignored(config))
        parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    places = {name: as_numbers(value) for name, value in module.named_parameters()}
    return places, {
        name: np.zeros(tuple(value.shape), np.float32) if gradient is None else as_numbers(gradient)
        for (name, value), gradient in zip(parameters.items(), found, strict=True)
    }


def in_flax(
    called: Callable[[Any], Any], module: Any, config: TransformerConfig, targets: np.ndarray, tokens: Inputs
) -> Differentiated:
    """Differentiate with `jax.grad`, by the variables of kind `nnx.Param`.

    Args:
        called: the forward pass, with a graph, of a module like the given one.
        module: a `flax.nnx.Module`.
        config: the model's.
        targets: token ids, as many as there are logits.
        tokens: the inputs.
    """
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

    return _by_name(parameters), _by_name(jax.grad(loss)(parameters))


def _by_name(state: Any) -> Arrays:
    """The arrays of a state by their paths, with points between the parts."""
    from flax import nnx

    return {".".join(map(str, path)): as_numbers(each.get_value()) for path, each in nnx.to_flat_state(state)}
