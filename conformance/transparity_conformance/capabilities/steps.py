"""The capability `step`: decoding with a cache, compared with the full forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.errors import shown
from transparity_conformance.capabilities.capability import (
    Answers,
    BuiltPort,
    Capability,
    ForwardPass,
    Probes,
    Requests,
    Shapes,
    Way,
    first_of,
    kept_in,
)
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.faults.cache import CACHE_FAULTS
from transparity_conformance.oracle.probes import Probe, sees_something
from transparity_conformance.report.capability_result import CapabilityResult, alternatives
from transparity_conformance.report.comparison import as_numbers, gap, share
from transparity_conformance.report.report import Cause, ClaimResult, Divergence


@dataclass(frozen=True, eq=False)
class StepRequest:
    """The tokens of a probe, to be decoded in steps of `sizes` tokens."""

    name: str
    probe: Probe
    sizes: tuple[int, ...]

    @property
    def tokens(self) -> np.ndarray:
        return np.array(self.probe.inputs[self.probe.config.input_names[-1]], np.int64)


def step_requests(probes: Probes) -> dict[str, StepRequest]:
    """Decode the first probe token by token, and in uneven chunks."""
    key, probe = first_of(probes)
    length = probe.inputs[probe.config.input_names[-1]].shape[1]
    sizes = {"one by one": (1,) * length}
    if length > 2:
        sizes["in uneven chunks"] = (2, *((3,) * ((length - 2) // 3)), *((1,) * ((length - 2) % 3)))
    return {f"{key}/step.{name.replace(' ', '_')}": StepRequest(name, probe, sizes[name]) for name in sizes}


def _why_no_steps(probe: Probe, dtype: str) -> str:
    if not probe.config.mask_is_exact:
        return "this mask hides nothing, so what is cached is never right"
    return "" if probe.config.has_decoder else "a lone encoder generates nothing"


def _shapes(key: str, request: StepRequest) -> Shapes:
    rows, vocab = len(request.tokens), request.probe.config.vocab_size
    return {f"{key}.{index}": (rows, size, vocab) for index, size in enumerate(request.sizes)}


def ask_steps(port: BuiltPort, way: Way, key: str, request: StepRequest) -> Answers:
    """Return the logits of a port's steps. Raises any error of the port, and `TypeError` unless it returns `(logits,
    cache)`."""
    probe, tokens = request.probe, request.tokens
    source = {"source": np.array(probe.inputs["source"], np.int64)} if "source" in probe.inputs else {}
    masks = {name: np.array(probe.inputs[name], np.int64) for name in probe.config.further_inputs}
    answers: dict[str, np.ndarray] = {}
    cache, begin = None, 0
    for name, shape in _shapes(key, request).items():
        chunk = slice(begin, begin + shape[1])
        if probe.config.has_encoder:
            named = source | masks if source and begin == 0 else {}
        else:
            named = {name: mask[:, chunk].copy() for name, mask in masks.items()}
        logits, cache = _step(port.forward.step, tokens[:, chunk].copy(), cache, named)
        array = as_numbers(logits)
        if array.shape != shape or array.dtype.kind != "f":
            raise TypeError(
                f"logits of the shape {array.shape} and dtype {array.dtype}, expected {shape} floats, {request.name}"
            )
        answers[name], begin = array, begin + shape[1]
    return answers


def _step(step: Any, tokens: np.ndarray, cache: Any, named: dict[str, np.ndarray]) -> Sequence[Any]:
    result = step(tokens, cache, **named)
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise TypeError(f"{shown(result)}, expected the pair (logits, cache)")
    return result


@np.errstate(all="ignore")  # a port may return any number
def judge_steps(way: Way, requests: Requests, answers: Answers, forward: ForwardPass) -> CapabilityResult:
    """Compare the logits of steps with those of the full pass."""
    probe = next(iter(requests.values())).probe
    where = sees_something(probe.config, probe.inputs)
    expected, budget = probe.oracle.expected["logits"][where], probe.oracle.budget("logits", forward.dtype)
    logits = {request: _joined(key, request, answers)[where] for key, request in requests.items()}
    errors = {request: gap(value, expected) for request, value in logits.items()}
    worst = max(errors, key=lambda request: errors[request])
    error = errors[worst]
    if share(error, budget) <= 1:
        return CapabilityResult((ClaimResult("step", "agrees", error, budget, worst.name),))
    left = {
        fault: max(gap(value, _simulated(probe, request.sizes, fault)[where]) for request, value in logits.items())
        for fault in CACHE_FAULTS
    }
    # A fault without effect here explains nothing; the budget is that of the right logits, of the same size.
    explaining = [fault for fault in CACHE_FAULTS if share(left[fault], budget) <= 1]
    causes = tuple(Cause(how.id, how.says, None, left[how], 1 - left[how] / error) for how in explaining[:1])
    claim = ClaimResult("step", "diverges", error, budget, worst.name)
    return CapabilityResult(
        (claim,), (Divergence("step", error, budget, causes, alternatives(explaining), probe=probe.name),)
    )


def _joined(key: str, request: StepRequest, answers: Answers) -> np.ndarray:
    return np.concatenate([answers[name].astype(np.float64) for name in _shapes(key, request)], axis=1)


@kept_in(0)
def _simulated(probe: Probe, sizes: tuple[int, ...], fault: SimulatedFault) -> np.ndarray:
    return fault.simulate(probe.config, probe.exact, probe.inputs, sizes)


STEPS = Capability(
    name="steps",
    attribute="step",
    signature="step(tokens, cache, source=…) → logits (batch, length, vocab) and the cache; it is None at first",
    help="Add chunks to the bundle that a port with a cache decodes.",
    purpose="the logits of the first probe, decoded with a cache in chunks of these sizes from the first token on",
    ways=(Way("step", step_requests, CACHE_FAULTS),),
    ask=ask_steps,
    shapes=_shapes,
    judge=judge_steps,
    why_not=_why_no_steps,
    stays=1,
    if_forward_diverges="the forward pass diverges, and what is cached with it",
    describe=lambda request: {"sizes": list(request.sizes)},
)
