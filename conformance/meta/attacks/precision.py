# mypy: ignore-errors
"""Fewer bits than requested, and mistakes that hide under few bits."""

import torch

from meta.attacks.attack import Attacks, on


def coarse(x, dtype=torch.bfloat16):
    """Return `x`, rounded once."""
    return x.to(dtype).to(x.dtype)


class Precision(Attacks):
    """Fewer bits than requested, and mistakes that hide under few bits."""

    @on("translation")
    def all_in_bfloat16(self, dense, name, x):
        """Asked for float32, the port runs under autocast."""
        bias = self.p.get(f"{name}.bias", torch.zeros(()))
        return coarse(coarse(x) @ coarse(self.p[f"{name}.weight"]).T) + coarse(bias)

    def attention_in_bfloat16(self, weigh, at, query, key, value, *more):
        """Only the fused attention runs in bfloat16."""
        found = weigh(at, coarse(query), coarse(key), coarse(value), *more)
        return coarse(found)

    def attention_in_float16(self, scores, *more):
        """Only the scores are in float16."""
        return coarse(scores(*more), torch.float16)

    def tf32(self, dense, name, x):
        """Matrix products have TF32's precision: `allow_tf32` was left on."""

        def short(y):
            return ((y.contiguous().view(torch.int32) + 4096) & ~8191).view(torch.float32)

        bias = self.p.get(f"{name}.bias", torch.zeros(()))
        return short(x) @ short(self.p[f"{name}.weight"]).T + bias

    @on("translation")
    def weights_in_eight_bits(self, prepare):
        """Weights are int8, with a scale for each row."""
        for name, value in self.p.items():
            if name.endswith(".weight") and value.ndim == 2:
                scale = value.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
                self.p[name] = (value / scale).round() * scale

    def logits_in_float16(self, call, **inputs):
        """Logits are returned in float16, to save memory."""
        return call(**inputs).half()

    class MistakeUnderRoundedLogits:
        """The feed-forward of the last layer is 2 % too small, and the logits are cast to bfloat16."""

        def feed(self, at, x):
            return super().feed(at, x) * (0.98 if ".layers.1." in at else 1)

        def __call__(self, **inputs):
            return super().__call__(**inputs).bfloat16()

    @on("bart")
    class ActivationUnderRoundedLogits:
        """GELU is its tanh form, and the logits are cast to bfloat16."""

        def act(self, x):
            return torch.nn.functional.gelu(x, approximate="tanh")

        def __call__(self, **inputs):
            return super().__call__(**inputs).bfloat16()

    @on(dtype="float64")
    def float64_in_float32(self, init, config, parameters, dtype="float32"):
        """Asked for float64, the port computes in float32."""
        init(config, parameters, "float32")

    def norm_in_bfloat16(self, normalized, x, gain, bias):
        """Norms compute their sums in bfloat16."""
        return normalized(x.bfloat16(), gain, bias).to(x.dtype)

    def residual_in_bfloat16(self, after, name, x, y):
        """The residual stream is stored in bfloat16."""
        return coarse(after(name, x, y))

    @on("llama", max_length=600)
    def positions_in_bfloat16(self, rotated, x, where):
        """Positions are bfloat16, as everything is: above 256 neighbors coincide."""
        return rotated(x, where.bfloat16().long())

    @on("llama", dtype="bfloat16", max_length=600)
    def positions_in_declared_bfloat16(self, rotated, x, where):
        """The same in a port that says that it computes in bfloat16: its angles should not."""
        return rotated(x, where.bfloat16().long())

    @on(dtype="bfloat16")
    def scale_in_declared_bfloat16(self, scale):
        """In bfloat16, the scores are 3 % too large."""
        return float(scale() * 1.03)

    @on("translation", dtype="bfloat16")
    def bias_in_declared_bfloat16(self, head, x):
        """In bfloat16, the head's bias is left out for every other token."""
        logits = head(x)
        logits[..., ::2] -= self.p["head.bias"][::2] / 4
        return logits

    @on(dtype="bfloat16")
    def shifted_by_half_a_logit(self, head, x):
        """In bfloat16, one token in the vocabulary has a logit that is always 0.1 too large."""
        logits = head(x)
        logits[..., 3] += 0.1
        return logits

    @on("gemma", dtype="bfloat16")
    class GeluInDeclaredBfloat16:
        """In bfloat16, the activation is SiLU in one layer of two."""

        def feed(self, at, x):
            self.silu = ".layers.1." in at
            return super().feed(at, x)

        def act(self, x):
            return torch.nn.functional.silu(x) if self.silu else super().act(x)

    @on("pre-norm", dtype="bfloat16")
    def eps_in_declared_bfloat16(self, normalized, x, gain, bias):
        """In bfloat16, eps is a hundredth."""
        away = x.float() - x.float().mean(-1, keepdim=True)
        return (away / (away.std(-1, keepdim=True) + 1e-2) * gain + bias).to(x.dtype)

    @on(offers=True)
    def cache_in_eight_bits(self, remember, past, at, key, value):
        """Keys and values in the cache are int8."""

        def short(y):
            scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
            return (y / scale).round() * scale

        return remember(past, at, short(key), short(value))

    class TrainingInBfloat16:
        """The parameters that are trained are bfloat16: small updates are lost."""

        offers = True

        def adam(self, *more):
            return coarse(super().adam(*more))

        def sgd(self, *more):
            return coarse(super().sgd(*more))

    @on(offers=True)
    def gradients_in_float16(self, loss_and_gradients, targets, **inputs):
        """Gradients are cast to float16 without a loss scale: the small ones vanish."""
        loss, found = loss_and_gradients(targets, **inputs)
        return loss, {name: (value / 1e4).astype("float16").astype("float32") * 1e4 for name, value in found.items()}
