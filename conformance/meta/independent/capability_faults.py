"""Every catalogued fault of a capability, in the line of the port where it is made.

The ids and sentences are those of the catalogue's page. Nothing is imported from the checker; its authors wrote this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meta.independent.model import tokens
from meta.independent.port import Beam, Port, build_with


@dataclass(frozen=True)
class CapabilityFault:
    """A fault: its id in the catalogue, the capability that shows it, and the methods that are wrong."""

    id: str
    shows: str
    says: str
    part: type
    needs: str
    """The part of a configuration without which it does not act: `end`, `padding`, `source`, `rotary`,
    `recurrence`, or nothing."""

    def acts(self, config: Any) -> bool:
        """Return whether the fault changes anything in this configuration."""
        return {
            "": True,
            "end": config.eos_id is not None,
            "padding": config.target_mask == "causal-and-padding" or config.padding == "attention-mask",
            "source": config.architecture == "encoder-decoder",
            "rotary": config.positions == "rotary",
            "recurrence": config.is_recurrent,
        }[self.needs]

    @property
    def build(self) -> Callable[..., Any]:
        return build_with(self.part, base=Port)

    @property
    def build_alone(self) -> Callable[..., Any]:
        """The port, which offers nothing but the capability that shows the fault."""
        return lambda *given, **named: Alone(self.build(*given, **named), self.shows.partition(".")[0])

    def __str__(self) -> str:
        return f"{self.id}: {self.says}"


class Alone:
    """A port's forward pass and one of its capabilities."""

    def __init__(self, port: Any, name: str) -> None:
        self.port = port
        setattr(self, name, getattr(port, name))

    def __call__(self, **inputs: Any) -> Any:
        return self.port(**inputs)


FAULTS: list[CapabilityFault] = []


def fault(id: str, shows: str, says: str, needs: str = "", **methods: Any) -> None:
    """Register the port whose `methods` are wrong."""
    FAULTS.append(CapabilityFault(id, shows, says, type("Wrong", (), methods), needs))


def row_means(self: Any, each: Tensor, real: Tensor) -> Tensor:
    seen = real.sum(1) > 0
    return ((each * real).sum(1)[seen] / real.sum(1)[seen]).mean()


def _mean(self: Any, each: Tensor, real: Tensor) -> Tensor:
    return (each * real).sum() / real.sum()


fault("loss-reduction", "loss", "padding counts", reduced=lambda self, each, real: each.mean())
fault("loss-reduction", "loss", "a sum", reduced=lambda self, each, real: (each * real).sum())
fault("loss-reduction", "loss", "divided by all positions", reduced=lambda self, each, real: (each * real).mean())
fault("loss-reduction", "loss", "divided by rows", reduced=lambda self, each, real: (each * real).sum() / len(each))
fault("loss-reduction", "loss", "mean of the rows' means", reduced=row_means)
fault("loss-shift", "loss", "shifted twice", aligned=lambda self, x, y: (x[:, :-1], y[:, 1:]))
fault("loss-shift", "loss", "not shifted", aligned=lambda self, x, y: (x, y.roll(1, 1)))
fault("loss-base", "loss", "in bits", reduced=lambda self, each, real: _mean(self, each, real) / math.log(2))
fault("loss-softmax", "loss", "softmax twice", aligned=lambda self, x, y: (x.softmax(-1), y))


def first_tokens(self: Any, ids: Tensor, lengths: Tensor, source: Any) -> Tensor:
    context = ids[:, : min(self.c.max_length, int(lengths.max()))]
    return self.read(self.rerun(context, source), lengths.clamp(max=self.c.max_length))


def no_end(self: Any, ids: Tensor, begin: Tensor, prompt: int) -> Tensor:
    new = torch.arange(ids.shape[1]) >= begin[:, None]
    return torch.where(new & self.ends(ids), self.filler(), ids)


def never(self: Any, x: Any) -> Any:
    return torch.zeros_like(x, dtype=torch.bool)


