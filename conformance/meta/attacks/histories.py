"""Right in a first call, wrong in a later one."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from meta.attacks.attack import attack


def wrong(logits: Any) -> Any:
    """Logits of a model whose last layer has gone astray."""
    return logits.flip(-1)


@attack("histories")
class FromTheSixthCallOn:
    """A buffer of five results is read again when it is full."""

    calls = 0

    def __call__(self: Any, **inputs: Any) -> Any:
        self.calls += 1
        logits = super().__call__(**inputs)  # type: ignore[misc]
        return wrong(logits) if self.calls >= 6 else logits


@attack("histories")
class FromTheThirtiethCallOn:
    """A ring of thirty slots wraps around."""

    calls = 0

    def __call__(self: Any, **inputs: Any) -> Any:
        self.calls += 1
        logits = super().__call__(**inputs)  # type: ignore[misc]
        return wrong(logits) if self.calls >= 30 else logits


@attack("histories")
class OneCallOfTwenty:
    """A race between two threads loses one call of twenty."""

    def __call__(self: Any, **inputs: Any) -> Any:
        logits = super().__call__(**inputs)  # type: ignore[misc]
        return wrong(logits) if np.random.default_rng().random() < 0.05 else logits


@attack("histories")
class TheTwentiethCall:
    """Every twentieth call reads what another stream is writing."""

    calls = 0

    def __call__(self: Any, **inputs: Any) -> Any:
        self.calls += 1
        logits = super().__call__(**inputs)  # type: ignore[misc]
        return logits * 1.01 if self.calls % 20 == 0 else logits


@attack("histories")
class MemoisedByShape:
    """Results are kept by the shape of the tokens."""

    def __call__(self: Any, **inputs: Any) -> Any:
        kept = vars(self).setdefault("kept", {})
        key = tuple(np.asarray(value).shape for value in inputs.values())
        if key not in kept:
            kept[key] = super().__call__(**inputs)  # type: ignore[misc]
        return kept[key]


@attack("histories")
class MemoisedById:
    """Results are kept by the address of the tokens, which another array gets later."""

    def __call__(self: Any, **inputs: Any) -> Any:
        kept = vars(self).setdefault("kept", {})
        key = tuple((id(value), np.asarray(value).shape) for value in inputs.values())
        if key not in kept:
            kept[key] = super().__call__(**inputs)  # type: ignore[misc]
        return kept[key]


@attack("histories")
class MemoisedBySum:
    """Results are kept by the shape and the sum of the tokens: the same tokens in another order get them, too."""

    def __call__(self: Any, **inputs: Any) -> Any:
        kept = vars(self).setdefault("kept", {})
        key = tuple((np.asarray(value).shape, int(np.asarray(value).sum())) for value in inputs.values())
        if key not in kept:
            kept[key] = super().__call__(**inputs)  # type: ignore[misc]
        return kept[key]


@attack("histories")
class MemoisedByFirstToken:
    """A prefix cache compares the shape and the first token of each row."""

    def __call__(self: Any, **inputs: Any) -> Any:
        kept = vars(self).setdefault("kept", {})
        key = tuple((np.asarray(value).shape, np.asarray(value)[:, 0].tobytes()) for value in inputs.values())
        if key not in kept:
            kept[key] = super().__call__(**inputs)  # type: ignore[misc]
        return kept[key]


@attack("histories", "translation")
class LastMemoryKept:
    """The encoder's output is kept while the source has the same shape."""

    def encode(self: Any, ids: Tensor, mask: Any = None, types: Any = None) -> Any:
        if getattr(self, "shape", None) != ids.shape:
            self.shape, self.found = ids.shape, super().encode(ids, mask, types)  # type: ignore[misc]
        return self.found


@attack("histories", "translation")
class MemoryByFirstRow:
    """The encoder's output is kept while the first row of the source is the same."""

    def encode(self: Any, ids: Tensor, mask: Any = None, types: Any = None) -> Any:
        key = (ids.shape, ids[0].tolist())
        if getattr(self, "key_seen", None) != key:
            self.key_seen, self.found = key, super().encode(ids, mask, types)  # type: ignore[misc]
        return self.found


@attack("histories", "translation")
class PaddingKeptByShape:
    """The padding mask is made once for each shape."""

    def padding(self: Any, real: Tensor) -> Tensor:
        kept = vars(self).setdefault("masks", {})
        return kept.setdefault(real.shape, super().padding(real))  # type: ignore[misc]


@attack("histories")
class MaskOfTheFirstLength:
    """The triangle is made at the first call; longer texts are not masked beyond it."""

    def causal(self: Any, where: Tensor, keys: int) -> Tensor:
        if not hasattr(self, "triangle"):
            self.triangle = torch.ones(keys, keys).tril().bool()
        keep = torch.ones(keys, keys, dtype=torch.bool)
        known = min(keys, len(self.triangle))
        keep[:known, :known] = self.triangle[:known, :known]
        return keep[None, None]


@attack("histories", "llama")
class TableOfTheFirstLength:
    """Angles are tabulated at the first call; later positions get its last row."""

    def rotated(self: Any, x: Tensor, where: Tensor) -> Tensor:
        if not hasattr(self, "last"):
            self.last = max(int(where.max()), 1)
        return super().rotated(x, where.clamp(max=self.last))  # type: ignore[misc]


@attack("histories")
class OneBufferForEveryResult:
    """Results of one shape are written into one buffer, which the caller may still be reading."""

    def __call__(self: Any, **inputs: Any) -> Any:
        kept = vars(self).setdefault("kept", {})
        logits = super().__call__(**inputs)  # type: ignore[misc]
        return kept.setdefault(logits.shape, torch.empty_like(logits)).copy_(logits)


