"""The specification's parameters in PyTorch: a state dict has the same names and orientation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn


def load(model: nn.Module, parameters: Mapping[str, np.ndarray]) -> None:
    """Copy `parameters` into `model`, in the model's dtype and on its device."""
    model.load_state_dict({name: torch.tensor(np.asarray(value)) for name, value in parameters.items()})


def dump(model: nn.Module) -> dict[str, np.ndarray]:
    """The parameters of `model` under the specification's names, as NumPy arrays."""
    return {name: to_numpy(value) for name, value in model.state_dict().items()}


def to_numpy(value: torch.Tensor) -> np.ndarray:
    """`value` as it is now, in NumPy, which has no bfloat16: that comes back as float32, without loss."""
    value = value.detach().cpu()
    array: np.ndarray = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return array.copy()  # training changes buffers in place
