import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import Array
from tests.listening.common import is_same, named, reached, texts

from transparity_conformance.listening.listen import listen

D, N, V = 12, 3, 11
RANDOM = np.random.default_rng(0)
WTE, C_ATTN, C_PROJ = (jnp.asarray(RANDOM.normal(size=shape), jnp.float32) for shape in ((V, D), (D, 3 * D), (D, D)))
IDS = np.arange(10).reshape(2, 5)


def plain(ids: Any) -> Array:
    x = WTE[ids]
    q, k, v = (t.reshape(2, 5, N, D // N) for t in jnp.split(x @ C_ATTN, 3, axis=-1))
    att = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(D // N)
    att = jnp.where(jnp.tril(jnp.ones((5, 5))) == 0, -jnp.inf, att)
    att = jnp.exp(att) / jnp.exp(att).sum(-1, keepdims=True)
    y = jnp.einsum("bhqk,bkhd->bqhd", att, v).reshape(2, 5, D)
    return y @ C_PROJ


def with_numpy(ids: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(plain)(jnp.asarray(ids)))


def in_a_scan(ids: np.ndarray) -> Array:
    def block(x: Array, w: Array) -> tuple[Array, None]:
        x = x + jnp.tanh(x @ w)
        return x, None

    return jax.lax.scan(jax.checkpoint(block), WTE[ids], jnp.stack([C_PROJ, -C_PROJ]))[0]


def in_a_loop(ids: np.ndarray) -> Array:
    def body(carry: tuple[int, Array]) -> tuple[int, Array]:
        return carry[0] + 1, jnp.sin(carry[1])

    _, x = jax.lax.while_loop(lambda carry: carry[0] < 3, body, (0, WTE[ids]))
    return jax.lax.cond(ids.sum() > 0, jnp.cos, jnp.tan, x)


def by_row(ids: np.ndarray) -> Array:
    return jax.vmap(lambda row: jnp.tanh(WTE[row]) @ C_PROJ)(ids)


class Block(nnx.Module):
    def __init__(self) -> None:
        self.norm = nnx.LayerNorm(D, rngs=nnx.Rngs(0))
        self.linear = nnx.Linear(D, D, rngs=nnx.Rngs(0))

    def __call__(self, x: Array) -> Array:
        x = self.norm(x)
        return self.linear(x)


@pytest.mark.parametrize("forward", [plain, with_numpy, in_a_scan, in_a_loop, by_row])
def test_the_result_is_the_same_and_is_the_last_value(forward: Callable[[Any], Any]) -> None:
    expected = forward(IDS)
    result, operations = listen(lambda: forward(IDS), "jax")
    assert np.array_equal(operations[-1].value, result)
    assert type(result) is type(expected)
    assert is_same(result, expected)  # without recording, a jitted function is fused


def test_the_result_of_a_function_without_jit_is_the_same_to_the_bit() -> None:
    assert np.array_equal(listen(lambda: plain(IDS), "jax")[0], plain(IDS))


@pytest.mark.parametrize("forward", [plain, with_numpy])
def test_every_operation_has_the_line_that_ran_it_also_within_jit(forward: Callable[[Any], Any]) -> None:
    _, operations = listen(lambda: forward(IDS), "jax")
    assert texts(named(operations, "dot_general"), __file__) == [
        "q, k, v = (t.reshape(2, 5, N, D // N) for t in jnp.split(x @ C_ATTN, 3, axis=-1))",
        'att = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(D // N)',
        'y = jnp.einsum("bhqk,bkhd->bqhd", att, v).reshape(2, 5, D)',
        "return y @ C_PROJ",
    ]
    assert set(texts(named(operations, "exp"), __file__)) == {
        "att = jnp.exp(att) / jnp.exp(att).sum(-1, keepdims=True)"
    }


def test_layers_under_scan_and_checkpoint_are_heard_one_by_one() -> None:
    _, operations = listen(lambda: in_a_scan(IDS), "jax")
    products = named(operations, "dot_general")
    x = np.asarray(WTE[IDS], np.float64)
    assert len(products) == 2
    assert is_same(products[0].value, x @ C_PROJ)
    assert operations.index(products[0]) in reached(operations, products[1])
    assert set(texts(products + named(operations, "tanh"), __file__)) == {"x = x + jnp.tanh(x @ w)"}


def test_loops_and_branches_are_heard_as_they_ran() -> None:
    _, operations = listen(lambda: in_a_loop(IDS), "jax")
    assert len(named(operations, "sin")) == 3
    assert len(named(operations, "cos")) == 1
    assert not named(operations, "tan")
    assert set(texts(named(operations, "sin"), __file__)) == {"return carry[0] + 1, jnp.sin(carry[1])"}


@pytest.mark.parametrize("jit", [nnx.jit, lambda function: function])
def test_modules_of_nnx_are_heard_at_the_lines_that_call_them(jit: Any) -> None:
    block = Block()
    _, operations = listen(lambda: jit(lambda block, x: block(x))(block, WTE), "jax")
    assert texts(named(operations, "rsqrt"), __file__) == ["x = self.norm(x)"]
    assert texts(named(operations, "dot_general"), __file__) == ["return self.linear(x)"]


def test_exceptions_pass_and_jit_is_back_afterwards() -> None:
    error = RuntimeError("mine")

    def forward() -> None:
        raise error

    with pytest.raises(RuntimeError) as caught:
        listen(forward, "jax")
    assert caught.value is error
    assert jax.jit(lambda x: isinstance(x, jax.core.Tracer))(1)


def test_what_runs_afterwards_is_not_heard() -> None:
    _, operations = listen(lambda: WTE * 2, "jax")
    count = len(operations)
    with jax.disable_jit():
        (WTE * 3).block_until_ready()
    assert len(operations) == count


def test_numbers_of_half_precision_are_heard_as_they_are() -> None:
    _, operations = listen(lambda: WTE.astype(jnp.bfloat16) * 3, "jax")
    assert np.array_equal(operations[-1].value, (WTE.astype(jnp.bfloat16) * 3).astype(jnp.float32))
