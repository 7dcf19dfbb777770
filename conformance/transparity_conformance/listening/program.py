"""Record a PyTorch call in float64 as a program: steps that can run again with other values or changes. A tensor that a
step modifies in place gets a new index, so that another run does not overwrite earlier values."""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import math
import sys
from collections import ChainMap
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from transparity_conformance import work
from transparity_conformance.listening.operation import FRAMEWORKS, Source, Sources, home, run
from transparity_conformance.listening.pytorch import (
    UNINITIALISED,
    dispatched,
    given_and_written,
    tensors_in,
    without_fast_path,
)

_SOURCES = Sources()

Values = MutableMapping[int, Any]
"""The values of a program. A `ChainMap` looks up unchanged values in an earlier run."""

PRODUCTS = frozenset(f"aten.{name}.default" for name in ("mm", "bmm", "addmm", "baddbmm"))
"""Operations whose last two operands are multiplied as matrices."""

Place = tuple[CodeType, int]

Change = Callable[[Values], Any]
"""A function that computes a step's new result from earlier values."""


@dataclass(frozen=True)
class Ref:
    index: int


@dataclass(frozen=True, eq=False)
class Step:
    number: int
    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    """The results; for an in-place operation, the new indices of all tensors in the modified memory."""
    aliases: tuple[int, ...]
    """For an in-place operation, the old indices of the tensors in `outputs`."""
    written: int
    """The index of the tensor that the step modifies in place, or -1."""
    site: Hashable
    """A key of the position in the code, which is equal in layers that run the same code."""
    places: tuple[Place, ...]
    module: str
    """The path of the `nn.Module` whose `forward` ran the step."""

    @functools.cached_property
    def name(self) -> str:
        return str(self.func)

    @functools.cached_property
    def line(self) -> Hashable:
        """A key of the innermost instruction and the operation, which is equal in all calls of a function."""
        return (self.places[:1], *self.site[1:])  # type: ignore[index]

    @property
    def source(self) -> Source | None:
        return _SOURCES.at(*self.places[0]) if self.places else None

    @property
    def stack(self) -> tuple[Source, ...]:
        return tuple(_SOURCES.at(*place) for place in self.places)

    @property
    def results(self) -> tuple[int, ...]:
        """The indices of the results, without unmodified tensors in the memory that an in-place operation modifies."""
        return (self.output,) if self.aliases else self.outputs

    @property
    def output(self) -> int:
        """The first result, or the tensor that is modified in place; -1 without a result."""
        if self.aliases:
            return self.outputs[self.aliases.index(self.written)]
        return self.outputs[0] if self.outputs else -1

    def result(self, values: Values) -> Any:
        """Return the first result, or the tensor modified in place, without modifying `values`."""
        now = ChainMap({}, values)
        self.run(now, None)
        return now[self.output]

    def run(self, values: Values, precision: Any) -> None:
        args, kwargs = filled(self.args, values), filled(self.kwargs, values)
        if self.aliases:
            self._write(values, args, kwargs, precision)
            return
        self.put(values, executed(self.func, args, kwargs, precision))

    def put(self, values: Values, result: Any) -> None:
        for index, tensor in zip(self.outputs, tensors_in(result), strict=True):
            values[index] = tensor

    def _write(self, values: Values, args: Any, kwargs: Any, precision: Any) -> None:
        """Run an in-place operation on a copy of the memory, so that old values do not change."""
        old = values[self.written]
        copy = old.untyped_storage().clone()
        for alias, index in zip(self.aliases, self.outputs, strict=True):
            view = values[alias]
            values[index] = _in_memory(copy, view) if _memory(view) == _memory(old) else view
        new = values[self.output]
        replace = lambda item: new if item is old else item
        executed(self.func, _mapped(args, replace), _mapped(kwargs, replace), precision)


