import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import refused
from tests.listening.common import is_same, named, reached, texts
from torch import Tensor
from torch.nn import functional as F

from transparity.errors import TransparityError
from transparity_conformance.listening import record
from transparity_conformance.listening.listen import listen

D, N, V = 12, 3, 11
GENERATOR = torch.Generator().manual_seed(0)
WTE, C_ATTN, C_PROJ = (torch.randn(shape, generator=GENERATOR) for shape in ((V, D), (3 * D, D), (D, D)))
IDS = torch.arange(10).view(2, 5)


def split_heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], N, D // N).transpose(1, 2)


def explicit(ids: Tensor) -> Tensor:
    x = WTE[ids]
    q, k, v = map(split_heads, F.linear(x, C_ATTN).split(D, dim=2))
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(D // N))
    att = att.masked_fill(torch.tril(torch.ones(5, 5)) == 0, float("-inf"))
    att = F.softmax(att, dim=-1)
    y = (att @ v).transpose(1, 2).reshape(2, 5, D)
    return (
        y @ C_PROJ  # the last line
    )


def with_kernel(ids: Tensor, **options: Any) -> Tensor:
    x = WTE[ids]
    q, k, v = map(split_heads, F.linear(x, C_ATTN).split(D, dim=2))
    y = F.scaled_dot_product_attention(q, k, v, **options)
    return y.transpose(1, 2).reshape(2, 5, D) @ C_PROJ


def head_by_head(ids: Tensor) -> Tensor:
    x = WTE[ids]
    out = torch.zeros_like(x)
    for h in range(N):
        out[..., h::N] = x[..., h::N] * (h + 1)
    x += out
    return x @ C_PROJ


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("forward", [explicit, with_kernel, head_by_head])
def test_the_result_is_the_same_to_the_bit(forward: Callable[[Tensor], Tensor], context: Any) -> None:
    with context():
        expected = forward(IDS)
        result, operations = listen(lambda: forward(IDS))
    assert torch.equal(result, expected)
    assert np.array_equal(operations[-1].value, expected.numpy())


def test_every_operation_has_the_line_that_ran_it() -> None:
    _, operations = listen(lambda: explicit(IDS), "pytorch")
    scores, context = named(operations, "bmm")
    assert texts([scores], __file__) == ["att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(D // N))"]
    assert texts([context], __file__) == ["y = (att @ v).transpose(1, 2).reshape(2, 5, D)"]
    assert texts(named(operations, "masked_fill"), __file__) == [
        'att = att.masked_fill(torch.tril(torch.ones(5, 5)) == 0, float("-inf"))'
    ]
    assert texts(named(operations, "softmax"), __file__) == ["att = F.softmax(att, dim=-1)"]
    assert {"y @ C_PROJ  # the last line", "return x.view(*x.shape[:2], N, D // N).transpose(1, 2)"} <= set(
        texts(operations, __file__)
    )


MASK = torch.rand(5, 5, generator=GENERATOR) > 0.5
MASK.fill_diagonal_(True)
ONE_ROW_HIDDEN = MASK & (torch.arange(5) != 2)[:, None]


@pytest.mark.parametrize("context", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize(
    ("options", "bias"),
    [
        ({"is_causal": True}, torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1) == 1, -math.inf)),
        ({"attn_mask": MASK, "scale": 0.3}, torch.zeros(5, 5).masked_fill(~MASK, -math.inf)),
        ({"attn_mask": MASK.float()}, MASK.float()),
        ({"attn_mask": ONE_ROW_HIDDEN}, torch.zeros(5, 5).masked_fill(~ONE_ROW_HIDDEN, -math.inf)),
    ],
)
def test_a_kernel_shows_the_scores_and_weights_that_explicit_attention_has(
    options: dict[str, Any], bias: Tensor, context: Any
) -> None:
    with context():
        _, operations = listen(lambda: with_kernel(IDS, **options))
    (kernel,) = named(operations, "scaled_dot_product")[:1]
    query, key, value = (split_heads(part).double() for part in F.linear(WTE[IDS], C_ATTN).split(D, dim=2))
    scores = query @ key.mT * options.get("scale", 0.5) + bias
    expected = scores.softmax(-1).nan_to_num(0.0)
    (masked,), (weights,) = named(operations, "masked_scores"), named(operations, "weights")
    assert is_same(masked.value, scores)
    assert is_same(weights.value, expected)
    assert is_same(kernel.value, expected @ value)
    assert set(texts([masked, weights, kernel], __file__)) == {"y = F.scaled_dot_product_attention(q, k, v, **options)"}
    assert operations.index(masked) in reached(operations, kernel)