fault("generation-crop", "generate", "cropped to the first tokens", next_logits=first_tokens)
fault(
    "generation-crop",
    "generate",
    "cropped to one token less",
    cropped=lambda self, long: torch.where(long >= self.c.max_length, (long - self.c.max_length + 1), 0),
)
fault("generation-stop", "generate", "the end is ignored", "end", ends=never)
fault("generation-stop", "generate", "rows go on until all have ended", "end", filled=lambda self, token, ended: token)
fault("generation-stop", "generate", "the first end ends all", "end", is_over=lambda self, ended: bool(ended.any()))
fault("generation-stop", "generate", "the end token is dropped", "end", result=no_end)
fault("generation-prompt", "generate", "no prompt", result=lambda self, ids, begin, prompt: ids[:, prompt:])
fault("generation-position", "generate", "second to last", read=lambda self, x, n: x[:, max(-2, -x.shape[1])])
fault("generation-position", "generate", "first position", read=lambda self, x, n: x[:, 0])


def from_one_end(self: Any, prompt: Any, lengths: Any, more: int) -> Any:
    return Port.starting(self, prompt, None, more)


def at_the_longest(self: Any, ids: Tensor, long: Tensor, source: Any) -> Tensor:
    return Port.next_logits(self, ids, long.max().expand_as(long), source)


def padded_left(self: Any, ids: Tensor, long: Tensor, source: Any) -> Tensor:
    longest = int(long.max())
    rows = [F.pad(row[:n], (longest - n, 0), value=self.filler()) for row, n in zip(ids, long.tolist(), strict=True)]
    return Port.next_logits(self, torch.stack(rows), torch.full_like(long, longest), source)


def to_one_length(self: Any, prompt: Any, more: int, *, lengths: Any = None, **named: Any) -> Any:
    """Goes on until the shortest row is as long as the longest, and drops what does not fit."""
    if lengths is None:
        return Port.generate(self, prompt, more, **named)
    width = tokens(prompt).shape[1] + more
    shorter = tokens(prompt).shape[1] - int(tokens(lengths).min())
    found = Port.generate(self, prompt, more + shorter, lengths=lengths, **named)
    return found[:, :width]


fault("ragged-end", "generate.lengths", "continues after the padding", starting=from_one_end)
fault("ragged-read", "generate.lengths", "reads at the longest row's end", next_logits=at_the_longest)
fault("ragged-position", "generate.lengths", "padded on the left", next_logits=padded_left)
fault("ragged-steps", "generate.lengths", "all rows to one length", generate=to_one_length)


def temperature_last(self: Any, logits: Tensor, sampling: Any) -> Tensor:
    return Port.filtered(self, logits * sampling.temperature, sampling) / sampling.temperature


def top_p_of_all(self: Any, logits: Tensor, sampling: Any) -> Tensor:
    ranked, order = torch.sort(logits.double() / sampling.temperature, dim=-1, descending=True, stable=True)
    share = ranked.softmax(-1)
    ranked[share.cumsum(-1) - share >= sampling.top_p] = -torch.inf
    ranked[:, logits.shape[-1] if sampling.top_k is None else sampling.top_k :] = -torch.inf
    return torch.zeros_like(ranked).scatter(-1, order, ranked)


def reaches(self: Any, share: Tensor, top_p: float) -> Tensor:
    dropped = share.cumsum(-1) >= top_p
    dropped[:, 0] = False
    return dropped


def one_after(self: Any, share: Tensor, top_p: float) -> Tensor:
    before = share.cumsum(-1) - share
    return F.pad(before[:, :-1], (1, 0)) >= top_p


def not_normalized(last: int) -> Callable[..., Tensor]:
    """Draw by the shares of all tokens, of which some are dropped; beyond their sum the `last` or first token."""

    def choose(self: Any, logits: Tensor, uniforms: Any, sampling: Any) -> Tensor:
        if uniforms is None or sampling is None:
            return Port.choose(self, logits, uniforms, sampling)
        kept = self.filtered(logits, sampling) > -torch.inf
        share = (logits.double() / sampling.temperature).softmax(-1) * kept
        found = (share.cumsum(-1) <= uniforms.double()[:, None]).sum(-1)
        return torch.where(found == share.shape[-1], (share.shape[-1] - 1) * last, found)

    return choose


