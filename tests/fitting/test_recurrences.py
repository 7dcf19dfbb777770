"""`transparity fit` finds the configuration of recurrences: Mamba-2, and gated delta networks beside attention."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

import pytest
from tests.fitting import small_recurrent
from tests.fitting.test_signals import fields_of

from meta.fitting.drawn import module
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.identify.fitting.fit import fit
from transparity_conformance.identify.fitting.subject import FitError

with warnings.catch_warnings():  # its warnings while it is imported are not about this project
    warnings.simplefilter("ignore")
    import transformers

SIZES = ("recurrent_heads", "recurrent_key_heads", "recurrent_key_dim", "recurrent_value_dim", "convolution_width")


def test_a_mamba_2_that_packs_its_maps_in_one_is_found() -> None:
    names = ("mixer", "feed_forward_dim", *SIZES, "convolution_bias")
    assert fields_of(small_recurrent.MambaLM, *names) == ("state-space", 0, 4, 1, 5, 12, 3, True)


@pytest.mark.long
def test_the_bounds_of_time_steps_and_groups_are_found() -> None:
    make = functools.partial(small_recurrent.MambaLM, groups=2, limits=(0.3, 0.8))
    assert fields_of(make, "time_step_least", "time_step_most", "recurrent_key_heads") == (0.3, 0.8, 2)


def test_bounds_that_no_time_step_reaches_are_listed() -> None:
    made = fit(small_recurrent.MambaLM)
    assert made.untold["time_step_most"] == "no time step is so long that a bound shows"


@pytest.mark.long
def test_gated_delta_networks_beside_attention_are_found() -> None:
    kinds = ("linear_attention", "linear_attention", "full_attention")
    names = ("mixer", "layer_types", *SIZES, "convolution_bias", "gated")
    found = fields_of(small_recurrent.Hybrid, *names)
    assert found == ("attention", kinds, 4, 2, 5, 7, 4, False, True)


@pytest.mark.long
def test_a_rule_without_its_correction_is_told_in_one_sentence() -> None:
    with pytest.raises(FitError, match=r"neither a gated delta network .* nor Mamba-2: no such rule"):
        fit(small_recurrent.uncorrected)


@pytest.mark.long
@pytest.mark.parametrize("bias", [False, True])
def test_maps_by_themselves_are_found(bias: bool) -> None:
    config = dataclasses.replace(example_config("mamba2"), recurrent_bias=bias, convolution_bias=not bias)
    names = ("recurrent_bias", "convolution_bias", *SIZES)
    assert fields_of(module(config), *names) == tuple(getattr(config, name) for name in names)


@pytest.mark.long
def test_mamba_2_of_transformers_is_fitted_to_its_family() -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 37,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_heads": 4,
        "head_dim": 12,
    }
    config = transformers.Mamba2Config(**sizes, state_size=5, n_groups=2, chunk_size=8, time_step_limit=[0.4, 0.9])
    made = fit(transformers.Mamba2ForCausalLM(config))
    assert made.is_confirmed
    assert (made.template, made.unused) == ("mamba2", ())
    assert set(made.differences) <= {"padding"}
    assert (made.config.time_step_least, made.config.time_step_most) == (0.4, 0.9)


def qwen3_next(**fields: Any) -> Any:
    sizes: dict[str, Any] = {"vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 3, "intermediate_size": 44}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "partial_rotary_factor": 0.4}
    sizes |= {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 5}
    sizes |= {"linear_value_head_dim": 7, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
    sizes |= {"full_attention_interval": 2, "layer_types": None, "shared_expert_intermediate_size": 28}
    return transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**sizes | fields))


@pytest.mark.long
def test_a_qwen3_next_with_dense_feed_forwards_is_found() -> None:
    names = ("attention_gate", "query_key_norm", "rotary_dim", "layer_types", *SIZES)
    found = fields_of(qwen3_next(mlp_only_layers=[0, 1, 2]), *names)
    assert found == (True, True, 4, ("linear_attention", "full_attention"), 4, 2, 5, 7, 4)


@pytest.mark.long
def test_experts_are_named_by_their_router() -> None:
    with pytest.raises(FitError, match=r"gate\.weight is a router of 5 experts, which are not understood"):
        fit(qwen3_next())
