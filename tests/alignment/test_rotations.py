"""For wrong rotary angles, the report shows the line that uses them.

A port may repeat heads before it rotates them. It may reorder rotated features if queries and keys have the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from transparity.config import TransformerConfig
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.identify.alignment.found import Flow
from transparity_conformance.identify.alignment.gaps import reordered
from transparity_conformance.listening.operation import Operation
from transparity_conformance.matching.recorded import Recorded
from transparity_conformance.oracle.oracle import Arrays

Tensors = Mapping[str, torch.Tensor]
Order = tuple[int, ...]


def tables(config: TransformerConfig, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.arange(config.max_length)[:, None] / base ** (torch.arange(0, config.head_dim, 2) / config.head_dim)
    return torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)


def in_order(x: torch.Tensor, order: Order) -> torch.Tensor:
    """Return `x` with the last features of each head reordered."""
    kept = x.shape[-1] - len(order)
    return torch.cat([x[..., :kept], x[..., kept:][..., list(order)]], -1) if order else x


def forward(
    config: TransformerConfig,
    p: Tensors,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    sign: int,
    *,
    is_early: bool = False,
    orders: tuple[Order, Order] = ((), ()),
) -> Any:
    """Run a Llama that rotates halves with precomputed tables.

    Args:
        is_early: whether key heads are repeated before they are rotated.
        orders: the order of the last rotated features of queries, and of keys; an empty order changes nothing.
    """

    def norm(at: str, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.norm_eps) * p[f"{at}.weight"]

    def rotated(x: torch.Tensor, order: Order = ()) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        turned = torch.cat([-sign * second, sign * first], -1)
        if order:
            x, turned, c, s = (in_order(each, order) for each in (x, turned, cosine, sine))
            return x * c[: x.shape[-2]] + turned * s[: x.shape[-2]]
        return x * cosine[: x.shape[-2]] + turned * sine[: x.shape[-2]]

    def attention(at: str, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            (x @ p[f"{at}.{role}.weight"].T).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
            for role in ("query", "key", "value")
        )
        k = k if is_early else rotated(k, orders[1])
        k, v = (each.repeat_interleave(config.num_heads // config.key_value_heads, 1) for each in (k, v))
        k = rotated(k, orders[1]) if is_early else k
        y = F.scaled_dot_product_attention(rotated(q, orders[0]), k, v, is_causal=True)
        return y.transpose(1, 2).flatten(2) @ p[f"{at}.output.weight"].T

    def call(tokens: Any) -> torch.Tensor:
        x = p["decoder.token_embedding.weight"][torch.as_tensor(tokens)]
        for i in range(config.num_decoder_layers):
            at = f"decoder.layers.{i}"
            x = x + attention(f"{at}.self_attention", norm(f"{at}.self_attention_norm", x))
            h = norm(f"{at}.feed_forward_norm", x)
            gate, up, down = (p[f"{at}.feed_forward.{role}.weight"] for role in ("gate", "up", "down"))
            x = x + (F.silu(h @ gate.T) * (h @ up.T)) @ down.T
        return norm("decoder.final_norm", x) @ p["head.weight"].T

    return call


@pytest.mark.parametrize(
    ("base", "sign", "cause", "code"),
    [
        (1.0, 1, None, ""),
        (20.0, 1, "rotary-base", "return x * cosine[: x.shape[-2]] + turned * sine[: x.shape[-2]]"),
        (1.0, -1, "rotary-direction", "turned = torch.cat([-sign * second, sign * first], -1)"),
    ],
)
def test_the_line_is_the_one_with_the_wrong_numbers(base: float, sign: int, cause: str | None, code: str) -> None:
    def build(config: TransformerConfig, parameters: Arrays) -> Any:
        weights = {name: torch.tensor(value) for name, value in parameters.items()}
        return forward(config, weights, *tables(config, base * config.rope_theta), sign)

    report = check(build, config=example_config("llama"))
    if cause is None:
        assert report.verdict == "agrees"
        return
    fault = report.faults[0]
    assert fault.causes[0].mistake == cause
    assert fault.source is not None and fault.source["code"] == code


def gate_swapped(config: TransformerConfig, parameters: Arrays) -> dict[str, torch.Tensor]:
    """Return the weights with gate and up projections swapped."""
    weights = {name: torch.tensor(value) for name, value in parameters.items()}
    for i in range(config.num_decoder_layers):
        up, gate = (f"decoder.layers.{i}.feed_forward.{role}.weight" for role in ("up", "gate"))
        weights[up], weights[gate] = weights[gate], weights[up]
    return weights


def test_keys_that_are_repeated_before_they_are_rotated_are_found() -> None:
    def build(config: TransformerConfig, parameters: Arrays) -> Any:
        weights = gate_swapped(config, parameters)
        return forward(config, weights, *tables(config, config.rope_theta), 1, is_early=True)

    report = check(build, config=example_config("llama"))
    assert [(fault.where, fault.causes[0].mistake) for fault in report.faults] == [
        (f"decoder.layers.{i}.feed_forward.hidden", "gate-swapped") for i in range(2)
    ]
    assert not [each for each in report.not_compared if "activation" in each]


def test_one_order_of_features_in_queries_and_keys_is_no_fault() -> None:
    def build(config: TransformerConfig, parameters: Arrays) -> Any:
        weights = gate_swapped(config, parameters)
        return forward(config, weights, *tables(config, config.rope_theta), 1, orders=((2, 0, 1), (2, 0, 1)))

    report = check(build, config=example_config("llama"))
    assert [(fault.where, fault.causes[0].mistake) for fault in report.faults] == [
        (f"decoder.layers.{i}.feed_forward.hidden", "gate-swapped") for i in range(2)
    ]
    assert not [each for each in report.not_compared if "activation" in each]


SHAPES = {"scope.query_rotated": (1, 4, 5, 10), "scope.key_rotated": (1, 2, 5, 10)}


@pytest.mark.parametrize(
    ("orders", "is_one"),
    [
        (((2, 0, 1), (2, 0, 1)), True),
        (((2, 0, 1), ()), False),
        (((), (2, 0, 1)), False),
        (((2, 0, 1), (1, 2, 0)), False),
    ],
)
def test_queries_and_keys_are_found_in_one_order_of_features_alone(
    orders: tuple[Order, Order], *, is_one: bool
) -> None:
    rng = np.random.default_rng(0)
    ours = {tap: rng.normal(size=shape) for tap, shape in SHAPES.items()} | {"scope.scores": np.zeros((1, 4, 5, 5))}
    turned = [in_order(torch.tensor(ours[tap]), order) for tap, order in zip(SHAPES, orders, strict=True)]
    values = [turned[0].numpy(), turned[1].mT.numpy()]  # many ports transpose the keys for the product
    port = Recorded([Operation("aten.mm", value, (), ()) for value in values], np.zeros(1), 4)
    flow = Flow({"scope.scores": frozenset(SHAPES)}, {})
    found: Any = SimpleNamespace(ours=ours, port=port, flow=flow, matches={})
    matches = reordered(found)
    assert set(matches) == (set(SHAPES) if is_one else set())
    for tap, match in matches.items():
        assert np.array_equal(match.layout.to_ours(values[match.index]), ours[tap])
        assert not match.layout.is_in_order
    found.matches = {"scope.key_rotated": None}
    assert not reordered(found), "reordered keys need reordered queries"
