"""Find norms by value: the kind of norm, the parameters and the eps that turn one value into another."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.identify.fitting.values.numbers import SAME, difference, is_same, settle

USUAL_EPS = (1e-5, 1e-6, 1e-12)


RUNNING = "running"

Candidate = tuple[tuple[str, ...], str, str]
"""The parameters' names, the gain's form and the kind of a possible norm."""


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm from x to its result, r · c · gain + bias, where c is x or x minus its mean."""

    names: tuple[str, ...]
    """The parameters' names: weight, bias, running mean, running variance."""
    gain: str
    kind: str
    """`rms`, `batch`, or `centred` for both `layer` and `layer-unbiased`, which `kind_and_eps` distinguishes."""
    x: np.ndarray
    factors: np.ndarray
    """The factor r of each row or, in a batch norm, of each feature."""
    variance: np.ndarray | None = None

    @property
    def leaves(self) -> dict[str, str]:
        last = len(self.names) - 2 * (self.kind == "batch")
        running = zip(("running_mean", "running_var"), self.names[last:], strict=False)
        return dict(zip(("weight", "bias"), self.names[:last], strict=False)) | dict(running)


@dataclass(frozen=True)
class Norms:
    vectors: Mapping[str, np.ndarray]
    are_biasless: bool = False
    """Whether the search tries layer norms without a bias; a first search requires biases."""

    def between(self, x: np.ndarray, made: np.ndarray, used: Collection[str] = ()) -> Norm | None:
        """Return the norm that turns `x` into `made`, with parameters that are not `used`."""
        free = [name for name in self.vectors if name not in used]
        few, candidates = np.linspace(0, len(x) - 1, 4).astype(int), list(self._candidates(free))
        errors = self._fitted(x[few], made[few], candidates)[0] if candidates else np.array([np.inf])
        if errors.min() > SAME:
            return self._batch(x, made, free)
        best = candidates[int(errors.argmin())]
        (error,), (factors,) = self._fitted(x, made, [best])
        return Norm(*best, x, factors[:, 0]) if error <= SAME else None

    def _candidates(self, free: Sequence[str]) -> Iterator[Candidate]:
        pairs = [pair for two in itertools.pairwise(free) for pair in (two, two[::-1])]
        for gain in ("weight", "one-plus-weight"):
            for name in free:
                yield (name,), gain, "rms"
                if self.are_biasless:
                    yield (name,), gain, "centred"
            for pair in pairs:
                yield pair, gain, "centred"

    def _fitted(
        self, x: np.ndarray, made: np.ndarray, candidates: Sequence[Candidate]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Fit all candidates at once: return each candidate's `difference` from `made`, and its factor for each row."""
        gains = np.stack([self.vectors[names[0]] + (gain != "weight") for names, gain, _ in candidates])
        none = np.zeros(x.shape[1])
        biases = np.stack([self.vectors[names[1]] if len(names) > 1 else none for names, *_ in candidates])
        is_rms = np.array([kind == "rms" for *_, kind in candidates])
        centres = np.where(is_rms[:, None, None], x, x - x.mean(-1, keepdims=True))
        toward, left = centres * gains[:, None], made - biases[:, None]
        squares = (toward * toward).sum(-1, keepdims=True)
        factors = (toward * left).sum(-1, keepdims=True) / np.where(squares > 0, squares, 1)
        scale = np.maximum(np.abs(toward * factors).max((1, 2)), np.abs(left).max((1, 2)))
        errors = np.abs(toward * factors - left).max((1, 2)) / np.where(scale > 0, scale, 1)
        return np.where(np.isfinite(errors), errors, np.inf), factors

    def _batch(self, x: np.ndarray, made: np.ndarray, free: Sequence[str]) -> Norm | None:
        """Return the batch norm that turns `x` into `made`; its parameters are neighbors in the state dict."""
        centre, target = x.mean(0), made.mean(0)
        squares = ((x - centre) ** 2).sum(0)
        slopes = ((x - centre) * (made - target)).sum(0) / np.where(squares > 0, squares, 1)
        if difference(slopes * (x - centre) + target, made) > SAME:  # not a linear function of each feature
            return None
        own = [name for name in free if RUNNING not in name]
        pairs = [(name, None) for name in own] if self.are_biasless else list(itertools.pairwise(own))
        running = list(itertools.pairwise(name for name in free if RUNNING in name))
        for pair, statistics, gain in itertools.product(pairs, running, ("weight", "one-plus-weight")):
            weight, mean, variance = (self.vectors[name] for name in (pair[0], *statistics))
            bias = np.zeros_like(weight) if pair[1] is None else self.vectors[pair[1]]
            factors = slopes / (weight + (gain != "weight"))
            is_root = is_same(bias - slopes * mean, target - slopes * centre)
            # With wrong parameters, the resulting variance is below the running variance.
            if is_root and (factors**-2 > variance * (1 - SAME)).all():
                return Norm((*filter(None, pair), *statistics), gain, "batch", x, factors, variance)
        return None


def kind_and_eps(norms: Sequence[Norm]) -> tuple[str, float]:
    kinds = {"centred": ("layer", "layer-unbiased"), "rms": ("rms",), "batch": ("batch",)}[norms[0].kind]
    fitted = {kind: _eps(kind, norms, USUAL_EPS) for kind in kinds}
    kind = min(fitted, key=lambda each: fitted[each][1])
    return kind, fitted[kind][0]


def eps_besides(norms: Mapping[str, Norm], kind: str, eps: float) -> dict[str, float]:
    """Return the eps of norms that the common eps does not explain."""
    own = {name: _eps(kind, [norm], (eps, *USUAL_EPS))[0] for name, norm in norms.items()}
    return {name: each for name, each in own.items() if each != eps}


def _eps(kind: str, norms: Sequence[Norm], usual: Sequence[float]) -> tuple[float, float]:
    """Return the eps that explains the divisors 1 / r, and the mean relative error of the divisors."""
    divisors, sizes, power = [], [], 1 if kind == "layer-unbiased" else 2
    for norm in norms:
        variance = norm.variance
        if variance is None:
            centre = norm.x if kind == "rms" else norm.x - norm.x.mean(-1, keepdims=True)
            variance = (centre**2).sum(-1) / (norm.x.shape[-1] - (kind == "layer-unbiased"))
        is_finite = norm.factors > 0
        divisors.append(1 / norm.factors[is_finite])
        sizes.append(variance[is_finite] ** (power / 2))
    divisor, size = np.concatenate(divisors), np.concatenate(sizes)
    weights = divisor ** (-2 * power)
    estimate = float(((divisor**power - size) * weights).sum() / weights.sum())

    def misfit(eps: float) -> float:
        return float(np.sqrt(np.mean((np.maximum(size + eps, 0) ** (1 / power) / divisor - 1) ** 2)))

    found = settle(max(estimate, 0.0), misfit, usual)
    return found, misfit(found)