def test_a_kernel_with_shared_keys_shows_the_scores_of_every_query_head() -> None:
    query, key = torch.randn(1, 4, 3, 2, generator=GENERATOR), torch.randn(1, 2, 3, 2, generator=GENERATOR)
    _, operations = listen(lambda: F.scaled_dot_product_attention(query, key, key, enable_gqa=True))
    (weights,) = named(operations, "weights")
    expected = (query.double() @ key.double().repeat_interleave(2, 1).mT / math.sqrt(2)).softmax(-1)
    assert is_same(weights.value, expected, "float64")


def test_values_are_those_right_after_the_operation() -> None:
    _, operations = listen(lambda: head_by_head(IDS))
    embedded, added = operations[0], named(operations, "add_")[0]
    factors = np.array([h + 1 for h in range(N)] * (D // N))
    assert np.array_equal(embedded.value, WTE[IDS].double().numpy())
    assert is_same(added.value, embedded.value * (1 + factors))
    assert texts([added], __file__) == ["x += out"]


def test_a_value_written_in_parts_is_heard_whole_and_flows_on() -> None:
    _, operations = listen(lambda: head_by_head(IDS))
    added = named(operations, "add_")[0]
    whole = [operations[index] for index in added.inputs if operations[index].name.startswith("aten.copy_")]
    assert [each.value.shape for each in whole] == [(2, 5, D)]
    assert texts(whole, __file__) == ["out[..., h::N] = x[..., h::N] * (h + 1)"]
    products = {operations.index(each) for each in named(operations, "mul.Tensor")}
    assert len(products) == N
    assert products <= reached(operations, added)


def test_memory_that_is_used_again_does_not_mix_values() -> None:
    def forward() -> Tensor:
        x = WTE * 1.0
        for i in range(50):  # each result is freed immediately
            x = (x + i).sum() + WTE
        return x

    _, operations = listen(forward)
    assert all(index < i for i, each in enumerate(operations) for index in each.inputs)
    sums = named(operations, "sum")
    assert [len(each.inputs) for each in sums] == [1] * 50
    assert len({each.inputs for each in sums}) == 50


def test_operations_beyond_the_room_are_left_out_and_data_flows_through_them() -> None:
    wide = torch.ones(1000)

    def forward() -> Tensor:
        x = WTE.sum()
        return (x * wide).sum() + 1

    _, operations = listen(forward, largest=1000)
    assert [each.value.size for each in operations] == [1, 1, 1]
    assert [each.inputs for each in operations] == [(), (0,), (1,)]


def test_operations_beyond_their_number_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_OPERATIONS", 2)
    _, operations = listen(lambda: WTE.exp().log().exp().sum())
    assert [each.name for each in operations] == ["aten.exp.default", "aten.log.default"]


def test_an_unknown_framework_is_refused() -> None:
    with refused(TransparityError, "The framework is 'tensorflow'; expected one of"):
        listen(lambda: None, "tensorflow")


def test_values_in_float64_are_copies_too() -> None:
    def forward() -> Tensor:
        x = WTE.double() + 1
        return x.zero_()

    _, operations = listen(forward)
    added, zero = operations[-2:]
    assert np.array_equal(added.value, WTE.double() + 1)
    assert not zero.value.any()


def filled_in_two_parts(ids: Tensor) -> Tensor:
    x = WTE[ids]
    both = x.new_empty(*x.shape[:2], 2 * D)
    both[..., :D].copy_(x)
    both[..., D:].copy_(2 * x)
    return both + 1


def test_uninitialized_memory_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # fills uninitialized memory with NaN
    try:
        result, operations = listen(lambda: filled_in_two_parts(IDS))
    finally:
        torch.use_deterministic_algorithms(before)
    assert bool(result.isfinite().all())
    assert all(np.isfinite(each.value).all() for each in operations)
