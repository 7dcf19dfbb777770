"""Parameters of PyTorch modules; a state dict has the names and shapes of `transparity.parameters`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from transparity.errors import ParameterError


def initialize(module: nn.Module) -> None:
    """Draw matrices uniformly within Glorot's bound (document 003), and set biases to 0; gains are unchanged."""
    for name, value in module.named_parameters(recurse=False):
        if value.ndim > 1:
            nn.init.xavier_uniform_(value)
        elif name == "bias":
            nn.init.zeros_(value)


def tie(model: nn.Module, name: str, first: str) -> None:
    """Make `name` the same parameter as `first`.

    A state dict of `model` then has only the name `first`, and loading a state dict keeps the tie.
    """
    scope, _, leaf = name.rpartition(".")

    def share(module: nn.Module, keys: Any = None) -> None:
        setattr(module.get_submodule(scope), leaf, module.get_parameter(first))

    def leave_out(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        del state[prefix + name]

    def fill_in(module: nn.Module, state: dict[str, Any], prefix: str, *others: Any) -> None:
        if prefix + first in state:
            state[prefix + name] = state[prefix + first]

    share(model)
    model.register_state_dict_post_hook(leave_out)
    model.register_load_state_dict_pre_hook(fill_in)
    model.register_load_state_dict_post_hook(share)


def load(model: nn.Module, parameters: Mapping[str, np.ndarray]) -> None:
    """Copy `parameters` into `model`, in its dtype and on its device; raise `ParameterError` for an unknown name."""
    left = set(parameters) - set(model.state_dict())
    if left:
        raise ParameterError(f"{', '.join(sorted(left))}: the model has no such parameters")
    model.load_state_dict({name: torch.tensor(np.asarray(value)) for name, value in parameters.items()})


def dump(model: nn.Module) -> dict[str, np.ndarray]:
    """Return the parameters of `model` as NumPy arrays by the names of `transparity.parameters`."""
    return {name: to_numpy(value) for name, value in model.state_dict().items()}


def to_numpy(value: torch.Tensor) -> np.ndarray:
    """Return a copy of `value` as a NumPy array; bfloat16, which NumPy lacks, becomes float32 without loss."""
    value = value.detach().cpu()
    array: np.ndarray = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return array.copy()  # because training changes buffers in place
