"""A transformer that calls the blocks of any library; a block's scope is the prefix of its parameters' names."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig

LEAVES = ("weight", "bias")
Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Blocks:
    """A library's functions; their first argument is a parameter scope, such as `encoder.layers.0.feed_forward.up`."""

    embed: Callable[[str, Any], Any]
    """A function that returns a table's row for each token, or the first rows of a position table."""
    linear: Callable[[str, Any], Any]
    norm: Callable[[str, Any], Any]
    attention: Callable[[str, Any, Any, Any], Any]
    """Attention from `x` to `memory`, with a mask (true where a query sees a key) or None."""
    relu: Callable[[Any], Any]

    def feed_forward(self, scope: str, x: Any) -> Any:
        return self.linear(f"{scope}.down", self.relu(self.linear(f"{scope}.up", x)))


def stack(config: TransformerConfig, blocks: Blocks, name: str, tokens: Any, mask: Any, memory: Any = None) -> Any:
    """Return the output of the encoder or decoder; with `memory`, the layers have cross-attention to the memory."""
    x = blocks.embed(f"{name}.token_embedding", tokens) + blocks.embed(f"{name}.position_embedding", tokens)
    for at in (f"{name}.layers.{index}" for index in range(config.stack_num_layers(name))):
        for sublayer, call in _sublayers(blocks, at, mask, memory):
            norm = partial(blocks.norm, f"{at}.{sublayer}_norm")
            x = x + call(norm(x)) if config.norm_position == "pre" else norm(x + call(x))
    return blocks.norm(f"{name}.final_norm", x) if config.final_norm else x


def _sublayers(blocks: Blocks, at: str, mask: Any, memory: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    yield "self_attention", lambda x: blocks.attention(f"{at}.self_attention", x, x, mask)
    if memory is not None:
        yield "cross_attention", lambda x: blocks.attention(f"{at}.cross_attention", x, memory, None)
    yield "feed_forward", lambda x: blocks.feed_forward(f"{at}.feed_forward", x)


def transformer(config: TransformerConfig, blocks: Blocks, mask: Any, tokens: Any, source: Any = None) -> Any:
    memory = None if source is None else stack(config, blocks, "encoder", source, None)
    return blocks.linear("head", stack(config, blocks, "decoder", tokens, mask, memory))


def kind_of(scope: str) -> str:
    return next((kind for kind in ("attention", "norm", "embedding") if scope.endswith(kind)), "linear")


def by_block(parameters: Mapping[str, np.ndarray]) -> dict[str, Weights]:
    """Return the weights by block and by name within the block; all weights of an attention are one block."""
    found: dict[str, Weights] = {}
    for name, value in parameters.items():
        scope, leaf = name.rsplit(".", 1)
        outer, _, role = scope.rpartition(".")
        scope, leaf = (outer, f"{role}.{leaf}") if outer.endswith("attention") else (scope, leaf)
        found.setdefault(scope, {})[leaf] = value
    return found
