# mypy: ignore-errors
"""A Gemma in the style of Google's PyTorch code.

Gains are one plus the weight. Queries are scaled in place. A fused linear layer has fewer keys and values than queries.
The embedding is scaled outside of the model.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn


def empty(*shape):
    return nn.Parameter(torch.empty(*shape), requires_grad=False)


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = empty(width), eps

    def forward(self, x):
        normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return normed * (1 + self.weight)


def rotate(x, turns):
    halves = torch.view_as_complex(torch.stack(x.float().chunk(2, dim=-1), dim=-1))
    parts = torch.view_as_real(halves * turns)
    return torch.cat([parts[..., 0], parts[..., 1]], dim=-1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.qkv = empty((self.heads + 2 * self.kv_heads) * self.head_dim, c["hidden_size"])
        self.out = empty(c["hidden_size"], self.heads * self.head_dim)
        query_width = self.head_dim
        self.scaling = query_width**-0.5

    def forward(self, x, turns, mask):
        batch, length, _ = x.shape
        sizes = [each * self.head_dim for each in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = F.linear(x, self.qkv).split(sizes, dim=-1)
        q, k, v = (each.view(batch, length, -1, self.head_dim).transpose(1, 2) for each in (q, k, v))
        q, k = rotate(q, turns), rotate(k, turns)
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        q.mul_(self.scaling)
        weights = F.softmax(q @ k.mT + mask, dim=-1)
        return F.linear((weights @ v).transpose(1, 2).flatten(2), self.out)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.before, self.between = (RMSNorm(c["hidden_size"], c["rms_norm_eps"]) for _ in range(2))
        self.attention = Attention(c)
        self.gate, self.up = (empty(c["intermediate_size"], c["hidden_size"]) for _ in range(2))
        self.down = empty(c["hidden_size"], c["intermediate_size"])

    def forward(self, x, turns, mask):
        x = x + self.attention(self.before(x), turns, mask)
        y = self.between(x)
        fused = F.gelu(F.linear(y, self.gate), approximate="tanh") * F.linear(y, self.up)
        return x + F.linear(fused, self.down)


class Gemma(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, turns, mask):
        for layer in self.layers:
            x = layer(x, turns, mask)
        return self.norm(x)


NAMES = {
    "input_layernorm.": "before.",
    "post_attention_layernorm.": "between.",
    "self_attn.o_proj.weight": "attention.out",
    "mlp.gate_proj.weight": "gate",
    "mlp.up_proj.weight": "up",
    "mlp.down_proj.weight": "down",
}


def load(folder):
    c = json.loads(Path(folder, "config.json").read_text())
    weights = {name.removeprefix("model."): w for name, w in load_file(f"{folder}/model.safetensors").items()}
    table, model = weights.pop("embed_tokens.weight"), Gemma(c)
    for i in range(c["num_hidden_layers"]):
        parts = [weights.pop(f"layers.{i}.self_attn.{part}_proj.weight") for part in "qkv"]
        weights[f"layers.{i}.attention.qkv"] = torch.cat(parts)
    for theirs, ours in NAMES.items():
        weights = {name.replace(theirs, ours): w for name, w in weights.items()}
    model.load_state_dict(weights)
    angles = torch.outer(torch.arange(64), 1 / 10000.0 ** (torch.arange(0, c["head_dim"], 2) / c["head_dim"]))
    turns = torch.polar(torch.ones_like(angles), angles)

    def forward(input_ids):
        length = input_ids.shape[1]
        mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)
        hidden = F.embedding(input_ids, table) * c["hidden_size"] ** 0.5
        return model(hidden, turns[:length], mask) @ table.t()

    return forward
