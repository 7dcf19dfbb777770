"""The port with all capabilities: loss, gradients, cached decoding, generation, beam search and training."""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meta.independent.model import Cache, Model, tokens


class Beam(NamedTuple):
    """A beam: its log probability, the number of new tokens, whether it has ended, and its ids.

    The model reads `seen`, which differs from `ids` only in a port with a bug.
    """

    score: float
    added: int
    ended: bool
    ids: list[int]
    seen: list[int]


class Port(Model):
    """The model, with every capability that a port can offer."""

    def logits(self, **inputs: Any) -> Tensor:
        return self.run(**{name: tokens(value) for name, value in inputs.items() if value is not None})

    def mean_loss(self, targets: Any, **inputs: Any) -> Tensor:
        logits, wanted = self.aligned(self.logits(**inputs), tokens(targets))
        each = F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
        real = torch.ones_like(wanted) if self.c.pad_id is None else wanted != self.c.pad_id
        return self.reduced(each, real)

    def aligned(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return logits, targets

    def reduced(self, each: Tensor, real: Tensor) -> Tensor:
        return (each * real).sum() / real.sum()

    def loss(self, targets: Any, **inputs: Any) -> float:
        with torch.no_grad():
            return float(self.mean_loss(targets, **inputs))

    def loss_and_gradients(self, targets: Any, **inputs: Any) -> tuple[float, dict[str, np.ndarray]]:
        for value in self.p.values():
            value.requires_grad_(True).grad = None
        loss = self.mean_loss(targets, **inputs)
        loss.backward()
        found = {name: torch.zeros_like(x) if x.grad is None else x.grad.detach() for name, x in self.p.items()}
        for value in self.p.values():
            value.requires_grad_(False).grad = None
        return float(loss.detach()), {name: as_numpy(gradient) for name, gradient in found.items()}

    def step(
        self, ids: Any, cache: Any = None, *, source: Any = None, attention_mask: Any = None
    ) -> tuple[Tensor, Cache]:
        """Return the logits of the next tokens, and a new cache; the given cache stays unchanged."""
        with torch.no_grad():
            ids = tokens(ids)
            mask = None if attention_mask is None else tokens(attention_mask)
            cache = dict(cache) if cache is not None else self.first_cache(ids, source, mask)
            x = self.decode(ids, None, cache.get("seen"), mask if source is None else None, past=cache)
            return self.head(x), cache

    def first_cache(self, ids: Tensor, source: Any, mask: Any) -> Cache:
        cache: Cache = {"length": 0, "real": torch.zeros(len(ids), 0, dtype=torch.bool)}
        if source is not None:
            memory, cache["seen"] = self.encode(tokens(source), mask)
            for i in range(self.c.num_decoder_layers):
                at = f"decoder.layers.{i}"
                cache[f"{at}.cross_attention"] = self.key_value(f"{at}.cross_attention", self.memory(at, memory), None)
        return cache

    def next_logits(self, ids: Tensor, lengths: Tensor, source: Any) -> Tensor:
        begin = self.cropped(lengths)
        window = begin[:, None] + torch.arange(min(self.c.max_length, int((lengths - begin).max())))
        return self.last_logits(self.rerun(ids.gather(1, window), source), lengths - begin)

    def cropped(self, lengths: Tensor) -> Tensor:
        """Return, for each row, the index of the first token that the model still reads."""
        return (lengths - self.c.max_length).clamp(min=0)

    def rerun(self, context: Tensor, source: Any) -> Tensor:
        inputs = {"tokens": context} if source is None else {"source": source, "target": context}
        return self.logits(**inputs)

    def last_logits(self, logits: Tensor, lengths: Tensor) -> Tensor:
        return logits[torch.arange(len(logits)), lengths - 1]

    def filler(self) -> int:
        known = [token for token in (self.c.pad_id, self.c.eos_id) if token is not None]
        return int(known[0]) if known else 0

    def starting(self, prompt: Any, lengths: Any, more: int) -> tuple[Tensor, Tensor]:
        ids = tokens(prompt)
        long = torch.full((len(ids),), ids.shape[1]) if lengths is None else tokens(lengths)
        ids = F.pad(ids, (0, more), value=self.filler())
        return torch.where(torch.arange(ids.shape[1]) < long[:, None], ids, self.filler()), long

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int,
        *,
        lengths: Any = None,
        source: Any = None,
        uniforms: Any = None,
        sampling: Any = None,
    ) -> np.ndarray:
        with torch.no_grad():
            ids, long = self.starting(prompt, lengths, max_new_tokens)
            total, begin = tokens(prompt).shape[1], long
            ended = torch.zeros(len(ids), dtype=torch.bool)
            for i in range(max_new_tokens):
                logits = self.next_logits(ids, long, source)
                numbers = None if uniforms is None else torch.as_tensor(np.asarray(uniforms))[:, i]
                token = self.filled(self.choose(logits, numbers, sampling), ended)
                ids[torch.arange(len(ids)), long] = token
                ended = ended | self.ends(token)
                long, total = long + 1, total + 1
                if self.is_over(ended):
                    break
            return self.result(ids[:, :total], begin, tokens(prompt).shape[1]).numpy()

    def filled(self, token: Tensor, ended: Tensor) -> Tensor:
        return torch.where(ended, self.filler(), token)

    def ends(self, token: Tensor) -> Tensor:
        return token == (-1 if self.c.eos_id is None else self.c.eos_id)

    def is_over(self, ended: Tensor) -> bool:
        return bool(ended.all())

    def result(self, ids: Tensor, begin: Tensor, prompt: int) -> Tensor:
        """Return the generated ids; a subclass may edit them after position `begin` in each row."""
        return ids

    def choose(self, logits: Tensor, uniforms: Any, sampling: Any) -> Tensor:
        return logits.argmax(-1) if uniforms is None else self.drawn(self.filtered(logits, sampling), uniforms)

    def filtered(self, logits: Tensor, sampling: Any) -> Tensor:
        """Filter logits by temperature, top-k and top-p."""
        if sampling is None:
            return logits
        logits = self.cooled(logits.double(), sampling)
        ranked, order = torch.sort(logits, dim=-1, descending=True, stable=True)
        if sampling.top_k is not None:
            ranked[:, self.likeliest(sampling.top_k) :] = -torch.inf
        if sampling.top_p < 1:
            share = ranked.softmax(-1)
            ranked[self.beyond(share, sampling.top_p)] = -torch.inf
        return torch.zeros_like(logits).scatter(-1, order, ranked)

    def cooled(self, logits: Tensor, sampling: Any) -> Tensor:
        return logits / sampling.temperature

    def likeliest(self, top_k: int) -> int:
        return top_k

    def beyond(self, share: Tensor, top_p: float) -> Tensor:
        """Return a mask of the tokens that top-p drops; `share` has their probabilities, in decreasing order."""
        return share.cumsum(-1) - share >= top_p

    def drawn(self, logits: Tensor, uniforms: Tensor) -> Tensor:
        """Return the first token whose cumulative probability exceeds the uniform number."""
        total = logits.double().softmax(-1).cumsum(-1)
        last = (total < total[:, -1:]).sum(-1)
        return torch.minimum((total <= uniforms.double()[:, None] * total[:, -1:]).sum(-1), last)

    def beam_search(
        self, prompt: Any, max_new_tokens: int, beams: int, *, length_penalty: float = 0.0, source: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Search each row separately, with a list of beams."""
        rows = []
        for row in range(len(tokens(prompt))):
            own = None if source is None else tokens(source)[row : row + 1]
            rows.append(self.best(tokens(prompt)[row], max_new_tokens, beams, length_penalty, own))
        longest = max(len(ids) for _, ids in rows)
        filled = [ids + [self.filler()] * (longest - len(ids)) for _, ids in rows]
        return np.array(filled), np.array([score for score, _ in rows], np.float32)

    def best(self, prompt: Tensor, steps: int, beams: int, penalty: float, source: Any) -> tuple[float, list[int]]:
        alive = self.first_beams(prompt.tolist(), beams)
        self.begun = len(prompt)
        with torch.no_grad():
            for _ in range(steps):
                if all(beam.ended for beam in alive):
                    break
                alive = self.extended(alive, beams, penalty, source)
        found = max(alive, key=lambda beam: self.rank(beam, penalty, last=True))
        return self.rank(found, penalty, last=True), found.ids

    def first_beams(self, prompt: list[int], beams: int) -> list[Beam]:
        return [Beam(0.0, 0, False, prompt, prompt)]

    def extended(self, alive: list[Beam], beams: int, penalty: float, source: Any) -> list[Beam]:
        found = [each for beam in alive for each in self.continuations(beam, source)]
        found.sort(key=lambda beam: -self.rank(beam, penalty))
        return self.reordered(found[:beams], alive)

    def continuations(self, beam: Beam, source: Any) -> list[Beam]:
        """Return a beam continued by every token; a beam that has ended gets only a filler token."""
        if beam.ended:
            return self.stay(beam)
        logits = self.next_logits(torch.tensor([beam.seen]), torch.tensor([len(beam.seen)]), source)
        gains = self.gains(logits.double())[0].tolist()
        ends = self.ends(torch.arange(len(gains))).tolist()
        return [
            Beam(beam.score + gain, beam.added + 1, ends[token], [*beam.ids, token], [*beam.seen, token])
            for token, gain in enumerate(gains)
        ]

    def stay(self, beam: Beam) -> list[Beam]:
        return [beam._replace(ids=[*beam.ids, self.filler()], seen=[*beam.seen, self.filler()])]

    def gains(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1)

    def reordered(self, kept: list[Beam], alive: list[Beam]) -> list[Beam]:
        """Return the kept beams; a subclass may reorder a cache here."""
        return kept

    def rank(self, beam: Beam, penalty: float, *, last: bool = False) -> float:
        return beam.score / self.penalty(beam.added, penalty)

    def penalty(self, added: int, power: float) -> float:
        return float(((5 + added) / 6) ** power)

    def train(self, batches: Any, training: Any) -> tuple[list[float], dict[str, np.ndarray]]:
        """Take one optimizer step for each batch, on a copy of the parameters."""
        model = type(self)(self.c, {name: as_numpy(value) for name, value in self.p.items()}, self.precision)
        losses, first, second = [], dict[str, Any](), dict[str, Any]()
        for number, batch in enumerate(batches, 1):
            given = dict(batch)
            loss, gradients = model.loss_and_gradients(given.pop("targets"), **given)
            losses.append(loss)
            found = model.clipped({name: torch.as_tensor(g) for name, g in gradients.items()}, training)
            rate = model.rate(training, number)
            for name, gradient in found.items():
                update = model.sgd if training.optimizer == "sgd" else model.adam
                model.p[name] = update(model.p[name], gradient, (first, second, name), training, rate, number)
        return losses, {name: as_numpy(value) for name, value in model.p.items()}

    def clipped(self, gradients: dict[str, Tensor], training: Any) -> dict[str, Tensor]:
        if training.max_norm is None:
            return gradients
        norm = torch.stack([gradient.double().norm() for gradient in gradients.values()]).norm()
        factor = min(1.0, float(training.max_norm / norm)) if norm else 1.0
        return {name: gradient * factor for name, gradient in gradients.items()}

    def rate(self, training: Any, step: int) -> float:
        if training.warmup_steps is None:
            return float(training.learning_rate)
        factor = min(step**-0.5, step * training.warmup_steps**-1.5)
        return float(training.learning_rate * self.c.embed_dim**-0.5 * factor)

    def sgd(self, value: Tensor, gradient: Tensor, state: Any, training: Any, rate: float, step: int) -> Tensor:
        first, _, name = state
        first[name] = gradient + training.momentum * first.get(name, torch.zeros_like(gradient))
        return value - rate * first[name]

    def adam(self, value: Tensor, gradient: Tensor, state: Any, training: Any, rate: float, step: int) -> Tensor:
        first, second, name = state
        one, two = self.betas(training)
        first[name] = one * first.get(name, torch.zeros_like(gradient)) + (1 - one) * gradient
        second[name] = two * second.get(name, torch.zeros_like(gradient)) + (1 - two) * gradient**2
        mean, root = first[name] / (1 - one**step), self.root(second[name], 1 - two**step, training.eps)
        decay = self.decay(value, training) if training.optimizer == "adamw" else 0.0
        return value - rate * decay * value - rate * mean / root

    def betas(self, training: Any) -> tuple[float, float]:
        one, two = training.betas
        return one, two

    def root(self, second: Tensor, correction: float, eps: float) -> Tensor:
        return (second / correction).sqrt() + eps

    def decay(self, value: Tensor, training: Any) -> float:
        return float(training.weight_decay)


def as_numpy(value: Tensor) -> np.ndarray:
    found: np.ndarray = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return found
