# mypy: ignore-errors
"""A Llama in PyTorch with grouped heads: one axis has the groups, and another the query heads of a group."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.groups, self.width = c["num_key_value_heads"], c["hidden_size"] // c["num_attention_heads"]
        self.q_proj = nn.Linear(c["hidden_size"], c["hidden_size"], bias=False)
        self.k_proj, self.v_proj = (nn.Linear(c["hidden_size"], self.groups * self.width, bias=False) for _ in "kv")
        self.o_proj = nn.Linear(c["hidden_size"], c["hidden_size"], bias=False)
        self.frequencies = c["rope_theta"] ** (-torch.arange(0, self.width, 2) / self.width)

    def rotate(self, x):
        angles = torch.outer(torch.arange(x.shape[1]), self.frequencies).repeat(1, 2)[:, None, None]
        first, second = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()

    def forward(self, x):
        q, k, v = (
            proj(x).unflatten(-1, (self.groups, -1, self.width)) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = torch.einsum("bqgrd,bkgod->bgrqk", self.rotate(q), self.rotate(k)) / self.width**0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        context = torch.einsum("bgrqk,bkgod->bqrgd", weights, v)
        return self.o_proj(context.flatten(2))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn, self.mlp = Attention(c), nn.Module()
        self.mlp.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.mlp.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.mlp.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def load(folder):
    model = Llama(json.loads(Path(folder, "config.json").read_text()))
    tensors = load_file(Path(folder, "model.safetensors"))
    model.load_state_dict({name.removeprefix("model."): value for name, value in tensors.items()})
    return model
