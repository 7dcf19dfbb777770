"""Listening to PyTorch: every operation that reaches the dispatcher, of modules and functions alike.

Composite operations are heard in their parts (`linear` as `addmm`), kernels as one, and those of attention and of whole
layers in parts, too (`fused`, `fast_path`). An operation with several outputs is one for each. What is not heard:
integers and bools (data flows through them), other threads, tensors without numbers of their own (meta, sparse, nested,
quantised, subclasses with a dispatch of their own), views of parameters, and uninitialised memory. A compiled module
runs eagerly meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transparity.config import EXACT_MASK_BELOW
from transparity_conformance.listening import fast_path
from transparity_conformance.listening.fused import default_scale, hidden
from transparity_conformance.listening.operation import Source
from transparity_conformance.listening.record import Origins, Place, Record

UNINITIALISED = ("aten.empty", "aten.new_empty")
"""Beginnings of the names of operations whose results have no values yet."""

COLLECTIVES = ("c10d.",)
"""Beginnings of the names of operations that write what comes from other processes into their first argument."""

SHAPE_ALONE = re.compile(r"_like\.|\.new_")
"""Operations that read the shape of what they are given, but no values."""


@contextlib.contextmanager
def listening(record: Record) -> Iterator[None]:
    """Record every PyTorch operation of this thread within the context."""
    import torch

    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # else nothing has been compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_listener(record))
        yield
    record.settle_awaited(_numbers)


def _listener(record: Record) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Listener(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Return whether PyTorch has to keep its compiler out of this mode; importing it takes seconds."""
            return "torch._dynamo" in sys.modules

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return heard(record, func, args, kwargs or {})

    return Listener()


