# mypy: ignore-errors
"""A Qwen 3 in PyTorch, with Hugging Face's module names and a hand-written norm."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.groups, self.width = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = nn.Linear(c["hidden_size"], self.heads * self.width, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(c["hidden_size"], self.groups * self.width, bias=False) for _ in "kv")
        self.o_proj = nn.Linear(self.heads * self.width, c["hidden_size"], bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.width), RMSNorm(self.width)
        self.frequencies = c["rope_theta"] ** (-torch.arange(0, self.width, 2) / self.width)

    def rotate(self, x):
        angles = torch.outer(torch.arange(x.shape[-2]), self.frequencies).repeat(1, 2)
        first, second = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()

    def forward(self, x):
        q, k, v = (proj(x).unflatten(-1, (-1, self.width)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (part.transpose(1, 2) for part in (self.q_norm(q), self.k_norm(k), v))
        k, v = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (self.rotate(k), v))
        context = F.scaled_dot_product_attention(self.rotate(q), k, v, is_causal=True)
        return self.o_proj(context.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False) for _ in "gu")
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(c["hidden_size"]), RMSNorm(c["hidden_size"])
        self.self_attn, self.mlp = Attention(c), MLP(c)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers, self.norm = (
            nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"])),
            RMSNorm(c["hidden_size"]),
        )
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def load(folder):
    model = Qwen3(json.loads(Path(folder, "config.json").read_text()))
    tensors = load_file(Path(folder, "model.safetensors"))
    model.load_state_dict({name.removeprefix("model."): value for name, value in tensors.items()})
    return model
