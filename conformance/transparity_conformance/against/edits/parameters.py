"""Edits of the parameters that a step uses, such as the parameters of another module."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from transparity_conformance.against.edits.edit import (
    VIEWS,
    At,
    Context,
    Edit,
    Function,
    Make,
    edit_at,
    given_of,
    references,
    short,
)
from transparity_conformance.against.edits.operands import LAYER_NORM, norms
from transparity_conformance.listening.program import Change, Program, Values, filled

USES: dict[str, Function] = {
    "adds 1 to {}": lambda x: x + 1,
    "subtracts 1 from {}": lambda x: x - 1,
    "does not use {}": lambda x: x * 0,
    "uses ones instead of {}": lambda x: x * 0 + 1,
    "reverses the last axis of {}": lambda x: x.flip(-1) if x.ndim > 1 else x,
    "transposes {}": lambda x: x.mT if x.ndim == 2 and x.shape[0] == x.shape[1] else x,
}

NORMS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "uses the norm's weight and bias": lambda weight, bias: (weight, bias),
    "uses no weight and no bias": lambda weight, bias: (None, None),
    "uses no bias": lambda weight, bias: (weight, None),
    "uses no weight": lambda weight, bias: (None, bias),
    "adds 1 to the weight": lambda weight, bias: (weight + 1, bias),
}
"""Mistakes in a layer norm, as functions from the right weight and bias to the wrong weight and bias."""

LAST_MODULE, FIRST_PARTS = r"(?<![^.])({})(?=\.[^.]+$)", r"^({})(?![^.])"
"""Regular expressions for a part of a parameter's dotted name: the innermost module, and any number of first parts."""


