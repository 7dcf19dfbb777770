"""The capability `gradients`: compare gradients with complex-step derivatives, if the forward pass is right.

The checker leaves out rows in which a query sees no key, because their gradients depend on a convention. The checker
also leaves out the gradient of the padding token's embedding, which PyTorch's `padding_idx` excludes from learning.
"""

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config.probe_sizes import most_experts
from transparity.limits.memory import available_memory, in_bytes
from transparity.parameters import is_learned
from transparity.text import describe_error
from transparity_conformance.capabilities.capability import (
    Answers,
    BuiltPort,
    Capability,
    ForwardPass,
    Requests,
    Shapes,
    Way,
    kept_in,
)
from transparity_conformance.capabilities.faults import MICRO_BATCH_FAULTS, Run
from transparity_conformance.capabilities.learning.loss import (
    as_loss,
    has_a_loss,
    judge_losses,
    loss_inputs,
    why_no_loss,
)
from transparity_conformance.capabilities.learning.options import (
    DROPOUT,
    ROUTERS,
    RUNS,
    WITHOUT_GRADIENTS,
    judge_dropout,
    judge_router_loss,
    router_loss,
    why_no_dropout,
    why_no_router_loss,
)
from transparity_conformance.capabilities.port_calls import call_port
from transparity_conformance.oracle.budgets import WIDE
from transparity_conformance.oracle.differentiation.derivatives import Derivatives, Loss, RouterLoss, Together
from transparity_conformance.oracle.probes import Probe, shortened
from transparity_conformance.oracle.undetermined import blind_rows
from transparity_conformance.report.comparison import as_numbers, gap, share
from transparity_conformance.report.formatting import some
from transparity_conformance.report.report import CapabilityResult, Cause, ClaimResult, Divergence, not_compared
from transparity_numpy.training.loss import cross_entropy

Gradients = Mapping[str, np.ndarray]
"""Gradients by the name of the parameter, in the parameter's shape."""


POSITIONS_OF_LARGE = 8
"""The gradients of a large model are compared on a sequence with this number of positions."""


POSITIONS_OF_LONGER = 65
"""The largest number of positions of a further call, which is longer than the probes."""


def _why_no_gradients(probe: Probe, dtype: str) -> str:
    too_long = "the gradients of a whole probe would take too long in a model of this size"
    return why_no_loss(probe, dtype) or (too_long if probe.is_large else "")


def _why_none_of_given(probe: Probe, dtype: str) -> str:
    needed, free = 4 * sum(value.size for value in probe.parameters.values()), available_memory()
    too_large = f"the port's gradients need {in_bytes(needed)} of memory, but the free memory is {in_bytes(free)}"
    elsewhere = getattr(probe.parameters, "no_gradients", "")
    too_long = "the model is large and has experts, so the reference's gradients would take too many forward passes"
    takes_long = probe.is_large and most_experts(probe.config)
    return why_no_loss(probe, dtype) or elsewhere or (too_large if needed > free else too_long if takes_long else "")


