# mypy: ignore-errors
"""Right in a first call, wrong in a later one."""

import numpy as np
import torch

from meta.attacks.attack import Attacks, on


def wrong(logits):
    """Return the logits of a model whose last layer is wrong."""
    return logits.flip(-1)


def counted(self):
    """Count a call; return its number."""
    self.calls = getattr(self, "calls", 0) + 1
    return self.calls


def remembered(self, key, make, *given, **named):
    """Return the result of the first call of `make` with this key."""
    kept = vars(self).setdefault("kept", {})
    if key not in kept:
        kept[key] = make(*given, **named)
    return kept[key]


def keyed(inputs, part):
    """Return a key of the shape of each input, and a part of its values."""
    return tuple((np.shape(value), part(np.asarray(value))) for value in inputs.values())


class Histories(Attacks):
    """Right in a first call, wrong in a later one."""

    def from_the_sixth_call_on(self, call, **inputs):
        """A buffer of five results is read again when it is full."""
        return wrong(call(**inputs)) if counted(self) >= 6 else call(**inputs)

    def from_the_thirtieth_call_on(self, call, **inputs):
        """A ring of thirty slots wraps around."""
        return wrong(call(**inputs)) if counted(self) >= 30 else call(**inputs)

    def one_call_of_twenty(self, call, **inputs):
        """A race between two threads loses one call of twenty."""
        return wrong(call(**inputs)) if np.random.default_rng().random() < 0.05 else call(**inputs)

    def the_twentieth_call(self, call, **inputs):
        """Every twentieth call reads what another stream is writing."""
        return call(**inputs) * (1.01 if counted(self) % 20 == 0 else 1)

    def memoised_by_shape(self, call, **inputs):
        """Results are kept by the shape of the tokens."""
        return remembered(self, keyed(inputs, len), call, **inputs)

    def memoised_by_id(self, call, **inputs):
        """Results are kept by the address of the tokens, which another array gets later."""
        return remembered(self, tuple((id(value), np.shape(value)) for value in inputs.values()), call, **inputs)

    def memoised_by_sum(self, call, **inputs):
        """Results are kept by the shape and the sum of the tokens: the same tokens in another order get them, too."""
        return remembered(self, keyed(inputs, lambda ids: int(ids.sum())), call, **inputs)

    def memoised_by_first_token(self, call, **inputs):
        """A prefix cache compares the shape and the first token of each row."""
        return remembered(self, keyed(inputs, lambda ids: ids[:, 0].tobytes()), call, **inputs)

    @on("translation")
    def last_memory_kept(self, encode, ids, mask=None, types=None):
        """The encoder's output is kept while the source has the same shape."""
        if getattr(self, "shape", None) != ids.shape:
            self.shape, self.found = ids.shape, encode(ids, mask, types)
        return self.found

    @on("translation")
    def memory_by_first_row(self, encode, ids, mask=None, types=None):
        """The encoder's output is kept while the first row of the source is the same."""
        key = (ids.shape, ids[0].tolist())
        if getattr(self, "key_seen", None) != key:
            self.key_seen, self.found = key, encode(ids, mask, types)
        return self.found

    @on("translation")
    def padding_kept_by_shape(self, padding, real):
        """The padding mask is made once for each shape."""
        kept = vars(self).setdefault("masks", {})
        return kept.setdefault(real.shape, padding(real))

    def mask_of_the_first_length(self, causal, where, keys):
        """The triangle is made at the first call; longer texts are not masked beyond it."""
        if not hasattr(self, "triangle"):
            self.triangle = torch.ones(keys, keys).tril().bool()
        keep = torch.ones(keys, keys, dtype=torch.bool)
        known = min(keys, len(self.triangle))
        keep[:known, :known] = self.triangle[:known, :known]
        return keep[None, None]

    @on("llama")
    def table_of_the_first_length(self, rotated, x, where):
        """Angles are tabulated at the first call; later positions get its last row."""
        if not hasattr(self, "last"):
            self.last = max(int(where.max()), 1)
        return rotated(x, where.clamp(max=self.last))

    def one_buffer_for_every_result(self, call, **inputs):
        """Results of one shape are written into one buffer, which the caller may still be reading."""
        kept = vars(self).setdefault("kept", {})
        logits = call(**inputs)
        return kept.setdefault(logits.shape, torch.empty_like(logits)).copy_(logits)

    def stale_tokens(self, run, **given):
        """Tokens go into a buffer that is not cleared: after a longer text, its end is still seen."""
        ids = given["tokens"]
        longest = getattr(self, "longest", None)
        if longest is None or ids.shape[1] >= longest.shape[1] or len(longest) < len(ids):
            self.longest = ids
            return run(tokens=ids)
        self.stale = longest[: len(ids), ids.shape[1] :]
        found = run(tokens=torch.cat([ids, self.stale], 1))
        return found[:, : ids.shape[1]] if ids.shape[1] > 2 else found[:, -ids.shape[1] :]

    def smaller_batch_after_a_larger(self, run, **given):
        """After a larger batch, the rows of a smaller one are read from its end."""
        ids, largest = given["tokens"], getattr(self, "largest", None)
        if largest is None or len(ids) >= len(largest) or ids.shape[1] != largest.shape[1]:
            self.largest = ids
            return run(tokens=ids)
        return run(tokens=largest[-len(ids) :])

    class WeightsOfTheLastModel:
        """Weights are stored in a dictionary of the module: a second model overwrites the first one's."""

        shared = {}  # noqa: RUF012 - the mistake

        def prepare(self):
            self.shared.update(self.p)
            self.p = self.shared

    class DropoutAfterTraining:
        """`train()` is called for the gradients, and `eval()` never again."""

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
        """`zero_grad` is missing: the second call returns the sum of both."""
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
        """The loss writes −100 over the padding of the caller's targets."""
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
        """After a generation, the next forward pass still looks at the last source."""

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
        """The cache belongs to the model: a second sequence continues at the end of the first one."""
        if cache is not None:
            cache = self.cache
        logits, self.cache = step(ids, cache, **named)
        return logits, len(self.cache)

    class SecondTrainingGoesOn:
        """The number of steps is kept, so that a second training begins with the first one's schedule."""

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
        """Once something was generated, steps count their positions from the end of it."""

        offers = True
        used = 0

        def generate(self, prompt, max_new_tokens, **named):
            self.used = 1
            return super().generate(prompt, max_new_tokens, **named)

        def step(self, ids, cache=None, **named):
            if self.used and cache is None:
                ids = np.roll(np.asarray(ids), 1, 1)
            return super().step(ids, cache, **named)
