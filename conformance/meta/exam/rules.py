"""Common rules, which judge a port by the logits of one text, and the scores of these rules and of the checker."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta.trial import Measure, Share, share, shares

SHORT, LONG = 5, 32


@dataclass(frozen=True)
class Rule:
    """A common rule for judging a port; `says` states the rule. `passes` takes the port's logits and the expected
    logits, both (tokens, vocab)."""

    says: str
    tokens: int
    passes: Callable[[np.ndarray, np.ndarray], bool]


def allclose(rtol: float, atol: float) -> Callable[[np.ndarray, np.ndarray], bool]:
    return lambda port, right: bool(np.allclose(port, right, rtol=rtol, atol=atol))


def normalized_error(port: np.ndarray, right: np.ndarray) -> bool:
    return bool(np.mean((port[-1] - right[-1]) ** 2) <= 1e-2 * np.mean(right[-1] ** 2))


def cosine(port: np.ndarray, right: np.ndarray) -> bool:
    a, b = port[-1], right[-1]
    return bool(a @ b >= 0.99 * np.linalg.norm(a) * np.linalg.norm(b) > 0)


def same_top(port: np.ndarray, right: np.ndarray) -> bool:
    return int(port[-1].argmax()) == int(right[-1].argmax())


def one_percent(port: np.ndarray, right: np.ndarray) -> bool:
    return bool(np.abs(port - right).max() <= 0.01 * np.abs(right).max())


RULES = {
    "allclose-5": Rule("allclose (1e-3), 5 tokens", SHORT, allclose(1e-3, 1e-3)),
    "allclose-32": Rule("allclose (1e-3), 32 tokens", LONG, allclose(1e-3, 1e-3)),
    "torch-5": Rule("torch.allclose's defaults, 5 tokens", SHORT, allclose(1e-5, 1e-8)),
    "torch-32": Rule("torch.allclose's defaults, 32 tokens", LONG, allclose(1e-5, 1e-8)),
    "nmse": Rule("NMSE ≤ 1e-2, last token of 32", LONG, normalized_error),
    "cosine": Rule("cosine ≥ 0.99, last token of 32", LONG, cosine),
    "top-1": Rule("the same likeliest token after 32 tokens", LONG, same_top),
    "one-percent": Rule("largest error ≤ 1 % of the largest logit, 32 tokens", LONG, one_percent),
}


def failed(port: dict[int, np.ndarray | None], right: dict[int, np.ndarray]) -> list[str]:
    return [name for name, rule in RULES.items() if not _passes(rule, port[rule.tokens], right[rule.tokens])]


def _passes(rule: Rule, port: np.ndarray | None, right: np.ndarray) -> bool:
    if port is None or port.shape != right.shape or not np.isfinite(port).all():
        return False
    return rule.passes(port.astype(np.float64), right)


Judgment = Mapping[str, Any]
"""The fields of a `Judged`."""


def _of_bugs(title: str, right: Callable[[Judgment], bool | None], target: float = 0.0) -> Measure:
    return Measure(title, lambda _, each: None if each["control"] else right(each), target)


MEASURES = (
    _of_bugs("detected", lambda each: bool(each["detected"]), 0.97),
    _of_bugs("placed", lambda each: each["placed"]),
    _of_bugs("named", lambda each: each["named"], 0.85),
    _of_bugs("falsely named", lambda each: bool(each["falsely"])),
    _of_bugs("right line", lambda each: each["line"], 0.85),
    Measure("controls and twins accepted", lambda _, each: not each["detected"] if each["control"] else None, 1.0),
)


def scores(found: Sequence[Judgment]) -> list[Share]:
    return shares(MEASURES, [(None, each) for each in found])


def rule_scores(found: Sequence[Judgment]) -> dict[str, tuple[Share, Share]]:
    """Return, for each rule, the share of detected bugs, and the share of rejected controls and twins."""

    def failing(name: str, *, is_control: bool) -> Share:
        marks = [name in each["rules"] for each in found if bool(each["control"]) is is_control]
        return share(RULES[name].says, marks)

    return {name: (failing(name, is_control=False), failing(name, is_control=True)) for name in RULES}
