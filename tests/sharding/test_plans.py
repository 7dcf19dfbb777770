import dataclasses

import pytest

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.parts.plan import plan, report
from transparity.presets import PRESETS, preset
from transparity_conformance.oracle.cases import CASES, IMAGES

CONFIGS = {name: preset(name).resized() for name in PRESETS} | CASES | {"vit": IMAGES}


@pytest.fixture(params=[True, False], ids=["even", "uneven"])
def evenly(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def sharded(config: TransformerConfig, ranks: int, evenly: bool) -> dict[str, int]:
    placed = plan(config, ranks, evenly=evenly)
    return {name: it.axis for name, it in placed.items() if it.axis is not None}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("case", CONFIGS)
def test_every_parameter_is_placed_by_the_table_or_reported(evenly: bool, case: str, ranks: int) -> None:
    placed, shapes = plan(CONFIGS[case], ranks, evenly=evenly), parameter_shapes(CONFIGS[case])
    assert list(placed) == list(shapes)
    matrices = {
        name
        for name, shape in shapes.items()
        if len(shape) == 2 and not name.endswith(("n_embedding.weight", "r.weight"))
    }
    kept = ("position_embedding.weight", "token_type_embedding.weight", "class_embedding.weight", "projection.weight")
    tables = {name for name in shapes if name.endswith(kept)}
    whole = {name for name in matrices - tables - {"pooler.weight"} if placed[name].axis is None}
    reported = {line.partition(":")[0] for line in report(placed)}
    assert whole <= reported if ranks > 1 else not reported
    assert reported == {name for name, it in placed.items() if it.fallback}


def test_heads_are_not_cut(evenly: bool) -> None:
    says = report(plan(CASES["gemma"], 2, evenly=evenly))
    scope = "decoder.layers.0.self_attention"
    why = "the number of heads (1) is not a multiple of the number of ranks (2)"
    assert f"{scope}.key.weight: replicated, since {why}" in says
    assert not any("query" in line for line in says)
    placed = plan(preset("shared-heads").resized(num_heads=4), 2, evenly=evenly)
    assert placed["encoder.layers.0.self_attention.query.weight"].fallback == "one map serves all heads"
    assert placed["encoder.layers.0.self_attention.output.weight"].axis == 1


def test_an_odd_vocabulary_is_sharded_unevenly_or_by_features() -> None:
    config = dataclasses.replace(CASES["llama"], target_vocab_size=31)
    assert sharded(config, 2, evenly=False)["head.weight"] == 0
    assert sharded(config, 2, evenly=True)["head.weight"] == 1
    why = "the size 31 is not a multiple of the number of ranks (2)"
    assert f"head.weight: sharded by features, since {why}" in report(plan(config, 2, evenly=True))
    few = dataclasses.replace(config, target_vocab_size=6)
    why = "the size 6 is too small: one of 4 ranks would have no elements"
    assert f"head.weight: replicated, since {why}" in report(plan(few, 4, evenly=False))


def test_ranks_have_whole_heads_of_keys_of_a_recurrence_and_what_shares_them(evenly: bool) -> None:
    scope = "decoder.layers.0.recurrence"
    for case in ("qwen3-next", "mamba2"):
        config = CASES[case]
        cut, of = sharded(config, 2, evenly), {name for name in parameter_shapes(config) if name.startswith(scope)}
        whole = {"output.bias", *(("gated_norm.weight",) if case == "qwen3-next" else ())}
        assert of - set(cut) == of & {f"{scope}.{name}" for name in whole}
        assert {name: axis for name, axis in cut.items() if name in of and axis} == {f"{scope}.output.weight": 1}
        assert not of & set(sharded(config, 4, evenly))
        why = "the number of heads of keys (2) is not a multiple of the number of ranks (4)"
        assert f"{scope}.query_convolution.weight: replicated, since {why}" in report(plan(config, 4, evenly=evenly))
