"""Record a call of a JAX function as PyTorch operations. The function runs without `jit`: JAX then unrolls `scan`, and
each equation has a source line."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax._src.core import eval_jaxpr
from jax.extend import core
from torch.utils._python_dispatch import _disable_current_modes

from transparity_conformance.against.references.primitives import MEANINGS, composites, dtype_of, tensor
from transparity_conformance.listening.jax import EVALUATED
from transparity_conformance.listening.program import Place, Program, Recorder
from transparity_conformance.matching.values import agreeing
from transparity_conformance.oracle.budgets import RULES, epsilon

INSIDE = {*EVALUATED, "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
"""Primitives whose equations `record` evaluates one by one."""


def record(
    call: Callable[..., Any], inputs: Mapping[str, Any], held: Mapping[str, Any], answer_of: Callable[[Any], Any]
) -> Program:
    """Record a call in float64. `held` has the arrays to which the function refers; `answer_of` selects the result."""
    with jax.disable_jit():
        closed = jax.make_jaxpr(lambda inputs: answer_of(call(**inputs)))(
            {k: jnp.asarray(v) for k, v in inputs.items()}
        )
    by_identity = {id(array): name for name, array in held.items()}
    given = {name: _to_torch(inputs[name]) for name in sorted(inputs)}
    consts = [_to_torch(const) for const in closed.consts]
    names = {id(value): by_identity.get(id(const), "") for value, const in zip(consts, closed.consts, strict=True)}
    names = {key: name for key, name in names.items() if name} | {id(value): name for name, value in given.items()}
    evaluation = _Evaluation(names)
    return evaluation.recorder.recorded(lambda: evaluation.run(closed.jaxpr, [*consts, *given.values()])[0], held)


class _Evaluation:
    def __init__(self, names: Mapping[int, str]) -> None:
        self.places: tuple[Place, ...] = ()
        self.recorder = Recorder(names, frames=lambda: iter(self.places))
        self.composites = composites()

    def run(self, jaxpr: Any, given: Sequence[Any]) -> list[Any]:
        values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], given, strict=True))
        for (place, _), group in itertools.groupby(jaxpr.eqns, self._composite):
            equations = list(group)
            others = {id(each) for each in equations}
            read = {each for other in jaxpr.eqns if id(other) not in others for each in _variables(other.invars)}
            read.update(_variables(jaxpr.outvars))
            if place is None or not self._as_one(equations, place, values, read):
                for each in equations:
                    self.places = _places(each)
                    self._equation(each, values)
        return [self._read(each, values) for each in jaxpr.outvars]

    def _composite(self, equation: Any) -> tuple[Any, Any]:
        """Return the code of the `jax.nn` function that contains an equation, and the stack frames of the function's
        callers; otherwise (None, None)."""
        places = _places(equation)
        for depth, (code, _) in enumerate(places):
            if code in self.composites:
                return code, places[depth + 1 :]
        return None, None

    def _as_one(self, equations: Sequence[Any], code: Any, values: dict[Any, Any], read: Collection[Any]) -> bool:
        """Run the equations of the `jax.nn` function `code` as one operation. Return False if no PyTorch function
        computes the same result."""
        made = {each for equation in equations for each in equation.outvars}
        given = dict.fromkeys(each for equation in equations for each in _variables(equation.invars))
        outside, last = [each for each in given if each not in made], equations[-1].outvars
        if len(outside) != 1 or len(last) != 1 or not made.isdisjoint({*read} - {*last}):
            return False
        with _disable_current_modes():
            parts = dict(values)
            for each in equations:
                self._equation(each, parts, plainly=True)
            x, expected = parts[outside[0]], parts[last[0]]
            within = RULES["float32"].budget(0, epsilon("float32"), 1.0)  # `jax.nn` rounds constants
            alike = (each for each in self.composites[code](x) if agreeing(each(x), expected.numpy(), within))
            function = next(alike, None)
        if function is None:
            return False
        self.places = _places(equations[0])
        values[last[0]] = function(x)
        return True

    def _equation(self, equation: Any, values: dict[Any, Any], *, plainly: bool = False) -> None:
        name, params = equation.primitive.name, equation.params
        given = [self._read(each, values) for each in equation.invars]
        inner = params.get("jaxpr", params.get("call_jaxpr", params.get("fun_jaxpr")))
        if name in INSIDE and inner is not None:
            consts = [_to_torch(each) for each in getattr(inner, "consts", ())]
            made: Any = self.run(getattr(inner, "jaxpr", inner), [*consts, *given])
        elif name == "scan":
            made = self._scan(given, **params)
        elif name == "cond":
            made = self._inside(params["branches"][int(given[0])], *given[1:])
        elif name == "while":
            made = self._while(given, **params)
        elif name == "convert_element_type" and equation.invars[0].aval.dtype == params["new_dtype"]:
            made = given[0]
        else:
            made = self._primitive(equation, given, plainly)
        values |= zip(equation.outvars, made if isinstance(made, list | tuple) else [made], strict=True)

    def _primitive(self, equation: Any, given: Sequence[Any], plainly: bool) -> Any:
        try:
            return MEANINGS[equation.primitive.name](*given, **equation.params)
        except (KeyError, NotImplementedError):
            foreign = _Foreign(equation)
            given = list(map(tensor, given))
            with _disable_current_modes():  # record the primitive as one operation
                return foreign(*given) if plainly else self.recorder.run(foreign, given, {})

    def _inside(self, closed: Any, *given: Any) -> list[Any]:
        return self.run(closed.jaxpr, [*map(_to_torch, closed.consts), *given])

    def _scan(self, given: Sequence[Any], **params: Any) -> list[Any]:
        consts, carried, inner = params["num_consts"], params["num_carry"], params["jaxpr"]
        fixed, carry, rows = given[:consts], list(given[consts : consts + carried]), given[consts + carried :]
        turns = range(params["length"])
        made: list[list[Any]] = []
        for turn in reversed(turns) if params["reverse"] else turns:
            found = self._inside(inner, *fixed, *carry, *(row[turn] for row in rows))
            carry, each = found[:carried], found[carried:]
            made.append(list(map(tensor, each)))
        made = made[::-1] if params["reverse"] else made
        return [*carry, *(torch.stack(each) for each in zip(*made, strict=True))]

    def _while(self, given: Sequence[Any], **params: Any) -> list[Any]:
        tests, bodies = params["cond_nconsts"], params["body_nconsts"]
        test, body, state = given[:tests], given[tests : tests + bodies], list(given[tests + bodies :])
        ask, turn = params["cond_jaxpr"], params["body_jaxpr"]
        while bool(self._inside(ask, *test, *state)[0]):
            state = self._inside(turn, *body, *state)
        return state

    def _read(self, item: Any, values: Mapping[Any, Any]) -> Any:
        if not isinstance(item, core.Literal):
            return values[item]
        return _number(item.val) if np.ndim(item.val) == 0 else _to_torch(item.val)


class _Foreign:
    """A JAX primitive without an equivalent in PyTorch; JAX runs it in the precision of its inputs."""

    _schema = SimpleNamespace(arguments=(), returns=())

    def __init__(self, equation: Any) -> None:
        self.primitive, self.params = equation.primitive, equation.params
        self.dtypes = [each.aval.dtype for each in equation.invars]

    def __str__(self) -> str:
        return f"jax.{self.primitive.name}.default"

    def __call__(self, *given: Any) -> Any:
        floats = [each.dtype for each in given if each.is_floating_point()]
        precision = floats[0] if floats else torch.float64
        with jax.enable_x64(True):
            params = {name: _in(value, precision) for name, value in self.params.items()}
            arrays = [_to_jax(each, dtype, precision) for each, dtype in zip(given, self.dtypes, strict=True)]
            made = self.primitive.bind(*arrays, **params)
            many = made if self.primitive.multiple_results else [made]
            found = [_to_torch(each, precision) for each in many]
        return found if self.primitive.multiple_results else found[0]


def _in(value: Any, precision: torch.dtype) -> Any:
    dtype = np.dtype(jnp.dtype(str(precision).removeprefix("torch.")))
    if isinstance(value, np.dtype) and value.kind == "f":
        return dtype
    if isinstance(value, core.Jaxpr):  # such as the sum within a scatter
        avals: list[Any] = [each.aval for each in value.invars]
        given = [jax.ShapeDtypeStruct(each.shape, dtype if each.dtype.kind == "f" else each.dtype) for each in avals]
        return jax.make_jaxpr(lambda *args: eval_jaxpr(value, (), *args))(*given).jaxpr
    return value


def _variables(items: Sequence[Any]) -> Iterator[Any]:
    return (each for each in items if isinstance(each, core.Var))


def _to_jax(value: Any, dtype: Any, precision: torch.dtype) -> Any:
    if value.is_floating_point():
        return jnp.asarray(value.double().numpy()).astype(str(precision).removeprefix("torch."))
    return jnp.asarray(value.numpy()).astype(dtype)


def _to_torch(value: Any, precision: torch.dtype = torch.float64) -> Any:
    numbers = np.asarray(value)
    if jnp.issubdtype(numbers.dtype, jnp.floating):
        return torch.from_numpy(numbers.astype(np.float64)).to(precision)
    return torch.from_numpy(np.array(numbers)).to(dtype_of(numbers.dtype))


def _number(value: Any) -> Any:
    """Return a literal as a Python number. A float32 literal becomes the shortest decimal that rounds to the same
    float32."""
    kind = np.asarray(value).dtype
    if kind.kind in "iub":
        return value.item() if hasattr(value, "item") else value
    return float(str(np.asarray(value)[()])) if kind == np.float32 else float(value)


def _places(equation: Any) -> tuple[Place, ...]:
    traceback = equation.source_info.traceback
    frames: Iterator[Place] = zip(*traceback.raw_frames(), strict=True) if traceback is not None else iter(())
    return tuple(itertools.takewhile(lambda place: place[0] is not record.__code__, frames))
