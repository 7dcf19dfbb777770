"""A hand-written loader that copies a Llama's config.json and tensors into the transformers class."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

FIELDS = {"llama": {"max_position_embeddings": 37}}


def rope_of(c: dict[str, Any]) -> dict[str, Any]:
    rope = dict(c.get("rope_parameters") or c.get("rope_scaling") or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    return {"rope_theta": c.get("rope_theta", 10000.0)} | rope | {"rope_type": kind}


def config_of(c: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=c["vocab_size"],
        hidden_size=c["hidden_size"],
        intermediate_size=c["intermediate_size"],
        num_hidden_layers=c["num_hidden_layers"],
        num_attention_heads=c["num_attention_heads"],
        num_key_value_heads=c.get("num_key_value_heads") or c["num_attention_heads"],
        head_dim=c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"],
        max_position_embeddings=c.get("max_position_embeddings", 2048),
        rms_norm_eps=c.get("rms_norm_eps", 1e-6),
        hidden_act=c.get("hidden_act", "silu"),
        rope_parameters=rope_of(c),
        attention_bias=c.get("attention_bias", False),
        mlp_bias=c.get("mlp_bias", False),
        tie_word_embeddings=c.get("tie_word_embeddings", False),
    )


def load(folder: str) -> Any:
    config = config_of(json.loads(Path(folder, "config.json").read_text()))
    state = load_file(Path(folder, "model.safetensors"))
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model
