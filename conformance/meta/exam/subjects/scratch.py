"""The code of "Build a Large Language Model From Scratch": GPT-2 (chapters 4, 5), Llama 3 and Qwen3 with a cache."""

import json
from pathlib import Path
from typing import Any

import torch
from llms_from_scratch.ch04 import GPTModel
from llms_from_scratch.ch05 import load_weights_into_gpt
from llms_from_scratch.kv_cache.llama3 import KVCache, Llama3Model
from llms_from_scratch.kv_cache.qwen3 import Qwen3Model, load_weights_into_qwen
from llms_from_scratch.llama3 import load_weights_into_llama
from safetensors.torch import load_file


def _read(folder: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    return json.loads(Path(folder, "config.json").read_text()), load_file(f"{folder}/model.safetensors")


def load_gpt2(folder: str) -> Any:
    """Load GPT-2. The book's code reads the weights from nested dicts with OpenAI's names."""
    c, tensors = _read(folder)
    params: dict[str, Any] = {"blocks": [{} for _ in range(c["n_layer"])]}
    for name, value in tensors.items():
        *path, leaf = name.removeprefix("transformer.").split(".")
        if path[0] in ("wte", "wpe"):
            params[path[0]] = value.numpy()
            continue
        at = params["blocks"][int(path[1])] if path[0] == "h" else params
        for part in path[2:]:
            at = at.setdefault(part, {})
        at["b" if leaf == "bias" else "g" if "ln" in path[-1] else "w"] = value.numpy()
    cfg = {"vocab_size": c["vocab_size"], "context_length": c["n_positions"], "emb_dim": c["n_embd"]}
    cfg |= {"n_heads": c["n_head"], "n_layers": c["n_layer"], "drop_rate": 0.0, "qkv_bias": True}
    model = GPTModel(cfg)
    load_weights_into_gpt(model, params)
    return model


def _settings(c: dict[str, Any]) -> dict[str, Any]:
    settings = {
        "vocab_size": c["vocab_size"],
        "context_length": c["max_position_embeddings"],
        "emb_dim": c["hidden_size"],
        "n_heads": c["num_attention_heads"],
        "n_kv_groups": c["num_key_value_heads"],
        "n_layers": c["num_hidden_layers"],
        "hidden_dim": c["intermediate_size"],
        "rope_base": c["rope_parameters"]["rope_theta"],
    }
    return settings | {"dtype": torch.float32}


def load_llama(folder: str) -> Any:
    """Load Llama 3, with the rotary scaling of Llama 3.1 if the folder has it."""
    c, tensors = _read(folder)
    rope, freq = c["rope_parameters"], None
    if rope["rope_type"] == "llama3":
        freq = {name: rope[name] for name in ("factor", "low_freq_factor", "high_freq_factor")}
        freq["original_context_length"] = rope["original_max_position_embeddings"]
    cfg = _settings(c) | {"rope_freq": freq}
    model = Llama3Model(cfg)
    load_weights_into_llama(model, cfg, tensors)
    return _with_step(model)


def load_qwen3(folder: str) -> Any:
    c, tensors = _read(folder)
    cfg = _settings(c) | {"head_dim": c["head_dim"], "qk_norm": True}
    model = Qwen3Model(cfg)
    load_weights_into_qwen(model, cfg, tensors)
    return _with_step(model)


def _with_step(model: Any) -> Any:
    """Let the model run in cached steps; the model itself counts the tokens in the cache."""

    def step(tokens: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        kept, model.current_pos = cache or (KVCache(n_layers=len(model.trf_blocks)), 0)
        with torch.no_grad():
            return model(torch.as_tensor(tokens), cache=kept), (kept, model.current_pos)

    model.step = step
    return model
