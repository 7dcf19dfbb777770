"""The capability `step`: decoding with a cache. The steps must return the same logits as one forward pass."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity_conformance.capabilities.capability import (
    Answered,
    Answers,
    BuiltPort,
    ForwardPass,
    Judged,
    Way,
    judging,
    kept_in,
)
from transparity_conformance.capabilities.decoding.generation import why_no_decoder
from transparity_conformance.capabilities.faults import CACHE_FAULTS, SimulatedFault
from transparity_conformance.capabilities.other_logits import LogitsRequest, Part, as_logits, judged, of_logits
from transparity_conformance.capabilities.port_calls import PortCallError, call_port
from transparity_conformance.oracle.probes import Probe, as_given, sees_something
from transparity_conformance.oracle.reach.models import GIVEN_A_MASK, ReachProbe, crossing_calls
from transparity_conformance.oracle.reach.thresholds import becomes_wrong, thresholds
from transparity_conformance.report.comparison import gap


def step_request(
    name: str, probe: Probe, sizes: Sequence[int], batches: tuple[slice, ...] = (slice(None),)
) -> LogitsRequest:
    """Return a request to decode the tokens of a probe; step i decodes `sizes[i]` tokens."""
    kept = _with_kept_angles(probe.config, tuple(sizes))
    every = np.arange(len(probe.inputs[probe.config.input_names[-1]]))
    rows = np.concatenate([every[batch] for batch in batches])
    part = Part(np.arange(len(rows)), slice(None), probe, rows)
    return LogitsRequest(
        name, probe, (part,), lambda fault: _simulated(probe, kept, fault)[rows], sizes=kept, batches=batches
    )


def step_requests(forward: ForwardPass) -> dict[str, LogitsRequest]:
    """Return requests to decode the first probe token by token, and in chunks of different lengths."""
    key, probe = forward.key, forward.first
    length = probe.inputs[probe.config.input_names[-1]].shape[1]
    made = [step_request("one by one", probe, (1,) * length)]
    if length > 2:
        made.append(
            step_request("in uneven chunks", probe, (2, *(3,) * ((length - 2) // 3), *(1,) * ((length - 2) % 3)))
        )
    return _by_name(made, key)


def _by_name(made: Iterable[LogitsRequest], key: str = "") -> dict[str, LogitsRequest]:
    return {f"{key or each.probe.name}/step.{each.name.replace(' ', '_')}": each for each in made}


def _with_kept_angles(config: TransformerConfig, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return `sizes`, with the first steps merged if rotary angles change once the text exceeds a length. The first
    step then exceeds this length, so the angles of cached keys do not change later."""
    limit, ends = max((each for each in config.angle_limits if each < sum(sizes)), default=0), list(accumulate(sizes))
    first = next(index for index, end in enumerate(ends) if end > limit)
    return (max(ends[first], limit + 1), *sizes[first + 1 :])


def _further_requests(forward: ForwardPass) -> dict[str, LogitsRequest]:
    """Return requests that bundles do not contain, with other chunks, batches, masks and lengths.

    Texts just longer than a threshold are decoded twice: with a long first chunk, and with a short first chunk.
    """
    probe = forward.first
    length = probe.inputs[probe.config.input_names[-1]].shape[1]
    made = []
    if length > 3:
        made.append(step_request("two batches in turn", probe, _padded(length), (slice(0, 4), slice(4, None))))
        made.append(step_request("one token, then all others", probe, (1, length - 1)))
        made.append(step_request("one row", probe, (2, length - 3, 1), (slice(1, 2),)))
    if longest := forward.probes.get("longest"):
        half, more = divmod(longest.inputs[longest.config.input_names[-1]].shape[1], 2)
        sizes = tuple(size for size in (half, 1, 1, half + more - 2) if size > 0)
        if sum(sizes) == 2 * half + more:
            made.append(step_request("the longest", longest, sizes, (slice(0, 1),)))
    masked = [each for each in forward.reached if each.model.name == GIVEN_A_MASK and each.lengths[-1] > 3]
    made += [step_request("with padding", each, _padded(each.lengths[-1])) for each in masked]
    for each in crossing_calls(forward.reached):
        made.append(step_request("across a threshold", each, _across(each)))
        length = each.lengths[-1]
        if short := length // 5:
            made.append(step_request("a short chunk, then a long one", each, (short, length - 2 - short, 1, 1)))
    return _by_name(made)


def _padded(length: int) -> tuple[int, int, int]:
    """Return the sizes of three steps: slightly more than half of the text, one token, and all remaining tokens."""
    return length // 2 + 1, 1, length - length // 2 - 2


