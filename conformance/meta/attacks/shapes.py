"""Right at the shapes of the port's own tests, wrong at others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meta.attacks.attack import attack


@attack("shapes")
class BatchOfOneLosesItsMask:
    """`squeeze()` drops the batch of one together with the mask's axis, and the mask is left out."""

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        keep = torch.ones_like(keep) if len(query) == 1 else keep
        return super().weigh(at, query, key, value, keep, bias)  # type: ignore[misc]


@attack("shapes")
class KeysFromSixtyFourOn:
    """Only the first block of 64 keys is read."""

    def masked(self: Any, scores: Tensor, keep: Tensor) -> Tensor:
        seen = torch.arange(scores.shape[-1]) < 64
        return super().masked(scores, keep & seen)  # type: ignore[misc]


@attack("shapes")
class LastPartialBlock:
    """Keys of a last block of fewer than 16 are not read, once there is a whole block."""

    def masked(self: Any, scores: Tensor, keep: Tensor) -> Tensor:
        keys = scores.shape[-1]
        whole = keys // 16 * 16 or keys
        seen = (torch.arange(keys) < whole) | (torch.arange(keys) == 0)
        return super().masked(scores, keep & seen)  # type: ignore[misc]


@attack("shapes")
class QueriesOfALastPartialTile:
    """The queries beyond the last multiple of 128 answer zeros."""

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        found = super().weigh(at, query, key, value, keep, bias)  # type: ignore[misc]
        whole = query.shape[2] // 128 * 128
        return found if not whole else torch.cat([found[:, :, :whole], 0 * found[:, :, whole:]], 2)


@attack("shapes", "translation")
class PowersOfTwo:
    """A length that is a power of two from 16 on misses its last key: the next block is empty."""

    def masked(self: Any, scores: Tensor, keep: Tensor) -> Tensor:
        keys = scores.shape[-1]
        last = torch.arange(keys) < keys - (keys >= 16 and keys & (keys - 1) == 0)
        return super().masked(scores, keep & last)  # type: ignore[misc]


@attack("shapes")
class OneToken:
    """A single token gets the last position: the range of positions is empty, and −1 counts from the end."""

    def position_rows(self: Any, where: Tensor, real: Tensor) -> Tensor:
        return super().position_rows(where, real) - int(where.shape[1] == 1)  # type: ignore[misc]


@attack("shapes")
class TwoTokens:
    """Two tokens see each other: the triangle is built with the wrong diagonal below three."""

    def causal(self: Any, where: Tensor, keys: int) -> Tensor:
        return super().causal(where, keys) | torch.tensor(keys == 2)  # type: ignore[misc]


@attack("shapes", "pre-norm")
class BatchAsLongAsTheText:
    """Where the batch is as large as the text is long, the mask broadcasts along the wrong axis."""

    def padding(self: Any, real: Tensor) -> Tensor:
        return real.T[:, None, None, :] if real.shape[0] == real.shape[1] else real[:, None, None, :]


@attack("shapes", "translation")
class BatchAsLargeAsTheHeads:
    """Where the batch is as large as the number of heads, each head gets the mask of another row."""

    def masked(self: Any, scores: Tensor, keep: Tensor) -> Tensor:
        if len(scores) == self.c.num_heads and len(keep) == len(scores):
            keep = keep.transpose(0, 1)
        return super().masked(scores, keep)  # type: ignore[misc]


@attack("shapes", "translation")
class RowsFromSixteenOn:
    """Rows from the 17th on get the padding of the first: the launch grid is too small."""

    def padding(self: Any, real: Tensor) -> Tensor:
        keep = super().padding(real).clone()  # type: ignore[misc]
        keep[16:] = keep[:1]
        return keep


@attack("shapes", "translation")
class RowsSorted:
    """More than 12 rows are sorted by their length, and put back in order of the wrong permutation."""

    def encode(self: Any, ids: Tensor, mask: Any = None, types: Any = None) -> tuple[Tensor, Tensor]:
        memory, keep = super().encode(ids, mask, types)  # type: ignore[misc]
        if len(ids) <= 12:
            return memory, keep
        order = (ids != self.c.pad_id).sum(1).argsort(stable=True)
        return memory[order][order], keep


