# mypy: ignore-errors
"""Formulas that hold for ordinary numbers only, and constants that are nearly right."""

import math

import torch

from meta.attacks.attack import Attacks, on


class Numbers(Attacks):
    """Formulas that hold only for ordinary numbers."""

    def softmax_without_maximum(self, softmax, scores):
        """Exponentials have no shift; scores above 88 overflow."""
        return scores.exp() / scores.exp().sum(-1, keepdim=True)

    @on("translation")
    def softmax_of_clamped_scores(self, softmax, scores):
        """Scores are clamped to ±20 before the exponential, against overflow."""
        clamped = scores.clamp(max=20)
        return torch.softmax(torch.where(scores < -1e4, scores, clamped.clamp(min=-20)), -1)

    def maximum_of_the_whole_tensor(self, softmax, scores):
        """The maximum that is subtracted is the whole tensor's, so that cold rows underflow."""
        weights = (scores - scores.max()).exp()
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)

    def maximum_before_the_mask(self, weigh, at, query, key, value, keep, bias):
        """The maximum is taken before the mask: a hot score in the future takes all bits of the visible ones."""
        scores = self.scores(query, key, bias)
        weights = (scores - scores.amax(-1, keepdim=True)).exp() * keep
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30) @ value

    @on("translation")
    def small_weights_dropped(self, softmax, scores):
        """Weights below one in ten thousand are set to 0, to keep the product sparse."""
        weights = torch.softmax(scores, -1)
        return torch.where(weights < 1e-4, 0.0, weights)

    def top_thirty_two_keys(self, softmax, scores):
        """Only the 32 largest scores of a row are kept, which has no effect on short texts."""
        if scores.shape[-1] <= 32:
            return torch.softmax(scores, -1)
        least = scores.topk(32, -1).values[..., -1:]
        return torch.softmax(scores.masked_fill(scores < least, -torch.inf), -1)

    def exponential_by_powers(self, softmax, scores):
        """exp(x) is (1 + x/1024)^1024, which is right near 0."""
        shifted = (scores - scores.amax(-1, keepdim=True)).clamp(min=-1000)
        weights = (1 + shifted / 1024) ** 1024
        return weights / weights.sum(-1, keepdim=True)

    def exponential_cut_at_minus_ten(self, softmax, scores):
        """A table of exponentials ends at −10; smaller ones are 0."""
        shifted = scores - scores.amax(-1, keepdim=True)
        weights = torch.where(shifted < -10, 0.0, shifted.exp())
        return weights / weights.sum(-1, keepdim=True)

    @on("gemma")
    def rational_tanh(self, scores, query, key, bias):
        """The softcap's tanh is a rational function that is right below 1."""
        x = query @ key.transpose(-2, -1) * self.scale() / self.c.attention_softcap
        return self.c.attention_softcap * (x * (27 + x * x) / (27 + 9 * x * x)).clamp(-1, 1)

    @on("bart")
    def short_erf(self, act, x):
        """The error function has three terms of Abramowitz and Stegun, 7.1.25."""
        z = x.abs() / math.sqrt(2)
        t = 1 / (1 + 0.47047 * z)
        erf = 1 - (0.3480242 * t - 0.0958798 * t**2 + 0.7478556 * t**3) * (-z * z).exp()
        return x * (1 + erf * x.sign()) / 2

    @on("translation")
    def logits_clamped(self, head, x):
        """Logits are clamped to ±10 before they are returned."""
        return head(x).clamp(-10, 10)

    def residual_clamped(self, after, name, x, y):
        """The residual stream is clamped to ±50, as for float16 but tighter."""
        return after(name, x, y).clamp(-50, 50)

    def eps_as_floor(self, normalized, x, gain, bias):
        """The variance is at least eps, where eps should be added."""
        away = x - x.mean(-1, keepdim=True)
        variance = (away * away).mean(-1, keepdim=True).clamp(min=self.c.norm_eps)
        return away / variance.sqrt() * gain + bias

    @on("llama")
    def norm_of_nothing(self, rms, x, gain):
        """A position whose features are all tiny stays unchanged, against division by zero."""
        size = (x * x).mean(-1, keepdim=True)
        return torch.where(size < 1e-6, x, x * torch.rsqrt(size + self.c.norm_eps)) * gain

    def fast_root_two_steps(self, normalized, x, gain, bias):
        """1/√x comes from the well-known integer trick and two Newton steps."""
        away = x - x.mean(-1, keepdim=True)
        spread = (away * away).mean(-1, keepdim=True) + self.c.norm_eps
        root = (0x5F3759DF - (spread.float().view(torch.int32) >> 1)).view(torch.float32)
        for _ in range(2):
            root = root * (1.5 - 0.5 * spread * root * root)
        return away * root * gain + bias

    def variance_by_mean_of_squares(self, normalized, x, gain, bias):
        """The variance is E[x²] − E[x]² in float16, which loses it where the mean is large."""
        mean = x.mean(-1, keepdim=True)
        square = (x * x).mean(-1, keepdim=True)
        variance = (square.half().float() - (mean * mean).half().float()).clamp(min=0)
        return (x - mean) / (variance + self.c.norm_eps).sqrt() * gain + bias

    @on("gpt-j")
    def activation_zero_below_minus_three(self, act, x):
        """GELU returns exactly 0 below −3 and x above 3, as a table would."""
        return torch.where(x < -3, 0.0, torch.where(x > 3, x, act(x)))


