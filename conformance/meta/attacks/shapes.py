# mypy: ignore-errors
"""Right at the shapes of the port's own tests, wrong at others."""

import torch

from meta.attacks.attack import attack


@attack("shapes", at="weigh")
def batch_of_one_loses_its_mask(self, up, at, query, key, value, keep, bias):
    """`squeeze()` drops the batch of one together with the mask's axis, and the mask is left out."""
    keep = torch.ones_like(keep) if len(query) == 1 else keep
    return up(at, query, key, value, keep, bias)


@attack("shapes", at="masked")
def keys_from_sixty_four_on(self, up, scores, keep):
    """Only the first block of 64 keys is read."""
    seen = torch.arange(scores.shape[-1]) < 64
    return up(scores, keep & seen)


@attack("shapes", at="masked")
def last_partial_block(self, up, scores, keep):
    """Keys of a last block of fewer than 16 are not read, once there is a whole block."""
    keys = scores.shape[-1]
    whole = keys // 16 * 16 or keys
    seen = (torch.arange(keys) < whole) | (torch.arange(keys) == 0)
    return up(scores, keep & seen)


@attack("shapes", at="weigh")
def queries_of_a_last_partial_tile(self, up, at, query, key, value, keep, bias):
    """The queries beyond the last multiple of 128 answer zeros."""
    found = up(at, query, key, value, keep, bias)
    whole = query.shape[2] // 128 * 128
    return found if not whole else torch.cat([found[:, :, :whole], 0 * found[:, :, whole:]], 2)


@attack("shapes", "translation", at="masked")
def powers_of_two(self, up, scores, keep):
    """A length that is a power of two from 16 on misses its last key: the next block is empty."""
    keys = scores.shape[-1]
    last = torch.arange(keys) < keys - (keys >= 16 and keys & (keys - 1) == 0)
    return up(scores, keep & last)


@attack("shapes", at="position_rows")
def one_token(self, up, where, real):
    """A single token gets the last position: the range of positions is empty, and −1 counts from the end."""
    return up(where, real) - int(where.shape[1] == 1)


@attack("shapes", at="causal")
def two_tokens(self, up, where, keys):
    """Two tokens see each other: the triangle is built with the wrong diagonal below three."""
    return up(where, keys) | torch.tensor(keys == 2)


@attack("shapes", "pre-norm", at="padding")
def batch_as_long_as_the_text(self, up, real):
    """Where the batch is as large as the text is long, the mask broadcasts along the wrong axis."""
    return real.T[:, None, None, :] if real.shape[0] == real.shape[1] else real[:, None, None, :]


@attack("shapes", "translation", at="masked")
def batch_as_large_as_the_heads(self, up, scores, keep):
    """Where the batch is as large as the number of heads, each head gets the mask of another row."""
    if len(scores) == self.c.num_heads and len(keep) == len(scores):
        keep = keep.transpose(0, 1)
    return up(scores, keep)


@attack("shapes", "translation", at="padding")
def rows_from_sixteen_on(self, up, real):
    """Rows from the 17th on get the padding of the first: the launch grid is too small."""
    keep = up(real).clone()
    keep[16:] = keep[:1]
    return keep


@attack("shapes", "translation", at="encode")
def rows_sorted(self, up, ids, mask=None, types=None):
    """More than 12 rows are sorted by their length, and put back in order of the wrong permutation."""
    memory, keep = up(ids, mask, types)
    if len(ids) <= 12:
        return memory, keep
    order = (ids != self.c.pad_id).sum(1).argsort(stable=True)
    return memory[order][order], keep


@attack("shapes", "pre-norm", at="lookup")
def tokens_in_one_byte(self, up, table, ids):
    """Token ids are kept in one byte, which is enough for the small vocabulary of the tests."""
    return up(table, ids.to(torch.uint8).long())


@attack("shapes", "gpt-j", target_vocab_size=50257, at="lookup")
def tokens_in_two_bytes(self, up, table, ids):
    """Token ids are int16; those above 32767 count from the end of the table."""
    return up(table, ids.to(torch.int16).long() % len(table))


