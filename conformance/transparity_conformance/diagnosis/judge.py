"""The judgement: what a port said of its probes, held to the oracle, walked through, and explained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.taps import tap_shapes
from transparity_conformance.diagnosis.equivalence import Pair, is_another_form
from transparity_conformance.diagnosis.explain import Answer, explain, tap_kind
from transparity_conformance.diagnosis.fault import Hypothesis
from transparity_conformance.diagnosis.faults import whole_model
from transparity_conformance.diagnosis.faults.residuals_and_activations import rounded_to
from transparity_conformance.diagnosis.faults.sites import is_norm
from transparity_conformance.diagnosis.reduced_precision import TYPICAL, WORST, left_with, products_of
from transparity_conformance.diagnosis.segment import NEAR, Place
from transparity_conformance.diagnosis.walk import segment_budgets, walk
from transparity_conformance.oracle.budgets import NEIGHBOURS_OF_DRAWN, epsilon
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.comparison import difference, gap, share
from transparity_conformance.report.report import Cause, ClaimResult, Divergence, Measured, Report, Verdict

Progress = Callable[[str, int, int], None]
"""Hears what is being done, how many steps are done, and of how many."""

Actual = Mapping[str, Mapping[str, np.ndarray]]
"""What a port said: by probe, by tap."""

INTERNAL = (
    "query",
    "query_norm",
    "query_rotated",
    "key",
    "key_norm",
    "key_rotated",
    "value",
    "scores",
    "weights",
    "context",
    "hidden",
)
"""Taps inside a sublayer: a port may hold them in another form and still be right."""

FORM = 1024
"""How many ulps of the largest number another form may be off: it is told from a wrong number, not judged."""

MOST_FAULTS = 40
"""So many segments are explained; the rest is listed without a cause."""


def silent(says: str, done: int, of: int) -> None:
    """Nobody listens."""


@dataclass
class Trial:
    """One probe with what the port said of it, and how far that is off."""

    probe: Probe
    said: dict[str, np.ndarray]
    misshapen: dict[str, str]
    order: list[str]
    budgets: dict[str, float]
    """Of every segment."""
    errors: dict[str, float]
    """Of every segment."""


def judge(
    name: str,
    probes: Mapping[str, Probe],
    actual: Actual,
    *,
    dtype: str = "float32",
    logits_only: bool = False,
    progress: Progress | None = None,
    not_compared: tuple[str, ...] = (),
    repeated: ClaimResult | None = None,
) -> Report:
    """The verdict on what a port said of `probes`, however it was run: here, elsewhere, or last week."""
    with np.errstate(all="ignore"):  # a port may say anything
        return _judged(name, probes, actual, dtype, logits_only, progress or silent, not_compared, repeated)


def _judged(
    name: str,
    probes: Mapping[str, Probe],
    actual: Actual,
    dtype: str,
    logits_only: bool,
    heard: Progress,
    not_compared: tuple[str, ...],
    repeated: ClaimResult | None,
) -> Report:
    trials: dict[str, Trial] = {}
    missing = list(not_compared)
    for done, (key, probe) in enumerate(probes.items()):
        heard("walking through the port", done, len(probes))
        said = dict(actual.get(key, {}))
        if logits_only:
            said = {tap: value for tap, value in said.items() if tap == "logits"}
        if "logits" not in said:
            missing.append(f"probe {key}: no logits")
            continue
        trials[key] = _trial(probe, said, dtype)
    measured = tuple(_measured(trials.values(), dtype))
    taps = dict.fromkeys(tap for trial in trials.values() for tap in trial.order)
    unsaid = [tap for tap in taps if not any(tap in trial.said or tap in trial.misshapen for trial in trials.values())]
    if unsaid:
        why = "not asked for, but the logits alone" if logits_only else "the port does not show them"
        missing.append(f"{len(unsaid)} of {len(taps)} taps: {why} ({_abridged(unsaid)})")
    claims = tuple(_claims(measured)) + ((repeated,) if repeated else ())
    if not trials:
        return Report(name, "inconclusive", None, claims=claims, not_compared=tuple(missing), dtype=dtype)
    logits_agree = all(item.share <= 1 for item in measured if item.tap == "logits")
    first = min((item.tap for item in measured if item.share > 1), key=list(taps).index, default=None)
    common = {"claims": claims, "measured": measured, "dtype": dtype}
    if repeated and repeated.verdict == "diverges":
        says = "two runs on the same tokens differ: dropout, or another draw, is active"
        cause = Cause("dropout-active", says, None, repeated.error, 0.0)
        divergence = Divergence(repeated.where, repeated.error, repeated.budget, (cause,), probe=next(iter(trials)))
        return Report(name, "diverges", repeated.where, (divergence,), not_compared=tuple(missing), **common)  # type: ignore[arg-type]
    faulty, healed = _faulty_segments(trials, dtype)
    notes = [says for trial in trials.values() for says in trial.misshapen.values()]
    notes += [f"{tap} is held in another form, which makes no difference behind it" for tap in healed]
    if logits_agree and not (unsound := _unsound(trials, faulty)):
        notes += [f"{tap} differs from the reference's at padding alone, which no logit shows" for tap in faulty]
        few = [key for key in probes if key not in trials]
        verdict: Verdict = "inconclusive" if few else "agrees"
        return Report(name, verdict, None, not_compared=tuple(missing), notes=tuple(notes), **common)  # type: ignore[arg-type]
    if rounding := _rounding(trials, dtype):
        worst = max(measured, key=lambda item: item.share)
        divergence = Divergence(
            first or "logits", worst.error, worst.budget, (rounding,), probe=worst.probe, profile=worst.profile
        )
        notes.append(f"{rounding.says}, not a fault: against {dtype}'s budget the worst share is {worst.share:.3g}")
        return Report(name, "agrees", None, (divergence,), not_compared=tuple(missing), notes=tuple(notes), **common)  # type: ignore[arg-type]
    if logits_agree:
        faulty = unsound
        notes.append("the logits agree: what is wrong here makes no difference to them")
    divergences = _explained(trials, faulty or ["logits"], dtype, heard)
    return Report(name, "diverges", first, divergences, not_compared=tuple(missing), notes=tuple(notes), **common)  # type: ignore[arg-type]


def _trial(probe: Probe, said: dict[str, np.ndarray], dtype: str) -> Trial:
    lengths = {name: tokens.shape[1] for name, tokens in probe.inputs.items()}
    shapes = tap_shapes(probe.config, len(next(iter(probe.inputs.values()))), **lengths)
    misshapen = {
        tap: f"{tap} has the shape {value.shape} on the probe {probe.name}, expected {shapes[tap]}"
        for tap, value in said.items()
        if value.shape != shapes[tap]
    }
    flows = {tap: np.asarray(value, np.float64) for tap, value in said.items() if tap not in misshapen}
    ours = walk(probe, flows)
    return Trial(
        probe=probe,
        said=flows,
        misshapen=misshapen,
        order=list(ours),
        budgets=segment_budgets(probe, flows, dtype, neighbours=probe.neighbours, truth=ours),
        errors={tap: gap(value, ours[tap]) for tap, value in flows.items()} | dict.fromkeys(misshapen, math.inf),
    )


def _measured(trials: Iterable[Trial], dtype: str) -> Iterable[Measured]:
    for trial in trials:
        for tap in trial.order:
            if tap not in trial.errors:
                continue
            expected, budget = trial.probe.oracle.expected[tap], trial.probe.oracle.budget(tap, dtype)
            error = difference(trial.said[tap], expected) if tap in trial.said else math.inf
            profile = _profile(trial.said[tap], expected) if share(error, budget) > 1 and tap in trial.said else {}
            yield Measured(tap, trial.probe.name, error, budget, trial.errors[tap], trial.budgets[tap], profile)


def _profile(actual: np.ndarray, expected: np.ndarray) -> dict[str, Any]:
    """The largest error by row, position, head and feature."""
    with np.errstate(invalid="ignore"):
        apart = np.nan_to_num(np.abs(actual - expected), nan=np.inf, posinf=np.inf)
    axes = {
        2: ("row", "feature"),
        3: ("row", "position", "feature"),
        4: ("row", "head", "position", "feature"),
    }[apart.ndim]
    others = {name: tuple(i for i in range(apart.ndim) if i != axis) for axis, name in enumerate(axes)}
    return {name: apart.max(axis=rest).tolist() for name, rest in others.items() if name != "feature"}


def _claims(measured: Iterable[Measured]) -> Iterable[ClaimResult]:
    """The worst of each kind of tap."""
    worst: dict[str, Measured] = {}
    for item in measured:
        kind = tap_kind(item.tap)
        if kind not in worst or item.share > worst[kind].share:
            worst[kind] = item
    for kind, item in worst.items():
        verdict: Verdict = "agrees" if item.share <= 1 else "diverges"
        yield ClaimResult(f"forward.{kind}", verdict, item.error, item.budget, f"{item.tap} ({item.probe})")


def _faulty_segments(trials: Mapping[str, Trial], dtype: str) -> tuple[list[str], list[str]]:
    """Segments that are wrong by themselves, in order, and those that are so in form alone: inside a sublayer, with
    nothing left of it at the sublayer's end, and related to ours by one map (`forms`)."""
    faulty: dict[str, None] = {}
    healed: dict[str, None] = {}
    order = list(dict.fromkeys(tap for trial in trials.values() for tap in trial.order))
    forms: dict[tuple[str, int], list[Pair]] = {}
    wrong = {key: [tap for tap in t.errors if share(t.errors[tap], t.budgets[tap]) > 1] for key, t in trials.items()}
    suspects = {tap for taps in wrong.values() for tap in taps if tap.rpartition(".")[2] in INTERNAL}
    ends: dict[tuple[str, str], bool] = {}
    for key, trial in trials.items() if suspects else ():
        coarse = {tap: value for tap, value in trial.said.items() if tap.rpartition(".")[2] not in INTERNAL}
        ours = walk(trial.probe, coarse)
        neighbours = 1 if trial.probe.is_large else NEIGHBOURS_OF_DRAWN  # near a tie of hot scores one is luck
        budgets = segment_budgets(trial.probe, coarse, dtype, neighbours=neighbours)
        for tap in suspects & set(trial.said):
            end = _end_of(tap, trial)
            ends[key, tap] = end is not None and gap(trial.said[end], ours[end]) <= max(
                budgets[end], trial.budgets[end]
            )
            shown = _where_it_matters(trial, tap, ours)
            forms.setdefault((tap, id(trial.probe.parameters)), []).append((shown, ours[tap]))
    tolerance = FORM * epsilon(dtype)
    accepted = {place: is_another_form(place[0], pairs, tolerance) for place, pairs in forms.items()}
    for key, trial in trials.items():
        for tap in wrong[key]:
            same = ends.get((key, tap), False) and accepted.get((tap, id(trial.probe.parameters)), False)
            (healed if same else faulty)[tap] = None
    return (
        sorted(faulty, key=order.index),
        sorted((tap for tap in healed if tap not in faulty), key=order.index),
    )