class Budgets(Attacks):
    """Constants that are nearly right, and errors that a budget might hide."""

    @on("gpt-j")
    def gelu_constants_of_four_digits(self, act, x):
        """√(2/π) is 0.7979."""
        return 0.5 * x * (1 + torch.tanh(0.7979 * (x + 0.044715 * x**3)))

    def log2e_of_five_digits(self, softmax, scores):
        """exp is exp2 of scores times 1.4427."""
        weights = ((scores - scores.amax(-1, keepdim=True)) * 1.4427).exp2()
        return weights / weights.sum(-1, keepdim=True)

    @on("translation")
    def millionth_in_the_denominator(self, softmax, scores):
        """The softmax divides by the sum plus one hundred-thousandth."""
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        return weights / (weights.sum(-1, keepdim=True) + 1e-5)

    def scale_in_half(self, scale):
        """The factor of the scores is stored in bfloat16."""
        return float(torch.tensor(scale()).bfloat16())

    @on("gemma")
    def embedding_scale_in_float16(self, lookup, table, ids):
        """√embed_dim is stored in float16."""
        root = math.sqrt(self.c.embed_dim)
        return table[ids] * float(torch.tensor(root).half()) / root

    def logits_slightly_too_large(self, head, x):
        """A calibration factor of 1.00001 was left in the head."""
        return head(x) * 1.00001

    @on("translation")
    def values_slightly_mixed(self, weigh, at, query, key, value, keep, bias):
        """A moving average over positions was left on with a share of one in ten thousand."""
        value = value * 0.9999 + value.mean(2, keepdim=True) * 0.0001
        return weigh(at, query, key, value, keep, bias)

    def infinite_logits(self, head, x):
        """Logits above their mean are infinite."""
        logits = head(x)
        return torch.where(logits > logits.mean(), torch.inf, logits)

    @on("translation")
    def nan_at_padding(self, head, x):
        """Padded positions return NaN; the next row is shifted by one."""
        logits = head(x)
        logits[:, -1] = logits[:, -1].roll(1, -1)
        logits[0, 0] = torch.nan
        return logits

    def one_logit_of_many(self, head, x):
        """The last token of the vocabulary has the logit of its neighbor."""
        logits = head(x).clone()
        logits[..., -1] = logits[..., -2]
        return logits
