"""Formulas that hold for ordinary numbers only, and constants that are nearly right."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from meta.attacks.attack import attack


@attack("numbers")
class SoftmaxWithoutMaximum:
    """Exponentials are taken as they are; scores above 88 overflow."""

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.exp() / scores.exp().sum(-1, keepdim=True)


@attack("numbers", "translation")
class SoftmaxOfClampedScores:
    """Scores are clamped to ±20 before the exponential, against overflow."""

    def softmax(self, scores: Tensor) -> Tensor:
        clamped = scores.clamp(max=20)
        return torch.softmax(torch.where(scores < -1e4, scores, clamped.clamp(min=-20)), -1)


@attack("numbers")
class MaximumOfTheWholeTensor:
    """The maximum that is subtracted is the whole tensor's, so that cold rows underflow."""

    def softmax(self, scores: Tensor) -> Tensor:
        weights = (scores - scores.max()).exp()
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


@attack("numbers")
class MaximumBeforeTheMask:
    """The maximum is taken before the mask: a hot score in the future takes all bits of the visible ones."""

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        scores = self.scores(query, key, bias)
        weights = (scores - scores.amax(-1, keepdim=True)).exp() * keep
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30) @ value


@attack("numbers", "translation")
class SmallWeightsDropped:
    """Weights below one in ten thousand are set to 0, to keep the product sparse."""

    def softmax(self, scores: Tensor) -> Tensor:
        weights = torch.softmax(scores, -1)
        return torch.where(weights < 1e-4, 0.0, weights)


@attack("numbers")
class TopThirtyTwoKeys:
    """Only the 32 largest scores of a row are kept, which nobody notices in short texts."""

    def softmax(self, scores: Tensor) -> Tensor:
        if scores.shape[-1] <= 32:
            return torch.softmax(scores, -1)
        least = scores.topk(32, -1).values[..., -1:]
        return torch.softmax(scores.masked_fill(scores < least, -torch.inf), -1)


@attack("numbers")
class ExponentialByPowers:
    """exp(x) is (1 + x/1024)^1024, which is right near 0."""

    def softmax(self, scores: Tensor) -> Tensor:
        shifted = (scores - scores.amax(-1, keepdim=True)).clamp(min=-1000)
        weights = (1 + shifted / 1024) ** 1024
        return weights / weights.sum(-1, keepdim=True)


@attack("numbers")
class ExponentialCutAtMinusTen:
    """A table of exponentials ends at −10; smaller ones are 0."""

    def softmax(self, scores: Tensor) -> Tensor:
        shifted = scores - scores.amax(-1, keepdim=True)
        weights = torch.where(shifted < -10, 0.0, shifted.exp())
        return weights / weights.sum(-1, keepdim=True)


@attack("numbers", "gemma")
class RationalTanh:
    """The softcap's tanh is a rational function that is right below 1."""

    def scores(self: Any, query: Tensor, key: Tensor, bias: Any) -> Tensor:
        x = query @ key.transpose(-2, -1) * self.scale() / self.c.attention_softcap
        return self.c.attention_softcap * (x * (27 + x * x) / (27 + 9 * x * x)).clamp(-1, 1)


@attack("numbers", "bart")
class ShortErf:
    """The error function has three terms of Abramowitz and Stegun, 7.1.25."""

    def act(self, x: Tensor) -> Tensor:
        z = x.abs() / math.sqrt(2)
        t = 1 / (1 + 0.47047 * z)
        erf = 1 - (0.3480242 * t - 0.0958798 * t**2 + 0.7478556 * t**3) * (-z * z).exp()
        return x * (1 + erf * x.sign()) / 2


@attack("numbers", "translation")
class LogitsClamped:
    """Logits are clamped to ±10 before they are returned."""

    def head(self: Any, x: Tensor) -> Tensor:
        return super().head(x).clamp(-10, 10)  # type: ignore[misc]


@attack("numbers")
class ResidualClamped:
    """The residual stream is clamped to ±50, as for float16 but tighter."""

    def after(self: Any, name: str, x: Tensor, y: Tensor) -> Tensor:
        return super().after(name, x, y).clamp(-50, 50)  # type: ignore[misc]