def heard(record: Record, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operation, record what it computes, and return its result."""
    numbers = functools.partial(_numbers, whole_numbers=record.whole_numbers)
    given, written = _given(func, args, kwargs)
    read, writes = _places(list(given.values())), _places(written)
    views = {place.owner for place in read} if _is_view(func) else set()
    for place in read:
        if place.owner not in views and place not in writes:
            record.settle(place, numbers)
    inputs = record.origins(read)
    result = func(*args, **kwargs)
    name, stack = str(func), record.sources.here()
    if name.startswith(COLLECTIVES):
        for place in _places(args[0]):
            record.await_write(place, name, inputs, stack)
        return result
    if name.startswith(UNINITIALISED):
        return result
    if SHAPE_ALONE.search(name):
        inputs = ()
    if arguments := _attention(func, given):
        inputs = _hidden(record, arguments, given, stack)
    if name in fast_path.INPUT:
        inputs = _fast_path_parts(record, name, given)
    for place in writes:
        record.write(place, record.add(name, numbers(place.array), inputs, stack))
    for place in _places(result):
        is_of_parameter = place.owner in views and not record.knows(place)
        if place not in writes and not record.has(place) and not is_of_parameter:
            record.put(place, record.add(name, numbers(place.array), inputs, stack, arguments))
            arguments = {}  # they are those of the first output
    return result


def _given(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The arguments of an operation by name, and those into which it writes."""
    declared = func._schema.arguments
    given = {argument.name: value for argument, value in zip(declared, args, strict=False)} | dict(kwargs)
    written = [
        given[argument.name]
        for argument in declared
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given
    ]
    return given, written


def _is_view(func: Any) -> bool:
    """Return whether an operation returns memory that it was given."""
    return any(returned.alias_info is not None for returned in func._schema.returns) and not func._schema.is_mutable


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors in an argument or a result."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _places(value: Any) -> list[Place]:
    return [place for place in map(_place, _tensors(value)) if place is not None]


def _place(tensor: Any) -> Place | None:
    """The memory of a tensor; None if it has none of its own."""
    import torch

    own_dispatch = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if own_dispatch or tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    storage = tensor.untyped_storage()
    if tensor.is_nested:
        return Place(storage._cdata, "nested", tensor, storage)
    part = (tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
    return Place(storage._cdata, (*part, tensor.is_conj(), tensor.is_neg()), tensor, storage)


def _numbers(tensor: Any, *, whole_numbers: bool = False) -> np.ndarray | None:
    """A copy in float64; None for nested tensors, and for integers and bools without `whole_numbers`."""
    import torch

    if tensor.is_nested or not (whole_numbers or tensor.is_floating_point() or tensor.is_complex()):
        return None
    tensor = tensor.detach().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.to("cpu", torch.float64, copy=True).numpy()


def _attention(func: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of fused attention; empty for other operations."""
    names = {argument.name for argument in func._schema.arguments}
    if "scaled_dot_product" not in str(func) or "backward" in str(func) or not {"query", "key", "value"} <= names:
        return {}
    arrays = {name: _numbers(given[name]) for name in ("query", "key", "value")}
    query, mask, scale = arrays["query"], _given_mask(given), given.get("scale")
    if query is None or any(array is None for array in arrays.values()):  # nested
        return {}
    return arrays | {
        "mask": None if mask is None else _mask(mask),
        "scale": default_scale(query) if scale is None else float(scale),
        "is_causal": bool(given.get("is_causal", False)),
    }


def _hidden(
    record: Record, arguments: Mapping[str, Any], given: Mapping[str, Any], stack: tuple[Source, ...]
) -> Origins:
    """Record what fused attention computes on the way; return what its output is computed from."""
    origins = {
        "attention.scores": _origins(record, given["query"], given["key"]),
        "attention.masked_scores": _origins(record, _given_mask(given)),
        "attention.context": _origins(record, given["value"]),
    }
    bias = _bias(record, arguments["mask"], origins["attention.masked_scores"])
    last: Origins = ()
    for name, value in hidden(arguments):
        last = tuple(sorted({*last, *origins.get(name, ())}))
        if name != "attention.context":  # which is the output
            last = record.add(name, value, last, stack)
        if name == "attention.scores" and bias is not None:
            last = record.add("attention.biased_scores", value + bias[0], tuple(sorted({*last, bias[1]})), stack)
    return last


def _bias(record: Record, mask: np.ndarray | None, origins: Origins) -> tuple[np.ndarray, int] | None:
    """The bias in a mask that is added to scores: a value that it is made from, and equals where nothing is masked."""
    if mask is None or mask.dtype == bool:
        return None
    seen, waiting = mask > EXACT_MASK_BELOW, [*origins]
    while waiting and not seen.all() and mask[seen].any():
        index = waiting.pop(0)
        value = record.operations[index].value
        if _is_broadcast(value.shape, mask.shape) and (value > EXACT_MASK_BELOW).all():
            bias = np.broadcast_to(value, mask.shape)
            if np.array_equal(bias[seen], mask[seen]):
                return bias, index
        waiting += record.operations[index].inputs
    return None


def _is_broadcast(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _fast_path_parts(record: Record, name: str, given: Mapping[str, Any]) -> Origins:
    """Hear the parts of a kernel that is a whole layer; return what its output is computed from."""
    argument = fast_path.INPUT[name]
    cast = {each: fast_path.in_float64(value) for each, value in given.items()}
    padding = fast_path.padding_of(given[argument])
    if padding is not None:
        cast |= {"mask": padding, "mask_type": 1}
    for place in _places(cast[argument]):
        record.put(place, _origins(record, given[argument]))
    with _listener(record):
        return _origins(record, fast_path.parts(name, cast))


def _origins(record: Record, *tensors: Any) -> Origins:
    return record.origins(_places(tensors))


def _given_mask(given: Mapping[str, Any]) -> Any:
    return next((given[name] for name in ("attn_mask", "attn_bias") if given.get(name) is not None), None)


def _mask(mask: Any) -> np.ndarray:
    """A mask in bool, or what is added to the scores in float64."""
    numbers = _numbers(mask)
    return mask.detach().cpu().numpy().copy() if numbers is None else numbers
