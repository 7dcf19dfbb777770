"""Record PyTorch: each operation that reaches the dispatcher, from modules and functions.

For a composite operation, the record contains the operations that it calls; for example, `linear` calls `addmm`. For
fused attention, the recorder also computes the scores and weights, in float64. Each output of an operation is recorded
separately. During the recording, compiled modules run eagerly, and layers of `nn.Transformer` do not use their fast
path, so rounding may differ.

Integers and bools are recorded only on request. Otherwise, the inputs of an integer tensor become inputs of the
operations that read the tensor. The following are not recorded:

- other threads
- views of parameters
- uninitialized memory
- tensors without strided memory: meta, sparse, nested and quantized tensors, and subclasses with their own dispatch
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transparity_conformance.listening.operation import Source
from transparity_conformance.listening.record import Origins, Record, Region

UNINITIALISED = ("aten.empty", "aten.new_empty")
"""Prefixes of operations that return uninitialized memory."""

SHAPE_ALONE = re.compile(r"_like\.|\.new_")
"""Operations that read only the shape of their input, such as `zeros_like`."""


@contextlib.contextmanager
def listening(record: Record) -> Iterator[None]:
    import torch

    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # without Dynamo, no module is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(without_fast_path())
        stack.enter_context(dispatched(functools.partial(recorded, record)))
        yield
    record.settle_awaited(_numbers)


@contextlib.contextmanager
def without_fast_path() -> Iterator[None]:
    """Within the context, turn off the fused fast path of the layers of `nn.Transformer`."""
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def dispatched(run: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Return whether the compiler must ignore this mode; False avoids a slow import of the compiler."""
            return "torch._dynamo" in sys.modules

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return run(func, args, kwargs or {})

    return Mode()


def recorded(record: Record, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    numbers = functools.partial(_numbers, whole_numbers=record.whole_numbers)
    given, written = given_and_written(func, args, kwargs)
    read, writes = _regions(list(given.values())), _regions(written)
    returns_given = any(returned.alias_info is not None for returned in func._schema.returns)
    views = {place.owner for place in read} if returns_given and not func._schema.is_mutable else set()
    for place in read:
        if place.owner not in views and place not in writes:
            record.settle(place, numbers)
    inputs = record.origins(read)
    result = func(*args, **kwargs)
    name, stack = str(func), record.sources.here()
    if name.startswith("c10d."):  # a collective operation, which writes data of other processes into its first argument
        for place in _regions(args[0]):
            record.await_write(place, name, inputs, stack)
        return result
    if name.startswith(UNINITIALISED):
        for place in _regions(result):
            record.leave_blank(place)
        return result
    if SHAPE_ALONE.search(name):
        inputs = ()
    if "scaled_dot_product" in name and "backward" not in name and {"query", "key", "value"} <= given.keys():
        inputs = _attention(record, given, stack)
    for place in writes:
        record.write(place, record.add(name, numbers(place.array), inputs, stack))
    for place in _regions(result):
        is_left_out = place.owner in views and (not record.knows(place) or record.is_blank(place))
        if place not in writes and not record.has(place) and not is_left_out:
            record.put(place, record.add(name, numbers(place.array), inputs, stack))
    return result


def given_and_written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return an operation's arguments by name, and the arguments that it modifies."""
    declared = func._schema.arguments
    given = {argument.name: value for argument, value in zip(declared, args, strict=False)} | dict(kwargs)
    written = [
        given[argument.name]
        for argument in declared
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given
    ]
    return given, written


def tensors_in(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def _regions(value: Any) -> list[Region]:
    return [place for place in map(_region, tensors_in(value)) if place is not None]


def _region(tensor: Any) -> Region | None:
    import torch

    own_dispatch = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if own_dispatch or tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    storage = tensor.untyped_storage()
    if tensor.is_nested:
        return Region(storage._cdata, "nested", tensor, storage)
    part = (tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
    return Region(storage._cdata, (*part, tensor.is_conj(), tensor.is_neg()), tensor, storage)


def _numbers(tensor: Any, *, whole_numbers: bool = False) -> np.ndarray | None:
    """Return a float64 copy; None for nested tensors, and for integers and bools without `whole_numbers`."""
    import torch

    if tensor.is_nested or not (whole_numbers or tensor.is_floating_point() or tensor.is_complex()):
        return None
    tensor = tensor.detach().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.to("cpu", torch.float64, copy=True).numpy()


def _attention(record: Record, given: Mapping[str, Any], stack: tuple[Source, ...]) -> Origins:
    """Record the scores and weights of fused attention in float64; return the operations on which the output of the
    attention depends.

    `attention.masked_scores` are −∞ where a Boolean mask hides a key. If all keys are hidden, `attention.weights` are
    0.
    """
    import torch

    query, key, value = given["query"], given["key"], given["value"]
    mask = next((given[name] for name in ("attn_mask", "attn_bias") if given.get(name) is not None), None)
    if query.is_nested:
        return record.origins(_regions(list(given.values())))
    if query.ndim > 2 and query.shape[-3] != key.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scale = query.shape[-1] ** -0.5 if given.get("scale") is None else given["scale"]
    scores = query.detach().double() @ key.detach().double().mT * scale
    last = record.add("attention.scores", _numbers(scores), record.origins(_regions([query, given["key"]])), stack)
    causal = torch.ones_like(scores, dtype=torch.bool).tril() if given.get("is_causal") else None
    masks = [each for each in (mask, causal) if each is not None]
    for each in masks:
        scores = scores.masked_fill(~each, -torch.inf) if each.dtype == torch.bool else scores + each.detach()
    if masks:
        origins = tuple(sorted({*last, *record.origins(_regions(mask))}))
        last = record.add("attention.masked_scores", _numbers(scores), origins, stack)
    last = record.add("attention.weights", _numbers(torch._safe_softmax(scores, -1)), last, stack)
    return tuple(sorted({*last, *record.origins(_regions(value))}))