def _where_it_matters(trial: Trial, tap: str, ours: Mapping[str, np.ndarray]) -> np.ndarray:
    """What the port says at `tap`. Slopes may be of the key's position instead of its distance (BLOOM), which shifts
    each row of scores by a number, but for those of hidden keys: of them it says what it says of the others."""
    said = trial.said[tap]
    if not tap.endswith(".scores") or trial.probe.config.positions != "alibi":
        return said
    seen = ours[tap.replace(".scores", ".weights")] > 0
    shift = ((said - ours[tap]) * seen).sum(-1, keepdims=True) / np.maximum(seen.sum(-1, keepdims=True), 1)
    return np.where(seen, said, ours[tap] + shift)


def _unsound(trials: Mapping[str, Trial], faulty: list[str]) -> list[str]:
    """Of the taps that differ though the logits agree, those that do so at real tokens: what a port makes of padding
    that nobody looks at is its own affair."""
    found: dict[str, None] = {}
    for trial in trials.values():
        expected = trial.probe.oracle.expected
        for tap in trial.misshapen:
            found[tap] = None
        for tap in faulty:
            if tap in trial.said and share(trial.errors[tap], trial.budgets[tap]) > 1:
                if tap.rpartition(".")[2] in INTERNAL:
                    found[tap] = None
                    continue
                real = _at_real_tokens(trial.probe, tap)
                apart = gap(trial.said[tap] * real, expected[tap] * real)
                if share(apart, trial.probe.oracle.budget(tap, "float32")) > 1:
                    found[tap] = None
    return sorted(found, key=lambda tap: faulty.index(tap) if tap in faulty else -1)