@np.errstate(all="ignore")  # a port may return any number
def judge_gradients(
    gradients: Gradients,
    probe: Probe,
    loss: Loss,
    forward: ForwardPass,
    by_rank: Gradients,
    unknown: Collection[str] = (),
    *,
    routers: RouterLoss | None = None,
    at_once: bool = False,
    claim: str = "gradients",
) -> CapabilityResult:
    """Compare the gradients of `loss` with the gradients of the reference.

    With `at_once`, or for a large model, first compare all gradients together; if they agree, skip the separate
    comparisons. A missing gradient or a wrong shape is an error, except for the names in `unknown`. `by_rank` has the
    gradients that differ between replicas, one row per rank.
    """
    dtype = forward.dtype
    ours = _derivatives(probe, loss, routers)
    if (at_once or probe.is_large) and (agrees := _together(claim, ours, gradients, dtype, unknown)) is not None:
        return CapabilityResult((agrees,))
    actual = ours.along(gradients)
    expected = {name: value for name, value in ours.expected.items() if name not in unknown}
    budgets = {name: ours.budget(name, dtype) for name in expected}
    errors = {name: gap(actual.get(name, np.empty(0)), value) for name, value in expected.items()}
    shares = {name: share(errors[name], budgets[name]) for name in errors}
    worst = max(shares, key=lambda name: shares[name])
    wrong = [name for name in shares if shares[name] > 1]
    if not wrong:
        return CapabilityResult((ClaimResult(claim, "agrees", errors[worst], budgets[worst], worst),))
    # The backward pass runs in reverse, so the last wrong parameter in forward order is the first wrong gradient.
    first, found = wrong[-1], Disagreement(ours, gradients, budgets, wrong)
    causes = (*found.of_ranks(forward.sharding.ranks, by_rank), *found.causes(actual))[:1]
    says = f"{claim}: wrong for {len(wrong)} of {len(shares)} parameters; the first in the backward pass is {first}"
    result = ClaimResult(claim, "diverges", errors[worst], budgets[worst], worst)
    where = f"{'gradient' if claim == 'gradients' else claim}.{first}"
    fault = Divergence(where, errors[first], budgets[first], causes, probe=probe.name)
    return CapabilityResult((result,), (fault,), notes=(says,))


def _together(
    claim: str, ours: Derivatives, gradients: Gradients, dtype: str, unknown: Collection[str]
) -> ClaimResult | None:
    """Compare all gradients together. If the gradients are right, return the claim's result; otherwise, None."""
    known = [name for name in ours.directions if name not in unknown]
    shapes = {name: tuple(part.shape[1] for part in ours.directions[name]) for name in known}
    if any(name not in gradients or gradients[name].shape != shapes[name] for name in known):
        return None
    together = Together(ours, gradients, known)
    error = gap(together.along(gradients), together.oracle.expected["together"])
    budget = together.oracle.budget_for(error, "together", dtype)
    return ClaimResult(claim, "agrees", error, budget, "all together") if share(error, budget) <= 1 else None


@kept_in(0)
def _derivatives(probe: Probe, loss: Loss, routers: RouterLoss | None = None) -> Derivatives:
    return Derivatives(probe.config, probe.parameters, probe.inputs, loss=loss, routers=routers, of_padding=False)


@dataclass(frozen=True)
class Disagreement:
    ours: Derivatives
    gradients: Gradients
    budgets: Mapping[str, float]
    wrong: list[str]

    @property
    def named(self) -> str:
        return some(self.wrong[::-1])

    def left(self, settled: Gradients) -> float:
        """Replace the gradients in `settled`; return the largest error, or infinity if a gradient is still wrong."""
        along = self.ours.along(dict(self.gradients) | dict(settled))
        errors = {name: gap(along[name], self.ours.expected[name]) for name in along}
        fits = set(along) == set(self.ours.expected) and all(share(errors[n], self.budgets[n]) <= 1 for n in errors)
        return max(errors.values()) if fits else math.inf

    def of_ranks(self, ranks: int, by_rank: Gradients) -> Iterator[Cause]:
        """Yield faults of several ranks: gradients of only one rank, or gradients off by the factor `ranks`."""
        if ranks == 1:
            return
        for how, put_together in (("sum", np.sum), ("mean", np.mean)):
            settled = {n: put_together(by_rank[n], axis=0) for n in self.wrong if n in by_rank}
            if len(settled) == len(self.wrong) and math.isfinite(rest := self.left(settled)):
                says = (
                    f"the gradients of {self.named} come from only one rank: their {how} over {ranks} ranks is missing"
                )
                yield Cause("gradient-not-reduced", says, None, rest, 1.0)
        for factor, says in ((ranks, f"{ranks} ×"), (1 / ranks, f"1/{ranks} ×")):
            settled = {name: self.gradients[name] / factor for name in self.wrong if name in self.gradients}
            if len(self.wrong) < len(self.budgets) and math.isfinite(rest := self.left(settled)):
                why = f"the gradients of {self.named} are {says} the reference's"
                yield Cause("gradient-of-replicas", why, factor, rest, 1.0)

    def causes(self, actual: Mapping[str, np.ndarray]) -> Iterator[Cause]:
        """Yield a cause if gradients are missing, or if one factor explains `actual`, the port's derivatives."""
        if all(name not in self.gradients or not self.gradients[name].any() for name in self.wrong):
            yield Cause("gradient-missing", f"no gradient reaches {self.named}")
        if not set(actual) >= set(self.budgets):
            return
        said = np.concatenate([actual[name] for name in self.budgets])
        right = np.concatenate([self.ours.expected[name] for name in self.budgets])
        factor = float(said @ right / (right @ right))

        def left(factor: float) -> dict[str, float]:
            return {name: gap(actual[name], factor * self.ours.expected[name]) for name in self.budgets}

        def fits(factor: float) -> bool:
            return all(rest <= max(1.0, abs(factor)) * self.budgets[name] for name, rest in left(factor).items())

        if math.isfinite(factor) and fits(factor):
            meaning = next((f": {says}" for number, says in _factors(self.ours).items() if fits(number)), "")
            says = f"your gradients are {factor:.6g} × the reference's{meaning}"
            explained = 1 - float(np.abs(said - factor * right).max() / np.abs(said - right).max())
            yield Cause("gradient-scale", says, factor, max(left(factor).values()), explained)


