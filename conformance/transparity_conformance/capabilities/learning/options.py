"""Options of `loss_and_gradients` that change the gradients: the auxiliary loss of routers, and dropout.

The auxiliary loss balances the load of experts, as `transformers` defines it for Mixtral. The loss of E experts is
E · Σ_e f_e · P_e. Here, f_e is the share of tokens that choose the expert e, and P_e is the mean probability of e. Both
f_e and P_e count the tokens of all layers, without masked padding. In the original loss (Fedus, Zoph and Shazeer, 2022,
equations 4 to 6), each token chooses one expert.

With dropout, the same seed must draw the same masks, also when activations are recomputed. The checker does not know a
port's masks, so it compares the port's runs with each other, and not with the reference.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from transparity.config.probe_sizes import most_experts
from transparity.taps import Tap
from transparity.text import describe_error
from transparity_conformance.capabilities.capability import Judged, compare_answers, kept_in, result
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.learning.loss import as_loss
from transparity_conformance.oracle.differentiation.derivatives import Derivatives, RouterLoss, of_routers, targets_of
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.comparison import SHARE, gap
from transparity_conformance.report.formatting import some
from transparity_conformance.report.report import CapabilityResult, Cause, not_compared
from transparity_numpy.arithmetic.functional import softmax
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.experts import highest
from transparity_numpy.masks import visible_keys
from transparity_numpy.training.loss import cross_entropy
from transparity_numpy.transformer import transformer

ROUTERS = "router_aux_loss_coef"

Layers = list[np.ndarray]
"""The logits (tokens, experts) of each layer's router."""

Rule = Callable[[Layers, int], np.ndarray]
"""A function that returns the auxiliary loss. The second argument is the number of experts that each token chooses."""


def load_balancing_loss(layers: Layers, count: int) -> np.ndarray:
    """Return E · Σ_e f_e · P_e, where the means f_e and P_e are over the tokens of all layers together."""
    probabilities = softmax(upcast(np.concatenate(layers)))
    often = highest(probabilities.real, count).mean(axis=0)
    return np.asarray((often * probabilities.mean(axis=0)).sum() * often.dtype.type(len(often)))


def no_loss(layers: Layers, count: int) -> np.ndarray:
    return np.zeros(())


def _by_layer(layers: Layers, count: int) -> np.ndarray:
    return np.array([load_balancing_loss([layer], count) for layer in layers])


ACCEPTED: tuple[Rule, ...] = (load_balancing_loss, lambda layers, count: load_balancing_loss(layers, count) / count)
"""The accepted losses: published code uses the loss with or without a division by the number of experts per token."""

_others: dict[str, Rule] = {
    "the auxiliary loss is missing": no_loss,
    "the auxiliary loss is the sum of one loss per layer": lambda layers, count: _by_layer(layers, count).sum(axis=0),
    "the auxiliary loss is the mean of one loss per layer": lambda layers, count: _by_layer(layers, count).mean(axis=0),
    "the auxiliary loss counts only each token's first expert": lambda layers, count: load_balancing_loss(layers, 1),
    "the auxiliary loss is not multiplied by the number of experts": lambda layers, count: (
        load_balancing_loss(layers, count) / layers[0].shape[-1]
    ),
}
OTHERS = [SimulatedFault("router-loss", says, rule) for says, rule in _others.items()]
"""Other auxiliary losses that a port may compute."""

WITHOUT_GRADIENTS = (SimulatedFault("router-loss", "the gradients do not contain the auxiliary loss", no_loss),)


def why_no_router_loss(probe: Probe, dtype: str) -> str:
    config = probe.config
    kinds = {own.num_experts for own in config.layer_kinds.values() if own.num_experts}
    if not most_experts(config):
        return "the model has no experts"
    if config.router_scores != "softmax":
        return f"no auxiliary loss is defined for routers with {config.router_scores} scores"
    return "" if len(kinds) <= 1 else "the layers have different numbers of experts"


@kept_in(0)
def router_loss(probe: Probe, rule: Rule) -> RouterLoss | None:
    """Return a function of the routers' logits that computes one batch's auxiliary loss; None if `rule` is `no_loss`.

    Padding tokens count unless a mask hides them from queries.
    """
    if rule is no_loss:
        return None
    config, mask = probe.config, probe.inputs.get("attention_mask")
    counted: dict[str, np.ndarray] = {}
    for stack, name in zip(config.stacks, config.input_names, strict=True):
        pad_id = config.pad_id if stack == "encoder" or config.decoder_mask == "causal-and-padding" else None
        counted[stack] = visible_keys(probe.inputs[name], pad_id, mask, config.positions_of(name))
        mask = None

    def loss(routers: Mapping[str, np.ndarray]) -> np.ndarray:
        layers = [value[counted[name.partition(".")[0]]] for name, value in routers.items()]
        return rule(layers, config.experts_per_token)

    return loss


