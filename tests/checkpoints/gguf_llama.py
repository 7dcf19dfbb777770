"""Read a Llama from a GGUF file (llama.cpp's format) as our configuration and parameters."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.checkpoints.naming import Table, parts_of

NAMES: Table = {
    "token_embd.weight": "decoder.token_embedding.weight",
    "output_norm.weight": "decoder.final_norm.weight",
    "output.weight": "head.weight",
    **{
        f"blk.{{i}}.{theirs}.weight": f"decoder.layers.{{i}}.{ours}.weight"
        for theirs, ours in {
            "attn_norm": "self_attention_norm",
            "attn_q": "self_attention.query",
            "attn_k": "self_attention.key",
            "attn_v": "self_attention.value",
            "attn_output": "self_attention.output",
            "ffn_norm": "feed_forward_norm",
            "ffn_gate": "feed_forward.gate",
            "ffn_up": "feed_forward.up",
            "ffn_down": "feed_forward.down",
        }.items()
    },
}

FIELDS = {
    "llama.vocab_size": "target_vocab_size",
    "llama.context_length": "max_length",
    "llama.embedding_length": "embed_dim",
    "llama.attention.head_count": "num_heads",
    "llama.attention.head_count_kv": "num_key_value_heads",
    "llama.block_count": "num_decoder_layers",
    "llama.feed_forward_length": "feed_forward_dim",
    "llama.attention.layer_norm_rms_epsilon": "norm_eps",
    "llama.rope.freq_base": "rope_theta",
    "tokenizer.ggml.padding_token_id": "pad_id",
    "tokenizer.ggml.bos_token_id": "bos_id",
    "tokenizer.ggml.eos_token_id": "eos_id",
}


def read_llama(path: Path) -> tuple[TransformerConfig, dict[str, np.ndarray]]:
    """Return a file's configuration and its parameters, dequantized to float32."""
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    config = TransformerConfig(
        architecture="decoder",
        activation="silu",
        gated=True,
        feed_forward_bias=False,
        qkv_bias=False,
        output_bias=False,
        norm="rms",
        norm_position="pre",
        final_norm=True,
        positions="rotary",
        # A hub's Llama rotates pairs of features that are half a head apart; llama.cpp rotates neighbors. For this,
        # the conversion to GGUF reorders the rows of queries and keys.
        rope_layout="interleaved",
        tied_head="output.weight" not in tensors,
        head_bias=False,
        **{ours: reader.get_field(theirs).contents() for theirs, ours in FIELDS.items()},
    )
    parts = parts_of(tensors, NAMES, ()).items()
    parameters = {ours: make(tensors[name]) for name, found in parts for ours, make in found}
    return config, {name: parameters[name] for name in parameter_shapes(config)}
