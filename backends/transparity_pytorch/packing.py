"""Weights packed for the matrix product: the file without a twin. XLA packs what it compiles, and NumPy's library packs
at every call; PyTorch packs once if it is asked to, for oneDNN, whose product is as fast on every maker's processor."""

from __future__ import annotations

import copy
from weakref import WeakValueDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transparity.taps import Tap, identity
from transparity_pytorch.feed_forward import FeedForward

ROWS = 64
"""What is packed for so many rows is as fast with one, and with thousands."""


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
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        _PACKED[self.weight.data_ptr()] = self

    def forward(
        self, x: Float[Tensor, "*batch features_in"], activation: str = "none"
    ) -> Float[Tensor, "*batch features_out"]:
        if torch.compiler.is_compiling():
            return torch.ops.transparity.packed_linear(x, self.weight, self.bias, activation)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, activation, [], "")


class PackedFeedForward(FeedForward):
    """Another `FeedForward` of packed linears, whose rectifier is applied while the wide product is written."""

    def __init__(self, feed_forward: FeedForward) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(feed_forward.__dict__)
        self._modules = packed_children(feed_forward)

    def forward(
        self, x: Float[Tensor, "batch length embed_dim"], tap: Tap = identity
    ) -> Float[Tensor, "batch length embed_dim"]:
        return tap("output", self.down(tap("hidden", self.up(x, "relu"))))


_PACKED: WeakValueDictionary[int, PackedLinear] = WeakValueDictionary()
"""By where the weight lies. The compiler does not know tensors that are packed, but it knows their weights."""

_operators = torch.library.Library("transparity", "DEF")
_operators.define("packed_linear(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor")


def _packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, _PACKED[weight.data_ptr()].packed, bias, activation, [], "")


def _packed_linear_shape(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


_operators.impl("packed_linear", _packed_linear, "CPU")
torch.library.register_fake("transparity::packed_linear", _packed_linear_shape, lib=_operators)


def packed(module: nn.Module) -> nn.Module:
    """The same module with its linears packed; all parameters are those of `module`, not copies."""
    if isinstance(module, nn.Linear):
        return PackedLinear(module)
    if isinstance(module, FeedForward) and module.gate is None and module.activation is F.relu:
        return PackedFeedForward(module)
    twin = copy.copy(module)
    twin._modules = packed_children(module)
    return twin


def packed_children(module: nn.Module) -> dict[str, nn.Module | None]:
    """The modules in `module`, packed."""
    return {name: child and packed(child) for name, child in module._modules.items()}