def by_likelihood(self: Any, logits: Tensor, uniforms: Tensor) -> Tensor:
    ranked, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    return order.gather(-1, Port.drawn(self, ranked, uniforms)[:, None])[:, 0]


def from_the_end(self: Any, logits: Tensor, uniforms: Tensor) -> Tensor:
    return logits.shape[-1] - 1 - Port.drawn(self, logits.flip(-1), uniforms)


def beside(by: int) -> Callable[..., Tensor]:
    def drawn(self: Any, logits: Tensor, uniforms: Tensor) -> Tensor:
        return (Port.drawn(self, logits, uniforms) + by).clamp(0, logits.shape[-1] - 1)

    return drawn


def one_number(self: Any, logits: Tensor, uniforms: Tensor) -> Tensor:
    return Port.drawn(self, logits, uniforms[:1].expand_as(uniforms))


SAMPLED = "generate.sampling"
fault("sampling-temperature", SAMPLED, "multiplied", cooled=lambda self, x, sampling: x * sampling.temperature)
fault("sampling-temperature", SAMPLED, "no temperature", cooled=lambda self, x, sampling: x)
fault("sampling-order", SAMPLED, "temperature last", filtered=temperature_last)
fault("sampling-order", SAMPLED, "top-p of all tokens", filtered=top_p_of_all)
fault("sampling-top-k", SAMPLED, "no top-k", likeliest=lambda self, k: 10**6)
fault("sampling-top-k", SAMPLED, "one more", likeliest=lambda self, k: k + 1)
fault("sampling-top-k", SAMPLED, "one less", likeliest=lambda self, k: max(1, k - 1))
fault("sampling-top-p", SAMPLED, "no top-p", beyond=lambda self, share, p: torch.zeros_like(share).bool())
fault("sampling-top-p", SAMPLED, "without the token that reaches it", beyond=reaches)
fault("sampling-top-p", SAMPLED, "with one token more", beyond=one_after)
fault("sampling-normalization", SAMPLED, "not normalised, the last", choose=not_normalized(1))
fault("sampling-normalization", SAMPLED, "not normalised, the first", choose=not_normalized(0))
fault("sampling-draw", SAMPLED, "in order of likelihood", drawn=by_likelihood)
fault("sampling-draw", SAMPLED, "from the end", drawn=from_the_end)
fault("sampling-draw", SAMPLED, "the next token", drawn=beside(1))
fault("sampling-draw", SAMPLED, "the token before", drawn=beside(-1))
fault("sampling-draw", SAMPLED, "greedy", drawn=lambda self, x, numbers: x.argmax(-1))
fault("sampling-draw", SAMPLED, "one number for all rows", drawn=one_number)


def raw_until_the_end(self: Any, beam: Beam, power: float, *, last: bool = False) -> float:
    return beam.score / self.penalty(beam.added, power) if last else beam.score


def raw_while_alive(self: Any, beam: Beam, power: float, *, last: bool = False) -> float:
    return beam.score / self.penalty(beam.added, power) if beam.ended else beam.score


def own_cache(self: Any, kept: list[Beam], alive: list[Beam]) -> list[Beam]:
    return [
        beam._replace(seen=[*alive[slot if slot < len(alive) else 0].seen, beam.ids[-1]])
        for slot, beam in enumerate(kept)
    ]


def goes_on(self: Any, beam: Beam, source: Any) -> list[Beam]:
    return Port.continuations(self, beam._replace(ended=False), source)


def all_alike(self: Any, prompt: list[int], beams: int) -> list[Beam]:
    return Port.first_beams(self, prompt, beams) * beams