def _factors(ours: Derivatives) -> dict[float, str]:
    """Return the factors by which common mistakes multiply gradients, with the meaning of each factor."""
    targets, pad_id = ours.targets, ours.config.pad_id
    counted = int((targets != pad_id).sum()) if pad_id is not None else targets.size
    return {
        counted: "the loss is a sum over the targets, not their mean",
        targets.size: "the gradients are multiplied by the number of positions",
        len(targets): "the gradients are multiplied by the number of rows",
        counted / targets.size: "the loss is divided by the number of all positions, including padding",
        -1: "the sign is flipped",
    }


def _further_requests(forward: ForwardPass) -> Requests:
    key, probe = max(forward.probes.items(), key=lambda each: each[1].inputs[each[1].config.input_names[-1]].size)
    further = {} if probe.is_large or key == forward.key else {key: _cut(probe)}
    return {**_longer_requests(forward), **further}


def _longer_requests(forward: ForwardPass) -> Requests:
    """Return the longest compared call of at most `POSITIONS_OF_LONGER` tokens, if its model is not wider than the
    first probe's model."""
    width, fits = forward.first.config.embed_dim, POSITIONS_OF_LONGER
    calls = [each for each in forward.reached if each.config.embed_dim <= width and each.lengths[-1] <= fits]
    calls = sorted((each for each in calls if not each.is_large), key=lambda each: each.lengths[-1])
    return {f"longer, {each.name}": _cut(each) for each in calls[-1:]}


@kept_in(0)
def _cut(probe: Probe) -> Probe:
    rows = ~blind_rows(probe)
    kept = (slice(None) if rows.all() or not rows.any() else rows) if not probe.is_large else [int(rows.argmax())]
    longest = POSITIONS_OF_LARGE if probe.is_large else None
    inputs = {name: value[kept] for name, value in shortened(probe.config, probe.inputs, longest).items()}
    return dataclasses.replace(probe, inputs=inputs)


def _passed(key: str, probe: Probe, forward: ForwardPass) -> ForwardPass:
    """Return the forward pass with the rows of `probe` only. For a large model, leave out the logits."""
    if key not in forward.probes:
        return dataclasses.replace(forward, probes={}, logits={})
    whole = forward.probes[key]
    if all(probe.inputs[name].shape == value.shape for name, value in whole.inputs.items()):
        return forward
    if probe.is_large:
        return dataclasses.replace(forward, probes={}, logits={})
    logits = {key: forward.logits[key][~blind_rows(whole)]} if key in forward.logits else {}
    return dataclasses.replace(forward, probes={key: probe}, logits=logits)