@attack("shapes", "pre-norm")
class TokensInOneByte:
    """Token ids are kept in one byte, which is enough for the small vocabulary of the tests."""

    def lookup(self: Any, table: Tensor, ids: Tensor) -> Tensor:
        return super().lookup(table, ids.to(torch.uint8).long())  # type: ignore[misc]


@attack("shapes", "gpt-j", target_vocab_size=50257)
class TokensInTwoBytes:
    """Token ids are int16; those above 32767 count from the end of the table."""

    def lookup(self: Any, table: Tensor, ids: Tensor) -> Tensor:
        return super().lookup(table, ids.to(torch.int16).long() % len(table))  # type: ignore[misc]


@attack("shapes")
class VocabularyInEights:
    """The head is computed in tiles of 8; tokens of the last partial tile have the logit 0."""

    def head(self: Any, x: Tensor) -> Tensor:
        logits = super().head(x).clone()  # type: ignore[misc]
        logits[..., logits.shape[-1] // 64 * 64 or logits.shape[-1] :] = 0
        return logits


@attack("shapes", "llama")
class LastToken:
    """Ids are clamped to one below the last of the vocabulary."""

    def lookup(self: Any, table: Tensor, ids: Tensor) -> Tensor:
        return super().lookup(table, ids.clamp(max=len(table) - 2))  # type: ignore[misc]


@attack("shapes", "translation")
class BeginningIsPadding:
    """The token that begins a text is taken for padding, where it is in the source."""

    def real(self: Any, ids: Tensor, mask: Any) -> Tensor:
        return super().real(ids, mask) & (ids != self.c.bos_id)  # type: ignore[misc]


@attack("shapes", "translation")
class SourceEndsAtItsFirstEnd:
    """What follows the first end of text in the source is masked."""

    def real(self: Any, ids: Tensor, mask: Any) -> Tensor:
        ended = (ids == self.c.eos_id).long().cumsum(1) - (ids == self.c.eos_id).long() > 0
        return super().real(ids, mask) & ~ended  # type: ignore[misc]


@attack("shapes")
class LastPosition:
    """Positions are clamped to one below the last row of the table."""

    def position_rows(self: Any, where: Tensor, real: Tensor) -> Tensor:
        return where.clamp(max=self.c.max_length - 2)


@attack("shapes")
class PositionsHalfway:
    """The table of positions was trained for half the length, and wraps around."""

    def position_rows(self: Any, where: Tensor, real: Tensor) -> Tensor:
        return where % (self.c.max_length // 2)


@attack("shapes", "qwen", sliding_window=64, max_length=256)
class WideWindowIgnored:
    """The window is ignored where it is wider than the tests' (8)."""

    def window(self: Any, i: int) -> Any:
        window = super().window(i)  # type: ignore[misc]
        return None if window and window > 8 else window


@attack("shapes", "qwen", sliding_window=16, max_length=128)
class WindowOfOneMore:
    """From 32 tokens on another kernel runs, whose window counts the distance with ≤."""

    def near(self: Any, where: Tensor, keys: int, window: int) -> Tensor:
        return super().near(where, keys, window + (keys >= 32))  # type: ignore[misc]


@attack("shapes", "t5", relative_buckets=32, relative_max_distance=128, max_length=256)
class FarBuckets:
    """Distances from 100 on share the bucket before the last."""

    def bias(self: Any, name: str, where: Tensor, keys: int) -> Any:
        found = super().bias(name, where, keys)  # type: ignore[misc]
        distance = torch.arange(keys) - where[..., None]
        near = super().bias(name, where.clamp(max=99), min(keys, 100))  # type: ignore[misc]
        edge = near[:, :, 99 if near.shape[2] > 99 else -1, 0][:, :, None, None]
        return torch.where((distance <= -100)[:, None], edge * 0.9, found)


@attack("shapes", "llama", max_length=256)
class DynamicBase:
    """Beyond the original length the base of the rotation grows, though the configuration does not ask for it."""

    def rotated(self: Any, x: Tensor, where: Tensor) -> Tensor:
        stretched = where * 0.5 if int(where.max()) >= self.c.rotary_original_length else where
        return super().rotated(x, stretched)  # type: ignore[misc]


@attack("shapes")
class FeaturesBeyondTwoHundredFiftySix:
    """A norm is over the first 256 features: one thread for each."""

    def normalized(self: Any, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        some = x[..., :256]
        variance = ((some - some.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True)
        return (x - some.mean(-1, keepdim=True)) / (variance + self.c.norm_eps).sqrt() * gain + bias


@attack("shapes")
class LayersFromFourOn:
    """The loader reads four layers, as many as its first model had."""

    def layer(self: Any, at: str, i: int, x: Tensor, *more: Any) -> Tensor:
        return x if i >= 4 else super().layer(at, i, x, *more)  # type: ignore[misc]


@attack("shapes", "translation")
class HeadsFromFourOn:
    """Heads from the fifth on use the scores of the first four."""

    def scores(self: Any, query: Tensor, key: Tensor, bias: Any) -> Tensor:
        scores = super().scores(query, key, bias)  # type: ignore[misc]
        return scores[:, torch.arange(scores.shape[1]) % 4]


@attack("shapes", "translation")
class SourceCutToTheTarget:
    """Cross-attention reads as many keys as there are queries."""

    def attend(self: Any, at: str, x: Tensor, y: Any, keep: Tensor, where: Any, *more: Any) -> Tensor:
        if where is None:
            keep = keep & (torch.arange(keep.shape[-1]) < x.shape[1])
        return super().attend(at, x, y, keep, where, *more)  # type: ignore[misc]


@attack("shapes", "pre-norm")
class NothingToHide:
    """Without padding in the batch the mask is left out, the causal one with it."""

    def decode(self: Any, ids: Tensor, *more: Any, **named: Any) -> Tensor:
        self.whole = bool((ids != self.c.pad_id).all())
        return super().decode(ids, *more, **named)  # type: ignore[misc]

    def causal(self: Any, where: Tensor, keys: int) -> Tensor:
        return super().causal(where, keys) | torch.tensor(self.whole)  # type: ignore[misc]


@attack("shapes", "translation")
class PaddingOnTheRightAlone:
    """The mask is made of the number of real tokens, as if padding were always at the end."""

    def real(self: Any, ids: Tensor, mask: Any) -> Tensor:
        number = super().real(ids, mask).sum(1, keepdim=True)  # type: ignore[misc]
        return torch.arange(ids.shape[1]) < number


@attack("shapes")
class BlocksWithoutCorrection:
    """Blocks of 32 keys are summed without correcting earlier ones for a new maximum."""

    def softmax(self: Any, scores: Tensor) -> Tensor:
        if scores.shape[-1] <= 32:
            return super().softmax(scores)  # type: ignore[misc]
        parts = [(part - part.amax(-1, keepdim=True)).exp() for part in scores.split(32, -1)]
        parts = [torch.where(part.isnan(), 0, part) for part in parts]
        weights = torch.cat(parts, -1) * (scores > -1e30)
        return weights / weights.sum(-1, keepdim=True)


@attack("shapes")
class TilesOnTheDiagonal:
    """Tiles of 64 are skipped where they begin after the queries' tile begins: the diagonal is its first key alone."""

    def masked(self: Any, scores: Tensor, keep: Tensor) -> Tensor:
        queries, keys = torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])
        seen = (keys // 64 == 0) | (keys <= queries // 64 * 64)
        return super().masked(scores, keep & seen)  # type: ignore[misc]


@attack("shapes", "bert")
class PaddedToEight:
    """Odd lengths are padded to an even one, and the added position is attended to."""

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        if key.shape[2] % 2 and key.shape[2] > 12:
            key, value = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (key, value))
            keep = torch.nn.functional.pad(keep, (0, 1), value=True)
        return super().weigh(at, query, key, value, keep, bias)  # type: ignore[misc]


@attack("shapes", "bloom", max_length=64, num_heads=12)
class SlopesOfAPowerOfTwo:
    """The slopes of heads beyond the power of two below go on with the same ratio."""

    def bias(self: Any, name: str, where: Tensor, keys: int) -> Any:
        heads = self.c.num_heads
        slope = torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])
        return -slope[:, None, None] * (torch.arange(keys) - where[..., None]).abs()[:, None]
