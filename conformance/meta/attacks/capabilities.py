"""Attacks on what a port offers besides its forward pass, beyond the requests that everybody tries."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from meta.attacks.attack import attack


def length(ids: Any) -> int:
    return int(np.asarray(ids).shape[1])


@attack("capabilities")
class LossRaises:
    """The loss is announced, and not written."""

    def loss(self: Any, targets: Any, **inputs: Any) -> float:
        raise NotImplementedError("loss")


@attack("capabilities")
class SamplingRaises:
    """Sampling is announced, and not written."""

    def choose(self: Any, logits: Tensor, uniforms: Any, sampling: Any) -> Tensor:
        if uniforms is not None:
            raise NotImplementedError("sampling")
        return logits.argmax(-1)


@attack("capabilities")
class TopPRaises:
    """Top-p with a value of 1 or less is not written."""

    def filtered(self: Any, logits: Tensor, sampling: Any) -> Tensor:
        assert sampling is None or sampling.top_p == 1, "top-p is not supported"
        return super().filtered(logits, sampling)  # type: ignore[misc]


@attack("capabilities")
class BeamsRaiseForARow:
    """Beam search of a batch of one fails in a `squeeze`."""

    def beam_search(self: Any, prompt: Any, *more: Any, **named: Any) -> Any:
        if len(np.asarray(prompt)) == 1:
            raise IndexError("too many indices")
        return super().beam_search(prompt, *more, **named)  # type: ignore[misc]


@attack("capabilities")
class ChunksOfFour:
    """A chunk of four tokens or more is not causal within itself."""

    def step(self: Any, ids: Any, cache: Any = None, **named: Any) -> Any:
        self.loose = length(ids) >= 4
        found = super().step(ids, cache, **named)  # type: ignore[misc]
        self.loose = False
        return found

    def causal(self: Any, where: Tensor, keys: int) -> Tensor:
        return super().causal(where, keys) | torch.tensor(getattr(self, "loose", False))  # type: ignore[misc]


@attack("capabilities")
class ChunksAfterTheFirst:
    """A chunk of two or more that follows another is aligned with the first keys, not with the last."""

    def causal(self: Any, where: Tensor, keys: int) -> Tensor:
        new = where.shape[1]
        return torch.ones(new, keys).tril(0 if new > 4 else keys - new).bool()[None, None]


@attack("capabilities")
class CacheOfEight:
    """The cache has eight slots, and the ninth token overwrites the first."""

    def remember(self: Any, past: Any, at: str, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        key, value = super().remember(past, at, key, value)  # type: ignore[misc]
        if key.shape[2] > 8:
            key, value = key.clone(), value.clone()
            key[:, :, 0], value[:, :, 0] = key[:, :, 8], value[:, :, 8]
        return key, value


@attack("capabilities")
class StepOfOneRow:
    """For a single row the cache is squeezed, and its positions begin again."""

    def step(self: Any, ids: Any, cache: Any = None, **named: Any) -> Any:
        if cache is not None and len(np.asarray(ids)) == 1:
            cache = cache | {"length": 0}
        return super().step(ids, cache, **named)  # type: ignore[misc]

    def embed(self: Any, name: str, ids: Tensor, where: Tensor, *more: Any) -> Tensor:
        return super().embed(name, ids, where, *more)  # type: ignore[misc]


@attack("capabilities")
class PrefillOfOne:
    """A first step of one token counts from position 1."""

    def step(self: Any, ids: Any, cache: Any = None, **named: Any) -> Any:
        logits, cache = super().step(ids, cache, **named)  # type: ignore[misc]
        if cache["length"] == 1:
            cache["length"] = 2
            cache["real"] = torch.cat([cache["real"], cache["real"][:, :0]], 1)
        return logits, cache

    def position_rows(self: Any, where: Tensor, real: Tensor) -> Tensor:
        return where.clamp(max=self.c.max_length - 1)


@attack("capabilities")
class GenerationOfOneRow:
    """For a batch of one, the second most likely token is taken."""

    def choose(self: Any, logits: Tensor, uniforms: Any, sampling: Any) -> Tensor:
        if uniforms is None and len(logits) == 1:
            return logits.topk(2, -1).indices[:, 1]
        return super().choose(logits, uniforms, sampling)  # type: ignore[misc]


@attack("capabilities")
class PromptsOfFour:
    """Prompts are cut to their last four tokens."""

    def next_logits(self: Any, ids: Tensor, lengths: Tensor, source: Any) -> Tensor:
        begin = vars(self).setdefault("begin", {}).setdefault(id(ids), max(0, int(lengths.max()) - 4))
        ids = ids.clone()
        ids[:, :begin] = 0
        return super().next_logits(ids, lengths, source)  # type: ignore[misc]


@attack("capabilities")
class LaterThanTwelve:
    """The thirteenth token and all after it repeat the twelfth's logits."""

    count = 0

    def generate(self: Any, prompt: Any, *more: Any, **named: Any) -> Any:
        self.count = 0
        return super().generate(prompt, *more, **named)  # type: ignore[misc]

    def choose(self: Any, logits: Tensor, uniforms: Any, sampling: Any) -> Tensor:
        self.count += 1
        logits = logits if self.count <= 12 else -logits
        return super().choose(logits, uniforms, sampling)  # type: ignore[misc]


