"""Find norms by value: the kind of norm, the parameters and the eps that turn one value into another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass
class Norms:
    vectors: Mapping[str, np.ndarray]
    used: set[str] = field(default_factory=set)
    are_biasless: bool = False
    """Whether a layer norm may lack a bias. A first search of stacks requires biases."""

    def having(self, used: set[str]) -> Norms:
        return Norms(self.vectors, set(used), self.are_biasless)

    def between(self, x: np.ndarray, made: np.ndarray) -> Norm | None:
        few = np.linspace(0, len(x) - 1, 4).astype(int)
        candidates = list(self._candidates())
        errors = self._errors(x[few], made[few], candidates)
        if not len(errors) or errors.min() > SAME:
            return self._batch(x, made)
        best = candidates[int(errors.argmin())]
        if self._errors(x, made, [best])[0] > SAME:
            return None
        return Norm(*best, x, _projected(*self._parts(x, made, [best]))[0, :, 0])

    def outputs(self, x: np.ndarray, values: Sequence[np.ndarray]) -> Iterator[tuple[Norm, np.ndarray]]:
        for made in values:
            if made is not x and (norm := self.between(x, made)):
                yield norm, made

    def _candidates(self) -> Iterator[Candidate]:
        names = [name for name in self.vectors if name not in self.used]
        pairs = [pair for two in itertools.pairwise(names) for pair in (two, two[::-1])]
        for gain in ("weight", "one-plus-weight"):
            for name in names:
                yield (name,), gain, "rms"
                if self.are_biasless:
                    yield (name,), gain, "centred"
            for pair in pairs:
                yield pair, gain, "centred"

    def _errors(self, x: np.ndarray, made: np.ndarray, candidates: Sequence[Candidate]) -> np.ndarray:
        """Return each candidate's `difference` from `made`, all at once for speed."""
        if not candidates:
            return np.empty(0)
        toward, left = self._parts(x, made, candidates)
        factors = _projected(toward, left)
        scale = np.maximum(np.abs(toward * factors).max((1, 2)), np.abs(left).max((1, 2)))
        errors = np.abs(toward * factors - left).max((1, 2)) / np.where(scale > 0, scale, 1)
        return np.where(np.isfinite(errors), errors, np.inf)

    def _parts(self, x: np.ndarray, made: np.ndarray, candidates: Sequence[Candidate]) -> tuple[np.ndarray, np.ndarray]:
        """Return centered input · gain, and result − bias, each (candidates, rows, width)."""
        gains = np.stack([self.vectors[names[0]] + (gain != "weight") for names, gain, _ in candidates])
        none = np.zeros(x.shape[1])
        biases = np.stack([self.vectors[names[1]] if len(names) > 1 else none for names, *_ in candidates])
        is_rms = np.array([kind == "rms" for *_, kind in candidates])
        centres = np.where(is_rms[:, None, None], x, x - x.mean(-1, keepdims=True))
        return centres * gains[:, None], made - biases[:, None]

    def _batch(self, x: np.ndarray, made: np.ndarray) -> Norm | None:
        """Return the batch norm that turns `x` into `made`; its parameters are neighbors in the state dict."""
        centre, target = x.mean(0), made.mean(0)
        squares = ((x - centre) ** 2).sum(0)
        slopes = ((x - centre) * (made - target)).sum(0) / np.where(squares > 0, squares, 1)
        if difference(slopes * (x - centre) + target, made) > SAME:  # not a linear function of each feature
            return None
        unused = [name for name in self.vectors if name not in self.used]
        own = [name for name in unused if RUNNING not in name]
        pairs = [(name, None) for name in own] if self.are_biasless else list(itertools.pairwise(own))
        running = list(itertools.pairwise(name for name in unused if RUNNING in name))
        for pair, statistics, gain in itertools.product(pairs, running, ("weight", "one-plus-weight")):
            weight, mean, variance = (self.vectors[name] for name in (pair[0], *statistics))
            bias = np.zeros_like(weight) if pair[1] is None else self.vectors[pair[1]]
            factors = slopes / (weight + (gain != "weight"))
            is_root = is_same(bias - slopes * mean, target - slopes * centre)
            # With wrong parameters, the resulting variance is below the running variance.
            if is_root and (factors**-2 > variance * (1 - SAME)).all():
                return Norm((*filter(None, pair), *statistics), gain, "batch", x, factors, variance)
        return None


def _projected(toward: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return the factors with which the rows of `toward` are nearest to the rows of `left`."""
    squares = (toward * toward).sum(-1, keepdims=True)
    return (toward * left).sum(-1, keepdims=True) / np.where(squares > 0, squares, 1)


def kind_and_eps(norms: Sequence[Norm]) -> tuple[str, float]:
    kinds = {"centred": ("layer", "layer-unbiased"), "rms": ("rms",), "batch": ("batch",)}[norms[0].kind]
    made = [(kind, _sizes(kind, norms)) for kind in kinds]
    fitted = [(kind, _eps(kind, *sizes), sizes) for kind, sizes in made]
    kind, eps, _ = min(fitted, key=lambda each: _misfit(each[0], each[1], *each[2]))
    return kind, eps


def eps_besides(norms: Mapping[str, Norm], kind: str, eps: float) -> dict[str, float]:
    """Return the eps of norms that the common eps does not explain."""
    own = {name: _eps(kind, *_sizes(kind, [norm]), (eps, *USUAL_EPS)) for name, norm in norms.items()}
    return {name: each for name, each in own.items() if each != eps}


def _expected(kind: str, eps: float, sizes: np.ndarray) -> np.ndarray:
    return sizes + eps if kind == "layer-unbiased" else np.sqrt(np.maximum(sizes + eps, 0))


def _sizes(kind: str, norms: Sequence[Norm]) -> tuple[np.ndarray, np.ndarray]:
    """Return the divisors 1 / r, and the expected divisors without eps, squared unless `layer-unbiased`."""
    divisors, sizes = [], []
    for norm in norms:
        plain, width = norm.variance, norm.x.shape[-1]
        if plain is None:
            centre = norm.x if kind == "rms" else norm.x - norm.x.mean(-1, keepdims=True)
            squares = (centre**2).sum(-1)
            plain = np.sqrt(squares / (width - 1)) if kind == "layer-unbiased" else squares / width
        is_finite = norm.factors > 0
        divisors.append(1 / norm.factors[is_finite])
        sizes.append(plain[is_finite])
    return np.concatenate(divisors), np.concatenate(sizes)


def _misfit(kind: str, eps: float, divisors: np.ndarray, sizes: np.ndarray) -> float:
    return float(np.sqrt(np.mean((_expected(kind, eps, sizes) / divisors - 1) ** 2)))


def _eps(kind: str, divisors: np.ndarray, sizes: np.ndarray, usual: Sequence[float] = USUAL_EPS) -> float:
    power = 1 if kind == "layer-unbiased" else 2
    weights = divisors**-power
    estimate = float(((divisors**power - sizes) * weights**2).sum() / (weights**2).sum())
    return settle(max(estimate, 0.0), lambda eps: _misfit(kind, eps, divisors, sizes), usual)
