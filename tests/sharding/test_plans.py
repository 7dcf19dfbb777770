"""Test that one table of placements covers every configuration; parameters that it cannot shard are reported."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import pytest

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.presets import PRESETS, preset
from transparity_conformance.oracle.cases import CASES, IMAGES

CONFIGS = {name: preset(name).resized() for name in PRESETS} | CASES | {"vit": IMAGES}


@pytest.fixture(params=["pytorch", "flax"])
def plans(request: pytest.FixtureRequest) -> Any:
    return importlib.import_module(f"transparity_{request.param}.parallel.plan")


def cut_along(placement: Any) -> int | None:
    """Return the axis along which a placement of either framework shards a parameter; None means replicated."""
    if hasattr(placement, "is_shard"):
        return placement.dim if placement.is_shard() else None
    return next((axis for axis, name in enumerate(placement) if name), None)


def sharded(plans: Any, config: TransformerConfig, ranks: int) -> dict[str, int]:
    axes = {name: cut_along(placed.placement) for name, placed in plans.plan(config, ranks).items()}
    return {name: axis for name, axis in axes.items() if axis is not None}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("case", CONFIGS)
def test_every_parameter_is_placed_by_the_table_or_reported(plans: Any, case: str, ranks: int) -> None:
    plan, shapes = plans.plan(CONFIGS[case], ranks), parameter_shapes(CONFIGS[case])
    assert list(plan) == list(shapes)
    matrices = {
        name
        for name, shape in shapes.items()
        if len(shape) == 2 and not name.endswith(("n_embedding.weight", "r.weight"))
    }
    kept = ("position_embedding.weight", "token_type_embedding.weight", "class_embedding.weight", "projection.weight")
    tables = {name for name in shapes if name.endswith(kept)}
    whole = {name for name in matrices - tables - {"pooler.weight"} if cut_along(plan[name].placement) is None}
    reported = {line.partition(":")[0] for line in plans.report(plan)}
    assert whole <= reported if ranks > 1 else not reported
    assert reported == {name for name, placed in plan.items() if placed.fallback}


def test_large_parameters_are_sharded_where_ranks_divide_them(plans: Any) -> None:
    config = CASES["llama"].resized(target_vocab_size=32)
    assert plans.report(plans.plan(config, 2)) == []
    layer = {
        "self_attention.query.weight": 0,
        "self_attention.key.weight": 0,
        "self_attention.value.weight": 0,
        "self_attention.output.weight": 1,
        "feed_forward.gate.weight": 0,
        "feed_forward.up.weight": 0,
        "feed_forward.down.weight": 1,
    }
    expected = {f"decoder.layers.{i}.{name}": axis for i in range(2) for name, axis in layer.items()}
    assert sharded(plans, config, 2) == expected | {"decoder.token_embedding.weight": 0, "head.weight": 0}


def test_heads_are_not_cut(plans: Any) -> None:
    report = plans.report(plans.plan(CASES["gemma"], 2))
    scope = "decoder.layers.0.self_attention"
    assert (
        f"{scope}.key.weight: replicated, since the number of heads (1) is not a multiple of the number of ranks (2)"
        in report
    )
    assert not any("query" in line for line in report)
    plan = plans.plan(preset("shared-heads").resized(num_heads=4), 2)
    assert plan["encoder.layers.0.self_attention.query.weight"].fallback == "one map serves all heads"
    assert cut_along(plan["encoder.layers.0.self_attention.output.weight"].placement) == 1


def test_an_odd_vocabulary_is_sharded_unevenly_or_by_features() -> None:
    from transparity_flax.parallel import plan as flax
    from transparity_pytorch.parallel import plan as pytorch

    config = dataclasses.replace(CASES["llama"], target_vocab_size=31)
    assert sharded(pytorch, config, 2)["head.weight"] == 0
    assert sharded(flax, config, 2)["head.weight"] == 1
    assert (
        "head.weight: sharded by features, since its size 31 is not a multiple of the number of ranks (2)"
        in flax.report(flax.plan(config, 2))
    )
    few = dataclasses.replace(config, target_vocab_size=6)
    assert (
        "head.weight: replicated, since its size 6 is too small: one of 4 ranks would have no elements"
        in pytorch.report(pytorch.plan(few, 4))
    )


def test_ranks_have_whole_heads_of_keys_of_a_recurrence_and_what_shares_them(plans: Any) -> None:
    scope = "decoder.layers.0.recurrence"
    for case in ("qwen3-next", "mamba2"):
        config = CASES[case]
        cut, of = sharded(plans, config, 2), {name for name in parameter_shapes(config) if name.startswith(scope)}
        whole = {"output.bias", *(("gated_norm.weight",) if case == "qwen3-next" else ())}
        assert of - set(cut) == of & {f"{scope}.{name}" for name in whole}
        assert {name: axis for name, axis in cut.items() if name in of and axis} == {f"{scope}.output.weight": 1}
        assert not of & set(sharded(plans, config, 4))
        why = "the number of heads of keys (2) is not a multiple of the number of ranks (4)"
        assert f"{scope}.query_convolution.weight: replicated, since {why}" in plans.report(plans.plan(config, 4))
