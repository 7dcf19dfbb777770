import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.golden.ports import BUCKETS, ORIGINAL_LENGTH, WINDOW, with_fields
from tests.helpers import table

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.presets import PRESETS, preset
from transparity_conformance import check
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import probe_parameters, probes, probes_of
from transparity_conformance.oracle.reach.features import changes, exercised, fields_read, is_active
from transparity_conformance.oracle.reach.models import ReachProbe, reach_of, reach_of_preset
from transparity_conformance.oracle.reach.vocabulary import every_token, unseen_tokens
from transparity_numpy.port import build as numpy_build

UNEXERCISED = {field for fields in table(__file__, "reach.toml")["unexercised"].values() for field in fields}


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (WINDOW, {"sliding_window": None}),
        (WINDOW, {"sliding_window": 71}),
        (BUCKETS, {"relative_max_distance": 64}),
        (ORIGINAL_LENGTH, {"rotary_scaling": "none"}),
    ],
)
def test_a_threshold_of_the_asked_configuration_is_crossed(config: TransformerConfig, fields: dict[str, Any]) -> None:
    assert check(with_fields(**fields), config=config, budget=0).verdict == "diverges"


@pytest.mark.parametrize("name", [*PRESETS, *CASES])
def test_every_active_field_of_presets_and_families_is_exercised(name: str) -> None:
    config = preset(name) if name in PRESETS else CASES[name]
    tried = probes(name) if name in PRESETS else probes_of(config, name)
    seen, unseen = exercised(config, list(tried.values()))
    assert not unseen
    fields = TransformerConfig.__dataclass_fields__
    one = tried["mixed"]
    read = fields_read(one.config, one.exact, one.inputs)  # a model without attention rotates nothing
    chosen = {field for field in read if getattr(config, field) not in (fields[field].default, False)}
    # parallel branches fix the place of norms, and one norm has fewer parameters than two
    fixed = {"norm_position", "branches"} if config.branches != "sequential" else set()
    # the factors are one per pair of features
    fixed |= {"rotary_dim"} if config.rotary_short_factors else set()
    # a layer without a norm has no norm to move, and a model without a pooler has no parameters for one
    fixed |= {"norm_position"} if not all(one.attention_norm for one in config.layer_kinds.values()) else set()
    fixed |= {"pooler"} if config.pooler == "none" else set()
    # latent attention requires rotary positions; with so few pairs, YaRN's bounds are rounded to the same pair
    fixed |= {"positions", "rotary_dim", "rotary_fast_turns"} if config.kv_lora_rank else set()
    fixed |= {"layer_types"} if len({str(parameter_shapes(one)) for one in config.layer_kinds.values()}) > 1 else set()
    assert chosen - UNEXERCISED - fixed <= set(seen)


def test_a_field_that_the_reference_does_not_read_is_not_active() -> None:
    config = preset("notes-lm")
    every = (change for field in dataclasses.fields(config) for change in changes(config, field.name))
    active = {change[0] for change in every if is_active(config, change)}
    assert not active & {"pad_id", "rope_theta", "rotary_factor", "relative_buckets", "mask_order", "norm_momentum"}


def test_the_budget_of_a_call_is_finite_and_far_below_its_logits() -> None:
    for model in (*reach_of_preset("pre-norm"), *reach_of(WINDOW, probes_of(WINDOW, "")["mixed"].parameters)):
        for probe in model.probes:
            assert 0 < 1000 * probe.budget("float32") < np.abs(probe.oracle.expected["logits"]).max()


def test_no_query_of_a_call_sees_nothing() -> None:
    probe: ReachProbe
    for probe in reach_of_preset("pre-norm")[0].probes:
        for ids in probe.inputs.values():
            assert (ids[:, 0] != probe.config.pad_id).all()


@pytest.mark.parametrize("size", [2, 15, 16, 17, 100])
def test_the_calls_with_every_token_have_each_of_them(size: int) -> None:
    config = dataclasses.replace(
        preset("translation").resized(), source_vocab_size=size + 3, target_vocab_size=size + 3
    )
    found = every_token(config, probe_parameters(config)).probes
    assert unseen_tokens(config, found) == [] != unseen_tokens(config, found[:0])
    for name in config.input_names:
        seen = {int(token) for probe in found for token in probe.inputs[name].ravel()}
        assert seen == set(range(size + 3)) - {config.pad_id}


def test_a_wrong_row_of_given_embeddings_diverges() -> None:
    sizes = {"embed_dim": 16, "num_heads": 2, "feed_forward_dim": 8, "num_decoder_layers": 1}
    config = preset("notes-lm").resized(**sizes, target_vocab_size=1500)

    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Any:
        tensors = {name: value.copy() for name, value in parameters.items()}
        tensors["decoder.token_embedding.weight"][1234:1235] *= 1.01  # other sizes of the model have fewer tokens
        return numpy_build(config, tensors)

    report = check(build, config=config, parameters=probe_parameters(config), logits_only=True, budget=0)
    assert report.verdict == "diverges" and report.faults[0].probe.startswith("tokens ")
