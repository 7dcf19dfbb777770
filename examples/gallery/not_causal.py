# mypy: ignore-errors
"""A Qwen 2 in PyTorch. The attention function has a flag for a causal mask, as fast attention kernels have."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x, theta):
    length, width = x.shape[-2:]
    frequencies = theta ** (-torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(length), frequencies).repeat(1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


class Layer:
    def __init__(self, config, weights):
        self.w, self.config = weights, config

    def linear(self, name, x):
        return F.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def attention(self, x):
        heads, groups = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k, v = (self.linear(f"self_attn.{part}_proj", x) for part in "qkv")
        q, k, v = (part.unflatten(-1, (n, -1)).transpose(1, 2) for part, n in ((q, heads), (k, groups), (v, groups)))
        theta = self.config["rope_theta"]
        k, v = (part.repeat_interleave(heads // groups, dim=1) for part in (rotate(k, theta), v))
        context = F.scaled_dot_product_attention(rotate(q, theta), k, v, is_causal=False)
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
        return F.linear(x, weights["model.embed_tokens.weight"])

    return forward
