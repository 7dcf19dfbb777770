# mypy: ignore-errors
"""A Llama in the manner of Meta's code and its teaching copies (hkproj, llama2.c).

Complex neighbors are rotated, with weights permuted for it. The cache is written in place, one token at a time.

"""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x, turns):
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, :, None]).flatten(3)


def repeat(x, times):
    batch, length, heads, width = x.shape
    return x[:, :, :, None].expand(batch, length, heads, times, width).reshape(batch, length, -1, width)


class Layer:
    def __init__(self, config, weights, prefix):
        self.w = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
        self.eps, self.heads = config["rms_norm_eps"], config["num_attention_heads"]
        self.kv_heads, self.width = config["num_key_value_heads"], config["hidden_size"] // self.heads
        self.keys, self.values = (torch.zeros(64, 64, self.kv_heads, self.width) for _ in range(2))

    def attention(self, x, at, turns):
        batch, length, _ = x.shape
        q = F.linear(x, self.w["self_attn.q_proj.weight"]).view(batch, length, self.heads, self.width)
        k = F.linear(x, self.w["self_attn.k_proj.weight"]).view(batch, length, self.kv_heads, self.width)
        v = F.linear(x, self.w["self_attn.v_proj.weight"]).view(batch, length, self.kv_heads, self.width)
        q, k = rotate(q, turns), rotate(k, turns)
        self.keys[:batch, at : at + length], self.values[:batch, at : at + length] = k, v
        k, v = self.keys[:batch, : at + length], self.values[:batch, : at + length]
        k, v = repeat(k, self.heads // self.kv_heads), repeat(v, self.heads // self.kv_heads)
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / math.sqrt(self.width)
        out = scores.softmax(-1) @ v.transpose(1, 2)
        return F.linear(out.transpose(1, 2).flatten(2), self.w["self_attn.o_proj.weight"])

    def __call__(self, x, at, turns):
        h = x + self.attention(rms_norm(x, self.w["input_layernorm.weight"], self.eps), at, turns)
        y = rms_norm(h, self.w["post_attention_layernorm.weight"], self.eps)
        gate = F.silu(F.linear(y, self.w["mlp.gate_proj.weight"]))
        return h + F.linear(gate * F.linear(y, self.w["mlp.up_proj.weight"]), self.w["mlp.down_proj.weight"])


class Llama(nn.Module):
    def __init__(self, config, weights):
        super().__init__()
        self.w, self.eps = weights, config["rms_norm_eps"]
        self.layers = [Layer(config, weights, f"model.layers.{i}.") for i in range(config["num_hidden_layers"])]
        width = config["hidden_size"] // config["num_attention_heads"]
        angles = torch.outer(torch.arange(64), 1 / 10000.0 ** (torch.arange(0, width, 2) / width))
        self.turns = torch.polar(torch.ones_like(angles), angles)

    def forward(self, tokens, at):
        x = F.embedding(tokens, self.w["model.embed_tokens.weight"])
        for layer in self.layers:
            x = layer(x, at, self.turns[at : at + 1])
        return F.linear(rms_norm(x, self.w["model.norm.weight"], self.eps), self.w["lm_head.weight"])


def load(folder):
    config = json.loads(Path(folder, "config.json").read_text())
    weights = load_file(f"{folder}/model.safetensors")
    for name, value in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # from halves to neighbors
            halves = value.view(-1, 2, config["hidden_size"] // config["num_attention_heads"] // 2, value.shape[1])
            weights[name] = halves.transpose(1, 2).reshape(value.shape)
    model = Llama(config, weights)
    return lambda ids: torch.cat([model(ids[:, i : i + 1], i) for i in range(ids.shape[1])], 1)
