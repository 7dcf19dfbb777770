"""Record each primitive that JAX runs, in Flax, Equinox and plain functions.

The recording disables `jit`, so JAX runs one primitive at a time. A port that uses `jit` may therefore round
differently than without the recording. `scan`, `while_loop` and `cond` run as Python loops and branches. The jaxpr of a
function under `checkpoint` runs equation by equation. The record contains each equation with the line that JAX traced.

Integers and bools are recorded only on request. Otherwise, the inputs of an integer array become inputs of the
operations that read the array. The record contains no operations of other threads or of programs compiled earlier. The
record also contains no arrays on other machines, and no parameters that are only sliced, reshaped or cast. For a loop
within `checkpoint`, the record contains only the results.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transparity_conformance.listening.operation import Source
from transparity_conformance.listening.record import Record, Region

REARRANGEMENTS = frozenset(
    ["broadcast_in_dim", "convert_element_type", "copy", "device_put", "dynamic_slice", "expand_dims", "reshape"]
) | {"rev", "slice", "split", "squeeze", "stage", "transpose"}
"""Primitives that only copy, cast or rearrange; the record leaves them out if they read a parameter."""

EVALUATED = frozenset(("jit", "pjit", "checkpoint", "remat", "remat2"))
"""Primitives that wrap a function, whose primitives are recorded instead."""


@contextlib.contextmanager
def listening(record: Record) -> Iterator[None]:
    import jax
    from jax._src import core

    EvalTrace: Any = core.EvalTrace  # noqa: N806 - a class, whose method is replaced
    plain, listener, thread = EvalTrace.process_primitive, _Listener(record), threading.get_ident()

    def process_primitive(trace: Any, primitive: Any, args: Sequence[Any], params: Mapping[str, Any], /) -> Any:
        def run() -> Any:
            return plain(trace, primitive, args, params)

        return run() if threading.get_ident() != thread else listener.operation(run, primitive, args, params)

    EvalTrace.process_primitive = process_primitive
    try:
        with jax.disable_jit():
            yield
    finally:
        EvalTrace.process_primitive = plain


class _Listener:
    def __init__(self, record: Record) -> None:
        self.record, self.busy = record, False

    def operation(self, run: Callable[[], Any], primitive: Any, args: Sequence[Any], params: Mapping[str, Any]) -> Any:
        if self.busy:
            return run()
        if primitive.name in EVALUATED and "jaxpr" in params:
            from jax._src.core import eval_jaxpr

            inner = params["jaxpr"]  # the traced function
            return eval_jaxpr(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), *args)
        self.busy = True
        try:
            result = run()
            self._add(primitive, args, result if primitive.multiple_results else [result])
        finally:
            self.busy = False
        return result

    def _add(self, primitive: Any, args: Sequence[Any], results: Sequence[Any]) -> None:
        record = self.record
        inputs, stack = record.origins(map(_region, args)), _stack(record)
        for place in map(_region, results):
            if record.has(place) or (not inputs and primitive.name in REARRANGEMENTS):
                continue
            record.put(place, record.add(primitive.name, _numbers(place.array, record), inputs, stack))


def _stack(record: Record) -> tuple[Source, ...]:
    """Return the port's lines on the stack; for an equation of a jaxpr, the stack during tracing."""
    from jax._src import source_info_util

    traceback = source_info_util._source_info_context.context.traceback
    if traceback is None:
        return record.sources.here()
    return record.sources.among(zip(*traceback.raw_frames(), strict=True))


def _region(array: Any) -> Region:
    """Return a region that no other array shares, because JAX never modifies arrays."""
    return Region(id(array), None, array, array)


def _numbers(array: Any, record: Record) -> np.ndarray | None:
    """Return a float64 copy; None for tracers, arrays on other machines, and dtypes that are not recorded."""
    import jax
    import jax.numpy as jnp

    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer) or not array.is_fully_addressable:
        return None
    is_number = jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool  # excludes random keys
    return record.numbers(np.asarray(array)) if is_number else None