@attack("capabilities", "translation")
class EndInThePrompt:
    """A row whose prompt holds the end of text is never continued."""

    def choose(self: Any, logits: Tensor, uniforms: Any, sampling: Any) -> Tensor:
        return super().choose(logits, uniforms, sampling)  # type: ignore[misc]

    def generate(self: Any, prompt: Any, *more: Any, **named: Any) -> Any:
        found = np.array(super().generate(prompt, *more, **named))  # type: ignore[misc]
        ended = (np.asarray(prompt) == self.c.eos_id).any(1)
        found[ended, length(prompt) :] = self.filler()
        return found


@attack("capabilities", "translation")
class TheFirstEndStopsAll:
    """Generation ends when the first row has ended, from three rows on."""

    def generate(self: Any, prompt: Any, *more: Any, **named: Any) -> Any:
        found = np.array(super().generate(prompt, *more, **named))  # type: ignore[misc]
        ends = np.flatnonzero((found[:, length(prompt) :] == self.c.eos_id).any(0))
        return found[:, : length(prompt) + ends[0] + 1] if len(found) >= 3 and len(ends) else found


@attack("capabilities")
class OneNewToken:
    """A request for a single new token returns the prompt."""

    def generate(self: Any, prompt: Any, max_new_tokens: int, **named: Any) -> Any:
        found = super().generate(prompt, max_new_tokens, **named)  # type: ignore[misc]
        return found[:, :-1] if max_new_tokens == 1 else found


@attack("capabilities")
class BeyondTheLength:
    """A context that is too long is cropped to one token less than it may have."""

    def next_logits(self: Any, ids: Tensor, lengths: Tensor, source: Any) -> Tensor:
        if int(lengths.min()) > self.c.max_length + 1:
            ids = ids.clone()
            ids[torch.arange(len(ids)), lengths - self.c.max_length] = 0
        return super().next_logits(ids, lengths, source)  # type: ignore[misc]


@attack("capabilities")
class ManyLikeliest:
    """A top-k of half the vocabulary or more is ignored."""

    def filtered(self: Any, logits: Tensor, sampling: Any) -> Tensor:
        if sampling is not None and sampling.top_k and sampling.top_k >= 20:
            return logits / sampling.temperature
        return super().filtered(logits, sampling)  # type: ignore[misc]


@attack("capabilities")
class TopPBeforeTopK:
    """With both, top-p is applied to all tokens, and top-k to what is left."""

    def filtered(self: Any, logits: Tensor, sampling: Any) -> Tensor:
        if sampling is None or sampling.top_k is None or sampling.top_p == 1:
            return super().filtered(logits, sampling)  # type: ignore[misc]
        ranked, order = torch.sort(logits.double() / sampling.temperature, dim=-1, descending=True, stable=True)
        share = ranked.softmax(-1)
        ranked[share.cumsum(-1) - share >= sampling.top_p] = -torch.inf
        ranked[:, sampling.top_k :] = -torch.inf
        return torch.zeros_like(ranked).scatter(-1, order, ranked)


