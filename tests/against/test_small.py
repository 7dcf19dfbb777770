import copy
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from transparity.errors import TransparityError
from transparity_conformance import check
from transparity_conformance.against.probes import GIVE, is_of_features, probes_of, source_of, undrawn
from transparity_conformance.against.reference import Reference
from transparity_conformance.against.small.build import build, class_of, example_inputs, made_small, read_config
from transparity_conformance.against.small.inputs import tensors

LLAMA = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336}

TYPES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "gemma3_text": {"num_hidden_layers": 26, "head_dim": 256, "query_pre_attn_scalar": 256},
    "deepseek_v3": {"n_group": 8, "topk_group": 4, "first_k_dense_replace": 3},
    "qwen3_next": {"num_hidden_layers": 48},
    "bert": {},
    "t5": {},
    "whisper": {},
    "swin": {},
    "wav2vec2": {},
}


def config_of(model_type: str, **fields: Any) -> Any:
    return transformers.CONFIG_MAPPING[model_type](**TYPES.get(model_type, {}) | fields)


@pytest.mark.parametrize("model_type", TYPES)
def test_a_small_model_runs_and_its_numbers_are_finite(model_type: str) -> None:
    model = build(config_of(model_type))
    with torch.no_grad():
        output = model(**tensors(example_inputs(model)))[0]
    assert output.isfinite().all()
    assert output.std() > 0
    assert sum(each.numel() for each in model.parameters()) < 10_000_000


@pytest.mark.parametrize(("heads", "shared"), [(32, 8), (28, 4), (71, 1), (12, 12)])
def test_heads_keep_their_ratio_to_keys_and_values(heads: int, shared: int) -> None:
    small = made_small(
        config_of("llama", hidden_size=heads * 64, num_attention_heads=heads, num_key_value_heads=shared, head_dim=64)
    )
    assert 1 < small.num_attention_heads <= 16
    assert small.hidden_size == small.num_attention_heads * small.head_dim
    if shared in (1, heads):
        assert small.num_key_value_heads == (1 if shared == 1 else small.num_attention_heads)
    else:
        assert small.num_attention_heads / small.num_key_value_heads == heads / shared
        assert small.num_key_value_heads > 1


@pytest.mark.parametrize("model_type", ["gemma3_text", "qwen3_next", "deepseek_v3"])
def test_each_kind_of_layer_is_kept_twice(model_type: str) -> None:
    config = config_of(model_type)
    small = made_small(config)
    for field in ("layer_types", "mlp_layer_types"):
        if kinds := getattr(config, field, None):
            counts = Counter(getattr(small, field))
            assert set(counts) == set(kinds)
            assert min(counts.values()) == 2
            assert sum(counts.values()) == small.num_hidden_layers
    assert not hasattr(config, "first_k_dense_replace") or small.first_k_dense_replace >= 2


@pytest.mark.parametrize(
    ("model_type", "last"),
    [
        ("recurrent_gemma", "model.layers.5.temporal_block.q_proj"),
        ("recurrent_gemma of six names", "model.layers.3.temporal_block.q_proj"),
        ("ernie4_5_moe", "model.layers.3.mlp.experts"),
        ("granite_speech5_ctc", "encoder.layers.3"),
    ],
)
def test_layers_of_a_repeated_pattern_or_after_a_first_one_are_kept_twice(model_type: str, last: str) -> None:
    fields = {"block_types": [*["recurrent"] * 5, "attention"]} if " of " in model_type else {}
    config = config_of(model_type.partition(" ")[0], **fields)
    with torch.device("meta"):
        model = class_of(config)(made_small(config))
    assert last in dict(model.named_modules()), [*dict(model.named_modules())]


def test_a_period_of_layers_is_shortened_with_its_offset() -> None:
    small: Any = made_small(config_of("jamba"))
    assert (small.attn_layer_period, small.attn_layer_offset) == (4, 2)
    assert (small.expert_layer_period, small.expert_layer_offset) == (2, 1)
    assert Counter(small.layers_block_type) == {"mamba": 6, "attention": 2}
    rescaled: Any = made_small(config_of("rwkv"))
    assert (rescaled.num_hidden_layers, rescaled.rescale_every) == (6, 3)