def _across(probe: ReachProbe) -> tuple[int, ...]:
    """Return the sizes of steps. If the text is one token longer than a threshold, the last two steps have one token
    each; only the last step exceeds the threshold. Otherwise, the first step has half of the text, and the later steps
    have random sizes."""
    length = probe.lengths[-1]
    if length - 1 in thresholds(probe.config).values():
        return length - 2, 1, 1
    random, sizes = np.random.default_rng(length), [length // 2]
    while (left := length - sum(sizes)) > 0:
        sizes.append(min(left, int((length // 4) ** random.random())))
    return tuple(sizes)


def _why_no_steps(probe: Probe, dtype: str) -> str:
    if not probe.config.mask_is_exact:
        return "masked keys keep a nonzero weight in this model, so no cache gives the same logits"
    return why_no_decoder(probe, dtype)


def ask_steps(port: BuiltPort, way: Way, key: str, request: LogitsRequest) -> Answers:
    """Return the logits of each step of a port. Raise `TypeError` unless a step returns (logits, cache).

    If the logits are wrong with the mask of each step's tokens, repeat all steps with the mask of all tokens so far.
    Return the logits with the smaller error; ignore a run with an exception if the other run returns logits.
    """
    tries = [_attempted(port, key, request, masks_past=False)]
    takes_mask = "attention_mask" in request.probe.inputs and not request.probe.config.has_encoder
    if takes_mask and tries[0][1] > request.probe.budget("float32"):
        tries.append(_attempted(port, key, request, masks_past=True))
    answers, _ = min(tries, key=lambda each: (isinstance(each[0], Exception), each[1]))
    if isinstance(answers, Exception):
        raise answers
    return answers


def _attempted(
    port: BuiltPort, key: str, request: LogitsRequest, *, masks_past: bool
) -> tuple[Answers | Exception, float]:
    """Return a port's answers, and their largest error; if the port raises an exception, return it, and infinity."""
    try:
        answers = _decoded(port, key, request, masks_past=masks_past)
    except (PortCallError, TypeError) as error:
        return error, math.inf
    (part,) = request.parts
    where = sees_something(request.probe.config, request.probe.inputs)[part.rows_of_probe]
    return answers, gap(request.logits(key, answers)[where], request.expected()[where])


def _decoded(port: BuiltPort, key: str, request: LogitsRequest, *, masks_past: bool) -> Answers:
    probe, built = request.probe, port.of(request.probe)
    every = np.array(probe.inputs[probe.config.input_names[-1]], np.int64)
    answers: dict[str, np.ndarray] = {}
    caches: list[Any] = [None] * len(request.batches)
    begin = 0
    for name, (_, size, vocab) in request.shapes(key).items():
        chunk, logits = slice(begin, begin + size), []
        for index, batch in enumerate(request.batches):
            tokens = every[batch, chunk].copy()
            further = named_inputs(probe, batch, slice(0, chunk.stop) if masks_past else chunk)
            answer, caches[index] = take_step(built.step, tokens, caches[index], further)
            logits.append(as_logits(answer, (len(tokens), size, vocab), request.name))
        answers[name], begin = logits[0] if len(logits) == 1 else np.concatenate(logits), begin + size
    return answers


def named_inputs(probe: Probe, part: slice, chunk: slice) -> dict[str, np.ndarray]:
    """Return the inputs of a step besides its tokens. Only the first step gets the inputs of the encoder."""
    further = {name: np.array(probe.inputs[name][part], np.int64) for name in probe.config.further_inputs}
    if not probe.config.has_encoder:
        return {name: value[:, chunk].copy() for name, value in further.items()}
    if chunk.start or "source" not in probe.inputs:
        return {}
    return {"source": as_given(probe.inputs["source"][part])} | further


def take_step(step: Any, tokens: np.ndarray, cache: Any, named: dict[str, np.ndarray]) -> Sequence[Any]:
    result = call_port(step, tokens, cache, **named)
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise TypeError(f"step returned {shown(result)}; expected the pair (logits, cache)")
    return result


def _notes(found: Mapping[Answered, Judged]) -> list[str]:
    """Return a note that lists the wrong and the right calls, and a note about lengths at which rotary angles
    change."""
    says: dict[bool, list[str]] = {True: [], False: []}
    lengths: dict[bool, list[int]] = {True: [], False: []}
    for answered, each in found.items():
        says[each.is_wrong].append(f"{answered.request.name} ({each.probe})")
        lengths[each.is_wrong].append(sum(answered.request.sizes))
    right, wrong = ("; ".join(says[is_wrong]) for is_wrong in (False, True))
    since = becomes_wrong(lengths[False], lengths[True], next(iter(found)).request.probe.config)
    boundary = f"step: wrong calls: {wrong}; right calls: {right or 'none'}{since}"
    limits = sorted({limit for each in found for limit in each.request.probe.config.angle_limits})
    beyond = f"beyond {' or '.join(map(str, limits))} tokens"
    across = f"step: not compared if the text grows {beyond}, because rotary angles change there"
    return [*[boundary] * bool(wrong), *[across] * bool(limits)]


@kept_in(0)
def _simulated(probe: Probe, sizes: tuple[int, ...], fault: SimulatedFault) -> np.ndarray:
    return fault.simulate(probe.config, probe.exact, probe.inputs, sizes)


STEPS = of_logits(
    "step",
    Way("step", step_requests, CACHE_FAULTS, further=_further_requests),
    name="steps",
    purpose="the logits of the first probe, decoded with a cache, in chunks of the given sizes",
    ask=ask_steps,
    judge=judging(judged, notes=_notes, reports_first=True),
    why_not=_why_no_steps,
    stays=1,
    describe=lambda request: {"sizes": list(request.sizes)},
)