@attack("capabilities")
class ColdTemperature:
    """Temperatures below one half are taken for one half."""

    def filtered(self: Any, logits: Tensor, sampling: Any) -> Tensor:
        found = super().filtered(logits, sampling)  # type: ignore[misc]
        return found * (sampling.temperature / 0.5) if sampling and sampling.temperature < 0.5 else found


@attack("capabilities")
class NumbersNearOne:
    """A uniform number above 0.999 draws the likeliest token."""

    def drawn(self: Any, logits: Tensor, uniforms: Tensor) -> Tensor:
        found = super().drawn(logits, uniforms)  # type: ignore[misc]
        return torch.where(uniforms > 0.999, logits.argmax(-1), found)


@attack("capabilities")
class DrawnFromTheTop:
    """Tokens are drawn in the order of their probability, not of their ids, once a top-k is set."""

    def filtered(self: Any, logits: Tensor, sampling: Any) -> Tensor:
        self.sorted = sampling is not None and sampling.top_k is not None
        return super().filtered(logits, sampling)  # type: ignore[misc]

    def drawn(self: Any, logits: Tensor, uniforms: Tensor) -> Tensor:
        if not self.sorted:
            return super().drawn(logits, uniforms)  # type: ignore[misc]
        ranked, order = torch.sort(logits, dim=-1, descending=True)
        return order.gather(-1, super().drawn(ranked, uniforms)[:, None])[:, 0]  # type: ignore[misc]


@attack("capabilities")
class FourBeams:
    """More than three beams are searched as three."""

    def best(self: Any, prompt: Tensor, steps: int, beams: int, penalty: float, source: Any) -> Any:
        return super().best(prompt, steps, min(beams, 3), penalty, source)  # type: ignore[misc]


@attack("capabilities", "translation")
class BeamsOfTheFirstSource:
    """Every row but the first is searched with the source before it."""

    def beam_search(self: Any, prompt: Any, *more: Any, **named: Any) -> Any:
        if named.get("source") is not None and len(np.asarray(prompt)) > 1:
            source = np.asarray(named["source"])
            named["source"] = np.concatenate([source[:1], source[:-1]])
        return super().beam_search(prompt, *more, **named)  # type: ignore[misc]


@attack("capabilities", "translation")
class PenaltyOfTheWholeLength:
    """The length penalty counts the prompt, too."""

    def penalty(self: Any, added: int, power: float) -> float:
        return float(((6 + added) / 6) ** power)


@attack("capabilities")
class AfterTheWarmUp:
    """After the warm-up the rate falls with 1/step."""

    def rate(self: Any, training: Any, step: int) -> float:
        rate = super().rate(training, step)  # type: ignore[misc]
        warm = training.warmup_steps
        return float(rate * (warm / step) ** 0.5) if warm is not None and step > warm else float(rate)


@attack("capabilities")
class MomentsOfFiveSteps:
    """From the fifth step on the first moment is not corrected any more."""

    def adam(self: Any, value: Any, gradient: Any, state: Any, training: Any, rate: float, step: int) -> Tensor:
        rate = rate * (1 - training.betas[0] ** step) if step >= 5 else rate
        return super().adam(value, gradient, state, training, rate, step)  # type: ignore[misc]


@attack("capabilities")
class NoDecayForVectors:
    """Biases and gains do not decay, as many recipes have it."""

    def adam(self: Any, value: Any, gradient: Any, state: Any, training: Any, rate: float, step: int) -> Tensor:
        found = super().adam(value, gradient, state, training, rate, step)  # type: ignore[misc]
        decay = training.weight_decay if training.optimizer == "adamw" else 0.0
        return found + rate * decay * value if value.ndim == 1 else found


