"""The reference of a comparison: a PyTorch module, its answers in float64, and the tolerances of these answers."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import numpy as np

from transparity.config import EXACT_MASK_BELOW
from transparity.errors import TransparityError
from transparity.text import describe_error
from transparity_conformance.listening.program import (
    Change,
    Program,
    Values,
    decomposed,
    executed_exactly,
    float64_defaults,
    learned_of,
    record_program,
)
from transparity_conformance.listening.pytorch import dispatched
from transparity_conformance.matching.values import HUGE, apart, largest, numbers_of
from transparity_conformance.oracle.budgets import NEIGHBOURS, RULES, epsilon
from transparity_conformance.running.inputs import TARGETS, answer_in, arrays, needs_targets, settings_of

Inputs = Mapping[str, np.ndarray]

MOST_BYTES = 1 << 28
"""The size of each cache of recorded programs or answers. The programs of a small Qwen3-Next need 1481 MiB."""


class RefusedError(TransparityError):
    """The reference returns no answer that can be compared."""


Key = TypeVar("Key")
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """A cache with at most `MOST_BYTES`, which always keeps the latest value."""

    def __init__(self) -> None:
        self._sized: dict[Key, tuple[Value, int]] = {}

    def get(self, key: Key) -> Value | None:
        return self._sized.get(key, (None, 0))[0]

    def put(self, key: Key, value: Value, size: int) -> Value:
        self._sized[key] = value, size
        while len(self._sized) > 1 and sum(each for _, each in self._sized.values()) > MOST_BYTES:
            self._sized.pop(next(iter(self._sized)))
        return value


Call = Callable[[Any, dict[str, Any]], Any]
"""A function of a module and its inputs, as tensors."""


class Reference:
    """A float32 module. The checker measures the module's rounding errors in `dtype`, and derives the tolerance of each
    answer from these errors."""

    def __init__(self, name: str, model: Any, dtype: str = "float32") -> None:
        self.name, self.model, self.dtype = name, model.eval(), dtype
        self.call: Call = lambda model, inputs: model(**inputs)
        self._forget()

    def _forget(self) -> None:
        self._programs, self._near = Kept[bytes, Program](), Kept[int, tuple[Inputs, np.ndarray, float]]()

    def calling(self, call: Call) -> Self:
        other = copy.copy(self)
        other.call, other._settings, other.needs_targets = call, {}, self.needs_targets
        other._forget()
        return other

    @functools.cached_property
    def exact(self) -> Any:
        exact = copied(self.model).double()
        if self.experts[0]:  # some implementations of experts refuse float64
            exact.set_experts_implementation(self.experts[0])
        return exact

    @functools.cached_property
    def neighbours(self) -> list[tuple[Any, Any]]:
        """Return copies with slightly changed weights, each in float64 and in `dtype`."""
        import torch

        pairs, ulp, generator = [], epsilon(self.dtype), torch.Generator().manual_seed(0)
        for _ in range(NEIGHBOURS):
            point = copied(self.exact)
            with torch.no_grad():
                for weight in point.parameters():
                    weight.copy_(moved(weight, ulp, generator, is_learned=True))
                rounded = copied(point)
                for buffer in rounded.buffers():
                    buffer.copy_(moved(buffer, ulp, generator, is_learned=False))
            pairs.append((point, rounded.to(getattr(torch, self.dtype))))
        return pairs

    def near(self, inputs: Inputs) -> tuple[np.ndarray, float]:
        """Return the float64 answer, and a budget from one rounded run; by chance, this budget may be too small."""
        if (found := self._near.get(id(inputs))) is None:
            answer = self.truth(inputs)
            budget = self.budget(inputs, answer, [(answer, self.answer_of(self.rounded, inputs))])
            found = self._near.put(id(inputs), (inputs, answer, budget), answer.nbytes)
        return found[1:]

    def budget(
        self, inputs: Inputs, answer: np.ndarray, points: Iterable[tuple[np.ndarray, np.ndarray]], dtype: str = ""
    ) -> float:
        """Return an answer's budget, given pairs of an exact and a rounded answer. Ignore padding and masked scores."""
        dtype = dtype or self.dtype
        kept = self.kept(inputs, answer.shape)
        counted = answer if kept is None else answer[kept]
        if not np.isfinite(counted).any():
            raise RefusedError(
                f"The reference {self.name} returns nothing to compare on {described(inputs)}: its result is empty, "
                "masked, not finite, or only padding; give other inputs."
            )
        noise = max(float(apart(exact, rounded, kept).max()) for exact, rounded in points)
        return RULES[dtype].budget(noise, epsilon(dtype), largest(counted))

    def check(self, inputs: Inputs) -> None:
        first, again = (self.truth(inputs) for _ in range(2))
        if not np.array_equal(first, again, equal_nan=True):
            raise TransparityError(
                f"The reference {self.name} returns another answer in the second call on {described(inputs)}; seed its "
                "random numbers, or reset its state between calls."
            )

    @functools.cached_property
    def rounded(self) -> Any:
        import torch

        return self.model if self.dtype == "float32" else copied(self.model).to(getattr(torch, self.dtype))

    def answer(self, inputs: Inputs) -> tuple[np.ndarray, float]:
        """Return the float64 answer, and its budget from the rounding errors of several slightly changed copies."""
        answer, pairs = self.truth(inputs), self.neighbours
        points = [(self.exactly_of(point, inputs), self.answer_of(rounded, inputs)) for point, rounded in pairs]
        return answer, self.budget(inputs, answer, points)

    def truth(self, inputs: Inputs) -> np.ndarray:
        return self.exactly_of(self.exact, inputs)

    def exactly_of(self, model: Any, inputs: Inputs) -> np.ndarray:
        try:
            with exactly():
                return self.answer_of(model, inputs)
        except TransparityError as error:
            self.answer_of(self.model, inputs)  # if the inputs are wrong, this call raises the clearer error
            raise RefusedError(
                f"The reference {self.name} runs in its own precision, but in float64 it raised {raised(error)}; "
                "change the reference to accept float64."
            ) from error

    def answer_of(self, model: Any, inputs: Inputs) -> np.ndarray:
        import torch

        try:
            with torch.no_grad():
                returned = self.call(model, self.given(model, inputs))
            answer = answer_in(returned)
        except Exception as error:  # the reference is the user's code
            raise RefusedError(
                f"The reference {self.name} raised {describe_error(error)} on {described(inputs)}; give inputs "
                "that the reference accepts, by the names of its arguments."
            ) from error
        return np.asarray(answer.detach().double().numpy())

    def returned(self, inputs: Inputs) -> Any:
        """Return the whole result of a call."""
        import torch

        with torch.no_grad():
            return self.call(self.model, self.given(self.model, inputs))

    def given(self, model: Any, inputs: Inputs) -> dict[str, Any]:
        array, _ = arrays(model, "torch")
        given = {name: array(value) for name, value in inputs.items()}
        targets = {TARGETS: next(iter(given.values()))} if self.needs_targets else {}
        return given | self._settings | targets

    @functools.cached_property
    def _settings(self) -> dict[str, Any]:
        """Return values for the required arguments that are not inputs. Turn off the key/value cache, which adds
        operations."""
        takes = inspect.signature(self.model.forward)
        return settings_of(takes) | ({"use_cache": False} if "use_cache" in takes.parameters else {})

    @functools.cached_property
    def needs_targets(self) -> bool:
        return needs_targets(self.model, inspect.signature(self.model.forward), *arrays(self.model, "torch"))

    def program(self, inputs: Inputs, experts: str = "") -> Program:
        parts = (name.encode() + str(value.shape).encode() + value.tobytes() for name, value in inputs.items())
        key = b"".join((experts.encode(), *parts))
        if (found := self._programs.get(key)) is None:
            found = self._recorded(inputs, experts)
            size = sum(value.nbytes for index, value in found.values.items() if index not in found.parameters)
            self._programs.put(key, found, size)
        return found

    def _recorded(self, inputs: Inputs, experts: str) -> Program:
        if experts:
            self.exact.set_experts_implementation(experts)
        given = self.given(self.exact, inputs)
        return record_program(self.exact, given, lambda: answer_in(self.call(self.exact, given)))

    @functools.cached_property
    def experts(self) -> tuple[str, ...]:
        """Return the names of the experts' implementations in which to record a call. In `batched_mm`, shapes do not
        depend on the tokens that each expert gets."""
        has_experts = getattr(self.model, "_can_set_experts_implementation", lambda: False)()
        return ("eager", "batched_mm") if has_experts else ("",)

    def kept(self, inputs: Inputs, shape: Sequence[int]) -> np.ndarray | None:
        """Return a mask of the elements to compare; None for a pooled answer, or without padding."""
        if len(shape) < 3:  # A pooled answer has no positions, even if its width equals the length of the text.
            return None
        masks = [value for name, value in inputs.items() if name.endswith("attention_mask")]
        mask = next((mask for mask in masks if mask.shape == tuple(shape[:2]) and not mask.all()), None)
        if mask is None:
            return None
        return np.broadcast_to(mask.astype(bool).reshape(*mask.shape, *[1] * (len(shape) - 2)), shape)

    def main(self, inputs: Inputs) -> set[str]:
        return {name for name in inputs if not any(part in name for part in ("mask", "position", "type"))}

    @property
    def weights(self) -> dict[str, np.ndarray]:
        return {name: value.detach().float().numpy() for name, value in self.model.state_dict().items()}

    @property
    def learned(self) -> dict[str, np.ndarray]:
        """Return the learned tensors; a tied tensor appears under its first name."""
        return {name: value.detach().float().numpy() for name, value in learned_of(self.model).items()}

    @functools.cached_property
    def numbers(self) -> list[float]:
        return sorted(set(_numbers_in(getattr(self.model, "config", None))))

    @functools.cached_property
    def layer_types(self) -> Sequence[str]:
        return getattr(text_config(getattr(self.model, "config", None)), "layer_types", None) or ()


