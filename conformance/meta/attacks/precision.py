# mypy: ignore-errors
"""Fewer bits than were asked for, and mistakes that hide under few bits."""

import torch

from meta.attacks.attack import attack


def coarse(x, dtype=torch.bfloat16):
    """`x`, rounded once."""
    return x.to(dtype).to(x.dtype)


@attack("precision", "translation", at="dense")
def all_in_bfloat16(self, up, name, x):
    """Asked for float32, the port runs under autocast."""
    bias = self.p.get(f"{name}.bias", torch.zeros(()))
    return coarse(coarse(x) @ coarse(self.p[f"{name}.weight"]).T) + coarse(bias)


@attack("precision", at="weigh")
def attention_in_bfloat16(self, up, at, query, key, value, *more):
    """Only the fused attention runs in bfloat16."""
    found = up(at, coarse(query), coarse(key), coarse(value), *more)
    return coarse(found)


@attack("precision", at="scores")
def attention_in_float16(self, up, *more):
    """Only the scores are in float16."""
    return coarse(up(*more), torch.float16)


@attack("precision", at="dense")
def tf32(self, up, name, x):
    """Matrix products have TF32's precision: `allow_tf32` was left on."""

    def short(y):
        return ((y.contiguous().view(torch.int32) + 4096) & ~8191).view(torch.float32)

    bias = self.p.get(f"{name}.bias", torch.zeros(()))
    return short(x) @ short(self.p[f"{name}.weight"]).T + bias


@attack("precision", "translation", at="prepare")
def weights_in_eight_bits(self, up):
    """Weights are int8, with a scale for each row."""
    for name, value in self.p.items():
        if name.endswith(".weight") and value.ndim == 2:
            scale = value.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
            self.p[name] = (value / scale).round() * scale


@attack("precision", at="__call__")
def logits_in_float16(self, up, **inputs):
    """Logits are returned in float16, to save memory."""
    return up(**inputs).half()


@attack("precision")
class MistakeUnderRoundedLogits:
    """The feed-forward of the last layer is 2 % too small, and the logits are cast to bfloat16."""

    def feed(self, at, x):
        return super().feed(at, x) * (0.98 if ".layers.1." in at else 1)

    def __call__(self, **inputs):
        return super().__call__(**inputs).bfloat16()


@attack("precision", "bart")
class ActivationUnderRoundedLogits:
    """GELU is its tanh form, and the logits are cast to bfloat16."""

    def act(self, x):
        return torch.nn.functional.gelu(x, approximate="tanh")

    def __call__(self, **inputs):
        return super().__call__(**inputs).bfloat16()


@attack("precision", dtype="float64", at="__init__")
def float64_in_float32(self, up, config, parameters, dtype="float32"):
    """Asked for float64, the port computes in float32."""
    up(config, parameters, "float32")


@attack("precision", at="normalized")
def norm_in_bfloat16(self, up, x, gain, bias):
    """Norms compute their sums in bfloat16."""
    return up(x.bfloat16(), gain, bias).to(x.dtype)


@attack("precision", at="after")
def residual_in_bfloat16(self, up, name, x, y):
    """The residual stream is stored in bfloat16."""
    return coarse(up(name, x, y))


@attack("precision", "llama", max_length=600, at="rotated")
def positions_in_bfloat16(self, up, x, where):
    """Positions are bfloat16, as everything is: above 256 neighbours coincide."""
    return up(x, where.bfloat16().long())


@attack("precision", "llama", dtype="bfloat16", max_length=600, at="rotated")
def positions_in_declared_bfloat16(self, up, x, where):
    """The same in a port that says that it computes in bfloat16: its angles should not."""
    return up(x, where.bfloat16().long())


@attack("precision", dtype="bfloat16", at="scale")
def scale_in_declared_bfloat16(self, up):
    """In bfloat16, the scores are 3 % too large."""
    return float(up() * 1.03)


@attack("precision", "translation", dtype="bfloat16", at="head")
def bias_in_declared_bfloat16(self, up, x):
    """In bfloat16, the head's bias is left out for every other token."""
    logits = up(x)
    logits[..., ::2] -= self.p["head.bias"][::2] / 4
    return logits


@attack("precision", dtype="bfloat16", at="head")
def shifted_by_half_a_logit(self, up, x):
    """In bfloat16, one token in the vocabulary has a logit that is always 0.1 too large."""
    logits = up(x)
    logits[..., 3] += 0.1
    return logits


@attack("precision", "gemma", dtype="bfloat16")
class GeluInDeclaredBfloat16:
    """In bfloat16, the activation is SiLU in one layer of two."""

    def feed(self, at, x):
        self.silu = ".layers.1." in at
        return super().feed(at, x)

    def act(self, x):
        return torch.nn.functional.silu(x) if self.silu else super().act(x)


@attack("precision", "pre-norm", dtype="bfloat16", at="normalized")
def eps_in_declared_bfloat16(self, up, x, gain, bias):
    """In bfloat16, eps is a hundredth."""
    away = x.float() - x.float().mean(-1, keepdim=True)
    return (away / (away.std(-1, keepdim=True) + 1e-2) * gain + bias).to(x.dtype)


@attack("precision", at="remember", offers=True)
def cache_in_eight_bits(self, up, past, at, key, value):
    """Keys and values in the cache are int8."""

    def short(y):
        scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
        return (y / scale).round() * scale

    return up(past, at, short(key), short(value))


@attack("precision")
class TrainingInBfloat16:
    """The parameters that are trained are bfloat16: small updates are lost."""

    offers = True

    def adam(self, *more):
        return coarse(super().adam(*more))

    def sgd(self, *more):
        return coarse(super().sgd(*more))


@attack("precision", at="loss_and_gradients", offers=True)
def gradients_in_float16(self, up, targets, **inputs):
    """Gradients are cast to float16 without a loss scale: the small ones vanish."""
    loss, found = up(targets, **inputs)
    return loss, {name: (value / 1e4).astype("float16").astype("float32") * 1e4 for name, value in found.items()}
