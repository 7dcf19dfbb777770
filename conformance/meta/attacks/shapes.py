# mypy: ignore-errors
"""Ports that are right for the shapes of their own tests and wrong for others."""

import torch

from meta.attacks.attack import Attacks, on


class Shapes(Attacks):
    """Ports that are right for the shapes of their own tests and wrong for others."""

    def batch_of_one_loses_its_mask(self, weigh, at, query, key, value, keep, bias):
        """For a batch of one, `squeeze()` also removes an axis of the mask, so no mask is applied."""
        keep = torch.ones_like(keep) if len(query) == 1 else keep
        return weigh(at, query, key, value, keep, bias)

    def keys_from_sixty_four_on(self, masked, scores, keep):
        """Only the first block of 64 keys is read."""
        seen = torch.arange(scores.shape[-1]) < 64
        return masked(scores, keep & seen)

    def last_partial_block(self, masked, scores, keep):
        """If there is a full block of 16 keys, a partial block after it is not read."""
        keys = scores.shape[-1]
        whole = keys // 16 * 16 or keys
        seen = (torch.arange(keys) < whole) | (torch.arange(keys) == 0)
        return masked(scores, keep & seen)

    def queries_of_a_last_partial_tile(self, weigh, at, query, key, value, keep, bias):
        """If there is a full tile of 128 queries, queries after the last full tile return zeros."""
        found = weigh(at, query, key, value, keep, bias)
        whole = query.shape[2] // 128 * 128
        return found if not whole else torch.cat([found[:, :, :whole], 0 * found[:, :, whole:]], 2)

    @on("translation")
    def powers_of_two(self, masked, scores, keep):
        """If the number of keys is a power of two and at least 16, the last key is not read."""
        keys = scores.shape[-1]
        last = torch.arange(keys) < keys - (keys >= 16 and keys & (keys - 1) == 0)
        return masked(scores, keep & last)

    def one_token(self, position_rows, where, real):
        """For a single token, the position is −1, which selects the last position."""
        return position_rows(where, real) - int(where.shape[1] == 1)

    def two_tokens(self, causal, where, keys):
        """For two tokens, the diagonal of the causal mask is wrong, so each token attends to the other."""
        return causal(where, keys) | torch.tensor(keys == 2)

    @on("pre-norm")
    def batch_as_long_as_the_text(self, padding, real):
        """If there are as many rows as tokens, the mask is broadcast along the wrong axis."""
        return real.T[:, None, None, :] if real.shape[0] == real.shape[1] else real[:, None, None, :]

    @on("translation")
    def batch_as_large_as_the_heads(self, masked, scores, keep):
        """If there are as many rows as heads, each head gets the mask of another row."""
        if len(scores) == self.c.num_heads and len(keep) == len(scores):
            keep = keep.transpose(0, 1)
        return masked(scores, keep)

    @on("translation")
    def rows_from_sixteen_on(self, padding, real):
        """Rows from the 17th on get the padding of the first row, because the launch grid is too small."""
        keep = padding(real).clone()
        keep[16:] = keep[:1]
        return keep

    @on("translation")
    def rows_sorted(self, encode, ids, mask=None, types=None):
        """More than 12 rows are sorted by length and restored with the wrong permutation."""
        memory, keep = encode(ids, mask, types)
        if len(ids) <= 12:
            return memory, keep
        order = (ids != self.c.pad_id).sum(1).argsort(stable=True)
        return memory[order][order], keep

    @on("pre-norm")
    def tokens_in_one_byte(self, lookup, table, ids):
        """Token ids are stored in one byte."""
        return lookup(table, ids.to(torch.uint8).long())

    @on("gpt-j", target_vocab_size=50257)
    def tokens_in_two_bytes(self, lookup, table, ids):
        """Token ids are int16, so ids above 32767 are negative and count from the end of the table."""
        return lookup(table, ids.to(torch.int16).long() % len(table))

    def vocabulary_in_eights(self, head, x):
        """The head is computed in tiles of 64 tokens, and tokens in the last partial tile have the logit 0."""
        logits = head(x).clone()
        logits[..., logits.shape[-1] // 64 * 64 or logits.shape[-1] :] = 0
        return logits

    @on("llama")
    def last_token(self, lookup, table, ids):
        """Token ids are clamped to the second-to-last id of the vocabulary."""
        return lookup(table, ids.clamp(max=len(table) - 2))

    @on("translation")
    def beginning_is_padding(self, real, ids, mask):
        """The begin token is treated as padding in the source."""
        return real(ids, mask) & (ids != self.c.bos_id)

    @on("translation")
    def source_ends_at_its_first_end(self, real, ids, mask):
        """Everything after the first end token in the source is masked."""
        ended = (ids == self.c.eos_id).long().cumsum(1) - (ids == self.c.eos_id).long() > 0
        return real(ids, mask) & ~ended

    def last_position(self, position_rows, where, real):
        """Positions are clamped to the second-to-last row of the table."""
        return where.clamp(max=self.c.max_length - 2)

    def positions_halfway(self, position_rows, where, real):
        """Positions wrap around at half the model's length."""
        return where % (self.c.max_length // 2)

    @on("qwen", sliding_window=64, max_length=256)
    def wide_window_ignored(self, window, i):
        """A sliding window of more than 8 tokens is ignored."""
        right = window(i)
        return None if right and right > 8 else right

    @on("qwen", sliding_window=16, max_length=128)
    def window_of_one_more(self, near, where, keys, window):
        """For 32 or more keys, another kernel runs, whose window is one key too wide."""
        return near(where, keys, window + (keys >= 32))

    @on("t5", relative_buckets=32, relative_max_distance=128, max_length=256)
    def far_buckets(self, bias, name, where, keys):
        """Distances of 100 and more share one wrong bias."""
        found = bias(name, where, keys)
        distance = torch.arange(keys) - where[..., None]
        near = bias(name, where.clamp(max=99), min(keys, 100))
        edge = near[:, :, 99 if near.shape[2] > 99 else -1, 0][:, :, None, None]
        return torch.where((distance <= -100)[:, None], edge * 0.9, found)

    @on("llama", max_length=256)
    def dynamic_base(self, rotated, x, where):
        """Beyond the original length the rotation is slowed down, though the configuration does not ask for it."""
        stretched = where * 0.5 if int(where.max()) >= self.c.rotary_original_length else where
        return rotated(x, stretched)

    def features_beyond_two_hundred_fifty_six(self, normalized, x, gain, bias):
        """A norm computes its mean and variance from the first 256 features."""
        some = x[..., :256]
        variance = ((some - some.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True)
        return (x - some.mean(-1, keepdim=True)) / (variance + self.c.norm_eps).sqrt() * gain + bias

    def layers_from_four_on(self, layer, at, i, x, *more):
        """Only the first four layers run."""
        return x if i >= 4 else layer(at, i, x, *more)

    @on("translation")
    def heads_from_four_on(self, scores, query, key, bias):
        """Heads from the fifth on use the scores of the first four."""
        right = scores(query, key, bias)
        return right[:, torch.arange(right.shape[1]) % 4]

    @on("translation")
    def source_cut_to_the_target(self, attend, at, x, y, keep, where, *more):
        """Cross-attention reads only as many keys as there are queries."""
        if where is None:
            keep = keep & (torch.arange(keep.shape[-1]) < x.shape[1])
        return attend(at, x, y, keep, where, *more)

    @on("pre-norm")
    class NothingToHide:
        """If a batch has no padding, the causal mask is also omitted."""

        def decode(self, ids, *more, **named):
            self.whole = bool((ids != self.c.pad_id).all())
            return super().decode(ids, *more, **named)

        def causal(self, where, keys):
            return super().causal(where, keys) | torch.tensor(self.whole)

    @on("translation")
    def padding_on_the_right_alone(self, real, ids, mask):
        """The padding mask assumes that padding is always on the right."""
        number = real(ids, mask).sum(1, keepdim=True)
        return torch.arange(ids.shape[1]) < number

    def blocks_without_correction(self, softmax, scores):
        """Blocks of 32 keys are summed without rescaling earlier blocks to the new maximum."""
        if scores.shape[-1] <= 32:
            return softmax(scores)
        parts = [(part - part.amax(-1, keepdim=True)).exp() for part in scores.split(32, -1)]
        parts = [torch.where(part.isnan(), 0, part) for part in parts]
        weights = torch.cat(parts, -1) * (scores > -1e30)
        return weights / weights.sum(-1, keepdim=True)

    def tiles_on_the_diagonal(self, masked, scores, keep):
        """Tiles of 64 keys that start after the tile of queries are skipped, so the diagonal tile is nearly empty."""
        queries, keys = torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])
        seen = (keys // 64 == 0) | (keys <= queries // 64 * 64)
        return masked(scores, keep & seen)

    @on("bert")
    def padded_to_eight(self, weigh, at, query, key, value, keep, bias):
        """Odd lengths above 12 are padded by one position, which is not masked."""
        if key.shape[2] % 2 and key.shape[2] > 12:
            key, value = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (key, value))
            keep = torch.nn.functional.pad(keep, (0, 1), value=True)
        return weigh(at, query, key, value, keep, bias)

    @on("bloom", max_length=64, num_heads=12)
    def slopes_of_a_power_of_two(self, bias, name, where, keys):
        """For 12 heads, the ALiBi slopes are 2^(−8i/12), a formula that is right only for powers of two."""
        heads = self.c.num_heads
        slope = torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])
        return -slope[:, None, None] * (torch.arange(keys) - where[..., None]).abs()[:, None]