@dataclass(eq=False)
class Program:
    steps: list[Step] = field(default_factory=list)
    given: Values = field(default_factory=dict)
    """The values that no step computes: parameters, buffers, inputs and constants."""
    names: dict[int, str] = field(default_factory=dict)
    parameters: frozenset[int] = frozenset()
    values: Values = field(default_factory=dict)
    answer: int = -1

    def __post_init__(self) -> None:
        self.maker: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        self.places: dict[Hashable, list[int]] = {}
        self.lines: dict[Hashable, list[int]] = {}

    def add(self, step: Step) -> None:
        self.steps.append(step)
        self.maker |= dict.fromkeys(step.outputs, step.number)
        for index in step.inputs:
            self.readers.setdefault(index, []).append(step.number)
        self.places.setdefault(step.site, []).append(step.number)
        self.lines.setdefault(step.line, []).append(step.number)

    def makers(self, number: int) -> set[int]:
        return {self.maker[index] for index in self.steps[number].inputs if index in self.maker}

    def readers_of(self, number: int) -> set[int]:
        return {reader for index in self.steps[number].outputs for reader in self.readers.get(index, ())}

    def run(
        self, changes: Mapping[int, Change] | None = None, given: Values | None = None, precision: Any = None
    ) -> Values:
        """Run all steps in `precision` (by default float64), with `changes` of steps and other `given` tensors."""
        values = {**self.given, **(given or {})}
        if precision is not None:
            values = {i: each.to(precision) if each.is_floating_point() else each for i, each in values.items()}
        with float64_defaults() if precision is None else contextlib.nullcontext():
            for step in self.steps:
                self.run_one(step, values, changes or {}, precision)
        return values

    def again(
        self, numbers: Collection[int], values: Values, changes: Mapping[int, Change]
    ) -> tuple[Values, Collection[int]]:
        """Run the steps `numbers`, and all steps that depend on them, without modifying `values` of an earlier run.
        Return all values, and the indices of the values that this call computed."""
        now, again = dict(values), set[int]()
        with float64_defaults():
            for step in self.steps[min(numbers, default=len(self.steps)) :]:
                if step.number in numbers or not again.isdisjoint(step.inputs):
                    self.run_one(step, now, changes, None)
                    again.update(step.outputs)
        return now, again

    def after(
        self, number: int, made: Any, values: Values, changes: Mapping[int, Change]
    ) -> Iterator[tuple[Step, Values]]:
        """Run the steps that depend on the step `number`, whose new result is `made`. Yield each step with the values
        so far, without modifying the earlier run's `values`."""
        first = self.steps[number]
        now = ChainMap({}, values)
        self._put(first, now, {number: lambda _: made}, None)
        yield first, now
        waiting = sorted(self._readers_of_changes(first, now, values))
        while waiting:
            step = self.steps[heapq.heappop(waiting)]
            self.run_one(step, now, changes, None)
            for reader in self._readers_of_changes(step, now, values).difference(waiting):
                heapq.heappush(waiting, reader)
            yield step, now

    def _readers_of_changes(self, step: Step, now: Values, before: Values) -> set[int]:
        """Return the readers of a step's results. A step that modifies a part of a memory leaves the other parts
        unchanged."""
        if not step.aliases:
            return self.readers_of(step.number)
        changed = (index for index in step.outputs if not now[index].equal(before[index]))
        return {reader for index in changed for reader in self.readers.get(index, ())}

    def run_one(self, step: Step, values: Values, changes: Mapping[int, Change], precision: Any) -> None:
        self._put(step, values, changes, precision)
        if not getattr(step.func, "is_view", False):
            products = values[step.inputs[-2:][0]].shape[-1] if step.name in PRODUCTS else 0
            work.count(getattr(values.get(step.output), "numel", int)(), products)

    def _put(self, step: Step, values: Values, changes: Mapping[int, Change], precision: Any) -> None:
        if step.number not in changes:
            step.run(values, precision)
            return
        made = changes[step.number](values)
        if isinstance(made, tuple | list):
            step.put(values, made)
        elif len(step.outputs) == 1 and not step.aliases:
            values[step.outputs[0]] = made
        else:
            step.run(values, precision)
            values[step.output] = values[step.output].copy_(made) if step.aliases else made


STATISTICS = ("running_mean", "running_var")
"""The buffers of a batch norm, which count as parameters."""


def learned_of(model: Any) -> dict[str, Any]:
    """Return the parameters of a PyTorch module and the statistics of its batch norms, in the order of its modules."""
    buffers = ((name, value) for name, value in model.named_buffers() if name.endswith(STATISTICS))
    modules = [name for name, _ in model.named_modules()]
    found = [*model.named_parameters(), *buffers]
    return dict(sorted(found, key=lambda item: modules.index(item[0].rpartition(".")[0])))


def record_program(model: Any, inputs: Mapping[str, Any], call: Callable[[], Any]) -> Program:
    """Record `call`, which calls a float64 module on float64 `inputs` and returns the tensor to compare. Parameters and
    submodules of `model` name the program's values and steps."""
    names = {id(value): name for name, value in inputs.items()}
    names |= {id(each): name for name, each in itertools.chain(model.named_buffers(), model.named_parameters())}
    modules = {id(module): name for name, module in model.named_modules()}
    kinds = {type(module) for module in model.modules() if next(module.parameters(), None) is not None}
    defined = (getattr(sys.modules.get(kind.__module__), "__file__", None) for kind in kinds)
    recorder = Recorder(names, modules, set(filter(None, defined)))  # a class in a notebook has no file
    with modules_noted(recorder):
        return recorder.recorded(call, learned_of(model))