PENALIZED = "beam_search.length_penalty"
fault("beams-penalty", PENALIZED, "by the length alone", penalty=lambda self, n, a: n**a if n else 1.0)
fault("beams-penalty", PENALIZED, "none", penalty=lambda self, n, a: 1.0)
fault("beams-penalty", PENALIZED, "multiplied", penalty=lambda self, n, a: ((5 + n) / 6) ** -a)
fault("beams-penalty", PENALIZED, "with the prompt", penalty=lambda self, n, a: ((5 + n + self.begun) / 6) ** a)
fault("beams-penalty", PENALIZED, "only at the end", "end", rank=raw_until_the_end)
fault("beams-penalty", PENALIZED, "only of those that have ended", rank=raw_while_alive)
fault("beams-end", "beam_search", "extended after the end", "end", ends=never)
fault("beams-end", "beam_search", "dropped at the end", "end", stay=lambda self, beam: [])
fault("beams-begin", "beam_search", "all begin alike", first_beams=all_alike)
fault("beams-cache", "beam_search", "each keeps its own cache", reordered=own_cache)
fault("beams-score", "beam_search", "sums of logits", gains=lambda self, x: x)


def moved(by: int) -> Callable[..., Tensor]:
    def continued(self: Any, where: Tensor) -> Tensor:
        return (where + by * (int(where[0, 0]) > 0)).clamp(0, self.c.max_length - 1)

    return continued


def new_alone(self: Any, where: Tensor, keys: int) -> Tensor:
    return self.causal(where, keys) & (torch.arange(keys) >= where[0, 0])


def see_padding(
    self: Any, ids: Tensor, memory: Any = None, seen: Any = None, mask: Any = None, past: Any = None
) -> Any:
    if past is not None:
        mask = torch.ones_like(ids)
    return Port.decode(self, ids, memory, seen, mask, past)


def source_padding(self: Any, *given: Any) -> Any:
    cache = Port.first_cache(self, *given)
    return cache | {"seen": torch.ones_like(cache["seen"])} if "seen" in cache else cache


def queries_from_zero(self: Any, at: str, role: str, x: Tensor, where: Any) -> Tensor:
    return Port.placed(self, at, role, x, where - where[:, :1] if role == "query" and where is not None else where)


