"""Fewer bits than were asked for, and mistakes that hide under few bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meta.attacks.attack import attack


def coarse(x: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """`x`, rounded once."""
    return x.to(dtype).to(x.dtype)


@attack("precision", "translation")
class AllInBfloat16:
    """Asked for float32, the port runs under autocast."""

    def dense(self: Any, name: str, x: Tensor) -> Tensor:
        bias = self.p.get(f"{name}.bias", torch.zeros(()))
        return coarse(coarse(x) @ coarse(self.p[f"{name}.weight"]).T) + coarse(bias)


@attack("precision")
class AttentionInBfloat16:
    """Only the fused attention runs in bfloat16."""

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, *more: Any) -> Tensor:
        found = super().weigh(at, coarse(query), coarse(key), coarse(value), *more)  # type: ignore[misc]
        return coarse(found)


@attack("precision")
class AttentionInFloat16:
    """Only the scores are in float16."""

    def scores(self: Any, *more: Any) -> Tensor:
        return coarse(super().scores(*more), torch.float16)  # type: ignore[misc]


@attack("precision")
class Tf32:
    """Matrix products have TF32's precision: `allow_tf32` was left on."""

    def dense(self: Any, name: str, x: Tensor) -> Tensor:
        def short(y: Tensor) -> Tensor:
            return ((y.contiguous().view(torch.int32) + 4096) & ~8191).view(torch.float32)

        bias = self.p.get(f"{name}.bias", torch.zeros(()))
        return short(x) @ short(self.p[f"{name}.weight"]).T + bias


@attack("precision", "translation")
class WeightsInEightBits:
    """Weights are int8, with a scale for each row."""

    def prepare(self: Any) -> None:
        for name, value in self.p.items():
            if name.endswith(".weight") and value.ndim == 2:
                scale = value.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
                self.p[name] = (value / scale).round() * scale


@attack("precision")
class LogitsInFloat16:
    """Logits are returned in float16, to save memory."""

    def __call__(self: Any, **inputs: Any) -> Any:
        return super().__call__(**inputs).half()  # type: ignore[misc]


@attack("precision")
class MistakeUnderRoundedLogits:
    """The feed-forward of the last layer is 2 % too small, and the logits are cast to bfloat16."""

    def feed(self: Any, at: str, x: Tensor) -> Tensor:
        return super().feed(at, x) * (0.98 if ".layers.1." in at else 1)  # type: ignore[misc]

    def __call__(self: Any, **inputs: Any) -> Any:
        return super().__call__(**inputs).bfloat16()  # type: ignore[misc]


@attack("precision", "bart")
class ActivationUnderRoundedLogits:
    """GELU is its tanh form, and the logits are cast to bfloat16."""

    def act(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x, approximate="tanh")

    def __call__(self: Any, **inputs: Any) -> Any:
        return super().__call__(**inputs).bfloat16()  # type: ignore[misc]


@attack("precision", dtype="float64")
class Float64InFloat32:
    """Asked for float64, the port computes in float32."""

    def __init__(self: Any, config: Any, parameters: Any, dtype: str = "float32") -> None:
        super().__init__(config, parameters, "float32")  # type: ignore[call-arg]


@attack("precision")
class NormInBfloat16:
    """Norms compute their sums in bfloat16."""

    def normalized(self: Any, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        return super().normalized(x.bfloat16(), gain, bias).to(x.dtype)  # type: ignore[misc]


@attack("precision")
class ResidualInBfloat16:
    """The residual stream is stored in bfloat16."""

    def after(self: Any, name: str, x: Tensor, y: Tensor) -> Tensor:
        return coarse(super().after(name, x, y))  # type: ignore[misc]


@attack("precision", "llama", max_length=600)
class PositionsInBfloat16:
    """Positions are bfloat16, as everything is: above 256 neighbours coincide."""

    def rotated(self: Any, x: Tensor, where: Tensor) -> Tensor:
        return super().rotated(x, where.bfloat16().long())  # type: ignore[misc]


@attack("precision", "llama", dtype="bfloat16", max_length=600)
class PositionsInDeclaredBfloat16:
    """The same in a port that says that it computes in bfloat16: its angles should not."""

    def rotated(self: Any, x: Tensor, where: Tensor) -> Tensor:
        return super().rotated(x, where.bfloat16().long())  # type: ignore[misc]


@attack("precision", dtype="bfloat16")
class ScaleInDeclaredBfloat16:
    """In bfloat16, the scores are 3 % too large."""

    def scale(self: Any) -> float:
        return float(super().scale() * 1.03)  # type: ignore[misc]


@attack("precision", "translation", dtype="bfloat16")
class BiasInDeclaredBfloat16:
    """In bfloat16, the head's bias is left out for every other token."""

    def head(self: Any, x: Tensor) -> Tensor:
        logits = super().head(x)  # type: ignore[misc]
        logits[..., ::2] -= self.p["head.bias"][::2] / 4
        return logits


@attack("precision", dtype="bfloat16")
class ShiftedByHalfALogit:
    """In bfloat16, one token in the vocabulary has a logit that is always 0.1 too large."""

    def head(self: Any, x: Tensor) -> Tensor:
        logits = super().head(x)  # type: ignore[misc]
        logits[..., 3] += 0.1
        return logits


@attack("precision", "gemma", dtype="bfloat16")
class GeluInDeclaredBfloat16:
    """In bfloat16, the activation is SiLU in one layer of two."""

    def feed(self: Any, at: str, x: Tensor) -> Tensor:
        self.silu = ".layers.1." in at
        return super().feed(at, x)  # type: ignore[misc]

    def act(self: Any, x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x) if self.silu else super().act(x)  # type: ignore[misc]


@attack("precision", "pre-norm", dtype="bfloat16")
class EpsInDeclaredBfloat16:
    """In bfloat16, eps is a hundredth."""

    def normalized(self: Any, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        away = x.float() - x.float().mean(-1, keepdim=True)
        return (away / (away.std(-1, keepdim=True) + 1e-2) * gain + bias).to(x.dtype)


@attack("precision")
class CacheInEightBits:
    """Keys and values in the cache are int8."""

    offers = True

    def remember(self: Any, past: Any, at: str, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        def short(y: Tensor) -> Tensor:
            scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
            return (y / scale).round() * scale

        return super().remember(past, at, short(key), short(value))  # type: ignore[misc]


@attack("precision")
class TrainingInBfloat16:
    """The parameters that are trained are bfloat16: small updates are lost."""

    offers = True

    def adam(self: Any, *more: Any) -> Tensor:
        return coarse(super().adam(*more))  # type: ignore[misc]

    def sgd(self: Any, *more: Any) -> Tensor:
        return coarse(super().sgd(*more))  # type: ignore[misc]


@attack("precision")
class GradientsInFloat16:
    """Gradients are cast to float16 without a loss scale: the small ones vanish."""

    offers = True

    def loss_and_gradients(self: Any, targets: Any, **inputs: Any) -> Any:
        loss, found = super().loss_and_gradients(targets, **inputs)  # type: ignore[misc]
        return loss, {name: (value / 1e4).astype("float16").astype("float32") * 1e4 for name, value in found.items()}