def test_a_period_that_is_also_a_list_adds_no_layers() -> None:
    small: Any = made_small(config_of("smollm3"))
    assert small.num_hidden_layers == 4
    assert Counter(small.no_rope_layers) == {0: 2, 1: 2}


@pytest.mark.parametrize("model_type", ["llama", "bert", "gpt2", "gptj", "codegen", "bloom", "xlnet", "mpt"])
def test_two_layers_of_one_kind_are_kept(model_type: str) -> None:
    assert made_small(config_of(model_type)).num_hidden_layers == 2


@pytest.mark.parametrize("model_type", ["gpt2", "mpt"])
def test_texts_are_at_most_as_long_as_the_model_allows(model_type: str) -> None:
    assert source_of(build(config_of(model_type))).longest == 64


def test_sizes_of_images_tiles_and_joined_outputs_of_layers_fit_each_other() -> None:
    vision = made_small(config_of("mllama_vision_model")).to_dict()
    chosen = len(vision["intermediate_layers_indices"])
    assert vision["vision_output_dim"] == vision["hidden_size"] * (chosen + 1)
    assert vision["num_hidden_layers"] > chosen > 0
    pair: Any = made_small(config_of("llava_next"))
    assert pair.image_grid_pinpoints[0] == [pair.vision_config.image_size, 2 * pair.vision_config.image_size]


def test_targets_are_no_images() -> None:
    assert [is_of_features(name) for name in ("targets", "target_sizes", "video_grid_thw")] == [False, True, True]


