# mypy: ignore-errors
"""Attacks on a port's capabilities, such as losses, sampling, caches and training."""

import numpy as np
import torch

from meta.attacks.attack import Attacks, on


def length(ids):
    return int(np.asarray(ids).shape[1])


class Capabilities(Attacks):
    """Attacks on a port's capabilities, such as losses, sampling, caches and training."""

    offered = True

    def loss_raises(self, loss, targets, **inputs):
        """The port declares a loss but does not implement it."""
        raise NotImplementedError("loss")

    def sampling_raises(self, choose, logits, uniforms, sampling):
        """The port declares sampling but does not implement it."""
        if uniforms is not None:
            raise NotImplementedError("sampling")
        return logits.argmax(-1)

    def top_p_raises(self, filtered, logits, sampling):
        """Top-p sampling is implemented only for the value 1."""
        assert sampling is None or sampling.top_p == 1, "top-p is not supported"
        return filtered(logits, sampling)

    def beams_raise_for_a_row(self, beam_search, prompt, *more, **named):
        """Beam search fails for a batch of one, because of a `squeeze`."""
        if len(np.asarray(prompt)) == 1:
            raise IndexError("too many indices")
        return beam_search(prompt, *more, **named)

    class ChunksOfFour:
        """Inside a chunk of four or more tokens, attention is not causal."""

        def step(self, ids, cache=None, **named):
            self.loose = length(ids) >= 4
            found = super().step(ids, cache, **named)
            self.loose = False
            return found

        def causal(self, where, keys):
            return super().causal(where, keys) | torch.tensor(getattr(self, "loose", False))

    def chunks_after_the_first(self, causal, where, keys):
        """The mask of a long chunk is aligned with the first keys in the cache instead of the last keys."""
        new = where.shape[1]
        return torch.ones(new, keys).tril(0 if new > 4 else keys - new).bool()[None, None]

    def cache_of_eight(self, remember, past, at, key, value):
        """The cache has eight slots, and the ninth token overwrites the first."""
        key, value = remember(past, at, key, value)
        if key.shape[2] > 8:
            key, value = key.clone(), value.clone()
            key[:, :, 0], value[:, :, 0] = key[:, :, 8], value[:, :, 8]
        return key, value

    def step_of_one_row(self, step, ids, cache=None, **named):
        """For a single row, positions restart at 0 in every step."""
        if cache is not None and len(np.asarray(ids)) == 1:
            cache = cache | {"length": 0}
        return step(ids, cache, **named)

    class PrefillOfOne:
        """If the first chunk has one token, the cache counts it as two."""

        def step(self, ids, cache=None, **named):
            logits, cache = super().step(ids, cache, **named)
            if cache["length"] == 1:
                cache["length"] = 2
                cache["real"] = torch.cat([cache["real"], cache["real"][:, :0]], 1)
            return logits, cache

        def position_rows(self, where, real):
            return where.clamp(max=self.c.max_length - 1)

    def generation_of_one_row(self, choose, logits, uniforms, sampling):
        """For a batch of one, greedy decoding takes the second most likely token."""
        if uniforms is None and len(logits) == 1:
            return logits.topk(2, -1).indices[:, 1]
        return choose(logits, uniforms, sampling)

    def prompts_of_four(self, next_logits, ids, lengths, source):
        """Generation reads only the last four tokens of a prompt."""
        begin = vars(self).setdefault("begin", {}).setdefault(id(ids), max(0, int(lengths.max()) - 4))
        ids = ids.clone()
        ids[:, :begin] = 0
        return next_logits(ids, lengths, source)

    class LaterThanTwelve:
        """Every new token after the twelfth is the least likely token."""

        count = 0

        def generate(self, prompt, *more, **named):
            self.count = 0
            return super().generate(prompt, *more, **named)

        def choose(self, logits, uniforms, sampling):
            self.count += 1
            logits = logits if self.count <= 12 else -logits
            return super().choose(logits, uniforms, sampling)

    @on("translation")
    def end_in_the_prompt(self, generate, prompt, *more, **named):
        """A row whose prompt contains the end token is never continued."""
        found = np.array(generate(prompt, *more, **named))
        ended = (np.asarray(prompt) == self.c.eos_id).any(1)
        found[ended, length(prompt) :] = self.filler()
        return found

    @on("translation")
    def the_first_end_stops_all(self, generate, prompt, *more, **named):
        """In a batch of three or more rows, generation stops when the first row has ended."""
        found = np.array(generate(prompt, *more, **named))
        ends = np.flatnonzero((found[:, length(prompt) :] == self.c.eos_id).any(0))
        return found[:, : length(prompt) + ends[0] + 1] if len(found) >= 3 and len(ends) else found

    def one_new_token(self, generate, prompt, max_new_tokens, **named):
        """A request for a single new token returns the prompt."""
        found = generate(prompt, max_new_tokens, **named)
        return found[:, :-1] if max_new_tokens == 1 else found

    def beyond_the_length(self, next_logits, ids, lengths, source):
        """A context that is too long is cropped to one token less than the model's length."""
        if int(lengths.min()) > self.c.max_length + 1:
            ids = ids.clone()
            ids[torch.arange(len(ids)), lengths - self.c.max_length] = 0
        return next_logits(ids, lengths, source)

    def many_likeliest(self, filtered, logits, sampling):
        """A top-k of 20 or more, half the vocabulary, is ignored."""
        if sampling is not None and sampling.top_k and sampling.top_k >= 20:
            return logits / sampling.temperature
        return filtered(logits, sampling)

    def top_p_before_top_k(self, filtered, logits, sampling):
        """If both are set, top-p is applied before top-k."""
        if sampling is None or sampling.top_k is None or sampling.top_p == 1:
            return filtered(logits, sampling)
        ranked, order = torch.sort(logits.double() / sampling.temperature, dim=-1, descending=True, stable=True)
        share = ranked.softmax(-1)
        ranked[share.cumsum(-1) - share >= sampling.top_p] = -torch.inf
        ranked[:, sampling.top_k :] = -torch.inf
        return torch.zeros_like(ranked).scatter(-1, order, ranked)

    def cold_temperature(self, filtered, logits, sampling):
        """Temperatures below one half are treated as one half."""
        found = filtered(logits, sampling)
        return found * (sampling.temperature / 0.5) if sampling and sampling.temperature < 0.5 else found

    def numbers_near_one(self, drawn, logits, uniforms):
        """A uniform number above 0.999 draws the most likely token."""
        found = drawn(logits, uniforms)
        return torch.where(uniforms > 0.999, logits.argmax(-1), found)

    class DrawnFromTheTop:
        """With top-k, tokens are drawn in the order of their probabilities instead of their ids."""

        def filtered(self, logits, sampling):
            self.sorted = sampling is not None and sampling.top_k is not None
            return super().filtered(logits, sampling)

        def drawn(self, logits, uniforms):
            if not self.sorted:
                return super().drawn(logits, uniforms)
            ranked, order = torch.sort(logits, dim=-1, descending=True)
            return order.gather(-1, super().drawn(ranked, uniforms)[:, None])[:, 0]

    def four_beams(self, best, prompt, steps, beams, penalty, source):
        """A search with more than three beams uses three."""
        return best(prompt, steps, min(beams, 3), penalty, source)

    @on("translation")
    def beams_of_the_first_source(self, beam_search, prompt, *more, **named):
        """Each row except the first is decoded with the source of the row before it."""
        if named.get("source") is not None and len(np.asarray(prompt)) > 1:
            source = np.asarray(named["source"])
            named["source"] = np.concatenate([source[:1], source[:-1]])
        return beam_search(prompt, *more, **named)

    @on("translation")
    def penalty_of_the_whole_length(self, penalty, added, power):
        """The length penalty also counts the prompt."""
        return float(((6 + added) / 6) ** power)

    def after_the_warm_up(self, rate, training, step):
        """After the warm-up, the learning rate falls with 1/step instead of 1/√step."""
        right, warm = rate(training, step), training.warmup_steps
        return float(right * (warm / step) ** 0.5) if warm is not None and step > warm else float(right)

    def moments_of_five_steps(self, adam, value, gradient, state, training, rate, step):
        """The bias of the first moment is not corrected after the fourth step."""
        rate = rate * (1 - training.betas[0] ** step) if step >= 5 else rate
        return adam(value, gradient, state, training, rate, step)

    def no_decay_for_vectors(self, adam, value, gradient, state, training, rate, step):
        """Biases and norm gains have no weight decay, as in many recipes."""
        found = adam(value, gradient, state, training, rate, step)
        decay = training.weight_decay if training.optimizer == "adamw" else 0.0
        return found + rate * decay * value if value.ndim == 1 else found

    def clipped_one_by_one(self, clipped, gradients, training):
        """Each gradient is clipped by its own norm instead of the joint norm."""
        if training.max_norm is None:
            return gradients
        return {name: g * min(1.0, training.max_norm / max(float(g.norm()), 1e-12)) for name, g in gradients.items()}

    def momentum_dampened(self, sgd, value, gradient, state, training, rate, step):
        """SGD's momentum is dampened from the second step on."""
        gradient = gradient * (1 - training.momentum) if step > 1 else gradient
        return sgd(value, gradient, state, training, rate, step)

    @on("bart")
    def tied_gradient_of_the_head(self, lookup, table, ids):
        """The tied table receives only the gradient of the head."""
        return table.detach()[ids]

    def no_gradient_for_padding(self, loss_and_gradients, targets, **inputs):
        """The embedding of the padding token has no gradient, as with `padding_idx`."""
        loss, found = loss_and_gradients(targets, **inputs)
        found["decoder.token_embedding.weight"][self.c.pad_id] = 0
        return loss, found

    def gradients_clipped(self, loss_and_gradients, targets, **inputs):
        """The returned gradients are clipped to a joint norm of 100."""
        loss, found = loss_and_gradients(targets, **inputs)
        norm = sum(float((value**2).sum()) for value in found.values()) ** 0.5
        return loss, {name: value * min(1.0, 100 / norm) for name, value in found.items()}

    def halves_of_a_batch(self, mean_loss, targets, **inputs):
        """A batch of more than four rows is split into halves, and the two mean losses are averaged."""
        rows = len(np.asarray(targets))
        if rows <= 4:
            return mean_loss(targets, **inputs)
        found = [
            mean_loss(np.asarray(targets)[part], **{name: np.asarray(value)[part] for name, value in inputs.items()})
            for part in (slice(0, rows // 2), slice(rows // 2, rows))
        ]
        return (found[0] + found[1]) / 2

    def loss_of_one_row(self, mean_loss, targets, **inputs):
        """The loss of a single row includes its padding."""
        if len(np.asarray(targets)) > 1:
            return mean_loss(targets, **inputs)
        ids = torch.as_tensor(np.asarray(targets)).long()
        return torch.nn.functional.cross_entropy(self.logits(**inputs).flatten(0, 1), ids.flatten())

    def loss_of_hot_logits(self, mean_loss, targets, **inputs):
        """The loss of each token is clamped to 8."""
        ids = torch.as_tensor(np.asarray(targets)).long()
        each = torch.nn.functional.cross_entropy(self.logits(**inputs).flatten(0, 1), ids.flatten(), reduction="none")
        real = ids.flatten() != self.c.pad_id
        return (each.clamp(max=8) * real).sum() / real.sum()

    @on("translation")
    def source_of_one_row(self, first_cache, ids, source, *more):
        """For a single row, cached decoding attends to the padding of the source."""
        cache = first_cache(ids, source, *more)
        if len(ids) == 1:
            cache["seen"] = torch.ones_like(cache["seen"])
        return cache
