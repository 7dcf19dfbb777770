"""Matrix products by oneDNN, with packed weights where they stay. PyTorch multiplies by MKL, which keeps its best for
its maker's processors, and packs nothing, unless it is asked to. Without AVX-512 there is no such best: MKL is left the
products of many rows. One row alone, as decoding has it, is the compiler's where there is one. JAX packs for the same
reason, and NumPy's library does at every call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transparity.taps import Tap, identity
from transparity_pytorch.feed_forward import FeedForward

ROWS = 64
"""What is packed for so many rows is as fast with one, and with thousands."""

MANY_BY_MKL = torch.backends.mkl.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX2"
"""Whether MKL is ahead where there are more rows than that: by an eighth, and training by a quarter. Fewer rows are
multiplied sooner by packed weights on any processor."""


def can_be_packed(dtype: torch.dtype, device: str) -> bool:
    """Whether oneDNN multiplies this dtype here."""
    if device != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def suits(x: Float[Tensor, "*batch features_in"]) -> bool:
    """Whether oneDNN is the one to multiply these rows."""
    return not MANY_BY_MKL or x.dtype != torch.float32 or x.numel() <= ROWS * x.shape[-1]


class _SameLinear(nn.Linear):
    """Another `nn.Linear`, to be multiplied otherwise: it holds the same parameters."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias


class LearningLinear(_SameLinear):
    """x Wᵀ + b, with gradients."""

    def forward(self, x: Float[Tensor, "*batch features_in"]) -> Float[Tensor, "*batch features_out"]:
        if not suits(x):
            return F.linear(x, self.weight, self.bias)
        product: Tensor = _Product.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return product


class _Product(torch.autograd.Function):
    """x Wᵀ + b. Its gradients are products as well: by x it is g W, by W it is gᵀ x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiplied(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        by_x, by_weight, by_bias = ctx.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        return (
            multiplied(gradient, weight.T) if by_x else None,
            multiplied(rows.T, x.reshape(-1, x.shape[-1]).T) if by_weight else None,
            rows.sum(dim=0) if by_bias else None,
        )


def multiplied(
    x: Float[Tensor, "*batch features_in"],
    weight: Float[Tensor, "features_out features_in"],
    bias: Float[Tensor, " features_out"] | None = None,
    activation: str = "none",
) -> Float[Tensor, "*batch features_out"]:
    """activation(x Wᵀ + b) by oneDNN; the weight may be packed."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], "")
    return product


def multiplied_by_one_row(
    x: Float[Tensor, "*batch features_in"],
    weight: Float[Tensor, "features_out features_in"],
    bias: Float[Tensor, " features_out"] | None,
    activation: str,
) -> Float[Tensor, "*batch features_out"]:
    """The same of one row, to be compiled: into one loop over the weight as it lies, at the rate of memory, where
    libraries come to two thirds of it."""
    product = (weight * x.reshape(-1)).sum(dim=-1)
    product = product if bias is None else product + bias
    return (product.relu() if activation == "relu" else product).reshape(*x.shape[:-1], -1)


def compiled_for_one_row(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`step(model, tokens, …)`, compiled for a single token. More rows are multiplied by packed weights, and to compile
    what stands between gains nothing."""
    compiled = torch.compile(step)

    def either(model: nn.Module, tokens: Int[Tensor, "batch queries"], *others: Any, **named: Any) -> Tensor:
        return (compiled if tokens.numel() == 1 else step)(model, tokens, *others, **named)

    return either


class PackedLinear(_SameLinear):
    """x Wᵀ + b, for inference: it holds the weight once more, in the order in which it is read."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        _PACKED[self.weight.data_ptr()] = self

    def forward(
        self, x: Float[Tensor, "*batch features_in"], activation: str = "none"
    ) -> Float[Tensor, "*batch features_out"]:
        if not suits(x):
            plain = F.linear(x, self.weight, self.bias)
            return plain.relu_() if activation == "relu" else plain
        if torch.compiler.is_compiling() and x.numel() == x.shape[-1]:
            return multiplied_by_one_row(x, self.weight, self.bias, activation)
        if torch.compiler.is_compiling():
            compiled: Tensor = torch.ops.transparity.packed_linear(x, self.weight, self.bias, activation)
            return compiled
        return multiplied(x, self.packed, self.bias, activation)


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


_KEPT = vars(torch.ops.transparity)
"""PyTorch's namespace of the operator below. What is kept there outlives this module, which may be imported anew."""

_PACKED: WeakValueDictionary[int, PackedLinear] = _KEPT.setdefault("packed", WeakValueDictionary())
"""By where the weight lies. The compiler does not know tensors that are packed, but it knows their weights."""


def _packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return multiplied(x, _PACKED[weight.data_ptr()].packed, bias, activation)


def _packed_linear_shape(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


if "operator" not in _KEPT:
    _KEPT["operator"] = torch.library.custom_op(
        "transparity::packed_linear",
        _packed_linear,
        mutates_args=(),
        device_types="cpu",
        schema="(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor",
    )
    _KEPT["operator"].register_fake(_packed_linear_shape)


def packed(module: nn.Module) -> nn.Module:
    """The same module with its linears packed; all parameters are those of `module`, not copies."""
    if isinstance(module, nn.Linear):
        return PackedLinear(module)
    if isinstance(module, FeedForward) and module.gate is None and module.activation is F.relu:
        return PackedFeedForward(module)
    return _with(module, packed_children(module))


def packed_children(module: nn.Module) -> dict[str, nn.Module | None]:
    """The modules in `module`, packed."""
    return {name: child and packed(child) for name, child in module._modules.items()}


def learning(module: nn.Module) -> nn.Module:
    """The same module with linears that have their gradients by oneDNN; all parameters are those of `module`."""
    if isinstance(module, nn.Linear):
        return LearningLinear(module)
    return _with(module, {name: child and learning(child) for name, child in module._modules.items()})


def _with(module: nn.Module, children: dict[str, nn.Module | None]) -> nn.Module:
    twin = copy.copy(module)
    twin._modules = children
    return twin