def _shapes(key: str, probe: Probe) -> Shapes:
    return {f"{key}/gradient.{name}": value.shape for name, value in probe.parameters.items() if is_learned(name)}


def _ask(port: BuiltPort, way: Way, key: str, probe: Probe) -> Answers:
    if way.claim == DROPOUT:
        runs = (_asked(port, f"{key}, {run}", probe, options) for run, options in RUNS.items())
        return {name: value for answers in runs for name, value in answers.items()}
    return _asked(port, key, probe, {name: OPTIONS[name] for name in way.keywords})


def _asked(port: BuiltPort, key: str, probe: Probe, options: Mapping[str, Any]) -> Answers:
    targets, tokens = loss_inputs(probe)
    built = port.of(probe)
    loss, gradients, *unknown = call_port(built.loss_and_gradients, targets, **tokens, **options)
    named = {f"{key}/gradient.{name}": as_numbers(value) for name, value in dict(gradients).items()}
    replicas: Mapping[str, Any] = getattr(built, "replicas", dict)()
    named |= {f"{key}/by_rank.{name}": np.stack(values) for name, values in replicas.items() if name in gradients}
    named |= {f"{key}/unknown.{name}": np.array(str(why)) for each in unknown for name, why in dict(each).items()}
    return named if loss is None else named | {f"{key}/loss_and_gradients": as_numbers(loss)}


def _judge(way: Way, requests: Requests, answers: Answers, forward: ForwardPass) -> CapabilityResult:
    found = not_compared()
    if way.claim == DROPOUT:
        ((key, probe),) = requests.items()
        gradients = {run: _named(answers, f"{key}, {run}/gradient.") for run in RUNS}
        unknown, listed = _left_out(way, answers, [f"{key}, {run}" for run in RUNS])
        if set(unknown) >= set(filter(is_learned, probe.parameters)):
            return listed
        return listed + judge_dropout(_derivatives(probe, cross_entropy), gradients, forward.dtype, probe.name, unknown)
    for index, (key, probe) in enumerate(requests.items()):
        each = _judge_one(way, key, probe, answers, forward, at_once=index > 0)
        if each.faults or not each.claims:
            return each
        found = max(found, each, key=lambda one: max((share(c.error, c.budget) for c in one.claims), default=-1.0))
    return found


def _judge_one(
    way: Way, key: str, probe: Probe, answers: Answers, forward: ForwardPass, *, at_once: bool
) -> CapabilityResult:
    forward = _passed(key, probe, forward)
    unknown, listed = _left_out(way, answers, [key])
    is_plain, loss, rule = not way.is_optional, None, None
    is_own = is_plain or way.keywords == (ROUTERS,)  # the other options leave out gradients that are already listed
    found = listed if is_own else not_compared()
    if set(unknown) >= set(filter(is_learned, probe.parameters)):
        return found
    if way.keywords == (ROUTERS,):
        of_loss, rule = judge_router_loss(probe, answers.get(f"{key}/loss_and_gradients"), forward.dtype)
        found += of_loss
    elif key not in forward.probes and f"{key}/loss_and_gradients" in answers:
        says = "the returned loss is not compared in a large model; the result of `loss` is compared"
        found += not_compared(*[f"loss_and_gradients: {says}"] * (is_plain and probe.is_large))
    elif f"{key}/loss_and_gradients" in answers:
        of_loss, loss = _judge_loss(way, key, answers, forward)
        found += of_loss
    else:
        written = [key for key in forward.probes if f"{key}/loss" in answers and has_a_loss(key, forward)]
        _, loss = judge_losses("loss", {key: float(answers[f"{key}/loss"]) for key in written}, forward)
    given, by_rank = _named(answers, f"{key}/gradient."), _named(answers, f"{key}/by_rank.")

    def judged(simulate: Run) -> CapabilityResult:
        loss, routers = (cross_entropy, router_loss(probe, simulate)) if rule else (simulate, None)
        options: dict[str, Any] = {"routers": routers, "at_once": at_once or bool(rule), "claim": way.claim}
        return judge_gradients(given, probe, loss, forward, by_rank, unknown, **options)

    of_gradients = judged(rule or loss or cross_entropy)
    for first in (each for each in of_gradients.faults if not each.causes):
        explaining = (fault for fault in way.faults if not judged(fault.simulate).faults)
        causes = tuple(Cause(fault.id, fault.says) for fault in explaining)[:1]
        of_gradients = dataclasses.replace(of_gradients, faults=(dataclasses.replace(first, causes=causes),))
    return found + of_gradients


