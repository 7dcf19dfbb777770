"""The specification's parameters in PyTorch: a state dict has the same names and orientation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from transparity.errors import ParameterError


def load(model: nn.Module, parameters: Mapping[str, np.ndarray]) -> None:
    """Copy `parameters` into `model`, in the model's dtype and on its device.

    Raises `ParameterError` for what the model does not have.
    """
    firsts = {id(value): name for name, value in own(model).items()}
    tied = {name: firsts[id(value)] for name, value in model.state_dict(keep_vars=True).items()}
    left = set(parameters) - set(firsts.values())
    if left:
        raise ParameterError(f"{', '.join(sorted(left))}: the model has no such parameters")
    model.load_state_dict({name: torch.tensor(np.asarray(parameters[first])) for name, first in tied.items()})


def dump(model: nn.Module) -> dict[str, np.ndarray]:
    """Parameters of `model` under the specification's names, as NumPy arrays."""
    return {name: to_numpy(value) for name, value in own(model).items()}


def own(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers of `model`; tied ones under their first name only."""
    state = model.state_dict(keep_vars=True)
    firsts = {id(value): name for name, value in reversed(state.items())}
    return {name: value for name, value in state.items() if firsts[id(value)] == name}


def to_numpy(value: torch.Tensor) -> np.ndarray:
    """Copy of `value` as a NumPy array; bfloat16, which NumPy lacks, becomes float32 without loss."""
    value = value.detach().cpu()
    array: np.ndarray = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return array.copy()  # training changes buffers in place
