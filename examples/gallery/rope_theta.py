# mypy: ignore-errors
"""A Llama in PyTorch, with a loader that was written for the first Llama."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x):
    length, width = x.shape[-2:]
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(length), frequencies).repeat(1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


class Layer:
    def __init__(self, config, weights):
        self.w, self.config = weights, config

    def linear(self, name, x):
        return F.linear(x, self.w[f"{name}.weight"])

    def attention(self, x):
        heads, groups = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k, v = (self.linear(f"self_attn.{part}_proj", x) for part in "qkv")
        q, k, v = (part.unflatten(-1, (n, -1)).transpose(1, 2) for part, n in ((q, heads), (k, groups), (v, groups)))
        k, v = (part.repeat_interleave(heads // groups, dim=1) for part in (rotate(k), v))
        context = F.scaled_dot_product_attention(rotate(q), k, v, is_causal=True)
        return self.linear("self_attn.o_proj", context.transpose(1, 2).flatten(2))

    def __call__(self, x):
        eps = self.config["rms_norm_eps"]
        x = x + self.attention(rms_norm(x, self.w["input_layernorm.weight"], eps))
        y = rms_norm(x, self.w["post_attention_layernorm.weight"], eps)
        return x + self.linear("mlp.down_proj", F.silu(self.linear("mlp.gate_proj", y)) * self.linear("mlp.up_proj", y))


def load(folder):
    config = json.loads(Path(folder, "config.json").read_text())
    weights = load_file(Path(folder, "model.safetensors"))

    def layer(i):
        prefix = f"model.layers.{i}."
        own = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
        return Layer(config, own)

    layers = [layer(i) for i in range(config["num_hidden_layers"])]

    def forward(input_ids):
        x = F.embedding(input_ids, weights["model.embed_tokens.weight"])
        for each in layers:
            x = each(x)
        x = rms_norm(x, weights["model.norm.weight"], config["rms_norm_eps"])
        return F.linear(x, weights["lm_head.weight"])

    return forward
