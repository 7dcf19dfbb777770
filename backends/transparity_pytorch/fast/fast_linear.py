"""Fast linear maps on CPUs, for inference: oneDNN with packed weights.

PyTorch multiplies by MKL, whose fastest kernels are Intel-only, and packs no weights. A single row, as in decoding,
takes as long as reading the weight. The fastest library for that depends on the processor. Code by PyTorch's compiler
reads the weight from several places at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transparity_pytorch.shapes import QueryIds

ROWS = 64
"""Number of rows to pack weights for; the packed weights are as fast with one row and with thousands."""

STREAMS = 2
"""Places from which one row's product reads the weight: a processor fetches more ahead for two than for one; with more,
the code takes longer to compile than it gains."""


def has_mkl() -> bool:
    """Return whether PyTorch has MKL."""
    return torch.backends.mkl.is_available()


def is_intel() -> bool:
    """Return whether the processor is an Intel, for which MKL is optimized; an older PyTorch cannot tell."""
    told: Mapping[str, Any] = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return "Intel" in told.get("cpu_name", "")


WITHOUT_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX2"


def one_row_by_mkl() -> Literal["whole", "parts"] | None:
    """Return how MKL multiplies one row if it is faster than oneDNN; otherwise None.

    Intel: one product, in 0.9 of oneDNN's time and half the time of a product in parts. AMD without AVX-512: in parts,
    because MKL computes one product in one thread. AMD with AVX-512: None, because tokens take 1.5 times as long as
    with oneDNN.
    """
    if not has_mkl():
        return None
    return "whole" if is_intel() else "parts" if WITHOUT_AVX512 else None


ONE_ROW_BY_MKL = one_row_by_mkl()


def can_be_packed(dtype: torch.dtype, device: str) -> bool:
    """Return whether oneDNN can multiply this dtype on this device."""
    if device != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def multiplied(
    x: Float[Tensor, "*batch features_in"],
    weight: Float[Tensor, "features_out features_in"],
    bias: Float[Tensor, " features_out"] | None = None,
) -> Float[Tensor, "*batch features_out"]:
    """x Wᵀ + b by oneDNN; the weight may be packed."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def in_streams(
    weight: Float[Tensor, "features_out features_in"], row: Float[Tensor, " features_in"]
) -> Float[Tensor, " features_out"]:
    """weight · row, to be compiled: one loop that reads the weight from `STREAMS` places at once comes closer to the
    memory bandwidth than a library."""
    whole = len(weight) // STREAMS * STREAMS
    parts = (*weight[:whole].chunk(STREAMS), weight[whole:])
    return torch.cat([(part * row).sum(dim=-1) for part in parts if len(part)])


def in_parts(
    weight: Float[Tensor, "features_out features_in"], row: Float[Tensor, " features_in"]
) -> Float[Tensor, " features_out"]:
    """Return weight · row as a batch of products, a part of the weight for each thread.

    MKL computes a single product of one row in one thread.
    """
    # A transposed row, not reshape(-1, 1): with a column's strides, MKL takes four times as long.
    threads, column = torch.get_num_threads(), row[None].T
    whole = len(weight) // threads * threads
    parts = weight[:whole].view(threads, -1, len(row))
    product = torch.bmm(parts, column.expand(threads, -1, -1)).view(-1)
    return product if whole == len(weight) else torch.cat([product, weight[whole:] @ row])


ONE_ROW: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"whole": torch.mv, "parts": in_parts, "streams": in_streams}
"""Products of a weight and one row."""


def multiplied_by_one_row(
    x: Float[Tensor, "*batch features_in"],
    weight: Float[Tensor, "features_out features_in"],
    bias: Float[Tensor, " features_out"] | None,
    product: Callable[[Tensor, Tensor], Tensor],
) -> Float[Tensor, "*batch features_out"]:
    """Compute `multiplied` for one row by `product` of the weight and the row."""
    y = product(weight, x.reshape(-1))
    return (y if bias is None else y + bias).reshape(*x.shape[:-1], -1)


def compiled_for_few_rows(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`step(model, tokens, …)`, compiled for one token per row. On a CPU, for a single row: with more, packed
    weights are faster, and compiling the rest gains nothing. On a GPU, the compiler writes one row's products itself.
    """
    compiled, on_a_gpu = torch.compile(step), torch.compile(step, options={"coordinate_descent_tuning": True})

    def either(model: nn.Module, tokens: QueryIds, *others: Any, **named: Any) -> Tensor:
        fastest = on_a_gpu if tokens.is_cuda and tokens.shape[1] == 1 else compiled if tokens.numel() == 1 else step
        return fastest(model, tokens, *others, **named)

    return either


class PackedLinear(nn.Linear):
    """x Wᵀ + b for inference. It shares the parameters of a linear map and has a second copy of its weight, in oneDNN's
    order."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        _PACKED[self.weight.data_ptr()] = self

    def forward(self, x: Float[Tensor, "*batch features_in"]) -> Float[Tensor, "*batch features_out"]:
        is_compiled, is_one_row = torch.compiler.is_compiling(), x.numel() == x.shape[-1]
        by_mkl = ONE_ROW_BY_MKL if is_one_row and x.dtype == torch.float32 else None
        if by := "streams" if is_compiled and is_one_row else by_mkl:
            return multiplied_by_one_row(x, self.weight, self.bias, ONE_ROW[by])
        if is_compiled:
            compiled: Tensor = torch.ops.transparity.packed_linear(x, self.weight, self.bias)
            return compiled
        return multiplied(x, self.packed, self.bias)


_KEPT = vars(torch.ops.transparity)
"""PyTorch's namespace of the operator below, which outlives this module if it is imported again."""

_PACKED: WeakValueDictionary[int, PackedLinear] = _KEPT.setdefault("packed", WeakValueDictionary())
"""By the address of the weight: the compiler cannot handle packed tensors, but it can handle their weights."""


def _packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return multiplied(x, _PACKED[weight.data_ptr()].packed, bias)


def _packed_linear_shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


if "library" not in _KEPT:
    # Not `torch.library.custom_op`, whose checks of aliasing take 0.2 ms at each call.
    _KEPT["library"] = torch.library.Library("transparity", "FRAGMENT")
    _KEPT["library"].define("packed_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
    _KEPT["library"].impl("packed_linear", _packed_linear, "CPU")
    torch.library.register_fake("transparity::packed_linear", _packed_linear_shape)


def packed(module: nn.Module) -> nn.Module:
    """Twin of `module` with packed linears that shares its parameters."""
    if isinstance(module, nn.Linear):
        return PackedLinear(module)
    twin = copy.copy(module)
    twin._modules = {name: child and packed(child) for name, child in module._modules.items()}
    return twin
