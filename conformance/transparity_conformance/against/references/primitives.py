"""PyTorch implementations of JAX's primitives. The functions take the same parameters as the primitives."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Meaning = Callable[..., Any]


def dtype_of(name: Any) -> torch.dtype:
    """Return PyTorch's dtype. Integers get 64 bits, which PyTorch's indexing requires."""
    kind = getattr(name, "kind", "V")
    return torch.int64 if kind in "iu" else torch.bool if kind == "b" else getattr(torch, str(name))


def tensor(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value
    return torch.full((), value, dtype=torch.float64 if isinstance(value, float) else None)


def _of_tensors(function: Meaning) -> Meaning:
    return lambda *given, **_: function(*map(tensor, given))


def _of_any(function: Meaning) -> Meaning:
    return lambda *given, **_: function(*given)


def _quotient(a: Any, b: Any, **_: Any) -> Any:
    whole = not (torch.is_floating_point(tensor(a)) or torch.is_complex(tensor(a)))
    return torch.div(tensor(a), b, rounding_mode="trunc") if whole else a / b


def _select(which: Any, *cases: Any) -> Any:
    if tensor(which).dtype != torch.bool:
        raise NotImplementedError
    return torch.where(tensor(which), tensor(cases[1]), tensor(cases[0]))


def _broadcast(x: Any, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return torch.full(tuple(shape), x)
    sizes = [1] * len(shape)
    for size, axis in zip(x.shape, broadcast_dimensions, strict=True):
        sizes[axis] = size
    x = x if list(x.shape) == sizes else x.reshape(sizes)
    return x if x.shape == tuple(shape) else x.expand(tuple(shape))


def _slice(
    x: Any, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None, **_: Any
) -> Any:
    for axis, (start, end) in enumerate(zip(start_indices, limit_indices, strict=True)):
        step = strides[axis] if strides else 1
        if (start, end, step) != (0, x.shape[axis], 1):
            x = torch.ops.aten.slice.Tensor(x, axis, start, end, step)
    return x


def _reduced(function: Meaning) -> Meaning:
    return lambda x, *, axes, **_: function(x, tuple(axes)) if axes else x


def _dot(a: Any, b: Any, *, dimension_numbers: Any, **_: Any) -> Any:
    (ours, theirs), (batch, other_batch) = dimension_numbers
    if not batch and b.ndim == 2 and (tuple(ours), tuple(theirs)) == ((a.ndim - 1,), (0,)):
        return a @ b
    if not batch:
        return torch.tensordot(a, b, (list(ours), list(theirs)))
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left = [next(letters) for _ in a.shape]
    right = [next(letters) for _ in b.shape]
    for one, other in (*zip(ours, theirs, strict=True), *zip(batch, other_batch, strict=True)):
        right[other] = left[one]
    free = [each for axis, each in enumerate(left) if axis not in (*ours, *batch)]
    rest = [each for axis, each in enumerate(right) if axis not in (*theirs, *other_batch)]
    made = [*(left[axis] for axis in batch), *free, *rest]
    return torch.einsum(f"{''.join(left)},{''.join(right)}->{''.join(made)}", a, b)


OPERATORS = ("add", "sub", "mul", "pow", "neg", "eq", "ne", "lt", "le", "gt", "ge", "xor", "abs")

FUNCTIONS = (
    *("exp", "exp2", "log", "log1p", "expm1", "sqrt", "rsqrt", "square", "sin", "cos", "tan", "tanh", "sinh", "cosh"),
    *("erf", "erfc", "floor", "ceil", "sign", "atan2", "real", "imag"),
)

MEANINGS: Mapping[str, Meaning] = {
    **{name: _of_any(getattr(operator, name)) for name in OPERATORS},
    **{name: _of_tensors(getattr(torch, name)) for name in FUNCTIONS},
    **dict.fromkeys(("stop_gradient", "copy", "copy_p", "optimization_barrier", "device_put"), lambda x, **_: x),
    "add_any": _of_any(operator.add),
    "and": _of_any(operator.and_),
    "or": _of_any(operator.or_),
    "not": _of_any(operator.invert),
    "div": _quotient,
    "max": lambda a, b, **_: torch.maximum(tensor(a), tensor(b).to(tensor(a).dtype)),
    "min": lambda a, b, **_: torch.minimum(tensor(a), tensor(b).to(tensor(a).dtype)),
    "integer_pow": lambda x, *, y, **_: x**y,
    "logistic": _of_tensors(torch.sigmoid),
    "clamp": lambda low, x, high, **_: torch.clamp(x, low, high),
    "convert_element_type": lambda x, *, new_dtype, **_: tensor(x).to(dtype_of(new_dtype)),
    "select_n": _of_any(_select),
    "reshape": lambda x, *, new_sizes, **_: tensor(x).reshape(tuple(new_sizes)),
    "broadcast_in_dim": _broadcast,
    "transpose": lambda x, *, permutation, **_: x.permute(tuple(permutation)),
    "squeeze": lambda x, *, dimensions, **_: x.squeeze(tuple(dimensions)),
    "slice": _slice,
    "concatenate": lambda *given, dimension, **_: torch.cat(given, dimension),
    "reduce_sum": _reduced(torch.sum),
    "reduce_max": _reduced(torch.amax),
    "top_k": lambda x, *, k, axis=-1, **_: list(torch.topk(x, k, axis)),
    "argmax": lambda x, *, axes, **_: torch.argmax(x, axes[0]),
    "argmin": lambda x, *, axes, **_: torch.argmin(x, axes[0]),
    "dot_general": _dot,
}
"""PyTorch functions of the primitives that an edit may change. JAX runs all other primitives."""


def composites() -> dict[Any, Callable[[Any], list[Callable[[Any], Any]]]]:
    """Map the code of each `jax.nn` function to a function of the input, which returns possible equivalents in
    PyTorch."""
    import jax
    from torch.nn import functional as F

    rows: dict[Any, Callable[[Any], list[Callable[[Any], Any]]]] = {
        jax.nn.softmax: lambda x: [functools.partial(torch.softmax, dim=-axis) for axis in range(1, x.ndim + 1)],
        jax.nn.silu: lambda x: [F.silu],
        jax.nn.gelu: lambda x: [F.gelu, functools.partial(F.gelu, approximate="tanh")],
        jax.nn.relu: lambda x: [F.relu],
        jax.nn.softplus: lambda x: [F.softplus],
        jax.nn.elu: lambda x: [F.elu],
        jax.nn.leaky_relu: lambda x: [F.leaky_relu],
    }
    found: dict[Any, Callable[[Any], list[Callable[[Any], Any]]]] = {}
    for function, row in rows.items():
        plain: Any = function  # decorators may wrap the function
        while (inside := getattr(plain, "__wrapped__", getattr(plain, "fun", None))) is not None:
            plain = inside
        found[plain.__code__] = row
    return found