def _at_real_tokens(probe: Probe, tap: str) -> np.ndarray:
    """1 where a position of `tap` (batch, length, …) holds a token, 0 where it holds padding."""
    stack, config = "encoder" if tap.endswith("memory_norm") else tap.split(".")[0], probe.config
    if stack == "decoder" and "padding" not in config.decoder_mask:
        return np.ones(1)  # it knows of no padding
    if tap == "logits" and config.head == "pooled":
        return np.ones(1)  # it has no positions
    names = [name for name in config.input_names if config.input_stack(name) == stack]
    name = names[0] if names else config.input_names[-1]
    if config.padding == "attention-mask" and name == config.input_names[0]:
        return probe.inputs["attention_mask"][..., None].astype(np.float64)
    return (probe.inputs[name] != config.pad_id)[..., None].astype(np.float64)


def _end_of(tap: str, trial: Trial) -> str | None:
    """The first tap behind a sublayer's inside that the port shows."""
    later = trial.order[trial.order.index(tap) + 1 :]
    return next((name for name in later if name in trial.said and name.rpartition(".")[2] not in INTERNAL), None)


def _explained(trials: Mapping[str, Trial], faulty: list[str], dtype: str, heard: Progress) -> tuple[Divergence, ...]:
    known = _everywhere(trials, faulty, dtype)
    divergences: list[Divergence] = []
    answers: dict[str, Answer] = {}
    for hypothesis in known:
        fault = hypothesis.fault
        worst = max(trials.values(), key=lambda trial: share(trial.errors.get(faulty[0], 0), trial.budgets[faulty[0]]))
        left = _left(trials, known)
        cause = Cause(fault.id, fault.says, fault.value, left, 1.0)
        error, budget = worst.errors[faulty[0]], worst.budgets[faulty[0]]
        divergences.append(Divergence(faulty[0], error, budget, (cause,), probe=worst.probe.name))
        faulty = _left_over(trials, known, dtype)
    for done, tap in enumerate(faulty):
        heard("looking for causes", done, len(faulty))
        trial = max(
            (trial for trial in trials.values() if tap in trial.errors),
            key=lambda trial: share(trial.errors[tap], trial.budgets[tap]),
        )
        error, budget = trial.errors[tap], trial.budgets[tap]
        if tap in trial.misshapen or done >= MOST_FAULTS:
            divergences.append(
                Divergence(tap, error, budget, probe=trial.probe.name, is_misshapen=tap in trial.misshapen)
            )
            continue
        with_tap = [other for other in trials.values() if tap in other.said]
        place = Place(
            tap,
            [other.probe for other in with_tap],
            {other.probe.name: other.said for other in with_tap},
            {other.probe.name: other.budgets[tap] for other in with_tap},
            dtype,
        )
        others = {other.probe.name: other.probe for other in trials.values()}
        if known and place.vanishes(known):
            continue  # what came before explains this, too
        answer = explain(place, _sites(trial, tap), known, others, answers)
        answers[tap] = answer
        known = (*known, *answer.chosen)
        profile = _profile(trial.said[tap], walk(trial.probe, trial.said, until=tap)[tap]) if not answer.causes else {}
        ties = answer.indistinguishable, answer.split_by
        divergences.append(Divergence(tap, error, budget, answer.causes, *ties, trial.probe.name, profile))
        if answer.remains:
            divergences.append(_remaining(place, known, trials))
    return tuple(divergences)