def kept_unrotated(self: Any, past: dict[str, Any], at: str, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    if self.c.positions != "rotary":
        return Port.remember(self, past, at, key, value)
    where = torch.arange(past["length"] - key.shape[2], past["length"])[None]
    old_key, old_value = past.get(at, (key[:, :, :0], value[:, :, :0]))
    value = torch.cat([old_value, value], 2)
    past[at] = torch.cat([old_key, self.rotated(key, -where)], 2), value
    return torch.cat([old_key, key], 2), value


def forgetting(*names: str) -> Any:
    def recur(self: Any, at: str, x: Tensor, real: Tensor, past: dict[str, Any]) -> Tensor:
        past[at] = {name: kept for name, kept in past.get(at, {}).items() if name not in names}
        return Port.recur(self, at, x, real, past)

    return recur


fault("cache-state", "step", "the state from zeros", "recurrence", recur=forgetting("state"))
fault("cache-state", "step", "convolutions from zeros", "recurrence", recur=forgetting("query", "key", "value"))
fault("cache-state", "step", "nothing kept", "recurrence", recur=forgetting("state", "query", "key", "value"))
fault("cache-position", "step", "queries from 0 again", "rotary", placed=queries_from_zero)
fault("cache-position", "step", "keys kept unrotated", "rotary", remember=kept_unrotated)
fault("cache-position", "step", "from 0 again", continued=lambda self, at: at - at[:, :1])
fault("cache-position", "step", "one too high", continued=moved(1))
fault("cache-position", "step", "one too low", continued=moved(-1))
fault("cache-position", "step", "the first of the step", continued=lambda self, at: at[:, :1].expand_as(at))
fault("cache-position", "step", "the last of the step", continued=lambda self, at: at[:, -1:].expand_as(at))
fault("cache-mask", "step", "not itself", cached=lambda self, at, n: self.causal((at - 1).clamp(min=0), n))
fault("cache-mask", "step", "the whole step", cached=lambda self, at, n: self.causal(at[:, -1:].expand_as(at), n))
fault("cache-mask", "step", "from the first key", cached=lambda self, at, n: self.causal(at - at[:, :1], n))
fault("cache-mask", "step", "the step alone", cached=new_alone)
fault("cache-mask", "step", "padding", "padding", decode=see_padding)
fault("cache-mask", "step", "the source's padding", "source", first_cache=source_padding)


def each_alone(self: Any, gradients: dict[str, Tensor], training: Any) -> dict[str, Tensor]:
    most = training.max_norm or math.inf
    return {name: x * min(1.0, most / max(float(x.norm()), 1e-30)) for name, x in gradients.items()}


def by_value(self: Any, gradients: dict[str, Tensor], training: Any) -> dict[str, Tensor]:
    most = training.max_norm or math.inf
    return {name: x.clamp(-most, most) for name, x in gradients.items()}


def always(self: Any, gradients: dict[str, Tensor], training: Any) -> dict[str, Tensor]:
    if training.max_norm is None:
        return gradients
    norm = math.sqrt(sum(float(x.double().pow(2).sum()) for x in gradients.values()))
    return {name: x * (training.max_norm / norm) for name, x in gradients.items()}


def coupled(self: Any, value: Tensor, gradient: Tensor, state: Any, training: Any, rate: float, step: int) -> Tensor:
    decay = training.weight_decay if training.optimizer == "adamw" else 0.0
    found = Port.adam(self, value, gradient + decay * value, state, training, rate, step)
    return found + rate * decay * value


def without_rate(self: Any, value: Tensor, *more: Any) -> Tensor:
    _, _, training, rate, _ = more
    found = Port.adam(self, value, *more)
    return found - (1 - rate) * training.weight_decay * value if training.optimizer == "adamw" else found


def uncorrected(
    self: Any, value: Tensor, gradient: Tensor, state: Any, training: Any, rate: float, step: int
) -> Tensor:
    return Port.adam(self, value, gradient, state, training, rate, 10**6)


def dampened(self: Any, value: Tensor, gradient: Tensor, state: Any, training: Any, rate: float, step: int) -> Tensor:
    return Port.sgd(self, value, gradient * (1 - training.momentum), state, training, rate, step)


def nesterov(self: Any, value: Tensor, gradient: Tensor, state: Any, training: Any, rate: float, step: int) -> Tensor:
    Port.sgd(self, value, gradient, state, training, rate, step)
    first, _, name = state
    return value - rate * (gradient + training.momentum * first[name])


def counted_from(first: int) -> Callable[..., float]:
    def rate(self: Any, training: Any, step: int) -> float:
        count = step - 1 + first
        return Port.rate(self, training, count) if count or training.warmup_steps is None else 0.0

    return rate


def no_eps(self: Any, second: Tensor, correction: float, eps: float) -> Tensor:
    return (second / correction).sqrt().clamp(min=1e-38)


fault("clip-norm", "train", "each alone", clipped=each_alone)
fault("clip-norm", "train", "by value", clipped=by_value)
fault("clip-norm", "train", "always", clipped=always)
fault("clip-norm", "train", "never", clipped=lambda self, gradients, training: gradients)
fault("optimizer-eps", "train", "inside the root", root=lambda self, x, c, eps: (x / c + eps).sqrt())
fault("optimizer-eps", "train", "before the correction", root=lambda self, x, c, eps: (x.sqrt() + eps) / math.sqrt(c))
fault("optimizer-eps", "train", "no eps", root=no_eps)
fault("weight-decay", "train", "coupled", adam=coupled)
fault("weight-decay", "train", "without the rate", adam=without_rate)
fault("weight-decay", "train", "of matrices alone", decay=lambda self, x, t: t.weight_decay * (x.ndim > 1))
fault("weight-decay", "train", "none", decay=lambda self, x, t: 0.0)
fault("bias-correction", "train", "none", adam=uncorrected)
fault("optimizer-betas", "train", "swapped", betas=lambda self, training: training.betas[::-1])
fault("warm-up", "train", "from the second step", rate=counted_from(2))
fault("warm-up", "train", "from step 0", rate=counted_from(0))
fault("momentum", "train", "dampened", sgd=dampened)
fault("momentum", "train", "Nesterov", sgd=nesterov)