@contextlib.contextmanager
def float64_defaults() -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def decomposed() -> Iterator[None]:
    """Within the context, run fused attention and fused layers as separate operations."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with without_fast_path(), sdpa_kernel(SDPBackend.MATH), _with_one_mask():
        yield


ATTENTION_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def _with_one_mask() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which `is_causal` and `attn_mask` become one mask, as the math backend requires."""
    import torch
    from torch.overrides import TorchFunctionMode

    attention = torch.nn.functional.scaled_dot_product_attention

    class OneMask(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            given = dict(zip(ATTENTION_ARGUMENTS, args, strict=False)) | kwargs if func is attention else {}
            if given.get("is_causal") and given.get("attn_mask") is not None:
                mask, query, key = given["attn_mask"], given["query"], given["key"]
                causal = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
                hidden = False if mask.dtype == torch.bool else -torch.inf
                return func(**given | {"is_causal": False, "attn_mask": torch.where(causal, mask, hidden)})
            return func(*args, **kwargs)

    return OneMask()


@contextlib.contextmanager
def modules_noted(recorder: Any) -> Iterator[None]:
    """Within the context, keep a stack of the running modules in `recorder.modules`."""
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    enter = register_module_forward_pre_hook(lambda module, _: recorder.modules.append(module))
    leave = register_module_forward_hook(lambda *_: recorder.modules.pop() and None, always_call=True)
    try:
        yield
    finally:
        enter.remove()
        leave.remove()


def executed_exactly(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return executed(func, _mapped(args, _exact), _mapped(kwargs, _exact) if kwargs else kwargs, None)


def executed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], precision: Any) -> Any:
    """Run an operation in a precision, with the arguments' float dtypes replaced; None means float64."""
    import torch

    kinds = {*map(type, args), *map(type, kwargs.values())}
    if torch.dtype in kinds or (precision is not None and float in kinds):
        args, kwargs = _converted(args, kwargs, precision)
    if len(args) > 2 and args[2] is True and "softmax" in str(func):  # a softmax that also casts to float32
        args = (args[0].double() if precision is None else args[0].float(), args[1], False)
    # If the program runs in float64, PyTorch must also divide integers in float64.
    is_set = precision is not None or torch.get_default_dtype() == torch.float64
    with contextlib.nullcontext() if is_set else float64_defaults():
        result = func(*args, **kwargs)
    if _is_uninitialised(func) and result.is_floating_point():
        result.fill_(math.nan)  # NaN shows if a later step reads uninitialized memory
    return result


@functools.cache
def _is_uninitialised(func: Any) -> bool:
    return str(func).startswith(UNINITIALISED)


def _converted(args: Sequence[Any], kwargs: Mapping[str, Any], precision: Any) -> tuple[Any, Any]:
    """Replace float dtypes by the precision, and clip numbers to the precision's range."""
    import torch

    is_exact = precision is None
    target = torch.float64 if is_exact else precision
    others = {torch.float32, torch.float16, torch.bfloat16} if is_exact else {torch.float64}
    lowest = torch.finfo(target).min

    def converted(item: Any) -> Any:
        if isinstance(item, torch.dtype):
            if item in (torch.complex64, torch.complex128):
                return torch.complex128 if is_exact else torch.complex64
            return target if item in others else item
        if isinstance(item, float) and math.isfinite(item):  # a mask may contain the lowest number of float64
            return min(max(item, lowest), -lowest)
        return item

    return _mapped(tuple(args), converted), _mapped(dict(kwargs), converted)


