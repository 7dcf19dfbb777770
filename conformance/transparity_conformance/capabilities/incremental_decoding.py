"""Decoding with a port's cache, step for step, held to the full forward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.faults.cache import CACHE_FAULTS
from transparity_conformance.oracle.probes import Probe, sees_something
from transparity_conformance.report.capability_result import CapabilityResult, alternatives
from transparity_conformance.report.comparison import as_numbers, gap, share
from transparity_conformance.report.report import Cause, ClaimResult, Divergence


def ways(length: int) -> dict[str, tuple[int, ...]]:
    """How many tokens are shown at each step: one by one, and in uneven chunks."""
    found = {"one by one": (1,) * length}
    if length > 2:
        found["in uneven chunks"] = (2, *((3,) * ((length - 2) // 3)), *((1,) * ((length - 2) % 3)))
    return found


def why_no_steps(config: TransformerConfig) -> str:
    """Why none are compared, whatever a port is like; nothing if they are."""
    if not config.mask_is_exact:
        return "this mask hides nothing, so what is cached is never right"
    return "" if config.has_decoder else "a lone encoder generates nothing"


def stepped(step: Callable[..., Any], probe: Probe) -> dict[str, np.ndarray]:
    """The logits (batch, length, vocab) of a port's steps, by way. Raises whatever the port raises, and `TypeError` for
    what is no `(logits, cache)`."""
    length = probe.inputs[probe.config.input_names[-1]].shape[1]
    return {way: _stepped(step, probe, sizes, way) for way, sizes in ways(length).items()}


@np.errstate(all="ignore")  # a port may say anything
def judge_steps(logits: Mapping[str, np.ndarray], probe: Probe, dtype: str) -> CapabilityResult:
    """Hold logits (batch, length, vocab) that were said step by step, in any of the `ways`, to the full pass."""
    where = sees_something(probe.config, probe.inputs)
    expected, budget = probe.oracle.expected["logits"][where], probe.oracle.budget("logits", dtype)
    said = {way: value[where] for way, value in logits.items()}
    errors = {way: gap(value, expected) for way, value in said.items()}
    worst = max(errors, key=lambda way: errors[way])
    if share(errors[worst], budget) <= 1:
        return CapabilityResult((ClaimResult("step", "agrees", errors[worst], budget, worst),))
    sizes = ways(where.shape[1])
    left = {
        how: max(gap(value, _simulated(probe, sizes[way], how)[where]) for way, value in said.items())
        for how in CACHE_FAULTS
    }
    # A mistake that shows nowhere here explains nothing; the budget is that of the right logits, of the same size.
    explaining = [how for how in CACHE_FAULTS if share(left[how], budget) <= 1]
    causes = tuple(Cause(how.id, how.says, None, left[how], 1 - left[how] / errors[worst]) for how in explaining[:1])
    claim = ClaimResult("step", "diverges", errors[worst], budget, worst)
    return CapabilityResult(
        (claim,), (Divergence("step", errors[worst], budget, causes, alternatives(explaining), probe=probe.name),)
    )


@functools.cache
def _simulated(probe: Probe, sizes: tuple[int, ...], how: SimulatedFault) -> np.ndarray:
    return how.simulate(probe.config, probe.exact, probe.inputs, sizes)


def _stepped(step: Callable[..., Any], probe: Probe, sizes: Sequence[int], way: str) -> np.ndarray:
    tokens = np.array(probe.inputs[probe.config.input_names[-1]], np.int64)
    given = {"source": np.array(probe.inputs["source"], np.int64)} if "source" in probe.inputs else {}
    masked = {name: np.array(probe.inputs[name], np.int64) for name in probe.config.further_inputs}
    given |= masked if given else {}
    logits, cache, begin = [], None, 0
    for size in sizes:
        shape = (len(tokens), size, probe.config.vocab_size)
        try:
            chunk = slice(begin, begin + size)
            named = (
                given if probe.config.has_encoder else {name: mask[:, chunk].copy() for name, mask in masked.items()}
            )
            said, cache = step(tokens[:, chunk].copy(), cache, **named)
        except (TypeError, ValueError) as error:
            if "unpack" in str(error):
                raise TypeError("what is no pair, expected (logits, cache)") from None
            raise
        array = as_numbers(said)
        if array.shape != shape or array.dtype.kind != "f":
            raise TypeError(
                f"logits of the shape {array.shape} and dtype {array.dtype}, expected {shape} floats, {way}"
            )
        logits.append(array.astype(np.float64))
        begin, given = begin + size, {}
    return np.concatenate(logits, axis=1)