def _remaining(place: Place, known: tuple[Hypothesis, ...], trials: Mapping[str, Trial]) -> Divergence:
    """What nothing explains beside what is known."""
    probe = max(place.probes, key=lambda probe: place.share(probe, known))
    flows, budget = trials[probe.name].said, place.budgets[probe.name]
    ours = walk(probe, flows, known, until=place.tap)[place.tap]
    profile = _profile(flows[place.tap], ours)
    return Divergence(place.tap, gap(flows[place.tap], ours), budget, probe=probe.name, profile=profile)


def _everywhere(trials: Mapping[str, Trial], faulty: list[str], dtype: str) -> tuple[Hypothesis, ...]:
    """The fault of the whole model that leaves fewest segments wrong, if it leaves at most half of them."""
    if len(faulty) < 2:
        return ()
    config = next(iter(trials.values())).probe.config
    most = min(len(faulty) // 2, len(faulty) - 2)
    candidates = [hypothesis for hypothesis in whole_model(config) if hypothesis.fault.id != "low-precision"]
    counted = [(len(_left_over(trials, (h,), dtype, most)), i, h) for i, h in enumerate(candidates)]
    left, _, best = min(counted, key=lambda item: item[:2])
    return (best,) if left <= most else ()


def _left_over(trials: Mapping[str, Trial], known: tuple[Hypothesis, ...], dtype: str, most: int = 10_000) -> list[str]:
    """Segments that are still wrong with `known` put into the reference; not all of them if there are over `most`."""
    wrong: dict[str, None] = {}
    for trial in trials.values():
        ours = walk(trial.probe, trial.said, known)
        gaps = {tap: gap(value, ours[tap]) if tap in ours else math.inf for tap, value in trial.said.items()}
        shares = {tap: share(error, trial.budgets[tap]) for tap, error in gaps.items()}
        wrong |= dict.fromkeys(tap for tap in gaps if shares[tap] > NEAR[dtype])
        if len(wrong) > most:
            break
        if any(1 < shares[tap] <= NEAR[dtype] for tap in gaps):
            budgets = segment_budgets(trial.probe, trial.said, dtype, known, neighbours=min(2, trial.probe.neighbours))
            wrong |= {tap: None for tap in gaps if shares[tap] > 1 and share(gaps[tap], budgets[tap]) > 1}
        if len(wrong) > most:
            break
    order = next(iter(trials.values())).order
    return sorted(wrong, key=order.index)


def _sites(trial: Trial, tap: str) -> list[str]:
    """Where a fault may have been made that shows at `tap`: there, wherever the port shows nothing before it, and at
    what flows into a residual."""
    before = trial.order[: trial.order.index(tap)]
    layer = ".".join(tap.split(".")[:3])
    # What the port shows in between need not lie on the way: of the layer itself, everything that it does not show.
    sites = [name for name in reversed(before) if name not in trial.said and name.startswith(f"{layer}.")]
    for name in reversed(before):
        if name in trial.said:
            break
        sites.append(name)
    if not tap.startswith("encoder") and "encoder.output" in before and "encoder.output" not in trial.said:
        sites += [name for name in reversed(before) if name.startswith("encoder") and name not in trial.said]
    if is_norm(trial.probe.config, tap) or tap.endswith(".output"):
        scope = tap.rsplit(".", 1)[0]
        end = "_post_norm" if trial.probe.config.norm_position == "both" else ".output"
        sites += [name for name in before if name.startswith(f"{scope}.") and name.endswith(end)]
        previous = [name for name in before if name.endswith(f"feed_forward{end}")]
        sites += previous[-1:]
    return [*dict.fromkeys(reversed(sites)), tap]


def _rounding(trials: Mapping[str, Trial], dtype: str) -> Cause | None:
    """Whether rounding to fewer bits explains everything: of the weights, exactly, or of all arithmetic, if every
    number that the port shows is one of those few. Another shape is no rounding."""
    if any(trial.misshapen for trial in trials.values()):
        return None
    config = next(iter(trials.values())).probe.config
    for fault in (fault for fault in (h.fault for h in whole_model(config)) if fault.id == "low-precision"):
        hypothesis = Hypothesis(fault, ("parameters",))
        if not _left_over(trials, (hypothesis,), dtype, most=0):
            return Cause("low-precision", fault.says, None, _left(trials, (hypothesis,)), 1.0)
    for kind in (*(("float32",) if dtype == "float64" else ()), "bfloat16", "float16"):
        if kind == dtype:
            continue
        shown = all(
            np.array_equal(rounded_to(v, kind), v, equal_nan=True) for t in trials.values() for v in t.said.values()
        )
        if shown and all(_within(trial, kind) for trial in trials.values()):
            worst = max(gap(t.said["logits"], t.probe.oracle.expected["logits"]) for t in trials.values())
            return Cause("low-precision", f"rounding of {kind} arithmetic", None, worst, 1.0)
    for hypothesis in products_of(next(iter(trials.values())).order):
        left: list[float] = []
        for trial in trials.values():
            left.append(_left_with(trial, hypothesis))
            if left[-1] > WORST:
                break
        if max(left) <= WORST and float(np.median(left)) <= TYPICAL:
            gone = 1 - float(np.median(left))
            return Cause("low-precision", hypothesis.fault.says, None, _left(trials, (hypothesis,)), gone)
    return None


def _left_with(trial: Trial, hypothesis: Hypothesis) -> float:
    """What rounding leaves of the differences that are over their budgets, at worst; all of a wrong shape."""
    off = [tap for tap in trial.errors if share(trial.errors[tap], trial.budgets[tap]) > 1]
    if not off or trial.misshapen:
        return math.inf if trial.misshapen else 0.0
    ours, rounded = walk(trial.probe, trial.said), walk(trial.probe, trial.said, (hypothesis,))
    return max(left_with(trial.said[tap], ours[tap], rounded[tap]) for tap in off)


def _left(trials: Mapping[str, Trial], known: tuple[Hypothesis, ...]) -> float:
    """What is left of the logits' own segment, at worst."""
    ours = {key: walk(trial.probe, trial.said, known)["logits"] for key, trial in trials.items()}
    return max(gap(trial.said["logits"], ours[key]) for key, trial in trials.items() if "logits" in trial.said)


def _within(trial: Trial, kind: str) -> bool:
    budgets = segment_budgets(trial.probe, trial.said, kind, neighbours=1)
    return all(trial.errors[tap] <= budgets[tap] for tap in trial.said) and not trial.misshapen


def _abridged(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if names[3:] else "")
