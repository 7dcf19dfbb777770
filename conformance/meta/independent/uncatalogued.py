"""Wrong ports that nobody would catalogue: seeded wrong constants, axes and off-by-ones in odd places.

No name in a catalogue is right for any of them, so that whoever names one is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meta.independent.model import Model
from meta.independent.port import build_with

Made = tuple[str, dict[str, Any]]
"""A sentence about the fault, and the methods of the port that make it."""


@dataclass(frozen=True)
class UncataloguedFault:
    """One wrong port."""

    name: str
    config: Any
    says: str
    part: type
    taps: bool

    @property
    def build(self) -> Callable[..., Any]:
        return build_with(self.part, base=Model, taps=self.taps)

    def __str__(self) -> str:
        return f"{self.name}, {'taps' if self.taps else 'logits'}: {self.says}"


def one_heads_scores(c: Any, draw: random.Random) -> Made:
    head, factor = draw.randrange(c.num_heads), draw.choice((0.5, 0.8, 1.3, 2.0))

    def scores(self: Any, query: Tensor, key: Tensor, bias: Any) -> Tensor:
        found = Model.scores(self, query, key, bias)
        factors = torch.ones(found.shape[1])
        factors[head] = factor
        return found * factors[:, None, None]

    return f"the scores of head {head} times {factor}", {"scores": scores}


def one_heads_values(c: Any, draw: random.Random) -> Made:
    by, place = draw.choice((1, 2)), draw.choice(("query", "value"))

    def split(self: Any, name: str, x: Tensor, heads: int) -> Tensor:
        found = Model.split(self, name, x, heads)
        if name.endswith(f"layers.1.self_attention.{place}"):
            found = torch.cat([found[:, :1].roll(by, -1), found[:, 1:]], 1)
        return found

    return f"features of the first head's {place} in layer 1, rolled by {by}", {"split": split}


def features_of_a_norm(c: Any, draw: random.Random) -> Made:
    left_out = draw.randint(1, 5)

    def norm(self: Any, name: str, x: Tensor, *, tap: bool = False) -> Tensor:
        found = Model.norm(self, name, x)
        if "layers.0.feed_forward_norm" in name:
            size = (x[..., :-left_out] ** 2).mean(-1, keepdim=True).sqrt()
            found = found * 0.5 + 0.5 * x / (size + 0.1)
        return self.tap(name, found) if tap else found

    return f"a norm of layer 0 is half of another, over all but {left_out} features", {"norm": norm}


def hidden_function(c: Any, draw: random.Random) -> Made:
    which = draw.choice(("sin", "clip", "abs", "square", "leaky"))
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "sin": torch.sin,
        "clip": lambda x: x.clamp(-0.5, 0.5),
        "abs": lambda x: x.abs() - 0.1,
        "square": lambda x: x * x.abs() * 0.3,
        "leaky": lambda x: torch.where(x > 0, x, 0.21 * x),
    }
    return f"the activation is {which}", {"act": lambda self, x: functions[which](x)}


def weights_to_a_power(c: Any, draw: random.Random) -> Made:
    power = draw.choice((0.7, 1.5, 2.5))

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        value = value.sign() * value.abs() ** power
        return Model.weigh(self, at, query, key, value, keep, bias)

    return f"values to the power {power}", {"weigh": weigh}


def positions_mixed(c: Any, draw: random.Random) -> Made:
    share, by = draw.choice((0.1, 0.3, 0.6)), draw.choice((1, 2, 3))

    def feed(self: Any, at: str, x: Tensor) -> Tensor:
        found = Model.feed(self, f"{at}", x)
        return found + share * found.roll(by, 1) if ".layers.0." in at else found

    return f"{share} of the feed-forward {by} positions before is added in layer 0", {"feed": feed}


def layers_in_another_order(c: Any, draw: random.Random) -> Made:
    factor = draw.choice((0.3, 0.7, 1.4))

    def layer(self: Any, at: str, i: int, x: Tensor, *more: Any) -> Tensor:
        found = Model.layer(self, at, i, x, *more)
        return found if i else self.tap(f"{at}.output", found + factor * x.roll(1, -1))

    return f"{factor} of the layer's input, rolled by a feature, is added behind layer 0", {"layer": layer}


def rows_of_a_weight(c: Any, draw: random.Random) -> Made:
    role, by = draw.choice(("feed_forward.up", "feed_forward.down", "self_attention.output")), draw.randint(1, 4)

    def prepare(self: Any) -> None:
        for name in self.p:
            if name.endswith(f"layers.1.{role}.weight"):
                rolled = self.p[name].clone()
                rolled[: len(rolled) // 2] = rolled[: len(rolled) // 2].roll(by, 0)
                self.p[name] = rolled

    return f"the first half of the rows of {role} in layer 1, rolled by {by}", {"prepare": prepare}


def every_third_key(c: Any, draw: random.Random) -> Made:
    every, factor = draw.choice((3, 4, 5)), draw.choice((0.5, 0.0, 2.0))

    def split(self: Any, name: str, x: Tensor, heads: int) -> Tensor:
        found = Model.split(self, name, x, heads)
        if name.endswith("layers.0.self_attention.value"):
            factors = torch.ones(x.shape[1])
            factors[::every] = factor
            found = found * factors[:, None]
        return found

    return f"every {every}th value in layer 0 times {factor}", {"split": split}


def logits_together(c: Any, draw: random.Random) -> Made:
    share, by = draw.choice((0.05, 0.2, 0.5)), draw.choice((1, 2, 5))

    def head(self: Any, x: Tensor) -> Tensor:
        found = Model.head(self, x)
        return found + share * found.roll(by, -1)

    return f"{share} of the logit {by} tokens before is added", {"head": head}


def embedding_squashed(c: Any, draw: random.Random) -> Made:
    width = draw.choice((0.5, 1.0, 2.0))

    def lookup(self: Any, table: Tensor, ids: Tensor) -> Tensor:
        return width * torch.tanh(table[ids] / width)

    return f"embeddings are squashed at {width}", {"lookup": lookup}


def embedding_beside(c: Any, draw: random.Random) -> Made:
    share = draw.choice((0.1, 0.4, 1.0))

    def lookup(self: Any, table: Tensor, ids: Tensor) -> Tensor:
        return table[ids] + share * table[(ids + 1) % len(table)]

    return f"{share} of the next token's embedding is added", {"lookup": lookup}


def attention_output_power(c: Any, draw: random.Random) -> Made:
    part = draw.choice((2, 3, 4))

    def attend(self: Any, at: str, *more: Any) -> Tensor:
        found = Model.attend(self, at, *more)
        n = found.shape[-1] // part
        return self.tap(f"{at}.output", torch.cat([-found[..., :n], found[..., n:]], -1))

    return f"the first 1/{part} of the attention's features has its sign changed", {"attend": attend}


def residual_now_and_then(c: Any, draw: random.Random) -> Made:
    every = draw.choice((2, 3))

    def after(self: Any, name: str, x: Tensor, y: Tensor) -> Tensor:
        if name.endswith("layers.1.feed_forward"):
            kept = torch.ones(x.shape[-1])
            kept[::every] = 0.4
            x = x * kept
        return Model.after(self, name, x, y)

    return f"every {every}th feature of a residual in layer 1 times 0.4", {"after": after}


KINDS: tuple[Callable[[Any, random.Random], Made], ...] = (
    one_heads_scores,
    one_heads_values,
    features_of_a_norm,
    hidden_function,
    weights_to_a_power,
    positions_mixed,
    layers_in_another_order,
    rows_of_a_weight,
    every_third_key,
    logits_together,
    embedding_squashed,
    embedding_beside,
    attention_output_power,
    residual_now_and_then,
)


def uncatalogued_faults(configs: Mapping[str, Any], number: int, seed: int = 0) -> Iterator[UncataloguedFault]:
    """So many faults, drawn one after another: any `number` of them begins with the same."""
    draw, names = random.Random(seed), sorted(configs)
    for i in range(number):
        name, kind = draw.choice(names), KINDS[i % len(KINDS)]
        says, methods = kind(configs[name], draw)
        yield UncataloguedFault(name, configs[name], says, type("Wrong", (), methods), taps=draw.random() < 0.5)
