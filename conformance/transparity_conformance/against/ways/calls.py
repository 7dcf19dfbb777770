"""Compare calls besides one forward pass: other sizes, repeated calls, cached steps, generation and losses."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from transparity.errors import TransparityError
from transparity_conformance.against import compare
from transparity_conformance.against.compare import Outcome, answer_of
from transparity_conformance.against.probes import (
    Answer,
    Source,
    is_padded,
    length_of,
    padded,
    taken,
    telling,
    without_mask,
)
from transparity_conformance.against.reference import Inputs, Reference, RefusedError, described, raised
from transparity_conformance.against.ways.way import FORWARD, Sides, Way, as_result, compare_way, why_not
from transparity_conformance.capabilities.port_calls import PortError, PortProcessError, signature_of
from transparity_conformance.capabilities.table import failed
from transparity_conformance.diagnosis.reach.coverage import CALLS, Call, bisect, boundary
from transparity_conformance.diagnosis.thresholds import REMEASURED_WITHIN
from transparity_conformance.matching.values import apart
from transparity_conformance.oracle.reach.models import AFFORDABLE
from transparity_conformance.oracle.reach.thresholds import BATCHES, SHORT, lengths_up_to
from transparity_conformance.report.report import CapabilityResult, Cause, Divergence, not_compared
from transparity_conformance.running.ways import LABELS, up_to

CLAIM = Way("forward.reach")

SECONDS = 2.0
"""Seconds after which a comparison skips its remaining lengths, prompts or calls."""

IMAGE = 4
"""The axes of a batch of images: (batch, channels, rows, columns)."""

MOST_ROWS = 13
"""The batch sizes of short texts cycle through 1, 2, …, `MOST_ROWS`."""


def longest_of(reference: Reference, source: Source) -> int:
    """Return the largest length that takes at most about 0.2 s."""
    size = sum(each.size for each in reference.weights.values())
    return max(1, min(source.longest, int(AFFORDABLE / max(size, 1))))


def crossed(reference: Reference, longest: int) -> list[int]:
    """Return numbers in the configuration, such as a window, that are at most `longest`."""
    return sorted({int(number) for number in reference.numbers if number.is_integer() and 1 < number <= longest})


def compare_sizes(sides: Sides, source: Source) -> CapabilityResult:
    """Compare other lengths, batches and image sizes. Find the smallest wrong length; report sizes at which the port
    fails as not tested."""
    began, outcome, left_out = time.thread_time(), Outcome(()), list[int]()
    refused, failed = list[str](), list[str]()

    def judge(name: str, draw: Callable[[], Inputs]) -> bool | None:
        nonlocal outcome
        try:
            now = sides.judged(taken({name: draw()}, signature_of(sides.forward))[0])
        except PortProcessError:
            raise
        except (RefusedError, PortError) as error:
            (refused if isinstance(error, RefusedError) else failed).append(f"{name}: {str(error).rstrip('.')}")
            return None
        outcome = Outcome([*outcome.answers, *now.answers])
        return bool(now.wrong) if now.answers else None

    def call(length: int, batch: int = 1) -> bool | None:
        return judge(source.title(length, batch), lambda: source.draw(length, batch, length))

    for length, batch in _sizes(sides.reference, source):
        if time.thread_time() - began > SECONDS:
            left_out.append(length if source.is_text else batch)
        else:
            call(length, batch)
    bisect(_calls(outcome), call)
    for name, images in _other_images(sides.reference, source):
        judge(name, images.copy)
    found = not_compared(*refused)
    found += not_compared(*failed) if outcome.wrong else CapabilityResult(untested=tuple(failed))
    if not outcome.answers:
        return found
    found += as_result(CLAIM, sides.explained(outcome))
    if outcome.wrong:
        found += CapabilityResult(notes=(boundary(_calls(outcome)),))
    return found + _left_out(left_out, sides, source)


def _left_out(sizes: Sequence[int], sides: Sides, source: Source) -> CapabilityResult:
    """Return a message about the lengths or batches that no comparison has used."""
    compared = {length_of(each.inputs) if source.is_text else len(each.actual) for each in sides.called}
    numbers = ", ".join(str(size) for size in sizes if size not in compared)
    what = "texts of length" if source.is_text else "batches of"
    return not_compared(*[f"{what} {numbers}: left out, to limit the check's time"] * bool(numbers))


def _other_images(reference: Reference, source: Source) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield wider images, then higher ones. Prefer an odd size, which some models pad; if the reference refuses it,
    double the size."""
    one, other = ({} if source.is_text else source.draw(1, 2, seed) for seed in (1, 2))
    images = {name: value for name, value in one.items() if value.ndim == IMAGE}
    for axis in (-1, -2) if images else ():
        for part, more in ((2, 1), (1, 0)):
            larger = {
                name: np.concatenate([value, other[name].take(range(value.shape[axis] // part + more), axis)], axis)
                for name, value in images.items()
            }
            with contextlib.suppress(RefusedError):
                reference.near({**one, **larger})
                break
        yield f"images of {' × '.join(map(str, next(iter(larger.values())).shape[1:]))}", {**one, **larger}


def _calls(outcome: Outcome) -> list[Call]:
    return [Call(each.probe, length_of(each.inputs), not each.agrees) for each in outcome.answers]


def _sizes(reference: Reference, source: Source) -> list[tuple[int, int]]:
    if not source.is_text:
        return [(1, batch) for batch in BATCHES]
    longest = longest_of(reference, source)
    lengths = lengths_up_to(longest, crossed(reference, longest))
    short = [length for length in lengths if length <= SHORT]
    found = [(length, 1 + index % MOST_ROWS) for index, length in enumerate(short)]
    return found + [(length, 1 + (length < 100)) for length in lengths if length > SHORT]


ARGUMENTS = Way("forward.arguments")

UNREAD = "ignored"
"""The id of the fault "the port ignores an argument", which has no page in the catalogue."""


def compare_arguments(sides: Sides, source: Source) -> CapabilityResult:
    """Compare calls with one optional argument each, such as positions, until one call differs."""
    given, lacking = source.arguments(signature_of(sides.forward))
    outcome = Outcome(())
    for name, inputs in given.items():
        try:
            now = sides.judged({described(inputs): inputs})
        except PortProcessError:
            raise
        except PortError as error:
            return failed(ARGUMENTS.claim, name, error)
        ignored = [fault for each in now.wrong for fault in _ignored(sides, each, name)]
        now = dataclasses.replace(now, faults=ignored) if ignored else sides.explained(now)
        outcome = dataclasses.replace(now, answers=[*outcome.answers, *now.answers])
        if outcome.wrong:
            break
    return (as_result(ARGUMENTS, outcome) if given else CapabilityResult()) + not_compared(*lacking)


def _ignored(sides: Sides, answer: Answer, name: str) -> Iterator[Divergence]:
    """Yield a divergence if the port returns the same answer as the reference without the argument."""
    exact, budget = sides.reference.near({each: value for each, value in answer.inputs.items() if each != name})
    if exact.shape == answer.actual.shape and (residual := apart(answer.actual, exact, None).max()) <= budget:
        cause = Cause(UNREAD, f"your port ignores {name}", None, float(residual), 1.0)
        yield Divergence("answer", answer.error, answer.budget, (cause,), probe=answer.probe)


SMALL_WEIGHTS = Way("forward.small_weights")


def compare_small_weights(sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    """Compare one forward pass with small weights, so that a wrong epsilon of an inner or the last norm shows."""
    if sides.small is None or not probes:
        return CapabilityResult()
    with contextlib.ExitStack() as stack:
        try:
            small = stack.enter_context(sides.small())
            outcome = small.judged(dict([next(iter(probes.items()))]), SMALL_WEIGHTS)
        except PortProcessError:
            raise
        except TransparityError as error:  # the loader may refuse such weights
            return not_compared(f"{SMALL_WEIGHTS.claim}: {error}")
        return as_result(SMALL_WEIGHTS, small.explained(outcome, SMALL_WEIGHTS))


def explained_best(sides: Sides, outcome: Outcome) -> Outcome:
    """Explain the wrong answers. If the largest error is only slightly above the budget, first try small weights, with
    which the error may be larger."""
    is_slight = bool(outcome.wrong) and outcome.worst.share < REMEASURED_WITHIN[sides.reference.dtype]
    if sides.small is None or not is_slight:
        return sides.explained(outcome)
    worst = outcome.worst
    listen, found = functools.partial(sides.listened, FORWARD), None
    also = [compare.Call(sides.reference, listen, each) for each in outcome.answers]
    with contextlib.suppress(TransparityError), sides.small() as small:  # the loader may refuse such weights
        other = small.judged({worst.probe: worst.inputs}, SMALL_WEIGHTS)
        if other.answers[0].share > worst.share:
            found = small.explained(dataclasses.replace(other, also=also), SMALL_WEIGHTS, part=0.5)
    if found is None or not found.is_explained:
        return sides.explained(outcome, part=1.0 if found is None else 0.5)
    faults = [
        dataclasses.replace(each, error=worst.error, budget=worst.budget, probe=worst.probe) for each in found.faults
    ]
    note = "the checker found the lines and causes with small weights, which show the difference better"
    return dataclasses.replace(outcome, faults=faults, notes=[*found.notes, note])


REPEATS = Way("repeats")


def compare_repeats(sides: Sides, _: Mapping[str, Inputs]) -> CapabilityResult:
    """Repeat earlier calls in random order, to find state that a port keeps from calls with another length, batch or
    mask."""
    began, answers = time.monotonic(), list[Answer]()
    for index in np.random.default_rng(0).integers(len(sides.called), size=CALLS):
        first = sides.called[index]
        name, inputs = f"{first.probe}, called again after {len(sides.called) + len(answers)} calls", first.inputs
        try:
            actual = sides.answered(FORWARD, inputs)
        except PortError as error:
            return failed(REPEATS.claim, name, error)
        answers.append(answer_of(sides.reference, name, inputs, actual, first.actual, first.budget))
        if not answers[-1].agrees or time.monotonic() - began > SECONDS:
            break
    return dataclasses.replace(as_result(REPEATS, sides.explained(Outcome(answers))), calls=len(answers))


PROMPT, CHUNK, LENGTH = 5, 3, 13
"""The prompt's length, the positions per step, and a length beyond the windows of small models."""

BEYOND = 4
"""The number of positions to compare after a threshold, such as a window."""

STEP = "step"


def compare_steps(sides: Sides, source: Source) -> CapabilityResult:
    """Compare the logits of cached steps. Skip calls in which the reference's cached steps differ from its forward
    pass."""
    found, ends = CapabilityResult(), time.thread_time() + SECONDS
    if reason := why_not("in_steps", sides):
        return not_compared(f"cached steps: {reason}")
    for way, probes in _requests(sides.reference, source):
        if found.faults:
            break
        if time.thread_time() > ends:
            return found + not_compared(
                f"{STEP}, {way.says}, and longer prompts: left out, because the comparison takes too long"
            )
        found += _compared(way, sides, probes)
    return found


def _compared(way: Way, sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    given, reasons = taken(probes, signature_of(sides.forward))
    found, inconsistency = CapabilityResult(), functools.partial(_inconsistency, sides.view(way), sides.reference)

    def shorten(answer: Answer) -> Inputs:
        short = up_to(answer.inputs, answer.first + 1)
        return answer.inputs if inconsistency(short) else short

    for name, inputs in given.items():
        if reason := inconsistency(inputs):
            reasons.append(f"{name}: {reason}")
        else:
            found = compare_way(way, sides, {name: inputs}, shorten)
            break
    return found + not_compared(*(f"{STEP}, {way.says}: {each}" for each in reasons))


def _requests(reference: Reference, source: Source) -> Iterator[tuple[Way, Mapping[str, Inputs]]]:
    longest = longest_of(reference, source)
    length = min(LENGTH, longest)
    rows = padded(source.draw(length, 3, length), "left")
    calls = {f"{batch} × {length}": without_mask(source.draw(length, batch, length)) for batch in (2, 1)}
    singly = ({} if rows is None else {f"3 × {length}, padded on the left": rows}) | calls
    prompt = max(_first(each, length) for each in singly.values())
    yield _way(prompt, 1, "one at a time"), singly
    yield _way(prompt, CHUNK, f"{CHUNK} at a time"), calls
    for number in crossed(reference, longest - BEYOND):
        if number > length:
            inputs = without_mask(source.draw(number + BEYOND, 1, number))
            first = max(number - 1, _first(inputs, number + BEYOND))
            yield _way(first, 1, "one at a time"), {f"1 × {number + BEYOND}": inputs}


def _first(inputs: Inputs, length: int) -> int:
    """Return the length of the prompt; it contains all placeholder tokens, which the text of `length` tokens lacks."""
    return PROMPT + max(length_of(inputs) - length, 0)


def _way(first: int, then: int, says: str) -> Way:
    return Way(STEP, "in_steps", (first, then), f"{first} positions, then {says}")


def _inconsistency(view: Reference, reference: Reference, inputs: Inputs) -> str:
    try:
        (steps, budget), (whole, own) = view.near(inputs), reference.near(inputs)
    except Exception as error:  # noqa: BLE001 - the reference may refuse a call that it seems to take
        return f"the reference raises {raised(error)}"
    errors = apart(steps, whole, reference.kept(inputs, whole.shape))
    return "the reference's own steps differ from its forward pass" if errors.max() > budget + own else ""


TOKENS = 6

GENERATION = Way("generate", "generated", (TOKENS,), f"{TOKENS} tokens")


def compare_generation(sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    if reason := why_not(GENERATION.method, sides):
        return not_compared(f"{GENERATION.claim}: {reason}")
    found, reasons = dict[str, Inputs](), dict[str, str]()
    for name, inputs in sorted(probes.items(), key=lambda each: not is_padded(each[1])):
        if any("attention_mask" in each and not value[:, -1].all() for each, value in inputs.items()):
            continue  # no token can follow padding on the right
        if not is_padded(inputs) and any(not is_padded(each) for each in found.values()):
            break
        try:
            is_clear = _is_clear(sides.view(GENERATION), sides.reference, inputs)
        except Exception as error:  # noqa: BLE001 - the reference may need more than these inputs to generate
            reasons.setdefault(f"the reference raises {raised(error)}", name)
            continue
        if is_clear:
            found[name] = inputs
        else:
            reasons.setdefault("rounding can change the generated tokens", name)
    compared = compare_way(GENERATION, sides, found) if found else CapabilityResult()
    return compared + not_compared(*(f"{GENERATION.claim}: {name}: {reason}" for reason, name in reasons.items()))


def _is_clear(view: Reference, reference: Reference, inputs: Inputs) -> bool:
    """Return whether rounding cannot change the generated tokens. The reference chooses the same tokens in float64 and
    in its own dtype. Without padding, the two highest logits differ by more than twice the budget."""
    tokens, _ = view.near(inputs)
    if not np.array_equal(tokens, view.answer_of(view.rounded, inputs)):
        return False
    content = next(iter(inputs))
    if is_padded(inputs) or tokens.ndim != 2:
        return True
    prompt = inputs[content].shape[1]
    whole = {**without_mask(_continued(inputs, content, tokens.shape[1])), content: tokens.astype(np.int64)}
    logits, budget = reference.near(whole)
    ordered = np.sort(logits[:, prompt - 1 : -1], axis=-1)
    return bool((ordered[..., -1] - ordered[..., -2]).min() > 2 * budget)


def _continued(inputs: Inputs, content: str, length: int) -> Inputs:
    """Append zeros to arrays that have one integer per position, such as token types."""
    shape = inputs[content].shape
    beyond = ((0, 0), (0, max(length - shape[1], 0)))
    return {
        name: np.pad(value, beyond) if value.shape == shape and value.dtype.kind in "iu" else value
        for name, value in inputs.items()
    }


LOSS = Way("loss", "loss")

IGNORED, SHARE = -100, 0.2
"""The ignored label of PyTorch's losses, and its share of the labels."""


def compare_losses(sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    if reason := why_not(LOSS.method, sides):
        return not_compared(f"{LOSS.claim}: {reason}")
    labelled = {name: _with_labels(sides.reference, inputs) for name, inputs in telling(probes).items()}
    view = sides.view(LOSS)
    try:  # a text of one token has no next token, and therefore no loss
        counted = {name: inputs for name, inputs in labelled.items() if np.isfinite(view.truth(inputs)).all()}
    except Exception as error:  # noqa: BLE001 - the reference may take other labels
        return not_compared(f"{LOSS.claim}: the reference raises {raised(error)} if labels are given")
    return compare_way(LOSS, sides, counted)


def _with_labels(reference: Reference, inputs: Inputs) -> Inputs:
    """Add random labels. Half of the first row is ignored, so that a mean over rows differs from a mean over labels."""
    answer, _ = reference.near(inputs)
    draw = np.random.default_rng(answer.size)
    labels = draw.integers(0, answer.shape[-1], answer.shape[:-1])
    labels[draw.random(labels.shape) < SHARE] = IGNORED
    if labels.ndim > 1:
        labels[:1, : labels.shape[1] // 2] = IGNORED
    kept = reference.kept(inputs, answer.shape)
    if kept is not None:
        labels[~kept[..., 0]] = IGNORED
        if labels.ndim > 1:  # no loss after a padding token
            labels[:, 1:][~kept[:, :-1, 0]] = IGNORED
    return {**inputs, LABELS: labels}