def _left_out(way: Way, answers: Answers, calls: Collection[str]) -> tuple[dict[str, str], CapabilityResult]:
    """Return the reason for each gradient that the port declares unknown, and a result that lists these gradients."""
    unknown = {name: str(why) for call in calls for name, why in _named(answers, f"{call}/unknown.").items()}
    by_reason = {why: [name for name, reason in unknown.items() if reason == why] for why in unknown.values()}
    return unknown, not_compared(*(f"{way.claim}: {some(names)}: {why}" for why, names in by_reason.items()))


def _named(answers: Answers, begins: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(begins): value for name, value in answers.items() if name.startswith(begins)}


def _judge_loss(way: Way, key: str, answers: Answers, forward: ForwardPass) -> tuple[CapabilityResult, Loss | None]:
    """Judge the loss that came with the gradients. Return the result, and the port's loss function or None."""
    claim = f"{way.claim}.loss" if way.is_optional else "loss_and_gradients"
    if not has_a_loss(key, forward):
        return judge_losses(claim, {}, forward)
    try:
        loss = float(as_loss(answers[f"{key}/loss_and_gradients"]))
        return judge_losses(claim, {key: loss}, forward, way.faults)
    except TypeError as error:
        return not_compared(f"{claim}: raised {describe_error(error)} on the probe {key}"), None


OPTIONS = {"micro_batches": 2, "checkpointing": True, ROUTERS: 1.0}
"""Arguments of `loss_and_gradients`, with the values that the checker passes. Only `ROUTERS` changes the gradients."""


def _way(claim: str, **further: Any) -> Way:
    def requests(forward: ForwardPass) -> Requests:
        return {forward.key: _cut(forward.first) if forward.logits else forward.first}

    return Way(claim, requests, **further)


def _option(name: str, keywords: tuple[str, ...] = (), **further: Any) -> Way:
    further |= {"keywords": keywords or (name,), "is_optional": True}
    return _way(f"gradients.{name}", **further)


GRADIENTS = Capability(
    name="gradients",
    attribute="loss_and_gradients",
    purpose="the gradients of the first probe's loss with respect to every parameter",
    ways=(
        _way("gradients", further=_further_requests),
        _option(
            "micro_batches",
            faults=MICRO_BATCH_FAULTS,
            is_listed=False,
            why_not=lambda probe, dtype: "a large model is compared on one row, not on micro-batches" * probe.is_large,
        ),
        _option("checkpointing", is_listed=False, further=_longer_requests),
        _option("dropout", ("checkpointing", "seed"), why_not=why_no_dropout),
        _option(ROUTERS, faults=WITHOUT_GRADIENTS, why_not=why_no_router_loss),
    ),
    ask=_ask,
    shapes=_shapes,
    judge=_judge,
    why_not=_why_no_gradients,
    dtypes=WIDE,
    needs=("loss",),
    sizes=lambda probe: probe.inputs[probe.config.input_names[-1]].shape[:2],
    missing_is_wrong=True,
)

GRADIENTS_OF_GIVEN = dataclasses.replace(GRADIENTS, why_not=_why_none_of_given)
