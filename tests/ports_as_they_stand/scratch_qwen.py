# mypy: ignore-errors
"""A Qwen3 in the manner of rasbt's chapters: dicts of settings, a norm class that all norms share, tables of cosines
and sines for whole heads, scores that are masked before they are scaled, and weights that are assigned one by one.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        normed = x * torch.rsqrt(mean_square + self.eps)
        return normed * self.scale


def apply_rope(x, cos, sin):
    half = x.shape[-1] // 2
    x1 = x[..., :half]
    x2 = x[..., half:]
    rotated = torch.cat((-x2, x1), dim=-1)
    return x * cos[: x.shape[2]] + rotated * sin[: x.shape[2]]


class GroupedQueryAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads, self.groups, self.head_dim = cfg["n_heads"], cfg["n_groups"], cfg["head_dim"]
        self.W_query = nn.Linear(cfg["width"], self.heads * self.head_dim, bias=False)
        self.W_key = nn.Linear(cfg["width"], self.groups * self.head_dim, bias=False)
        self.W_value = nn.Linear(cfg["width"], self.groups * self.head_dim, bias=False)
        self.out_proj = nn.Linear(self.heads * self.head_dim, cfg["width"], bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.head_dim), RMSNorm(self.head_dim)

    def forward(self, x, mask, cos, sin):
        b, length, _ = x.shape
        queries = self.W_query(x).view(b, length, self.heads, self.head_dim).transpose(1, 2)
        keys = self.W_key(x).view(b, length, self.groups, self.head_dim).transpose(1, 2)
        values = self.W_value(x).view(b, length, self.groups, self.head_dim).transpose(1, 2)
        queries = self.q_norm(queries)
        keys = self.k_norm(keys)
        queries, keys = apply_rope(queries, cos, sin), apply_rope(keys, cos, sin)
        keys = keys.repeat_interleave(self.heads // self.groups, dim=1)
        values = values.repeat_interleave(self.heads // self.groups, dim=1)
        scores = (queries @ keys.transpose(2, 3)).masked_fill(mask, -torch.inf)
        weights = torch.softmax(scores / self.head_dim**0.5, dim=-1)
        return self.out_proj((weights @ values).transpose(1, 2).reshape(b, length, -1))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(cfg["width"]), RMSNorm(cfg["width"])
        self.att = GroupedQueryAttention(cfg)
        self.fc1, self.fc2 = (nn.Linear(cfg["width"], cfg["hidden"], bias=False) for _ in range(2))
        self.fc3 = nn.Linear(cfg["hidden"], cfg["width"], bias=False)

    def forward(self, x, mask, cos, sin):
        shortcut = x
        x = self.norm1(x)
        x = self.att(x, mask, cos, sin) + shortcut
        shortcut = x
        x = self.norm2(x)
        x = self.fc3(nn.functional.silu(self.fc1(x)) * self.fc2(x))
        return x + shortcut


class Qwen(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok_emb = nn.Embedding(cfg["vocab"], cfg["width"])
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg["layers"]))
        self.final_norm = RMSNorm(cfg["width"])
        self.out_head = nn.Linear(cfg["width"], cfg["vocab"], bias=False)
        steps = torch.arange(0, cfg["head_dim"], 2).float() / cfg["head_dim"]
        angles = torch.arange(cfg["length"]).float()[:, None] / cfg["theta"] ** steps
        angles = torch.cat([angles, angles], dim=1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids):
        x = self.tok_emb(ids)
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(diagonal=1)
        for block in self.blocks:
            x = block(x, mask, self.cos, self.sin)
        return self.out_head(self.final_norm(x))


NAMES = (
    ("model.embed_tokens", "tok_emb"),
    ("model.layers", "blocks"),
    ("model.norm", "final_norm"),
    ("lm_head", "out_head"),
    ("input_layernorm", "norm1"),
    ("post_attention_layernorm", "norm2"),
    ("self_attn.q_proj", "att.W_query"),
    ("self_attn.k_proj", "att.W_key"),
    ("self_attn.v_proj", "att.W_value"),
    ("self_attn.o_proj", "att.out_proj"),
    ("self_attn", "att"),
    ("mlp.gate_proj", "fc1"),
    ("mlp.up_proj", "fc2"),
    ("mlp.down_proj", "fc3"),
)


def load(folder):
    c = json.loads(Path(folder, "config.json").read_text())
    cfg = {"vocab": c["vocab_size"], "width": c["hidden_size"], "layers": c["num_hidden_layers"]}
    cfg |= {"hidden": c["intermediate_size"], "n_heads": c["num_attention_heads"], "n_groups": c["num_key_value_heads"]}
    cfg |= {"head_dim": c["head_dim"], "length": c["max_position_embeddings"]}
    cfg["theta"] = c["rope_parameters"]["rope_theta"] if "rope_parameters" in c else c["rope_theta"]
    model, weights = Qwen(cfg), {}
    for hub, value in load_file(f"{folder}/model.safetensors").items():
        name = hub
        for theirs, ours in NAMES:
            name = name.replace(theirs, ours)
        weights[name.replace("weight", "scale") if "norm" in name else name] = value
    model.load_state_dict(weights)
    return model
