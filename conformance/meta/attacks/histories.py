# mypy: ignore-errors
"""Ports that are right in the first call and wrong in a later one."""

import numpy as np
import torch

from meta.attacks.attack import Attacks, on


def wrong(logits):
    """Return wrong logits."""
    return logits.flip(-1)


def counted(self):
    """Count a call, and return the count."""
    self.calls = getattr(self, "calls", 0) + 1
    return self.calls


def remembered(self, key, make, *given, **named):
    """Return the result of the first call of `make` with this key."""
    kept = vars(self).setdefault("kept", {})
    if key not in kept:
        kept[key] = make(*given, **named)
    return kept[key]


def keyed(inputs, part):
    """Return a key: the shape of each input, and `part` of its values."""
    return tuple((np.shape(value), part(np.asarray(value))) for value in inputs.values())


class Histories(Attacks):
    """Ports that are right in the first call and wrong in a later one."""

    def from_the_sixth_call_on(self, call, **inputs):
        """A full buffer returns old entries in the sixth and all later calls."""
        return wrong(call(**inputs)) if counted(self) >= 6 else call(**inputs)

    def from_the_thirtieth_call_on(self, call, **inputs):
        """A ring buffer of thirty slots wraps around."""
        return wrong(call(**inputs)) if counted(self) >= 30 else call(**inputs)

    def one_call_of_twenty(self, call, **inputs):
        """A race between two threads makes one call in twenty wrong."""
        return wrong(call(**inputs)) if np.random.default_rng().random() < 0.05 else call(**inputs)

    def the_twentieth_call(self, call, **inputs):
        """Every twentieth call reads memory that another stream is writing."""
        return call(**inputs) * (1.01 if counted(self) % 20 == 0 else 1)

    def memoised_by_shape(self, call, **inputs):
        """Results are cached by the shape of the tokens and the number of rows."""
        return remembered(self, keyed(inputs, len), call, **inputs)

    def memoised_by_id(self, call, **inputs):
        """Results are cached by the memory address of the tokens, which a later array may reuse."""
        return remembered(self, tuple((id(value), np.shape(value)) for value in inputs.values()), call, **inputs)

    def memoised_by_sum(self, call, **inputs):
        """Results are cached by the shape and the sum of the tokens, so reordered tokens get the same result."""
        return remembered(self, keyed(inputs, lambda ids: int(ids.sum())), call, **inputs)

    def memoised_by_first_token(self, call, **inputs):
        """Results are cached by the shape of the tokens and the first token of each row."""
        return remembered(self, keyed(inputs, lambda ids: ids[:, 0].tobytes()), call, **inputs)

    @on("translation")
    def last_memory_kept(self, encode, ids, mask=None, types=None):
        """The encoder's output is reused while the shape of the source is the same."""
        if getattr(self, "shape", None) != ids.shape:
            self.shape, self.found = ids.shape, encode(ids, mask, types)
        return self.found

    @on("translation")
    def memory_by_first_row(self, encode, ids, mask=None, types=None):
        """The encoder's output is reused while the first row of the source is the same."""
        key = (ids.shape, ids[0].tolist())
        if getattr(self, "key_seen", None) != key:
            self.key_seen, self.found = key, encode(ids, mask, types)
        return self.found

    @on("translation")
    def padding_kept_by_shape(self, padding, real):
        """The padding mask is computed once for each shape."""
        kept = vars(self).setdefault("masks", {})
        return kept.setdefault(real.shape, padding(real))

    def mask_of_the_first_length(self, causal, where, keys):
        """The causal mask is created in the first call; later positions of longer texts are not masked."""
        if not hasattr(self, "triangle"):
            self.triangle = torch.ones(keys, keys).tril().bool()
        keep = torch.ones(keys, keys, dtype=torch.bool)
        known = min(keys, len(self.triangle))
        keep[:known, :known] = self.triangle[:known, :known]
        return keep[None, None]

    @on("llama")
    def table_of_the_first_length(self, rotated, x, where):
        """Rotation angles are tabulated in the first call; later positions use the last row of the table."""
        if not hasattr(self, "last"):
            self.last = max(int(where.max()), 1)
        return rotated(x, where.clamp(max=self.last))

    def one_buffer_for_every_result(self, call, **inputs):
        """All results of one shape share a buffer, so a new call overwrites an earlier result."""
        kept = vars(self).setdefault("kept", {})
        logits = call(**inputs)
        return kept.setdefault(logits.shape, torch.empty_like(logits)).copy_(logits)

    def stale_tokens(self, run, **given):
        """Tokens are written into a buffer that is not cleared, so the end of a longer text stays visible."""
        ids = given["tokens"]
        longest = getattr(self, "longest", None)
        if longest is None or ids.shape[1] >= longest.shape[1] or len(longest) < len(ids):
            self.longest = ids
            return run(tokens=ids)
        self.stale = longest[: len(ids), ids.shape[1] :]
        found = run(tokens=torch.cat([ids, self.stale], 1))
        return found[:, : ids.shape[1]] if ids.shape[1] > 2 else found[:, -ids.shape[1] :]

    def smaller_batch_after_a_larger(self, run, **given):
        """After a larger batch, a smaller one is read from the end of the larger batch's buffer."""
        ids, largest = given["tokens"], getattr(self, "largest", None)
        if largest is None or len(ids) >= len(largest) or ids.shape[1] != largest.shape[1]:
            self.largest = ids
            return run(tokens=ids)
        return run(tokens=largest[-len(ids) :])

    class WeightsOfTheLastModel:
        """All models share one dictionary of weights, so a second model overwrites the first one's weights."""

        shared = {}  # noqa: RUF012 - the mistake

        def prepare(self):
            self.shared.update(self.p)
            self.p = self.shared

    class DropoutAfterTraining:
        """Computing gradients calls `train()`; the port never calls `eval()` afterwards."""

        offers = True
        training = False

        def loss_and_gradients(self, targets, **inputs):
            found = super().loss_and_gradients(targets, **inputs)
            self.training = True
            return found

        def feed(self, at, x):
            y = super().feed(at, x)
            return torch.nn.functional.dropout(y, 0.1) if self.training else y

    @on(offers=True)
    def gradients_add_up(self, loss_and_gradients, targets, **inputs):
        """`zero_grad` is missing, so each call adds its gradients to the previous ones."""
        loss, gradients = loss_and_gradients(targets, **inputs)
        kept = vars(self).setdefault("gradients", {})
        for name, value in gradients.items():
            kept[name] = kept.get(name, 0) + value
        return loss, dict(kept)

    @on(offers=True)
    def training_changes_the_model(self, train, batches, training):
        """`train` updates the model's own parameters."""
        losses, parameters = train(batches, training)
        self.p = {name: torch.tensor(value) for name, value in parameters.items()}
        return losses, parameters

    @on(offers=True)
    def targets_prepared_in_place(self, loss, targets, **inputs):
        """The loss overwrites the padding in the caller's targets with −100."""
        found = loss(targets, **inputs)
        ids = np.asarray(targets)
        ids[ids == self.c.pad_id] = -100
        return float(found)

    def tokens_changed_in_place(self, call, **inputs):
        """The caller's tokens are shifted by one position in place."""
        logits = call(**inputs)
        for value in inputs.values():
            ids = np.asarray(value)
            ids[:, 1:] = ids[:, :-1].copy()
        return logits

    @on("translation")
    class GenerationLeavesItsCache:
        """After a generation, the next forward pass still uses the source of that generation."""

        offers = True

        def generate(self, prompt, max_new_tokens, **named):
            found = super().generate(prompt, max_new_tokens, **named)
            self.left = True
            return found

        def __call__(self, **inputs):
            logits = super().__call__(**inputs)
            return wrong(logits) if getattr(self, "left", False) else logits

    @on(offers=True)
    def one_cache_for_all(self, step, ids, cache=None, **named):
        """All sequences share the model's cache, so a second sequence continues the first one."""
        if cache is not None:
            cache = self.cache
        logits, self.cache = step(ids, cache, **named)
        return logits, len(self.cache)

    class SecondTrainingGoesOn:
        """A second training continues the step count of the first."""

        offers = True
        done = 0

        def train(self, batches, training):
            self.begin = self.done
            self.done += len(list(batches))
            type(self).shift = self.begin
            return super().train(batches, training)

        def adam(self, value, gradient, state, training, rate, step):
            step += getattr(type(self), "shift", 0)
            return super().adam(value, gradient, state, training, rate, step)

    class StepAfterGenerate:
        """After a generation, a new cache starts with wrong positions."""

        offers = True
        used = 0

        def generate(self, prompt, max_new_tokens, **named):
            self.used = 1
            return super().generate(prompt, max_new_tokens, **named)

        def step(self, ids, cache=None, **named):
            if self.used and cache is None:
                ids = np.roll(np.asarray(ids), 1, 1)
            return super().step(ids, cache, **named)