def test_the_images_of_a_batch_differ_in_size_and_calls_in_their_media() -> None:
    model: Any = build(config_of("qwen2_5_vl", **VISION))
    calls = [example_inputs(model, seed=seed) for seed in range(3)]
    media = [[name for name in each if name.startswith("pixel")] for each in calls]
    assert media == [["pixel_values", "pixel_values_videos"], ["pixel_values"], ["pixel_values_videos"]]
    sizes = calls[0]["image_grid_thw"]
    assert len({*map(tuple, sizes)}) == len(sizes)
    tokens = (calls[1]["input_ids"] == model.config.image_token_id).sum(1)
    assert tokens.tolist() == (sizes.prod(1) // 4).tolist()


VISION: dict[str, Any] = {
    "vision_config": {"out_hidden_size": 2048, "hidden_size": 1280, "num_heads": 16},
    "text_config": {
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    },
}


def test_windows_experts_and_token_ids_fit_short_texts() -> None:
    small = made_small(config_of("gpt_oss", eos_token_id=[200002, 200012], pad_token_id=199999))
    assert small.sliding_window == 8
    assert (small.num_local_experts, small.num_experts_per_tok) == (4, 2)
    ids = [small.pad_token_id, *small.eos_token_id]
    assert len({*ids}) == 3
    assert max(ids) < small.vocab_size
    groups = made_small(config_of("deepseek_v3"))
    assert (groups.n_routed_experts, groups.n_group, groups.topk_group) == (8, 4, 2)


def test_rotary_embeddings_keep_their_sections_and_how_far_they_are_stretched() -> None:
    rope = {"rope_type": "longrope", "long_factor": [4.0] * 48, "short_factor": [1.0] * 48, "rope_theta": 1e4}
    fields = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_parameters": rope}
    small = made_small(config_of("phi3", hidden_size=3072, num_attention_heads=32, **fields))
    assert (small.max_position_embeddings, small.original_max_position_embeddings) == (256, 8)
    assert len(small.rope_parameters["long_factor"]) == small.hidden_size // small.num_attention_heads // 2
    sections = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6}
    heads = {"hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2}
    text = made_small(config_of("qwen2_vl_text", rope_parameters=sections, **heads))
    assert text.rope_parameters["mrope_section"] == [3, 5, 4]


def test_tied_weights_stay_tied_and_rows_of_embeddings_have_scales_of_their_own() -> None:
    model: Any = build(config_of("llama", tie_word_embeddings=True))
    table = model.get_input_embeddings().weight
    assert model.lm_head.weight is table
    scales = table.detach().std(dim=1)
    assert scales.min() < 0.03 < 0.5 < scales.max()


def test_what_a_checkpoint_has_is_drawn_and_tables_of_sines_stay() -> None:
    router = {name: each for name, each in build(config_of("deepseek_v3")).named_buffers() if "correction_bias" in name}
    assert router
    assert all(each.std() > 0.1 for each in router.values())
    built = transformers.PegasusModel(made_small(config_of("pegasus")))
    drawn: Any = build(config_of("pegasus"), "PegasusModel")
    assert torch.equal(drawn.encoder.embed_positions.weight, built.encoder.embed_positions.weight)


def test_images_beside_a_text_are_compared_in_every_way() -> None:
    model = build(config_of("llava"), seed=1)  # with seed 0, the model generates a token that stands for an image
    assert [*example_inputs(model)] == ["input_ids", "pixel_values", "attention_mask"]
    report = check(copy.deepcopy(model), against=model)
    assert report.verdict == "agrees"
    assert {each.id for each in report.claims} == {
        "forward.arguments",
        "forward.reach",
        "forward.results",
        "forward.small_weights",
        "step",
        "generate",
        "loss",
        "gradients",
        "repeats",
    }
    steps = [each.where for each in report.claims if each.id == "step"]
    assert any("25 positions, then one at a time" in each for each in steps)  # after 4 tokens and the 16 of the image


class TextOnly(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inside = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.inside(input_ids=input_ids, attention_mask=attention_mask).logits


class TextWithoutMask(TextOnly):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(input_ids)


def test_a_port_without_images_is_compared_on_texts() -> None:
    model = build(config_of("llava"))
    report = check(TextOnly(copy.deepcopy(model)), against=model)
    assert report.verdict == "agrees"
    assert "images or audio: the port takes no pixel_values" in report.not_compared
    assert "3 × 11, padded on the left" in {each.probe for each in report.measured}
    assert len(report.coverage.lengths) > 10
    others = check(TextWithoutMask(copy.deepcopy(model)), against=model, budget=0).not_compared
    assert [each for each in others if "the port takes no" in each] == [
        "position_ids: the port takes no position_ids",
        "images or audio: the port takes no pixel_values",
        "3 × 11, padded on the left: the port takes no attention_mask",
        "2 × 17, padded on the right: the port takes no attention_mask",
    ]


class WithPositions(TextOnly):
    def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None) -> torch.Tensor:
        return super().forward(input_ids, attention_mask)


def test_a_port_that_ignores_its_positions_departs() -> None:
    model = build(config_of("llama"))
    report = check(WithPositions(copy.deepcopy(model)), against=model, budget=0)
    causes = [cause.says for fault in report.faults for cause in fault.causes]
    assert (report.verdict, causes) == ("diverges", ["your port ignores position_ids"])


class Looked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(50, 8)

    def forward(self, ids: torch.Tensor, where: torch.Tensor | None = None) -> torch.Tensor:
        return self.rows(ids)


def test_shared_arguments_without_inputs_are_told() -> None:
    report = check(Looked, against=Looked)
    assert f"where: the checker draws no such argument; {GIVE}" in report.not_compared


class ImagesByAnotherName(TextOnly):
    def forward(self, input_ids: Any, attention_mask: Any = None, images: Any = None) -> torch.Tensor:
        return super().forward(input_ids, attention_mask)


def test_images_that_a_port_takes_by_another_name_are_not_left_out() -> None:
    model = build(config_of("llava"))
    with pytest.raises(TransparityError, match=r"takes .*images.*; expected pixel_values as one of these inputs"):
        check(ImagesByAnotherName(copy.deepcopy(model)), against=model)


class WithoutImagesWrong(TextOnly):
    def forward(self, input_ids: Any, attention_mask: Any = None, pixel_values: Any = None) -> torch.Tensor:
        logits = self.inside(input_ids=input_ids, attention_mask=attention_mask, pixel_values=pixel_values).logits
        return logits if pixel_values is not None else logits * 1.01


def test_a_model_of_images_is_also_compared_without_them() -> None:
    model = build(config_of("llava"))
    report = check(WithoutImagesWrong(copy.deepcopy(model)), against=model, budget=1)
    assert [each.probe for each in report.measured if each.error > each.budget] == ["2 × 11, only text"]


def test_images_that_cannot_be_drawn_are_told() -> None:
    model = build(config_of("layoutlmv3"), "LayoutLMv3ForSequenceClassification")
    probes = {"": example_inputs(model)}
    assert "pixel_values" not in probes[""]
    assert undrawn(model, probes[""], None) == [f"pixel_values: the checker draws no such argument; {GIVE}"]
    takes_videos: Any = SimpleNamespace(config=model.config, forward=lambda input_ids, pixel_values_videos: None)
    assert undrawn(takes_videos, probes[""], None) == [
        f"pixel_values_videos: the checker draws no such argument; {GIVE}"
    ]


@pytest.mark.parametrize("model_type", ["janus", "udop"])
def test_images_are_drawn_without_a_method_of_the_class_that_extracts_features(model_type: str) -> None:
    text = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16}
    model = build(config_of(model_type, **({"text_config": text} if model_type == "janus" else {})))
    assert "pixel_values" in example_inputs(model)
    texts = source_of(model).of_text()
    assert texts is not None
    assert texts.of_text() is None
    assert not [name for name, value in texts.draw(11, 2, 0).items() if value.dtype == np.float64]
    assert {"2 × 16, one token", "3 × 11, padded on the left"} <= probes_of(texts)[0].keys()