def text_config(config: Any) -> Any:
    try:
        return config.get_text_config()
    except (AttributeError, ValueError):
        return config


def raised(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, TransparityError) else None
    return describe_error(cause or error)


SMALL = 0.01
"""The factor of small weights. The mean square in a norm is then about 1e-4, so that an epsilon of 1e-6 changes the
result by 0.5 %. With weights of the usual size, rounding hides this change."""


def shrink(model: Any) -> Any:
    """Multiply each learned parameter by `SMALL`, except a parameter whose mean exceeds its standard deviation, such as
    a norm's weight near 1."""
    import torch

    with torch.no_grad():
        for each in model.parameters():
            if each.requires_grad and each.numel() > 1 and each.mean().abs() < each.std():
                each.mul_(SMALL)
    return model


def stored_in(module: Any) -> list[Any]:
    """Return the tensors that a module stores as plain attributes, not as parameters or buffers."""
    import torch

    values = (value for part in module.modules() for value in vars(part).values())
    return [value for value in values if isinstance(value, torch.Tensor)]


def copied(module: Any) -> Any:
    """Return a deep copy of a module. Detach tensors that a call stored, because autograd results cannot be copied."""
    results = [value for value in stored_in(module) if not value.is_leaf]
    return copy.deepcopy(module, {id(value): value.detach().clone() for value in results})


