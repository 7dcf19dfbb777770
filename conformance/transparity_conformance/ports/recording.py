"""Taps of a model that has none: the outputs of its modules, recorded from outside while it runs.

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
from transparity_conformance.ports.hooks import Framework, framework_of

Transform = Callable[[Any], Any]
Wanted = Mapping[str, str | Mapping[str, "Transform | Received"]]
"""By the name of a module, the tap that its output is; or its taps, each with the function that makes it of the output.
`{i}` stands for a layer's number, in both."""


@dataclass(frozen=True)
class Received:
    """A transform of what a module is given, not of what it returns."""

    transform: Transform


def as_is(value: Any) -> Any:
    """The output itself."""
    return value


def received(transform: Transform = as_is) -> Received:
    """The tap is the module's first argument: a context is what the output projection is given."""
    return Received(transform)


def heads(num_heads: int, part: int = 0, parts: int = 1) -> Transform:
    """(batch, length, embed_dim) → (batch, heads, length, head_dim), of one `part` in `parts` if a projection is fused:
    the keys of a fused query, key and value are part 1 of 3."""

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
        raise TransparityError(f"heads({num_heads}, part={part}, parts={parts}) has no such heads or no such part.")
    return split


@contextmanager
def record_module(model: Any, taps: Wanted) -> Iterator[dict[str, Any]]:
    """Record a `torch.nn.Module` or a `flax.nnx.Module` while it runs, uncompiled and once: the dict fills with taps.

    Raises `TransparityError` for a module that is unknown, not called, called again, or returns no array.
    """
    with _recording(framework_of(model), _found(model, taps)) as heard:
        yield heard


def recorded(model: Any, taps: Wanted, call: Callable[..., Any] | None = None) -> Callable[..., dict[str, Any]]:
    """A port's `forward` that returns the recorded taps, and what the model returns as its logits.

    `call(source=…, target=…)` or `call(tokens=…)` runs the model on its own tensors; by default they are its arguments,
    the source before the target. What it returns is taken for the logits, unless it is a dict of taps or a module is
    recorded as them.
    """
    framework, found = framework_of(model), _found(model, taps)

    def forward(**tokens: Any) -> dict[str, Any]:
        inputs = {name: framework.tokens(model, value) for name, value in sorted(tokens.items())}
        with framework.running(), _recording(framework, found) as heard:
            result = call(**inputs) if call else model(*inputs.values())
        given = dict(result) if isinstance(result, Mapping) else {} if "logits" in heard else {"logits": result}
        for tap in given:
            if tap in heard:
                raise TransparityError(f"The tap {tap!r} is both recorded and returned by the model.")
        if not all(map(_is_array, given.values())):
            raise TransparityError(
                f"The model returns {_kind(result)}, not its logits; say with call= which part of it they are."
            )
        return heard | given

    return forward


@dataclass(frozen=True)
class _Place:
    """Where a tap is heard."""

    tap: str
    name: str
    module: Any
    transform: Transform
    side: Literal["input", "output"]


@contextmanager
def _recording(framework: Framework, places: list[_Place]) -> Iterator[dict[str, Any]]:
    heard: dict[str, Any] = {}
    by_call: dict[tuple[str, str], list[_Place]] = {}
    for place in places:
        by_call.setdefault((place.name, place.side), []).append(place)

    def hear(name: str, side: str, value: Any) -> None:
        for place in by_call.get((name, side), ()):
            if place.tap in heard:
                raise TransparityError(
                    f"Module {name!r} is called more than once; expected one call: the tap {place.tap!r} is one array."
                )
            heard[place.tap] = framework.kept(_taken(place, value))

    with framework.listening({place.name: place.module for place in places}, hear):
        yield heard
    for place in places:
        if place.tap not in heard:
            raise TransparityError(
                f"Module {place.name!r} was never called, so the tap {place.tap!r} has no value; "
                "record a module that runs, as model.part(x), or leave it out."
            )


def _taken(place: _Place, value: Any) -> Any:
    """What the tap is of what was heard."""
    does = "returns" if place.side == "output" else "is given"
    if place.transform is as_is and not _is_array(value):
        raise TransparityError(
            f"Module {place.name!r} {does} {_kind(value)}; give the tap {place.tap!r} a function that takes the array "
            "meant, such as operator.itemgetter(0)."
        )
    try:
        taken = place.transform(value)
    except Exception as error:
        kind = "" if isinstance(error, TransparityError) else f"{type(error).__name__}: "
        reason = kind + " ".join(str(error).split()).split(". ")[0].rstrip(".")
        raise TransparityError(
            f"Module {place.name!r} {does} {_kind(value)}, of which the function for the tap {place.tap!r} makes "
            f"nothing ({reason})."
        ) from error
    if not _is_array(taken):
        raise TransparityError(f"The function for the tap {place.tap!r} returns {_kind(taken)}; expected an array.")
    return taken


def _found(model: Any, taps: Wanted) -> list[_Place]:
    """Every tap with its module, in the order in which they are named."""
    modules = framework_of(model).modules(model)
    places: dict[str, _Place] = {}
    for pattern, wanted in taps.items():
        chosen: Mapping[str, Transform | Received] = {wanted: as_is} if isinstance(wanted, str) else wanted
        for name, numbers in _matching(pattern, modules):
            for tap, how in chosen.items():
                place = _place(_numbered(tap, numbers, pattern), name, modules[name], how)
                if place.tap in places:
                    other = places[place.tap].name
                    raise TransparityError(f"The tap {place.tap!r} is named for two modules, {other!r} and {name!r}.")
                places[place.tap] = place
    return list(places.values())


def _place(tap: str, name: str, module: Any, how: Transform | Received) -> _Place:
    if isinstance(how, Received):
        return _Place(tap, name, module, how.transform, "input")
    return _Place(tap, name, module, how, "output")


def _matching(pattern: str, modules: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    """The modules that `pattern` names, with the numbers that stand for `{i}`."""
    expression = re.compile(re.escape(pattern).replace(re.escape("{i}"), r"(\d+)"))
    matches = [(name, found.groups()) for name in modules if (found := expression.fullmatch(name))]
    if not matches:
        close = difflib.get_close_matches(pattern, filter(None, modules), n=1, cutoff=0)
        nearest = f"; the nearest that there is: {close[0]!r}" if close else ", nor any other"
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
