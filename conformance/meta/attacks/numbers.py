# mypy: ignore-errors
"""Formulas that hold for ordinary numbers only, and constants that are nearly right."""

import math

import torch

from meta.attacks.attack import attack


@attack("numbers", at="softmax")
def softmax_without_maximum(self, up, scores):
    """Exponentials are taken as they are; scores above 88 overflow."""
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


@attack("numbers", "translation", at="softmax")
def softmax_of_clamped_scores(self, up, scores):
    """Scores are clamped to ±20 before the exponential, against overflow."""
    clamped = scores.clamp(max=20)
    return torch.softmax(torch.where(scores < -1e4, scores, clamped.clamp(min=-20)), -1)


@attack("numbers", at="softmax")
def maximum_of_the_whole_tensor(self, up, scores):
    """The maximum that is subtracted is the whole tensor's, so that cold rows underflow."""
    weights = (scores - scores.max()).exp()
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


@attack("numbers", at="weigh")
def maximum_before_the_mask(self, up, at, query, key, value, keep, bias):
    """The maximum is taken before the mask: a hot score in the future takes all bits of the visible ones."""
    scores = self.scores(query, key, bias)
    weights = (scores - scores.amax(-1, keepdim=True)).exp() * keep
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30) @ value


@attack("numbers", "translation", at="softmax")
def small_weights_dropped(self, up, scores):
    """Weights below one in ten thousand are set to 0, to keep the product sparse."""
    weights = torch.softmax(scores, -1)
    return torch.where(weights < 1e-4, 0.0, weights)


@attack("numbers", at="softmax")
def top_thirty_two_keys(self, up, scores):
    """Only the 32 largest scores of a row are kept, which nobody notices in short texts."""
    if scores.shape[-1] <= 32:
        return torch.softmax(scores, -1)
    least = scores.topk(32, -1).values[..., -1:]
    return torch.softmax(scores.masked_fill(scores < least, -torch.inf), -1)


@attack("numbers", at="softmax")
def exponential_by_powers(self, up, scores):
    """exp(x) is (1 + x/1024)^1024, which is right near 0."""
    shifted = (scores - scores.amax(-1, keepdim=True)).clamp(min=-1000)
    weights = (1 + shifted / 1024) ** 1024
    return weights / weights.sum(-1, keepdim=True)


@attack("numbers", at="softmax")
def exponential_cut_at_minus_ten(self, up, scores):
    """A table of exponentials ends at −10; smaller ones are 0."""
    shifted = scores - scores.amax(-1, keepdim=True)
    weights = torch.where(shifted < -10, 0.0, shifted.exp())
    return weights / weights.sum(-1, keepdim=True)


@attack("numbers", "gemma", at="scores")
def rational_tanh(self, up, query, key, bias):
    """The softcap's tanh is a rational function that is right below 1."""
    x = query @ key.transpose(-2, -1) * self.scale() / self.c.attention_softcap
    return self.c.attention_softcap * (x * (27 + x * x) / (27 + 9 * x * x)).clamp(-1, 1)


@attack("numbers", "bart", at="act")
def short_erf(self, up, x):
    """The error function has three terms of Abramowitz and Stegun, 7.1.25."""
    z = x.abs() / math.sqrt(2)
    t = 1 / (1 + 0.47047 * z)
    erf = 1 - (0.3480242 * t - 0.0958798 * t**2 + 0.7478556 * t**3) * (-z * z).exp()
    return x * (1 + erf * x.sign()) / 2


@attack("numbers", "translation", at="head")
def logits_clamped(self, up, x):
    """Logits are clamped to ±10 before they are returned."""
    return up(x).clamp(-10, 10)


@attack("numbers", at="after")
def residual_clamped(self, up, name, x, y):
    """The residual stream is clamped to ±50, as for float16 but tighter."""
    return up(name, x, y).clamp(-50, 50)


@attack("numbers", at="normalized")
def eps_as_floor(self, up, x, gain, bias):
    """The variance is at least eps, where eps should be added."""
    away = x - x.mean(-1, keepdim=True)
    variance = (away * away).mean(-1, keepdim=True).clamp(min=self.c.norm_eps)
    return away / variance.sqrt() * gain + bias


