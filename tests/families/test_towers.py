import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.families.cases import Case
from tests.families.test_families import edited, in_double_precision, made, tokens_of
from tests.helpers import refused

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.checkpoints.importing import family_called, import_checkpoint, parameters_from
from transparity_conformance.checkpoints.naming import Table
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.report.comparison import as_numbers, difference, share
from transparity_numpy.transformer import transformer

OF_BOTH = {"num_hidden_layers": 2, "num_attention_heads": 3, "layer_norm_eps": 1e-3}
OF_TEXTS: dict[str, Any] = {"vocab_size": 41, "hidden_size": 12, "intermediate_size": 22, "max_position_embeddings": 19}
# The model does not use this `projection_dim`.
OF_TEXTS |= {"bos_token_id": 39, "eos_token_id": 40, "hidden_act": "gelu", "projection_dim": 9}
OF_IMAGES = {"hidden_size": 15, "intermediate_size": 20, "image_size": 6, "patch_size": 2}
PAIR = Case(
    "CLIPModel", {"text_config": OF_BOTH | OF_TEXTS, "vision_config": OF_BOTH | OF_IMAGES, "projection_dim": 7}, {}
)
SECTIONS = {"text_config": "clip_text_model", "vision_config": "clip_vision_model"}


@pytest.fixture(scope="module")
def model() -> Any:
    return made(PAIR)


@pytest.fixture(scope="module")
def pair(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("clip")
    model.save_pretrained(folder)
    return folder


def projected(model: Any, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    with torch.no_grad():
        if "pixels" in inputs:
            pixels = torch.from_numpy(inputs["pixels"]).to(next(model.parameters()).dtype)
            return as_numbers(model.get_image_features(pixel_values=pixels).pooler_output)
        return as_numbers(model.get_text_features(input_ids=torch.from_numpy(inputs["tokens"])).pooler_output)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_tower_computes_what_transformers_computes(section: str, pair: Path, model: Any) -> None:
    tower = import_checkpoint(pair / section)
    assert tower.model_type == SECTIONS[section] and tower.config.num_classes == 7
    assert not any("not used" in remark or "are ignored" in remark for remark in tower.remarks)
    inputs = tokens_of(tower.config, 11)
    oracle = forward_oracle(tower.config, tower.parameters, inputs)
    said = {"float32": projected(model, inputs)}
    with in_double_precision(PAIR, model) as double:
        said["float64"] = projected(double, inputs)
    assert said["float64"].dtype == np.float64
    for dtype, value in said.items():
        assert share(difference(value, oracle.expected["logits"]), oracle.budget("logits", dtype)) <= 1


def test_the_older_name_of_a_section_overrules_it(pair: Path, tmp_path: Path) -> None:
    older = edited(pair, tmp_path, {"text_config_dict": OF_BOTH | OF_TEXTS | {"hidden_act": "relu"}})
    assert import_checkpoint(older / "text_config").config.activation == "relu"


def test_a_pair_is_refused_with_the_names_of_its_towers(pair: Path) -> None:
    expected = f"expected one of them: {pair / 'text_config'} or {pair / 'vision_config'}."
    with refused(CheckpointError, f"{pair / 'config.json'} has two towers; {expected}"):
        import_checkpoint(pair)
    with refused(CheckpointError, "The family clip has two towers; expected one of them: clip_text_model"):
        family_called("clip")


def test_a_folder_without_such_a_section_is_refused(pair: Path, tmp_path: Path) -> None:
    alone = import_checkpoint(pair / "text_config")
    export_checkpoint("clip_text_model", alone.config, alone.parameters, tmp_path / "tower")
    for folder in (tmp_path / "tower", edited(pair, tmp_path / "null", {"text_config": None})):
        with refused(CheckpointError, f"{folder / 'text_config'} names a tower, but {folder / 'config.json'} has no"):
            import_checkpoint(folder / "text_config")


LLAMA = FAMILIES["llama"]
NAMES: Table = {name.replace(".mlp.", ".feed_forward."): ours for name, ours in LLAMA.names.items()}
LAYERS, LENGTH = 4, 23

CONFIG = dataclasses.replace(CASES["llama4"], num_decoder_layers=LAYERS, max_length=32)


def peer(config: TransformerConfig) -> Any:
    """Return Llama 4 of transformers with the given layers: chunked rotary attention or a query temperature."""
    rotated = [config.for_layer("decoder", i).positions == "rotary" for i in range(LAYERS)]
    theirs = transformers.Llama4TextConfig(
        vocab_size=config.target_vocab_size,
        hidden_size=config.embed_dim,
        intermediate_size_mlp=config.feed_forward_dim,
        num_hidden_layers=LAYERS,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.key_value_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        moe_layers=[],
        use_qk_norm=False,
        no_rope_layers=[int(each) for each in rotated],
        attention_chunk_size=config.sliding_window,
        attn_temperature_tuning=True,
        floor_scale=config.query_temperature_length,
        attn_scale=config.query_temperature,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = transformers.Llama4ForCausalLM(theirs).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return model


@pytest.mark.parametrize("size", [1, 3, 4, 30])
def test_a_model_of_chunks_and_temperatures_is_that_of_transformers(size: int) -> None:
    config = dataclasses.replace(CONFIG, sliding_window=size, rope_layout="interleaved")
    model = peer(config)
    tensors = {name: value.detach().numpy() for name, value in model.named_parameters()}
    parameters = parameters_from(dataclasses.replace(LLAMA, names=NAMES), config, tensors)
    tokens = np.random.default_rng(0).integers(0, config.stack_vocab_size("decoder"), (2, LENGTH))
    with torch.no_grad():
        theirs = model(torch.tensor(tokens)).logits.numpy()
    oracle = forward_oracle(config, parameters, {"tokens": tokens})
    budget = oracle.budget("logits", "float32")
    assert difference(theirs, oracle.expected["logits"]) <= budget
    wrong: list[dict[str, Any]] = [{"query_temperature_first": 0}]
    wrong += [{"window_kind": "sliding"}, {"sliding_window": size + 1}] if 1 < size < LENGTH else []
    for fields in wrong:
        other = transformer(dataclasses.replace(config, **fields), parameters, tokens=tokens)
        assert difference(theirs, other) > budget, fields
