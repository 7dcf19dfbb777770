"""`transparity fit` finds a router and its experts, in one array or as numbered parameters; others are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from meta.fitting.drawn import module
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.identify.fitting.fit import fit
from transparity_conformance.identify.fitting.subject import FitError

with warnings.catch_warnings():  # its warnings while it is imported are not about this project
    warnings.simplefilter("ignore")
    import transformers

SIZES: dict[str, Any] = {"vocab_size": 53, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
SIZES |= {"max_position_embeddings": 64, "eos_token_id": 1}


def mixtral(**fields: Any) -> Any:
    sizes: dict[str, Any] = {"intermediate_size": 20, "num_local_experts": 5, "num_experts_per_tok": 2}
    config = transformers.MixtralConfig(**SIZES, **sizes, num_key_value_heads=3, sliding_window=None, **fields)
    return transformers.MixtralForCausalLM(config)


def one_at_a_time() -> Any:
    return mixtral(experts_implementation="eager")


def qwen3_moe(**fields: Any) -> Any:
    sizes: dict[str, Any] = {"intermediate_size": 28, "moe_intermediate_size": 20, "num_experts": 6, "head_dim": 10}
    config = transformers.Qwen3MoeConfig(**SIZES, **sizes, num_experts_per_tok=3, num_key_value_heads=1, **fields)
    return transformers.Qwen3MoeForCausalLM(config)


def normalized_qwen3_moe() -> Any:
    return qwen3_moe(norm_topk_prob=True)


def olmoe() -> Any:
    config = transformers.OlmoeConfig(**SIZES, intermediate_size=20, num_experts=5, num_experts_per_tok=3)
    return transformers.OlmoeForCausalLM(config)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (mixtral, (5, 2, True)),
        (one_at_a_time, (5, 2, True)),
        (qwen3_moe, (6, 3, False)),
        (normalized_qwen3_moe, (6, 3, True)),
        (olmoe, (5, 3, False)),
    ],
)
def test_experts_of_transformers_are_found(make: Callable[[], Any], expected: tuple[int, int, bool]) -> None:
    made = fit(make())
    config = made.config
    assert made.is_confirmed
    assert (config.num_experts, config.experts_per_token, config.router_normalized) == expected
    assert (config.feed_forward_dim, config.gated, config.activation) == (20, True, "silu")
    assert made.unused == ()


@pytest.mark.long
def test_experts_with_parameters_of_their_own_are_found() -> None:
    made = fit(module(example_config("mixtral")))
    assert made.is_confirmed
    assert (made.template, made.differences) == ("mixtral", {})


def test_layers_with_and_without_experts_are_told_in_one_sentence() -> None:
    with pytest.raises(FitError, match="Layers differ in their experts, or some have none"):
        fit(qwen3_moe(mlp_only_layers=[0]))