@kept_in(0)
def _oracle(probe: Probe, rule: Rule) -> Oracle:
    def run(arrays: Arrays, tap: Tap) -> None:
        routers: dict[str, np.ndarray] = {}
        inputs: dict[str, Any] = dict(probe.inputs)
        logits = transformer(probe.config, arrays, **inputs, tap=of_routers(routers))
        targets = targets_of(probe.config, probe.inputs)
        further = router_loss(probe, rule)
        loss = cross_entropy(logits, targets, probe.config.pad_id)
        tap("loss", loss if further is None else loss + further(routers))

    return Oracle(run, probe.parameters, neighbours=2)


def judge_router_loss(probe: Probe, loss: np.ndarray | None, dtype: str) -> tuple[CapabilityResult, Rule]:
    """Judge the sum of the cross-entropy and the auxiliary loss. Also return the rule that the port seems to compute;
    `load_balancing_loss` if no rule fits."""
    claim = f"gradients.{ROUTERS}.loss"
    if loss is None:
        return CapabilityResult(), load_balancing_loss
    try:
        number = as_loss(loss)
    except TypeError as error:
        return not_compared(f"{claim}: raised {describe_error(error)}"), load_balancing_loss

    def judged(rule: Rule) -> Judged:
        oracle = _oracle(probe, rule)
        return Judged(gap(number, oracle.expected["loss"]), oracle.budget("loss", dtype), probe.name, probe=probe.name)

    right = next((rule for rule in ACCEPTED if not judged(rule).is_wrong), load_balancing_loss)
    found, explaining = compare_answers(
        claim, [probe], lambda _, fault: judged(fault.simulate if fault else right), OTHERS
    )
    return found, explaining[0].simulate if explaining else right


DROPOUT = "gradients.dropout"
FIRST, AGAIN, RECOMPUTED = "with dropout", "with dropout, again", "with dropout, recomputed"

RUNS = {FIRST: {"seed": 7}, AGAIN: {"seed": 7}, RECOMPUTED: {"seed": 7, "checkpointing": True}}
"""The keyword arguments of each run. With a seed, a port computes the gradients in training mode."""


def why_no_dropout(probe: Probe, dtype: str) -> str:
    return "" if probe.config.dropout else "the configuration has no dropout"


def judge_dropout(
    ours: Derivatives,
    runs: Mapping[str, Mapping[str, np.ndarray]],
    dtype: str,
    name: str,
    unknown: Collection[str] = (),
) -> CapabilityResult:
    """Compare derivatives of the runs along the directions of `ours`; leave out the parameters in `unknown`. Each run
    has rounding errors, so the tolerance of a difference is twice the tolerance of a gradient. The tolerance grows if
    the port's gradients are larger than the reference's gradients."""
    found = {run: ours.along(gradients) for run, gradients in runs.items()}
    expected = {each: value for each, value in ours.expected.items() if each not in unknown}
    if missing := [each for each in expected if any(each not in gradients for gradients in found.values())]:
        says = f"with a seed, the port returns no gradient of the parameter's shape for {some(missing)}"
        worst = Judged(np.inf, 0.0, missing[0], probe=name)
        return result(DROPOUT, worst, [Cause("gradient-missing", says)])

    def compared(each: str, other: Mapping[str, np.ndarray]) -> Judged:
        size = float(np.abs(found[FIRST][each]).max() / (np.abs(expected[each]).max() or np.inf))
        budget = 2 * max(1.0, size) * ours.budget(each, dtype)
        return Judged(gap(found[FIRST][each], other[each]), budget, each, probe=name)

    def off(other: Mapping[str, np.ndarray]) -> Judged:
        return max((compared(each, other) for each in expected), key=SHARE)

    if not off(expected).is_wrong:
        says = "with a seed, the gradients equal the gradients without dropout"
        return result(DROPOUT, Judged(np.inf, 0.0, name, probe=name), [Cause("dropout-inactive", says)])
    again, recomputed = off(found[AGAIN]), off(found[RECOMPUTED])
    says = "recomputation draws another dropout mask than the first forward pass"
    if again.is_wrong:
        says = "two runs with the same seed draw different dropout masks"
    return result(DROPOUT, max(again, recomputed, key=SHARE), [Cause("dropout-redrawn", says)])
