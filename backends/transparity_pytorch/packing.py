"""Weights packed for the matrix product: the file without a twin. XLA packs what it compiles, and NumPy's library packs
at every call; PyTorch packs once if it is asked to, as `torch.compile` asks it for weights that are frozen."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn


def can_be_packed(dtype: torch.dtype, device: str) -> bool:
    """Whether oneDNN multiplies this dtype here."""
    if device != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


class PackedLinear(nn.Linear):
    """x Wᵀ + b of another `nn.Linear`, for inference: it holds the same parameters, and the weight once more, in the
    order in which it is read."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, x: Float[Tensor, "*batch features_in"]) -> Float[Tensor, "*batch features_out"]:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def packed(module: nn.Module) -> nn.Module:
    """The same module with its linears packed; all parameters are those of `module`, not copies."""
    if isinstance(module, nn.Linear):
        return PackedLinear(module)
    twin = copy.copy(module)
    twin._modules = {name: child and packed(child) for name, child in module._modules.items()}
    return twin
