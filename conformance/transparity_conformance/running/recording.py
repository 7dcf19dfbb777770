"""Taps of a model that has none: the inputs and outputs of its modules, recorded while it runs.

return recorded(model, {
    "layers.{i}.attention.q_proj": {"decoder.layers.{i}.self_attention.query": heads(config.num_heads)},
    "layers.{i}.attention.out_proj": {
        "decoder.layers.{i}.self_attention.context": received(),
        "decoder.layers.{i}.self_attention.output": as_is,
    },
    "layers.{i}": "decoder.layers.{i}.output",
})
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from transparity.errors import TransparityError, shown
from transparity_conformance.running.hooks import Hooks, hooks_of
from transparity_conformance.running.loader.inputs import arrays, framework_of

Transform = Callable[[Any], Any]
Wanted = Mapping[str, str | Mapping[str, "Transform | Received"]]
"""By a module's name: the tap that its output is, or several taps with the transforms that compute them.
`{i}` is the number of a layer, in both."""


@dataclass(frozen=True)
class Received:
    """A transform of a module's first argument instead of its output."""

    transform: Transform


def as_is(value: Any) -> Any:
    """The output itself."""
    return value


def received(transform: Transform = as_is) -> Received:
    """Record the module's first argument: the context, for example, is the input of the output projection."""
    return Received(transform)