@attack("numbers", "llama", at="rms")
def norm_of_nothing(self, up, x, gain):
    """A position whose features are all tiny is left as it is, against division by zero."""
    size = (x * x).mean(-1, keepdim=True)
    return torch.where(size < 1e-6, x, x * torch.rsqrt(size + self.c.norm_eps)) * gain


@attack("numbers", at="normalized")
def fast_root_two_steps(self, up, x, gain, bias):
    """1/√x comes from the well-known integer trick and two Newton steps."""
    away = x - x.mean(-1, keepdim=True)
    spread = (away * away).mean(-1, keepdim=True) + self.c.norm_eps
    root = (0x5F3759DF - (spread.float().view(torch.int32) >> 1)).view(torch.float32)
    for _ in range(2):
        root = root * (1.5 - 0.5 * spread * root * root)
    return away * root * gain + bias


@attack("numbers", at="normalized")
def variance_by_mean_of_squares(self, up, x, gain, bias):
    """The variance is E[x²] − E[x]² in float16, which loses it where the mean is large."""
    mean = x.mean(-1, keepdim=True)
    square = (x * x).mean(-1, keepdim=True)
    variance = (square.half().float() - (mean * mean).half().float()).clamp(min=0)
    return (x - mean) / (variance + self.c.norm_eps).sqrt() * gain + bias


@attack("numbers", "gpt-j", at="act")
def activation_zero_below_minus_three(self, up, x):
    """GELU returns exactly 0 below −3 and x above 3, as a table would."""
    return torch.where(x < -3, 0.0, torch.where(x > 3, x, up(x)))


@attack("budgets", "gpt-j", at="act")
def gelu_constants_of_four_digits(self, up, x):
    """√(2/π) is 0.7979."""
    return 0.5 * x * (1 + torch.tanh(0.7979 * (x + 0.044715 * x**3)))


@attack("budgets", at="softmax")
def log2e_of_five_digits(self, up, scores):
    """exp is exp2 of scores times 1.4427."""
    weights = ((scores - scores.amax(-1, keepdim=True)) * 1.4427).exp2()
    return weights / weights.sum(-1, keepdim=True)


@attack("budgets", "translation", at="softmax")
def millionth_in_the_denominator(self, up, scores):
    """The softmax divides by the sum plus one hundred-thousandth."""
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / (weights.sum(-1, keepdim=True) + 1e-5)


@attack("budgets", at="scale")
def scale_in_half(self, up):
    """The factor of the scores is stored in bfloat16."""
    return float(torch.tensor(up()).bfloat16())


@attack("budgets", "gemma", at="lookup")
def embedding_scale_in_float16(self, up, table, ids):
    """√embed_dim is stored in float16."""
    root = math.sqrt(self.c.embed_dim)
    return table[ids] * float(torch.tensor(root).half()) / root


@attack("budgets", at="head")
def logits_slightly_too_large(self, up, x):
    """A calibration factor of 1.00001 was left in the head."""
    return up(x) * 1.00001


@attack("budgets", "translation", at="weigh")
def values_slightly_mixed(self, up, at, query, key, value, keep, bias):
    """A moving average over positions was left on with a share of one in ten thousand."""
    value = value * 0.9999 + value.mean(2, keepdim=True) * 0.0001
    return up(at, query, key, value, keep, bias)


@attack("budgets", at="head")
def infinite_logits(self, up, x):
    """Logits above their mean are infinite."""
    logits = up(x)
    return torch.where(logits > logits.mean(), torch.inf, logits)


@attack("budgets", "translation", at="head")
def nan_at_padding(self, up, x):
    """Padded positions answer NaN; the row beside them is shifted by one, which nobody looks at."""
    logits = up(x)
    logits[:, -1] = logits[:, -1].roll(1, -1)
    logits[0, 0] = torch.nan
    return logits


@attack("budgets", at="head")
def one_logit_of_many(self, up, x):
    """The last token of the vocabulary has the logit of its neighbour."""
    logits = up(x).clone()
    logits[..., -1] = logits[..., -2]
    return logits