@attack("shapes", at="head")
def vocabulary_in_eights(self, up, x):
    """The head is computed in tiles of 8; tokens of the last partial tile have the logit 0."""
    logits = up(x).clone()
    logits[..., logits.shape[-1] // 64 * 64 or logits.shape[-1] :] = 0
    return logits


@attack("shapes", "llama", at="lookup")
def last_token(self, up, table, ids):
    """Ids are clamped to one below the last of the vocabulary."""
    return up(table, ids.clamp(max=len(table) - 2))


@attack("shapes", "translation", at="real")
def beginning_is_padding(self, up, ids, mask):
    """The token that begins a text is taken for padding, where it is in the source."""
    return up(ids, mask) & (ids != self.c.bos_id)


@attack("shapes", "translation", at="real")
def source_ends_at_its_first_end(self, up, ids, mask):
    """What follows the first end of text in the source is masked."""
    ended = (ids == self.c.eos_id).long().cumsum(1) - (ids == self.c.eos_id).long() > 0
    return up(ids, mask) & ~ended


@attack("shapes", at="position_rows")
def last_position(self, up, where, real):
    """Positions are clamped to one below the last row of the table."""
    return where.clamp(max=self.c.max_length - 2)


@attack("shapes", at="position_rows")
def positions_halfway(self, up, where, real):
    """The table of positions was trained for half the length, and wraps around."""
    return where % (self.c.max_length // 2)


@attack("shapes", "qwen", sliding_window=64, max_length=256, at="window")
def wide_window_ignored(self, up, i):
    """The window is ignored where it is wider than the tests' (8)."""
    window = up(i)
    return None if window and window > 8 else window


@attack("shapes", "qwen", sliding_window=16, max_length=128, at="near")
def window_of_one_more(self, up, where, keys, window):
    """From 32 tokens on another kernel runs, whose window counts the distance with ≤."""
    return up(where, keys, window + (keys >= 32))


@attack("shapes", "t5", relative_buckets=32, relative_max_distance=128, max_length=256, at="bias")
def far_buckets(self, up, name, where, keys):
    """Distances from 100 on share the bucket before the last."""
    found = up(name, where, keys)
    distance = torch.arange(keys) - where[..., None]
    near = up(name, where.clamp(max=99), min(keys, 100))
    edge = near[:, :, 99 if near.shape[2] > 99 else -1, 0][:, :, None, None]
    return torch.where((distance <= -100)[:, None], edge * 0.9, found)


@attack("shapes", "llama", max_length=256, at="rotated")
def dynamic_base(self, up, x, where):
    """Beyond the original length the base of the rotation grows, though the configuration does not ask for it."""
    stretched = where * 0.5 if int(where.max()) >= self.c.rotary_original_length else where
    return up(x, stretched)


@attack("shapes", at="normalized")
def features_beyond_two_hundred_fifty_six(self, up, x, gain, bias):
    """A norm is over the first 256 features: one thread for each."""
    some = x[..., :256]
    variance = ((some - some.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True)
    return (x - some.mean(-1, keepdim=True)) / (variance + self.c.norm_eps).sqrt() * gain + bias


@attack("shapes", at="layer")
def layers_from_four_on(self, up, at, i, x, *more):
    """The loader reads four layers, as many as its first model had."""
    return x if i >= 4 else up(at, i, x, *more)


@attack("shapes", "translation", at="scores")
def heads_from_four_on(self, up, query, key, bias):
    """Heads from the fifth on use the scores of the first four."""
    scores = up(query, key, bias)
    return scores[:, torch.arange(scores.shape[1]) % 4]


@attack("shapes", "translation", at="attend")
def source_cut_to_the_target(self, up, at, x, y, keep, where, *more):
    """Cross-attention reads as many keys as there are queries."""
    if where is None:
        keep = keep & (torch.arange(keep.shape[-1]) < x.shape[1])
    return up(at, x, y, keep, where, *more)


@attack("shapes", "pre-norm")
class NothingToHide:
    """Without padding in the batch the mask is left out, the causal one with it."""

    def decode(self, ids, *more, **named):
        self.whole = bool((ids != self.c.pad_id).all())
        return super().decode(ids, *more, **named)

    def causal(self, where, keys):
        return super().causal(where, keys) | torch.tensor(self.whole)


@attack("shapes", "translation", at="real")
def padding_on_the_right_alone(self, up, ids, mask):
    """The mask is made of the number of real tokens, as if padding were always at the end."""
    number = up(ids, mask).sum(1, keepdim=True)
    return torch.arange(ids.shape[1]) < number


@attack("shapes", at="softmax")
def blocks_without_correction(self, up, scores):
    """Blocks of 32 keys are summed without correcting earlier ones for a new maximum."""
    if scores.shape[-1] <= 32:
        return up(scores)
    parts = [(part - part.amax(-1, keepdim=True)).exp() for part in scores.split(32, -1)]
    parts = [torch.where(part.isnan(), 0, part) for part in parts]
    weights = torch.cat(parts, -1) * (scores > -1e30)
    return weights / weights.sum(-1, keepdim=True)


@attack("shapes", at="masked")
def tiles_on_the_diagonal(self, up, scores, keep):
    """Tiles of 64 are skipped where they begin after the queries' tile begins: the diagonal is its first key alone."""
    queries, keys = torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])
    seen = (keys // 64 == 0) | (keys <= queries // 64 * 64)
    return up(scores, keep & seen)


@attack("shapes", "bert", at="weigh")
def padded_to_eight(self, up, at, query, key, value, keep, bias):
    """Odd lengths are padded to an even one, and the added position is attended to."""
    if key.shape[2] % 2 and key.shape[2] > 12:
        key, value = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (key, value))
        keep = torch.nn.functional.pad(keep, (0, 1), value=True)
    return up(at, query, key, value, keep, bias)


@attack("shapes", "bloom", max_length=64, num_heads=12, at="bias")
def slopes_of_a_power_of_two(self, up, name, where, keys):
    """The slopes of heads beyond the power of two below go on with the same ratio."""
    heads = self.c.num_heads
    slope = torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])
    return -slope[:, None, None] * (torch.arange(keys) - where[..., None]).abs()[:, None]