def test_the_class_is_the_one_that_the_configuration_names_else_that_of_the_first_auto_mapping() -> None:
    assert class_of(config_of("bert", architectures=["BertModel"])) is transformers.BertModel
    assert class_of(config_of("llama")) is transformers.LlamaForCausalLM
    assert class_of(config_of("t5")) is transformers.T5ForConditionalGeneration
    assert class_of(config_of("vit")) is transformers.ViTForImageClassification
    assert class_of(config_of("llama"), "LlamaModel") is transformers.LlamaModel


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not a JSON file; expected a config.json"),
        ("[]", "has model_type None"),
        ('{"model_type": "lama"}', "has model_type 'lama'; expected a model type of transformers"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "is not a valid configuration of llama"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_in_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(TransparityError, match=says) as error:
        read_config(tmp_path)
    assert "\n" not in str(error.value)


def test_what_is_unknown_or_missing_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TransparityError, match="is not a JSON file"):
        read_config(tmp_path / "nowhere.json")
    with pytest.raises(TransparityError, match="has no class 'NoModel'"):
        class_of(config_of("llama"), "NoModel")
    with pytest.raises(TransparityError, match="does not run"):
        build(config_of("dots1"))  # this model has no experts


def test_an_infinite_number_in_a_saved_configuration_is_read(tmp_path: Path) -> None:
    made_small(config_of("bamba")).save_pretrained(tmp_path)
    assert "Infinity" in (tmp_path / "config.json").read_text(encoding="utf-8")
    assert [*read_config(tmp_path).time_step_limit] == [0.0, float("inf")]


def test_a_reference_whose_experts_refuse_float64_is_compared() -> None:
    model: Any = build(config_of("qwen3_moe"))
    model.set_experts_implementation("grouped_mm")
    with pytest.raises(RuntimeError):
        copy.deepcopy(model).double()(torch.zeros((1, 2), dtype=torch.long))
    assert Reference("experts", model, "float32").near({"input_ids": np.zeros((1, 2), int)})[1] > 0


NORM = "class PortNorm(LlamaRMSNorm):\n    def __init__(self, size, eps):\n        super().__init__(size, 1e-6)\n\n\n"
LOADER = f"""
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm


{NORM}def load(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    norm = PortNorm(model.config.hidden_size, None)
    norm.load_state_dict(model.model.norm.state_dict())
    model.model.norm = norm
    return model
"""


def test_a_wrong_epsilon_of_the_last_norm_is_told(tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(LOADER, encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "rms_norm_eps": 1e-5}', encoding="utf-8")
    report = check(f"{tmp_path / 'port.py'}:load", against="transformers", config=tmp_path / "config.json")
    says = [cause.says for fault in report.faults for cause in fault.causes]
    assert len(says) == 1 and "uses 1e-06 instead of 1e-05" in says[0] and "in model.norm only" in says[0], says
