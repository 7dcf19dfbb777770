"""The port with its capabilities: loss, gradients, cached decoding, generation, beams and training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meta.independent.model import Cache, Model, tokens


class Port(Model):
    """The model, with everything that can be offered besides its forward pass."""

    def logits(self, **inputs: Any) -> Tensor:
        return self.run(**{name: tokens(value) for name, value in inputs.items() if value is not None})

    def mean_loss(self, targets: Any, **inputs: Any) -> Tensor:
        """Mean cross-entropy of the targets that are no padding."""
        ignored = -100 if self.c.pad_id is None else self.c.pad_id
        logits = self.logits(**inputs)
        return F.cross_entropy(logits.flatten(0, 1), tokens(targets).flatten(), ignore_index=ignored)

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
        """Logits of the next tokens; the cache is a new one each time, and the old one stays as it was."""
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
        """Logits after the last token of each row, of the last `max_length` tokens."""
        longest = self.c.max_length
        begin = (lengths - longest).clamp(min=0)
        window = begin[:, None] + torch.arange(min(longest, int(lengths.max())))
        context = ids.gather(1, window)
        inputs = {"tokens": context} if source is None else {"source": source, "target": context}
        return self.logits(**inputs)[torch.arange(len(ids)), lengths - begin - 1]

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
            total = tokens(prompt).shape[1]
            ended = torch.zeros(len(ids), dtype=torch.bool)
            for i in range(max_new_tokens):
                logits = self.next_logits(ids, long, source)
                numbers = None if uniforms is None else torch.as_tensor(np.asarray(uniforms))[:, i]
                token = self.choose(logits, numbers, sampling)
                token = torch.where(ended, self.filler(), token)
                ids[torch.arange(len(ids)), long] = token
                ended = ended | (token == (-1 if self.c.eos_id is None else self.c.eos_id))
                long, total = long + 1, total + 1
                if ended.all():
                    break
            return ids[:, :total].numpy()

    def choose(self, logits: Tensor, uniforms: Any, sampling: Any) -> Tensor:
        return logits.argmax(-1) if uniforms is None else self.drawn(self.filtered(logits, sampling), uniforms)

    def filtered(self, logits: Tensor, sampling: Any) -> Tensor:
        """Temperature, top-k and top-p."""
        if sampling is None:
            return logits
        logits = logits.double() / sampling.temperature
        ranked, order = torch.sort(logits, dim=-1, descending=True, stable=True)
        if sampling.top_k is not None:
            ranked[:, sampling.top_k :] = -torch.inf
        if sampling.top_p < 1:
            share = ranked.softmax(-1)
            ranked[share.cumsum(-1) - share >= sampling.top_p] = -torch.inf
        return torch.zeros_like(logits).scatter(-1, order, ranked)

    def drawn(self, logits: Tensor, uniforms: Tensor) -> Tensor:
        """The first token whose cumulative probability exceeds the number."""
        total = logits.double().softmax(-1).cumsum(-1)
        last = (total < total[:, -1:]).sum(-1)
        return torch.minimum((total <= uniforms.double()[:, None] * total[:, -1:]).sum(-1), last)

    def beam_search(
        self, prompt: Any, max_new_tokens: int, beams: int, *, length_penalty: float = 0.0, source: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Each row by itself, with lists of (log probability, tokens added, ended, ids)."""
        rows = []
        for row in range(len(tokens(prompt))):
            own = None if source is None else tokens(source)[row : row + 1]
            rows.append(self.best(tokens(prompt)[row], max_new_tokens, beams, length_penalty, own))
        longest = max(len(ids) for _, ids in rows)
        filled = [ids + [self.filler()] * (longest - len(ids)) for _, ids in rows]
        return np.array(filled), np.array([score for score, _ in rows], np.float32)

    def best(self, prompt: Tensor, steps: int, beams: int, penalty: float, source: Any) -> tuple[float, list[int]]:
        alive: list[tuple[float, int, bool, list[int]]] = [(0.0, 0, False, prompt.tolist())]
        with torch.no_grad():
            for _ in range(steps):
                if all(ended for _, _, ended, _ in alive):
                    break
                alive = self.extended(alive, beams, penalty, source)
        score, added, _, ids = max(alive, key=lambda beam: beam[0] / self.penalty(beam[1], penalty))
        return score / self.penalty(added, penalty), ids

    def extended(self, alive: list[Any], beams: int, penalty: float, source: Any) -> list[Any]:
        """The best continuations by one token; an ended beam stays as it is."""
        found = []
        for score, added, ended, ids in alive:
            if ended:
                found.append((score, added, True, [*ids, self.filler()]))
                continue
            lengths = torch.tensor([len(ids)])
            following = self.next_logits(torch.tensor([ids]), lengths, source).double().log_softmax(-1)[0]
            for token in range(len(following)):
                stops = token == self.c.eos_id
                found.append((score + float(following[token]), added + 1, stops, [*ids, token]))
        found.sort(key=lambda beam: -beam[0] / self.penalty(beam[1], penalty))
        return found[:beams]

    def penalty(self, added: int, power: float) -> float:
        return float(((5 + added) / 6) ** power)

    def train(self, batches: Any, training: Any) -> tuple[list[float], dict[str, np.ndarray]]:
        """One step for each batch, on a copy of the parameters."""
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
        one, two = training.betas
        first[name] = one * first.get(name, torch.zeros_like(gradient)) + (1 - one) * gradient
        second[name] = two * second.get(name, torch.zeros_like(gradient)) + (1 - two) * gradient**2
        mean, spread = first[name] / (1 - one**step), second[name] / (1 - two**step)
        decay = training.weight_decay if training.optimizer == "adamw" else 0.0
        return value - rate * decay * value - rate * mean / (spread.sqrt() + training.eps)


def as_numpy(value: Tensor) -> np.ndarray:
    """NumPy has no bfloat16."""
    found: np.ndarray = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return found


def build_with(*parts: type, base: type[Model] = Model, taps: bool = False) -> Callable[..., Any]:
    """`build(config, parameters, dtype)` of the port whose class has `parts` in front of `base`."""
    made = type("Built", (*parts, base), {"taps": taps})

    def build(config: Any, parameters: Any, dtype: str = "float32") -> Any:
        return made(config, parameters, dtype)

    return build