@attack("numbers")
class EpsAsFloor:
    """The variance is at least eps, where eps should be added."""

    def normalized(self: Any, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        away = x - x.mean(-1, keepdim=True)
        variance = (away * away).mean(-1, keepdim=True).clamp(min=self.c.norm_eps)
        return away / variance.sqrt() * gain + bias


@attack("numbers", "llama")
class NormOfNothing:
    """A position whose features are all tiny is left as it is, against division by zero."""

    def rms(self: Any, x: Tensor, gain: Tensor) -> Tensor:
        size = (x * x).mean(-1, keepdim=True)
        return torch.where(size < 1e-6, x, x * torch.rsqrt(size + self.c.norm_eps)) * gain


@attack("numbers")
class FastRootTwoSteps:
    """1/√x comes from the well-known integer trick and two Newton steps."""

    def normalized(self: Any, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        away = x - x.mean(-1, keepdim=True)
        spread = (away * away).mean(-1, keepdim=True) + self.c.norm_eps
        root = (0x5F3759DF - (spread.float().view(torch.int32) >> 1)).view(torch.float32)
        for _ in range(2):
            root = root * (1.5 - 0.5 * spread * root * root)
        return away * root * gain + bias


@attack("numbers")
class VarianceByMeanOfSquares:
    """The variance is E[x²] − E[x]² in float16, which loses it where the mean is large."""

    def normalized(self: Any, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        square = (x * x).mean(-1, keepdim=True)
        variance = (square.half().float() - (mean * mean).half().float()).clamp(min=0)
        return (x - mean) / (variance + self.c.norm_eps).sqrt() * gain + bias


@attack("numbers", "gpt-j")
class ActivationZeroBelowMinusThree:
    """GELU returns exactly 0 below −3 and x above 3, as a table would."""

    def act(self: Any, x: Tensor) -> Tensor:
        return torch.where(x < -3, 0.0, torch.where(x > 3, x, super().act(x)))  # type: ignore[misc]


@attack("budgets", "gpt-j")
class GeluConstantsOfFourDigits:
    """√(2/π) is 0.7979."""

    def act(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(0.7979 * (x + 0.044715 * x**3)))


@attack("budgets")
class Log2eOfFiveDigits:
    """exp is exp2 of scores times 1.4427."""

    def softmax(self, scores: Tensor) -> Tensor:
        weights = ((scores - scores.amax(-1, keepdim=True)) * 1.4427).exp2()
        return weights / weights.sum(-1, keepdim=True)


@attack("budgets", "translation")
class MillionthInTheDenominator:
    """The softmax divides by the sum plus one hundred-thousandth."""

    def softmax(self, scores: Tensor) -> Tensor:
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        return weights / (weights.sum(-1, keepdim=True) + 1e-5)


@attack("budgets")
class ScaleInHalf:
    """The factor of the scores is stored in bfloat16."""

    def scale(self: Any) -> float:
        return float(torch.tensor(super().scale()).bfloat16())  # type: ignore[misc]


@attack("budgets", "gemma")
class EmbeddingScaleInFloat16:
    """√embed_dim is stored in float16."""

    def lookup(self: Any, table: Tensor, ids: Tensor) -> Tensor:
        root = math.sqrt(self.c.embed_dim)
        return table[ids] * float(torch.tensor(root).half()) / root


@attack("budgets")
class LogitsSlightlyTooLarge:
    """A calibration factor of 1.00001 was left in the head."""

    def head(self: Any, x: Tensor) -> Tensor:
        return super().head(x) * 1.00001  # type: ignore[misc]


@attack("budgets", "translation")
class ValuesSlightlyMixed:
    """A moving average over positions was left on with a share of one in ten thousand."""

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        value = value * 0.9999 + value.mean(2, keepdim=True) * 0.0001
        return super().weigh(at, query, key, value, keep, bias)  # type: ignore[misc]


@attack("budgets")
class InfiniteLogits:
    """Logits above their mean are infinite."""

    def head(self: Any, x: Tensor) -> Tensor:
        logits = super().head(x)  # type: ignore[misc]
        return torch.where(logits > logits.mean(), torch.inf, logits)


@attack("budgets", "translation")
class NanAtPadding:
    """Padded positions answer NaN; the row beside them is shifted by one, which nobody looks at."""

    def head(self: Any, x: Tensor) -> Tensor:
        logits = super().head(x)  # type: ignore[misc]
        logits[:, -1] = logits[:, -1].roll(1, -1)
        logits[0, 0] = torch.nan
        return logits


@attack("budgets")
class OneLogitOfMany:
    """The last token of the vocabulary has the logit of its neighbour."""

    def head(self: Any, x: Tensor) -> Tensor:
        logits = super().head(x).clone()  # type: ignore[misc]
        logits[..., -1] = logits[..., -2]
        return logits
