"""LitGPT with the settings of Llama, Qwen2 and Gemma 2."""

import json
from pathlib import Path
from typing import Any

from litgpt.config import Config
from litgpt.model import GPT
from litgpt.scripts.convert_hf_checkpoint import copy_weights_gemma_2, copy_weights_hf_llama, copy_weights_qwen_2_5
from safetensors.torch import load_file


def load(folder: str) -> Any:
    """Load a Hugging Face folder; translate its config.json into a LitGPT configuration."""
    c = json.loads(Path(folder, "config.json").read_text())
    tensors, state = load_file(f"{folder}/model.safetensors"), dict[str, Any]()
    is_gemma2, is_qwen2 = c["model_type"] == "gemma2", c["model_type"] == "qwen2"
    llama = {"name": "small", "mlp_class_name": "LLaMAMLP", "attn_bias": is_qwen2}
    config = Config(**_shared(c), **_gemma2(c) if is_gemma2 else llama)
    if is_gemma2:
        copy_weights_gemma_2({}, state, tensors)
    else:
        (copy_weights_qwen_2_5 if is_qwen2 else copy_weights_hf_llama)(config, {}, state, tensors)
    model = GPT(config)
    model.load_state_dict(state)
    return model


def _shared(c: dict[str, Any]) -> dict[str, Any]:
    return {
        "block_size": c["max_position_embeddings"],
        "vocab_size": c["vocab_size"],
        "padded_vocab_size": c["vocab_size"],
        "n_layer": c["num_hidden_layers"],
        "n_head": c["num_attention_heads"],
        "n_query_groups": c["num_key_value_heads"],
        "n_embd": c["hidden_size"],
        "intermediate_size": c["intermediate_size"],
        "rotary_percentage": 1.0,
        "rope_base": c["rope_parameters"]["rope_theta"],
        "parallel_residual": False,
        "bias": False,
        "norm_class_name": "RMSNorm",
        "norm_eps": c["rms_norm_eps"],
    }


def _gemma2(c: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "Gemma-small",
        "head_size": c["head_dim"],
        "post_attention_norm": True,
        "post_mlp_norm": True,
        "mlp_class_name": "GemmaMLP",
        "gelu_approximate": "tanh",
        "scale_embeddings": True,
        "attention_scores_scalar": c["query_pre_attn_scalar"],
        "attention_logit_softcapping": c["attn_logit_softcapping"],
        "final_logit_softcapping": c["final_logit_softcapping"],
        "sliding_window_size": c["sliding_window"],
        "sliding_window_indices": [kind == "sliding_attention" for kind in c["layer_types"]],
    }