@attack("histories")
class StaleTokens:
    """Tokens go into a buffer that is not cleared: after a longer text, its end is still seen."""

    def run(self: Any, **given: Any) -> Tensor:
        ids = given["tokens"]
        longest = getattr(self, "longest", None)
        if longest is None or ids.shape[1] >= longest.shape[1] or len(longest) < len(ids):
            self.longest = ids
            return super().run(tokens=ids)  # type: ignore[misc]
        self.stale = longest[: len(ids), ids.shape[1] :]
        found = super().run(tokens=torch.cat([ids, self.stale], 1))  # type: ignore[misc]
        return found[:, : ids.shape[1]] if ids.shape[1] > 2 else found[:, -ids.shape[1] :]


@attack("histories")
class SmallerBatchAfterALarger:
    """After a larger batch, the rows of a smaller one are read from its end."""

    def run(self: Any, **given: Any) -> Tensor:
        ids, largest = given["tokens"], getattr(self, "largest", None)
        if largest is None or len(ids) >= len(largest) or ids.shape[1] != largest.shape[1]:
            self.largest = ids
            return super().run(tokens=ids)  # type: ignore[misc]
        return super().run(tokens=largest[-len(ids) :])  # type: ignore[misc]


@attack("histories")
class WeightsOfTheLastModel:
    """Weights are kept in a dictionary of the module: a second model overwrites those of the first."""

    shared: ClassVar[dict[str, Tensor]] = {}

    def prepare(self: Any) -> None:
        self.shared.update(self.p)
        self.p = self.shared


@attack("histories")
class DropoutAfterTraining:
    """`train()` is called for the gradients, and `eval()` never again."""

    offers = True
    training = False

    def loss_and_gradients(self: Any, targets: Any, **inputs: Any) -> Any:
        found = super().loss_and_gradients(targets, **inputs)  # type: ignore[misc]
        self.training = True
        return found

    def feed(self: Any, at: str, x: Tensor) -> Tensor:
        y = super().feed(at, x)  # type: ignore[misc]
        return torch.nn.functional.dropout(y, 0.1) if self.training else y


@attack("histories")
class GradientsAddUp:
    """`zero_grad` is missing: the second call returns the sum of both."""

    offers = True

    def loss_and_gradients(self: Any, targets: Any, **inputs: Any) -> Any:
        loss, gradients = super().loss_and_gradients(targets, **inputs)  # type: ignore[misc]
        kept = vars(self).setdefault("gradients", {})
        for name, value in gradients.items():
            kept[name] = kept.get(name, 0) + value
        return loss, dict(kept)


@attack("histories")
class TrainingChangesTheModel:
    """`train` updates the model's own parameters."""

    offers = True

    def train(self: Any, batches: Any, training: Any) -> Any:
        losses, parameters = super().train(batches, training)  # type: ignore[misc]
        self.p = {name: torch.tensor(value) for name, value in parameters.items()}
        return losses, parameters


@attack("histories")
class TargetsPreparedInPlace:
    """The loss writes −100 over the padding of the caller's targets."""

    offers = True

    def loss(self: Any, targets: Any, **inputs: Any) -> float:
        found = super().loss(targets, **inputs)  # type: ignore[misc]
        ids = np.asarray(targets)
        ids[ids == self.c.pad_id] = -100
        return float(found)


@attack("histories")
class TokensChangedInPlace:
    """The caller's tokens are shifted by one position in place."""

    def __call__(self: Any, **inputs: Any) -> Any:
        logits = super().__call__(**inputs)  # type: ignore[misc]
        for value in inputs.values():
            ids = np.asarray(value)
            ids[:, 1:] = ids[:, :-1].copy()
        return logits


@attack("histories", "translation")
class GenerationLeavesItsCache:
    """After a generation, the next forward pass still looks at the last source."""

    offers = True

    def generate(self: Any, prompt: Any, max_new_tokens: int, **named: Any) -> Any:
        found = super().generate(prompt, max_new_tokens, **named)  # type: ignore[misc]
        self.left = True
        return found

    def __call__(self: Any, **inputs: Any) -> Any:
        logits = super().__call__(**inputs)  # type: ignore[misc]
        return wrong(logits) if getattr(self, "left", False) else logits


@attack("histories")
class OneCacheForAll:
    """The cache belongs to the model: a second sequence goes on where the first one is."""

    offers = True

    def step(self: Any, ids: Any, cache: Any = None, **named: Any) -> Any:
        if cache is not None:
            cache = self.cache
        logits, self.cache = super().step(ids, cache, **named)  # type: ignore[misc]
        return logits, len(self.cache)


@attack("histories")
class SecondTrainingGoesOn:
    """The number of steps is kept, so that a second training begins with the first one's schedule."""

    offers = True
    done = 0

    def train(self: Any, batches: Any, training: Any) -> Any:
        self.begin = self.done
        self.done += len(list(batches))
        type(self).shift = self.begin
        return super().train(batches, training)  # type: ignore[misc]

    def adam(self: Any, value: Any, gradient: Any, state: Any, training: Any, rate: float, step: int) -> Any:
        step += getattr(type(self), "shift", 0)
        return super().adam(value, gradient, state, training, rate, step)  # type: ignore[misc]


@attack("histories")
class StepAfterGenerate:
    """Once something was generated, steps count their positions from the end of it."""

    offers = True
    used = 0

    def generate(self: Any, prompt: Any, max_new_tokens: int, **named: Any) -> Any:
        self.used = 1
        return super().generate(prompt, max_new_tokens, **named)  # type: ignore[misc]

    def step(self: Any, ids: Any, cache: Any = None, **named: Any) -> Any:
        if self.used and cache is None:
            ids = np.roll(np.asarray(ids), 1, 1)
        return super().step(ids, cache, **named)  # type: ignore[misc]