class Recorder:
    """Adds each PyTorch operation to a program. `names` and `module_names` map an `id` to a name. Only lines of `files`
    are reported, if given. `frames` yields the instructions that run an operation, by default from Python's stack."""

    def __init__(
        self,
        names: Mapping[int, str],
        module_names: Mapping[int, str] | None = None,
        files: Collection[str] = (),
        frames: Callable[[], Iterator[Place]] | None = None,
    ) -> None:
        self.program, self.names, self.module_names, self.files = Program(), names, module_names or {}, files
        self.frames = frames or _frames
        self.indices: dict[int, int] = {}
        self.kept: list[Any] = []
        self.sharing: dict[int, list[Any]] = {}
        self.copies: dict[int, Any] = {}
        """A copy of each memory, in which the program's values share the memory like the recorded tensors."""
        self.modules: list[Any] = []
        self.last: tuple[Hashable, dict[Any, int]] = ((), {})
        self.lines: dict[Hashable, tuple[Place, ...]] = {}
        self.count = 0

    def recorded(self, call: Callable[[], Any], learned: Collection[str]) -> Program:
        import torch

        program = self.program
        with torch.no_grad(), float64_defaults(), decomposed(), dispatched(self.run):
            program.answer = self.index_of(run(call))
        program.parameters = frozenset(index for index, name in program.names.items() if name in learned)
        program.values.update(program.given)
        return program

    def index_of(self, tensor: Any) -> int:
        """Return the index of a tensor. A tensor that no step computed becomes `given`."""
        if id(tensor) not in self.indices:
            index = self._new(tensor)
            self.program.given[index] = _exact(tensor.detach())
            if id(tensor) in self.names:
                self.program.names[index] = self.names[id(tensor)]
        return self.indices[id(tensor)]

    def _new(self, tensor: Any) -> int:
        self.indices[id(tensor)] = self.count
        self.kept.append(tensor)
        self.sharing.setdefault(_memory(tensor), []).append(tensor)
        self.count += 1
        return self.count - 1

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        import torch

        inputs = tuple(dict.fromkeys(self.index_of(each) for each in tensors_in((args, kwargs))))
        as_ref = lambda item: Ref(self.index_of(item)) if isinstance(item, torch.Tensor) else item
        refs: tuple[Any, Any] = _mapped((tuple(args), dict(kwargs)), as_ref)
        result = executed_exactly(func, args, kwargs)
        _, into = given_and_written(func, args, kwargs)
        written = next(iter(into), None)
        number = len(self.program.steps)
        aliases: tuple[int, ...] = ()
        if written is None:
            outputs = tuple(self._made(each) for each in tensors_in(result))
            at = -1
        else:
            at = self.indices[id(written)]
            tensors = self.sharing[_memory(written)]
            aliases = tuple(self.indices[id(each)] for each in tensors)
            outputs = tuple(range(self.count, self.count + len(tensors)))
            self.indices |= {id(each): index for each, index in zip(tensors, outputs, strict=True)}
            self.count += len(outputs)
            self.copies.pop(_memory(written), None)
            self.program.values.update(zip(outputs, map(self._copied, tensors), strict=True))
        site, lines = self._place(func)
        module = self.module_names.get(id(self.modules[-1]), "") if self.modules else ""
        self.program.add(Step(number, func, refs[0], refs[1], inputs, outputs, aliases, at, site, lines, module))
        return result

    def _made(self, tensor: Any) -> int:
        index = self._new(tensor)
        self.program.values[index] = self._copied(tensor.detach())
        return index

    def _copied(self, tensor: Any) -> Any:
        if not tensor.numel():
            return tensor
        memory = _memory(tensor)
        if memory not in self.copies:
            self.copies[memory] = tensor.untyped_storage().clone()
        return _in_memory(self.copies[memory], tensor)

    def _place(self, func: Any) -> tuple[Hashable, tuple[Place, ...]]:
        """Return a key of the operation's position (an expression may repeat an operation), and the lines to report."""
        places = tuple(self.frames())
        key = tuple((id(code), at) for code, at in places)  # hashing a code object takes a microsecond
        if self.last[0] != key:
            self.last = (key, {})
        order = self.last[1].get(func, 0)
        self.last[1][func] = order + 1
        if key not in self.lines:
            lines = [place for place in places if home(place[0].co_filename) not in {None, *FRAMEWORKS}]
            self.lines[key] = tuple([place for place in lines if place[0].co_filename in self.files] or lines)
        return (key, str(func), order), self.lines[key]


def _frames() -> Iterator[Place]:
    """Yield the instructions of the recorded call, innermost first."""
    frame: Any = sys._getframe(4)
    while frame is not None and frame.f_code is not run.__code__:
        yield frame.f_code, frame.f_lasti
        frame = frame.f_back


def _exact(item: Any) -> Any:
    import torch

    return item.double() if isinstance(item, torch.Tensor) and item.is_floating_point() else item


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _in_memory(storage: Any, tensor: Any) -> Any:
    """Return a tensor with the same type, shape, strides and offset in another memory."""
    if tensor.is_conj() or tensor.is_neg():  # the memory does not contain the tensor's values
        return tensor.clone()
    return tensor.new_empty(0).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_mapped(item, change) for item in value])
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    return kind([_mapped(item, change) for item in value]) if isinstance(value, tuple | list) else change(value)


def filled(value: Any, values: Values) -> Any:
    """Replace each `Ref` by its tensor."""
    kind = type(value)
    if kind is Ref:
        return values[value.index]
    if kind is list or kind is tuple:
        return kind([filled(item, values) for item in value])
    return {key: filled(item, values) for key, item in value.items()} if kind is dict else value
