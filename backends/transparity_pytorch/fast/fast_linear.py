"""Faster linear maps for inference on CPUs: oneDNN multiplies by weights that are stored in oneDNN's packed layout.

By default, PyTorch multiplies matrices by MKL, which does not pack weights and is fastest on Intel processors. A
product with a single row, as in decoding, takes as long as reading the weight. The fastest library for this product
depends on the processor. Compiled code uses a loop that reads two parts of the weight at the same time.
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
"""Number of rows of `x` for which oneDNN packs a weight; the same packed weight is also fast with 1 or 1,000 rows."""

LEAST = 2**16
"""The smallest number of elements of a weight that is packed.

On an AMD EPYC (Zen 3), products are slower with packed weights if the weights are small: the speed is 0.3 to 0.9 times
the speed without packing for 64 × 64 weights, and 0.7 to 1.05 times for 256 × 256 weights. For each new number of rows,
oneDNN also generates code, which takes a millisecond.
"""

STREAMS = 2
"""Number of parts of the weight that the product with one row reads at the same time. A processor prefetches more from
two parts than from one part. Three or more parts take more compilation time than they save."""


def one_row_by_mkl() -> Literal["whole", "parts"] | None:
    """Return how MKL should multiply one row, or None if oneDNN is faster.

    On Intel, one product by MKL takes 0.9 times as long as by oneDNN, and half as long as one product per thread
    (`in_parts`). On AMD without AVX-512, `in_parts` is used, because MKL computes a single product in one thread. On
    AMD with AVX-512, decoding with MKL takes 1.5 times as long as with oneDNN.
    """
    if not torch.backends.mkl.is_available():
        return None
    # Older versions of PyTorch do not know the processor.
    told: Mapping[str, Any] = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    if "Intel" in told.get("cpu_name", ""):
        return "whole"
    return "parts" if torch.backends.cpu.get_cpu_capability() == "AVX2" else None


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
    """Return weight · row; this function is compiled before it is used.

    The compiled loop reads `STREAMS` parts of the weight at the same time, which is faster than MKL and oneDNN.
    """
    whole = len(weight) // STREAMS * STREAMS
    parts = (*weight[:whole].chunk(STREAMS), weight[whole:])
    return torch.cat([(part * row).sum(dim=-1) for part in parts if len(part)])


def in_parts(
    weight: Float[Tensor, "features_out features_in"], row: Float[Tensor, " features_in"]
) -> Float[Tensor, " features_out"]:
    """Return weight · row as one product per thread, because MKL would use one thread for the whole product."""
    # With reshape(-1, 1) instead of the transpose, the strides differ, and MKL takes four times as long.
    threads, column = torch.get_num_threads(), row[None].T
    whole = len(weight) // threads * threads
    parts = weight[:whole].view(threads, -1, len(row))
    product = torch.bmm(parts, column.expand(threads, -1, -1)).view(-1)
    return product if whole == len(weight) else torch.cat([product, weight[whole:] @ row])


ONE_ROW: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"whole": torch.mv, "parts": in_parts, "streams": in_streams}
"""Functions that multiply a weight by one row."""


def multiplied_by_one_row(
    x: Float[Tensor, "*batch features_in"],
    weight: Float[Tensor, "features_out features_in"],
    bias: Float[Tensor, " features_out"] | None,
    product: Callable[[Tensor, Tensor], Tensor],
) -> Float[Tensor, "*batch features_out"]:
    """Return x Wᵀ + b for an `x` with a single row, where `product` multiplies the weight by the row."""
    y = product(weight, x.reshape(-1))
    return (y if bias is None else y + bias).reshape(*x.shape[:-1], -1)


def compiled_for_few_rows(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `step`, compiled for one token per row.

    On a CPU, only calls with one row use compiled code, because packed weights are faster for several rows. On a GPU,
    all calls with one token per row use compiled code with tuned kernels.
    """
    compiled, on_a_gpu = torch.compile(step), torch.compile(step, options={"coordinate_descent_tuning": True})

    def either(model: nn.Module, tokens: QueryIds, *others: Any, **named: Any) -> Tensor:
        fastest = on_a_gpu if tokens.is_cuda and tokens.shape[1] == 1 else compiled if tokens.numel() == 1 else step
        return fastest(model, tokens, *others, **named)

    return either


class PackedLinear(nn.Linear):
    """A linear map for inference with the parameters of an `nn.Linear`, and a copy of the weight in oneDNN's layout."""

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
"""PyTorch's namespace for our operator. The namespace and its content remain if this module is imported again."""

_PACKED: WeakValueDictionary[int, PackedLinear] = _KEPT.setdefault("packed", WeakValueDictionary())
"""The packed linear maps by the address of the weight; compiled code looks maps up here, because it cannot receive
packed tensors."""


def _packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return multiplied(x, _PACKED[weight.data_ptr()].packed, bias)


if "library" not in _KEPT:
    # `torch.library.custom_op` is not used, because its checks of aliasing take 0.2 ms in each call.
    _KEPT["library"] = torch.library.Library("transparity", "FRAGMENT")
    _KEPT["library"].define("packed_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
    _KEPT["library"].impl("packed_linear", _packed_linear, "CPU")
    fake = torch.library.register_fake("transparity::packed_linear")
    fake(lambda x, weight, bias: x.new_empty(*x.shape[:-1], len(weight)))


def packed(module: nn.Module) -> nn.Module:
    """Return a copy of `module` that shares its parameters, with `PackedLinear` maps for weights of at least `LEAST`
    elements."""
    if isinstance(module, nn.Linear):
        return PackedLinear(module) if module.weight.numel() >= LEAST else module
    twin = copy.copy(module)
    twin._modules = {name: child and packed(child) for name, child in module._modules.items()}
    return twin
