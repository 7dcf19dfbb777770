"""Edits that replace a step's function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from transparity_conformance.against.edits.edit import At, Context, Edit, short
from transparity_conformance.listening.program import Change, Ref, Values, filled

Function = Callable[[Any], Any]

ALIKE: tuple[tuple[str, ...], ...] = (
    ("add", "sub", "mul", "div"),
    ("sin", "cos"),
    ("rsqrt", "sqrt", "reciprocal"),
    ("mean", "sum", "amax"),
    ("lt", "le", "gt", "ge", "eq", "ne"),
    ("bitwise_and", "bitwise_or", "logical_and", "logical_or"),
    ("maximum", "minimum"),
    ("floor", "ceil", "round"),
    ("argmax", "argmin"),
)
"""Groups of operations with the same arguments, which ports may confuse."""

INVERSE = {"add": "sub", "mul": "div"}
"""The operation with ordered operands that corresponds to each commutative operation."""

ACTIVATIONS = frozenset(
    ["silu", "gelu", "relu", "sigmoid", "tanh", "softplus", "elu", "leaky_relu", "hardswish", "exp"]
)


def functions(at: At, context: Context) -> Iterator[Edit]:
    name = short(at.step)
    for group in ALIKE:
        for other in group if name in group and at.step.args and isinstance(at.step.args[0], Ref) else ():
            if other != name:
                says = f"applies `{other}`, where theirs applies `{name}`"
                yield Edit("function", says, functools.partial(_called, other=other), rank=1)
    if name in INVERSE and len(at.step.args) > 1 and all(isinstance(item, Ref) for item in at.step.args[:2]):
        says = f"applies `{INVERSE[name]}` to the swapped operands, where theirs applies `{name}`"
        yield Edit("function", says, functools.partial(_called, other=INVERSE[name], is_turned=True), rank=1)
    if name in ACTIVATIONS:
        for label, function in activations().items():
            says = f"applies {label}, where theirs applies `{name}`"
            yield Edit("function", says, functools.partial(_of_first, function=function), rank=1)


def _called(at: At, other: str, is_turned: bool = False) -> Change:
    import torch

    def changed(values: Values) -> Any:
        args = filled(at.step.args, values)
        args = (args[1], args[0], *args[2:]) if is_turned else args
        return at.fitting(getattr(torch, other)(*args, **at.step.kwargs))

    return changed


def _of_first(at: At, function: Function) -> Change:
    return lambda values: at.fitting(function(values[at.step.inputs[0]]))


@functools.cache
def activations() -> dict[str, Function]:
    """Return common activations by name."""
    import torch
    from torch.nn import functional as F

    return {
        "SiLU": F.silu,
        "GELU": F.gelu,
        "GELU (tanh)": functools.partial(F.gelu, approximate="tanh"),
        "GELU (sigmoid)": lambda x: x * torch.sigmoid(1.702 * x),
        "ReLU": F.relu,
        "squared ReLU": lambda x: F.relu(x) ** 2,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "softplus": F.softplus,
        "ELU": F.elu,
        "leaky ReLU": F.leaky_relu,
        "hard swish": F.hardswish,
        "exp": torch.exp,
    }


def norms(numbers: Sequence[float]) -> dict[str, Function]:
    """Return common norms by description, each with several epsilons."""
    found: dict[str, Function] = {
        "no norm": lambda x: x,
        "the root mean square": _rms,
        "the standard deviation, after the mean is subtracted": lambda x: _rms(_centred(x)),
        "the sum": lambda x: x / x.sum(-1, keepdim=True),
        "the length": lambda x: x / x.norm(dim=-1, keepdim=True),
        "the sum of exponentials, including its own": lambda x: x.softmax(-1),
    }
    for eps in dict.fromkeys([1e-5, *(number for number in numbers if 0 < number <= 1e-3)]):
        found[f"the root mean square with the epsilon {eps:g}"] = functools.partial(_rms, eps=eps)
        found[f"the standard deviation with the epsilon {eps:g}, after the mean is subtracted"] = functools.partial(
            _layer_norm, eps=eps
        )
    return found


def _rms(x: Any, eps: float = 0.0) -> Any:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()


def _centred(x: Any) -> Any:
    return x - x.mean(-1, keepdim=True)


def _layer_norm(x: Any, eps: float) -> Any:
    return _rms(_centred(x), eps)