def heads(num_heads: int, part: int = 0, parts: int = 1) -> Transform:
    """Split heads: (batch, length, parts · embed_dim) → (batch, heads, length, head_dim).

    Args:
        num_heads: the heads of one part.
        part: the part of a fused projection to take, from 0: the keys of a fused query, key and value are part 1 of 3.
        parts: the number of fused projections.
    """

    def split(value: Any) -> Any:
        if len(value.shape) != 3 or value.shape[-1] % (parts * num_heads):
            raise TransparityError(
                f"heads({num_heads}, part={part}, parts={parts}) was given the shape {tuple(value.shape)}; "
                f"expected (batch, length, a multiple of {parts * num_heads})."
            )
        width = value.shape[-1] // parts
        value = value[..., part * width : (part + 1) * width]
        return value.reshape(*value.shape[:2], num_heads, width // num_heads).swapaxes(1, 2)

    if not 0 <= part < parts or num_heads < 1:
        raise TransparityError(
            f"heads({num_heads}, part={part}, parts={parts}) has no such heads or no such part; expected "
            f"num_heads at least 1, and part from 0 to parts − 1."
        )
    return split


@contextmanager
def record_module(model: Any, taps: Wanted) -> Iterator[dict[str, Any]]:
    """Record the taps of a `torch.nn.Module` or a `flax.nnx.Module` in a dict while it runs, once and uncompiled.

    Raises `TransparityError` for a module that is unknown, not called, called again, or returns no array.
    """
    with _recording(hooks_of(model), _sources(model, taps)) as values:
        yield values


def recorded(model: Any, taps: Wanted, call: Callable[..., Any] | None = None) -> Callable[..., dict[str, Any]]:
    """Make a port's `forward`: it returns the recorded taps, and the output of the model as its logits.

    Args:
        model: a `torch.nn.Module` or a `flax.nnx.Module`.
        taps: the taps of each module, by its name.
        call: `call(source=…, target=…)` or `call(tokens=…)` runs the model on arrays of its framework; by default they
            are its arguments, the source before the target. Its result is the logits, unless it is a dict of taps or a
            module is recorded as them.
    """
    hooks, sources = hooks_of(model), _sources(model, taps)
    array, without_gradients = arrays(model, framework_of(model))

    def forward(**tokens: Any) -> dict[str, Any]:
        inputs = {name: array(value) for name, value in sorted(tokens.items())}
        with without_gradients(), _recording(hooks, sources) as values:
            result = call(**inputs) if call else model(*inputs.values())
        returned = dict(result) if isinstance(result, Mapping) else {} if "logits" in values else {"logits": result}
        for tap in returned:
            if tap in values:
                raise TransparityError(f"The tap {tap!r} is both recorded and returned by the model; record it only.")
        if not all(map(_is_array, returned.values())):
            raise TransparityError(
                f"The model returns {_kind(result)}, not its logits; give call= a function that returns them."
            )
        return values | returned

    return forward


@dataclass(frozen=True)
class _Source:
    """The side of a module, and the transform, that a tap is recorded from."""

    tap: str
    name: str
    module: Any
    transform: Transform
    side: Literal["input", "output"]


@contextmanager
def _recording(hooks: Hooks, sources: list[_Source]) -> Iterator[dict[str, Any]]:
    values: dict[str, Any] = {}
    by_call: dict[tuple[str, str], list[_Source]] = {}
    for source in sources:
        by_call.setdefault((source.name, source.side), []).append(source)

    def record(name: str, side: str, value: Any) -> None:
        for source in by_call.get((name, side), ()):
            if source.tap in values:
                raise TransparityError(
                    f"Module {name!r} is called more than once; expected one call: the tap {source.tap!r} is one array."
                )
            values[source.tap] = hooks.snapshot(_transformed(source, value))

    with hooks.hooked({source.name: source.module for source in sources}, record):
        yield values
    for source in sources:
        if source.tap not in values:
            raise TransparityError(
                f"Module {source.name!r} was never called, so the tap {source.tap!r} has no value; "
                "record a module that runs, as model.part(x), or leave it out."
            )


def _transformed(source: _Source, value: Any) -> Any:
    """The tap, computed from a module's input or output."""
    verb = "returns" if source.side == "output" else "is given"
    if source.transform is as_is and not _is_array(value):
        raise TransparityError(
            f"Module {source.name!r} {verb} {_kind(value)}; give the tap {source.tap!r} a function that takes the "
            "array meant, such as operator.itemgetter(0)."
        )
    try:
        result = source.transform(value)
    except Exception as error:
        kind = "" if isinstance(error, TransparityError) else f"{type(error).__name__}: "
        reason = kind + " ".join(str(error).split()).split(". ")[0].rstrip(".")
        raise TransparityError(
            f"Module {source.name!r} {verb} {_kind(value)}, on which the function for the tap {source.tap!r} fails "
            f"({reason})."
        ) from error
    if not _is_array(result):
        raise TransparityError(f"The function for the tap {source.tap!r} returns {_kind(result)}; expected an array.")
    return result


def _sources(model: Any, taps: Wanted) -> list[_Source]:
    """Every tap with its module, in the order in which they are named."""
    modules = hooks_of(model).modules(model)
    sources: dict[str, _Source] = {}
    for pattern, wanted in taps.items():
        transforms: Mapping[str, Transform | Received] = {wanted: as_is} if isinstance(wanted, str) else wanted
        for name, numbers in _matching(pattern, modules):
            for tap, transform in transforms.items():
                source = _source(_numbered(tap, numbers, pattern), name, modules[name], transform)
                if source.tap in sources:
                    other = sources[source.tap].name
                    raise TransparityError(
                        f"The tap {source.tap!r} is named for two modules, {other!r} and {name!r}; name it for one."
                    )
                sources[source.tap] = source
    return list(sources.values())


def _source(tap: str, name: str, module: Any, transform: Transform | Received) -> _Source:
    if isinstance(transform, Received):
        return _Source(tap, name, module, transform.transform, "input")
    return _Source(tap, name, module, transform, "output")


def _matching(pattern: str, modules: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    """The modules that match `pattern`, with the numbers in the places of `{i}`."""
    expression = re.compile(re.escape(pattern).replace(re.escape("{i}"), r"(\d+)"))
    matches = [(name, found.groups()) for name in modules if (found := expression.fullmatch(name))]
    if not matches:
        close = difflib.get_close_matches(pattern, filter(None, modules), n=1, cutoff=0)
        nearest = f"; the nearest name is {close[0]!r}" if close else ", nor any other"
        raise TransparityError(f"The model has no module {pattern!r}{nearest}.")
    return matches


def _numbered(tap: str, numbers: tuple[str, ...], pattern: str) -> str:
    if tap.count("{i}") != len(numbers):
        raise TransparityError(f"The tap {tap!r} and the module {pattern!r} do not have the same number of {{i}}.")
    for number in numbers:
        tap = tap.replace("{i}", number, 1)
    return tap


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _kind(value: Any) -> str:
    if _is_array(value):
        return f"an array of the shape {tuple(value.shape)}"
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else shown(value)