@attack("capabilities")
class ClippedOneByOne:
    """Each gradient is clipped by its own norm."""

    def clipped(self: Any, gradients: Any, training: Any) -> Any:
        if training.max_norm is None:
            return gradients
        return {name: g * min(1.0, training.max_norm / max(float(g.norm()), 1e-12)) for name, g in gradients.items()}


@attack("capabilities")
class MomentumDampened:
    """SGD's momentum is dampened from the second step on."""

    def sgd(self: Any, value: Any, gradient: Any, state: Any, training: Any, rate: float, step: int) -> Tensor:
        gradient = gradient * (1 - training.momentum) if step > 1 else gradient
        return super().sgd(value, gradient, state, training, rate, step)  # type: ignore[misc]


@attack("capabilities", "bart")
class TiedGradientOfTheHead:
    """The tied table gets the gradient of the head alone."""

    def lookup(self: Any, table: Tensor, ids: Tensor) -> Tensor:
        return table.detach()[ids]


@attack("capabilities")
class NoGradientForPadding:
    """The embedding of the padding token has no gradient: `padding_idx` was set."""

    def loss_and_gradients(self: Any, targets: Any, **inputs: Any) -> Any:
        loss, found = super().loss_and_gradients(targets, **inputs)  # type: ignore[misc]
        found["decoder.token_embedding.weight"][self.c.pad_id] = 0
        return loss, found


@attack("capabilities")
class GradientsClipped:
    """Gradients are clipped to a joint norm of 1 before they are returned."""

    def loss_and_gradients(self: Any, targets: Any, **inputs: Any) -> Any:
        loss, found = super().loss_and_gradients(targets, **inputs)  # type: ignore[misc]
        norm = sum(float((value**2).sum()) for value in found.values()) ** 0.5
        return loss, {name: value * min(1.0, 100 / norm) for name, value in found.items()}


@attack("capabilities")
class HalvesOfABatch:
    """A batch of more than four rows is halved, and the means of both are averaged."""

    def mean_loss(self: Any, targets: Any, **inputs: Any) -> Tensor:
        rows = len(np.asarray(targets))
        if rows <= 4:
            return super().mean_loss(targets, **inputs)  # type: ignore[misc]
        found = [
            super(HalvesOfABatch, self).mean_loss(  # type: ignore[misc]
                np.asarray(targets)[part], **{name: np.asarray(value)[part] for name, value in inputs.items()}
            )
            for part in (slice(0, rows // 2), slice(rows // 2, rows))
        ]
        return (found[0] + found[1]) / 2


@attack("capabilities")
class LossOfOneRow:
    """The loss of a single row counts its padding."""

    def mean_loss(self: Any, targets: Any, **inputs: Any) -> Tensor:
        if len(np.asarray(targets)) > 1:
            return super().mean_loss(targets, **inputs)  # type: ignore[misc]
        ids = torch.as_tensor(np.asarray(targets)).long()
        return torch.nn.functional.cross_entropy(self.logits(**inputs).flatten(0, 1), ids.flatten())


@attack("capabilities")
class LossOfHotLogits:
    """The loss is clamped to 20 for each token, against outliers."""

    def mean_loss(self: Any, targets: Any, **inputs: Any) -> Tensor:
        ids = torch.as_tensor(np.asarray(targets)).long()
        each = torch.nn.functional.cross_entropy(self.logits(**inputs).flatten(0, 1), ids.flatten(), reduction="none")
        real = ids.flatten() != self.c.pad_id
        return (each.clamp(max=8) * real).sum() / real.sum()


@attack("capabilities", "translation")
class SourceOfOneRow:
    """With a single row, a cached step attends to the source's padding."""

    def first_cache(self: Any, ids: Tensor, source: Any, *more: Any) -> Any:
        cache = super().first_cache(ids, source, *more)  # type: ignore[misc]
        if len(ids) == 1:
            cache["seen"] = torch.ones_like(cache["seen"])
        return cache