def described(inputs: Inputs) -> str:
    return ", ".join(f"{name} {' × '.join(map(str, value.shape))}" for name, value in inputs.items())


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    with float64_defaults(), decomposed(), dispatched(executed_exactly):
        yield


def _numbers_in(config: Any) -> Iterator[float]:
    if isinstance(config, bool):
        return
    if isinstance(config, int | float):
        yield float(config)
    elif isinstance(config, dict):
        for value in config.values():
            yield from _numbers_in(value)
    elif hasattr(config, "to_dict"):
        yield from _numbers_in(config.to_dict())


def shares(program: Program, dtype: str, changes: Mapping[int, Change] | None = None) -> dict[int, float]:
    """Return the tolerance of each value, relative to its largest element, from runs in float64 and `dtype`."""
    rule, ulp = RULES[dtype], epsilon(dtype)
    noise: dict[int, float] = {}
    for exact, rounded in neighbours(program, dtype, changes):
        for index, value in exact.items():
            if value.is_floating_point() or value.is_complex():
                noise[index] = max(noise.get(index, 0.0), _apart(value, rounded[index]))
    return {index: rule.budget(error, ulp, 1.0) for index, error in noise.items()}


def neighbours(
    program: Program, dtype: str, changes: Mapping[int, Change] | None = None
) -> Iterator[tuple[Values, Values]]:
    """Yield all values of a program for slightly changed inputs and parameters, once in float64 and once in `dtype`."""
    import torch

    precision, ulp = getattr(torch, dtype), epsilon(dtype)
    generator = torch.Generator().manual_seed(0)
    for _ in range(NEIGHBOURS):
        near = {
            index: moved(value, ulp, generator, is_learned=index in program.parameters)
            for index, value in program.given.items()
        }
        points = {
            index: value if index in program.parameters else program.given[index] for index, value in near.items()
        }
        yield program.run(changes, points), program.run(changes, near, precision)


def moved(value: Any, ulp: float, generator: Any, *, is_learned: bool) -> Any:
    """Change each element by up to one ulp. A constant x may be the rounded result of a power, so change x by up to 1 +
    |ln |x|| ulps."""
    import torch

    if not value.is_floating_point():
        return value
    turned = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 2 - 1
    size = 1.0 if is_learned else 1 + value.abs().clamp(1e-30, HUGE).log().abs()
    return value * (1 + ulp * size * turned)


def _apart(exact: Any, rounded: Any) -> float:
    """Return the largest difference, divided by the largest element; ignore masked scores."""
    a, b = numbers_of(exact), numbers_of(rounded)
    if a.shape != b.shape or not a.size:
        return 0.0
    scale = np.abs(a).max()
    if scale >= -EXACT_MASK_BELOW:
        plain = (np.abs(a) < HUGE) & (a > EXACT_MASK_BELOW)
        a, b = a[plain], b[plain]
        scale = np.abs(a).max(initial=0.0)
    with np.errstate(invalid="ignore"):  # an edit may give infinite values
        return float(np.abs(a - b).max(initial=0.0) / scale) if scale else 0.0
