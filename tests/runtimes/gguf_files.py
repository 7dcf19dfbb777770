"""Write GGUF files like a conversion script; options plant mistakes."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

KINDS = gguf.GGMLQuantizationType
Change = Callable[[dict[str, np.ndarray]], None]


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    return rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def converted(family: str, folder: Path, *, permuted: bool = True, offset: bool = True) -> dict[str, np.ndarray]:
    """Return the tensors as llama.cpp expects them; False for `permuted` or `offset` skips a step of the conversion."""
    config, tensors = json.loads((folder / "config.json").read_text()), {}
    (architecture,) = (each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == family)
    names = gguf.get_tensor_name_map(architecture, 99)
    for name, value in load_file(folder / "model.safetensors").items():
        theirs, made = names.get_name(name, (".weight", ".bias")), value
        if family == "llama" and permuted and re.search(r"attn_[qk]\.", theirs):
            made = permute(value, config["num_attention_heads" if "attn_q" in theirs else "num_key_value_heads"])
        if family == "gemma2" and offset and theirs.endswith("norm.weight"):
            made = value + 1
        if family == "gpt2" and value.ndim == 2 and "blk" in theirs:
            made = value.T
        tensors[theirs] = np.ascontiguousarray(made)
    return tensors


def metadata(family: str, folder: Path) -> dict[str, Any]:
    """Return the metadata by key; the keys lack the architecture's prefix."""
    config = json.loads((folder / "config.json").read_text())
    if family == "gpt2":
        return {
            "context_length": config["n_positions"],
            "block_count": config["n_layer"],
            "embedding_length": config["n_embd"],
            "feed_forward_length": 4 * config["n_embd"],
            "attention.head_count": config["n_head"],
            "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        }
    found = {
        "context_length": config["max_position_embeddings"],
        "block_count": config["num_hidden_layers"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
    }
    if family == "gemma2":
        found |= {"attn_logit_softcapping": config["attn_logit_softcapping"]}
        found |= {"final_logit_softcapping": config["final_logit_softcapping"]}
        found |= {"attention.sliding_window": config["sliding_window"]}
    return found


def write(
    family: str,
    folder: Path,
    path: Path,
    kind: Any = KINDS.F32,
    change: Change | None = None,
    steps: Mapping[str, bool] | None = None,
    parts: int = 1,
    **fields: Any,
) -> Path:
    """Write a GGUF file.

    Args:
        kind: the type of matrices.
        change: a function that changes the converted tensors.
        steps: arguments of `converted`, which switch off steps of the conversion.
        parts: the number of files of the model, of which this file is the first.
        fields: other metadata (`rope_freq_base=…`); None removes a key.
    """
    writer, tensors = gguf.GGUFWriter(path, family), converted(family, folder, **(steps or {}))
    writer.add_uint16("split.count", parts)
    if change is not None:
        change(tensors)
    values = metadata(family, folder)
    values |= {next((key for key in values if key.replace(".", "_") == name), name): fields[name] for name in fields}
    for key, value in values.items():
        if value is not None:
            kinds = {bool: writer.add_bool, str: writer.add_string, int: writer.add_uint32}
            kinds.get(type(value), writer.add_float32)(f"{family}.{key}", value)
    for name, value in tensors.items():
        stored = kind if value.ndim == 2 and "position" not in name else KINDS.F32
        writer.add_tensor(name, gguf.quantize(value.astype(np.float32), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