def parameters(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits that use the parameters of a sibling module, and edits of a layer norm's parameters."""
    own = [index for item in at.step.args if (index := given_of(at.program, item)) in at.program.parameters]
    if not own or short(at.step) in VIEWS:
        return
    module = at.program.names[own[0]].rpartition(".")[0]
    for other in _modules_beside(at.program, module):
        mine, theirs = module.rpartition(".")[2], other.rpartition(".")[2]
        says = f"uses the parameters of {other} for {module} in `{at.line}`"
        swaps = _swap(mine, theirs, LAST_MODULE), _swap(module, other, FIRST_PARTS)
        yield Edit("parameter", says, _renaming({mine: theirs}, LAST_MODULE), rank=2, wider=swaps)
    for index in own:
        yield from _tables(at, index)
    if short(at.step) == "native_layer_norm":
        yield from _other_norms(at, context.numbers)


def _tables(at: At, index: int) -> Iterator[Edit]:
    """Yield edits that read another matrix of the same shape, such as the embedding matrix instead of the head's
    weight."""
    names, values = at.program.names, at.program.values
    for other in at.program.parameters - {index}:
        is_alike = values[other].ndim == 2 and values[other].shape == values[index].shape
        if is_alike and not re.search(r"\.\d+\.", f"{names[index]} {names[other]}"):
            says = f"uses {names[other]} instead of {names[index]}"
            yield Edit("parameter", says, _renaming({names[index]: names[other]}), rank=1)


def _swap(one: str, other: str, form: str) -> Edit:
    one, other = sorted((one, other))
    make = _renaming({one: other, other: one}, form)
    return Edit("parameter", f"swaps the parameters of {one} and {other}", make, rank=2, is_everywhere=True)


def _other_norms(at: At, numbers: Sequence[float]) -> Iterator[Edit]:
    for says, change in NORMS.items():
        for form, other in (("", None), (" and the default epsilon", 1e-5)):
            make = functools.partial(_layer_norm, change=change, eps=other)
            yield Edit("normalization", f"{says}{form} in `{at.line}`", make, rank=1)
    *_, theirs, eps = at.step.args
    for has_bias in (True, False) if theirs is not None else (False,):
        bias = "adds the bias" if has_bias else "adds no bias"
        others = norms([eps, *numbers])
        for label in sorted(others, key=lambda label: f"{eps:g}" not in label):
            make = functools.partial(_normed, norm=others[label], has_bias=has_bias)
            if not label.startswith(LAYER_NORM):  # `NORMS` already covers layer norms
                yield Edit("normalization", f"divides by {label}, and {bias} in `{at.line}`", make, rank=1)


def layers(at: At, context: Context) -> Iterator[Edit]:
    read = (at.program.names.get(given_of(at.program, item), "") for item in at.step.args)
    for name in filter(None, read):
        parts = name.split(".")
        for place in (place for place, part in enumerate(parts) if part.isdigit()):
            before, number, after = parts[:place], int(parts[place]), parts[place + 1 :]
            named = (each.split(".") for each in at.program.names.values())
            alike = (each for each in named if each[:place] == before and each[place + 1 :] == after and each != parts)
            for other in sorted((int(each[place]) for each in alike), key=lambda each: abs(each - number)):
                mine, theirs = (".".join([*before, str(each)]) for each in (number, other))
                says = f"uses the parameters of {theirs} for {mine}"
                yield Edit("parameter", says, _renaming({mine: theirs}), rank=2, is_everywhere=True)


def uses(at: At, context: Context) -> Iterator[Edit]:
    for place, item in references(at.step):
        value = at.program.values[item.index]
        if item.index not in at.program.given or not value.is_floating_point():
            continue
        name = at.program.names.get(item.index, "a constant")
        changes = {says.format(name): change for says, change in USES.items()} | _other_axes(name, value)
        if item.index not in at.program.parameters:
            changes |= _other_bases(name, value)
        for says, change in changes.items():
            yield edit_at((place,), "parameter", says, change, 1)


def _other_axes(name: str, value: Any) -> dict[str, Function]:
    orders = [(0, *order) for order in itertools.permutations(range(1, value.ndim))][1:] if value.ndim > 2 else []
    return {
        f"reads the axes of {name} in the order {', '.join(map(str, order))}": functools.partial(_in_order, order=order)
        for order in orders
    }


def _in_order(x: Any, order: tuple[int, ...]) -> Any:
    return x.reshape([x.shape[axis] for axis in order]).permute([order.index(axis) for axis in range(x.ndim)])


def _other_bases(name: str, value: Any) -> dict[str, Function]:
    """Return changes of the base of a constant base ** (-i / n), where i = 0, 1, …, n - 1."""
    count, last = value.numel(), float(value.reshape(-1)[-1]) if value.numel() else 0.0
    if count < 3 or not bool((value > 0).all()) or not 0 < last < 1:
        return {}
    old = last ** (-count / (count - 1))
    changed = {base: functools.partial(pow, exp=math.log(base) / math.log(old)) for base in (1e3, 1e4, 1e5, 5e5, 1e6)}
    return {f"has the base {base:g} instead of the base {old:.6g} in {name}": each for base, each in changed.items()}


def _viewed(program: Program, index: int, given: Any) -> Any:
    if index not in program.maker:
        return given
    step = program.steps[program.maker[index]]
    now = {step.inputs[0]: _viewed(program, step.inputs[0], given)}
    step.run(now, None)
    return now[index]


def _modules_beside(program: Program, module: str) -> list[str]:
    shapes: dict[str, dict[str, Any]] = {}
    for index in program.parameters:
        owner, _, name = program.names[index].rpartition(".")
        shapes.setdefault(owner, {})[name] = program.values[index].shape
    parent = module.rpartition(".")[0]
    alike = [owner for owner, names in shapes.items() if names == shapes[module] and owner != module]
    return [owner for owner in alike if owner.rpartition(".")[0] == parent]


def _renaming(names: Mapping[str, str], form: str = FIRST_PARTS) -> Make:
    """Return a function that makes a step read other parameters. `names` maps parts of names, which match `form`."""
    pattern = re.compile(form.format("|".join(map(re.escape, names))))
    return functools.partial(_with_parameters, rename=lambda name: pattern.sub(lambda part: names[part[0]], name))


def _with_parameters(at: At, rename: Callable[[str], str]) -> Change | None:
    by_name = {name: index for index, name in at.program.names.items()}
    read = {place: at.program.names.get(given_of(at.program, item), "") for place, item in enumerate(at.step.args)}
    renamed = {place: rename(name) for place, name in read.items() if rename(name) != name}
    others = {place: by_name[name] for place, name in renamed.items() if name in by_name}

    def changed(args: list[Any], values: Values) -> list[Any]:
        for place, index in others.items():
            args[place] = _viewed(at.program, at.step.args[place].index, values[index])
        return args

    return at.with_arguments(changed) if others else None


def _layer_norm(at: At, change: Callable[[Any, Any], tuple[Any, Any]], eps: float | None) -> Change:
    return at.with_arguments(lambda args, _: [*args[:2], *change(*args[2:4]), args[4] if eps is None else eps])


def _normed(at: At, norm: Function, has_bias: bool) -> Change:
    def changed(values: Values) -> Any:
        x, _, weight, bias, _ = filled(at.step.args, values)
        made = norm(x) if weight is None else norm(x) * weight
        return made + bias if has_bias else made

    return changed
