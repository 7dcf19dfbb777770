"""Parameters of PyTorch modules; a state dict has the names and shapes of `transparity.parameters`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from transparity.errors import ParameterError


def load(model: nn.Module, parameters: Mapping[str, np.ndarray]) -> None:
    """Copy `parameters` into `model`, in its dtype and on its device; raise `ParameterError` for an unknown name."""
    left = set(parameters) - set(model.state_dict())
    if left:
        raise ParameterError(f"The model has no parameters {', '.join(sorted(left))}.")
    model.load_state_dict({name: torch.tensor(np.asarray(value)) for name, value in parameters.items()})


def dump(model: nn.Module) -> dict[str, np.ndarray]:
    """Return the parameters of `model` as NumPy arrays by the names of `transparity.parameters`."""
    return {name: to_numpy(value) for name, value in model.state_dict().items()}


def to_numpy(value: torch.Tensor) -> np.ndarray:
    """Return a copy of `value` as a NumPy array; bfloat16, which NumPy lacks, becomes float32 without loss."""
    value = value.detach().cpu()
    array: np.ndarray = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return array.copy()  # because training changes buffers in place
