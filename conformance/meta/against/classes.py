"""The classes of transformers by kind, and their default configurations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from transparity_conformance.against.small.build import part_of

KINDS = {
    "decoder": ("CAUSAL_LM",),
    "encoder": ("MASKED_LM",),
    "encoder-decoder": ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"),
    "vision": ("IMAGE_CLASSIFICATION", "IMAGE"),
    "audio": ("AUDIO_CLASSIFICATION", "CTC"),
    "image-text": ("IMAGE_TEXT_TO_TEXT",),
}
"""The auto mappings of transformers for each kind of model; each is named `MODEL_FOR_…_MAPPING_NAMES`."""

LACKING: dict[str, dict[str, Any]] = {
    "dbrx": {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500000.0}},
    "deepseek_v2": {"num_experts_per_tok": 6, "n_group": 1, "topk_group": 1, "topk_method": "greedy"},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "nemotron": {"num_key_value_heads": 8},
    "ReformerModelWithLMHead": {"is_decoder": True},
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
}
"""Fields that all published configurations set and the default configuration does not, by model type or class."""


def classes(kinds: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the model type and the name of each class."""
    for kind in kinds:
        seen = set()
        for mapping in KINDS[kind]:
            for model_type, names in getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES").items():
                name = names if isinstance(names, str) else names[0]
                if (model_type, name) not in seen:
                    seen.add((model_type, name))
                    yield kind, model_type, name


def configured(model_type: str, name: str = "") -> Any:
    """Return the default configuration of a model type, with the fields from `LACKING` added."""
    return transformers.CONFIG_MAPPING[model_type](**LACKING.get(model_type, LACKING.get(name, {})))


def exists(model_type: str, name: str) -> bool:
    """Return whether a class can be built from its default configuration."""
    try:
        made = getattr(transformers, name)
        with torch.device("meta"):
            made(part_of(configured(model_type, name), made))
    except Exception:  # noqa: BLE001 - any failure says no
        return False
    return True
