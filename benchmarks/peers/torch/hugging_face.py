"""Hugging Face's Marian (an encoder and a decoder) and GPT-2 (a decoder alone), with PyTorch's attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from benchmarks.peers.torch.tasks import tasks
from benchmarks.task import Run, Task
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

from transparity.config import TransformerConfig
from transparity.protocol import Arrays

LEAVES = ("weight", "bias")

MARIAN = {
    "self_attn.q_proj": "self_attention.query",
    "self_attn.k_proj": "self_attention.key",
    "self_attn.v_proj": "self_attention.value",
    "self_attn.out_proj": "self_attention.output",
    "self_attn_layer_norm": "self_attention_norm",
    "encoder_attn.q_proj": "cross_attention.query",
    "encoder_attn.k_proj": "cross_attention.key",
    "encoder_attn.v_proj": "cross_attention.value",
    "encoder_attn.out_proj": "cross_attention.output",
    "encoder_attn_layer_norm": "cross_attention_norm",
    "fc1": "feed_forward.up",
    "fc2": "feed_forward.down",
    "final_layer_norm": "feed_forward_norm",
}
GPT2 = {
    "ln_1": "self_attention_norm",
    "attn.c_proj": "self_attention.output",
    "ln_2": "feed_forward_norm",
    "mlp.c_fc": "feed_forward.up",
    "mlp.c_proj": "feed_forward.down",
}


class Marian(nn.Module):
    """Called as the others are. Its positions are sinusoidal by default, but a table: ours goes in."""

    def __init__(self, config: TransformerConfig, parameters: Arrays) -> None:
        super().__init__()
        self.model = MarianMTModel(marian_config(config))
        self.model.load_state_dict(marian_state(config, parameters))

    def forward(self, tokens: Tensor, source: Tensor) -> Tensor:
        return self.model(input_ids=source, decoder_input_ids=tokens, use_cache=False).logits


def marian_config(config: TransformerConfig) -> Any:
    """The same sizes, nothing tied, nothing dropped."""
    stacks = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    sizes = {f"{stack}_layers": layers for stack, layers in stacks.items()}
    sizes |= dict.fromkeys([f"{stack}_attention_heads" for stack in stacks], config.num_heads)
    sizes |= dict.fromkeys([f"{stack}_ffn_dim" for stack in stacks], config.feed_forward_dim)
    sizes |= dict.fromkeys(("pad_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    untied = ("scale_embedding", "share_encoder_decoder_embeddings", "tie_word_embeddings")
    return MarianConfig(
        vocab_size=config.stack_vocab_size("encoder"),
        decoder_vocab_size=config.stack_vocab_size("decoder"),
        max_position_embeddings=config.max_length,
        d_model=config.embed_dim,
        activation_function="relu",
        forced_eos_token_id=None,
        attn_implementation="sdpa",
        **sizes,
        **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0),
        **dict.fromkeys(untied, False),
    )


def marian_state(config: TransformerConfig, parameters: Arrays) -> dict[str, Tensor]:
    """The weights under Marian's names."""
    state = {"lm_head.weight": parameters["head.weight"], "final_logits_bias": parameters["head.bias"][None]}
    for stack in ("encoder", "decoder"):
        state[f"model.{stack}.embed_tokens.weight"] = parameters[f"{stack}.token_embedding.weight"]
        state[f"model.{stack}.embed_positions.weight"] = parameters[f"{stack}.position_embedding.weight"]
        layers = config.stack_num_layers(stack)
        for scope in (f"{stack}.layers.{index}" for index in range(layers)):
            for theirs, ours in MARIAN.items():
                if f"{scope}.{ours}.weight" in parameters:
                    state |= {f"model.{scope}.{theirs}.{leaf}": parameters[f"{scope}.{ours}.{leaf}"] for leaf in LEAVES}
    return _tensors(state)


class GPT(nn.Module):
    """GPT-2 without a cache, called as the others are; `generate` is the library's own."""

    def __init__(self, config: TransformerConfig, parameters: Arrays) -> None:
        super().__init__()
        self.model = GPT2LMHeadModel(gpt2_config(config))
        self.model.load_state_dict(gpt2_state(config, parameters))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits

    def generate(self, prompt: Tensor, new_tokens: int) -> Tensor:
        return self.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new_tokens, do_sample=False, pad_token_id=0
        )


def gpt2_config(config: TransformerConfig) -> Any:
    """The same sizes, ReLU, nothing tied, nothing dropped, and no token that ends a text."""
    return GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.max_length,
        n_embd=config.embed_dim,
        n_layer=config.num_decoder_layers,
        n_head=config.num_heads,
        n_inner=config.feed_forward_dim,
        activation_function="relu",
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        **dict.fromkeys(("bos_token_id", "eos_token_id")),
    )


def gpt2_state(config: TransformerConfig, parameters: Arrays) -> dict[str, Tensor]:
    """The weights under GPT-2's names: its linear maps are written (in, out), and the first three are one."""
    state = {
        "lm_head.weight": parameters["head.weight"],
        "transformer.wte.weight": parameters["decoder.token_embedding.weight"],
        "transformer.wpe.weight": parameters["decoder.position_embedding.weight"],
    }
    state |= {f"transformer.ln_f.{leaf}": parameters[f"decoder.final_norm.{leaf}"] for leaf in LEAVES}
    for index in range(config.num_decoder_layers):
        theirs, ours = f"transformer.h.{index}", f"decoder.layers.{index}"
        for leaf in LEAVES:
            roles = [parameters[f"{ours}.self_attention.{role}.{leaf}"].T for role in ("query", "key", "value")]
            state[f"{theirs}.attn.c_attn.{leaf}"] = np.concatenate(roles, -1)
            for name, our_name in GPT2.items():
                state[f"{theirs}.{name}.{leaf}"] = parameters[f"{ours}.{our_name}.{leaf}"].T
    return _tensors(state)


def _tensors(state: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(np.ascontiguousarray(value)) for name, value in state.items()}


def build(task: Task) -> Run:
    """The model that has the architecture."""
    model = (Marian if task.config.has_encoder else GPT)(task.config, task.parameters)
    return tasks(task, model.to(task.device, getattr(torch, task.workload.dtype)).eval())
