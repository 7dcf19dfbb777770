# mypy: ignore-errors
"""Llama, Mistral, Qwen 2 and Qwen 3 as one PyTorch module; it renames the file's tensors and loads them strictly."""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

ACTIVATIONS = {"silu": F.silu, "relu": F.relu, "gelu": F.gelu, "gelu_new": lambda x: F.gelu(x, approximate="tanh")}


class Settings:
    def __init__(self, c):
        self.width, self.layers, self.vocab = c["hidden_size"], c["num_hidden_layers"], c["vocab_size"]
        self.heads = c["num_attention_heads"]
        self.kv_heads = c.get("num_key_value_heads")
        if self.kv_heads is None:
            if c["model_type"] != "llama":
                raise ValueError("num_key_value_heads is missing")
            self.kv_heads = self.heads
        self.head_dim = c.get("head_dim")
        if self.head_dim is None:
            if c["model_type"] == "qwen3":
                raise ValueError("head_dim is missing")
            self.head_dim = self.width // self.heads
        self.inner = c["intermediate_size"]
        self.eps = c.get("rms_norm_eps", 1e-6)
        self.tied = c.get("tie_word_embeddings", False)
        self.activation = ACTIVATIONS[c.get("hidden_act", "silu")]
        self.qk_norm = c["model_type"] == "qwen3"
        bias = c.get("attention_bias", False)
        self.qkv_bias = True if c["model_type"] == "qwen2" else bias
        self.out_bias = False if c["model_type"] == "qwen2" else bias
        self.mlp_bias = c.get("mlp_bias", False)
        self.windows = windows(c)
        self.frequencies = frequencies(c, self.head_dim)


def windows(c):
    if c["model_type"] == "mistral":
        return [c["sliding_window"]] * c["num_hidden_layers"]
    if c["model_type"] not in ("qwen2", "qwen3") or not c.get("use_sliding_window", False):
        return [None] * c["num_hidden_layers"]
    window, kinds = c["sliding_window"], c.get("layer_types")
    if kinds is None:
        first = c["max_window_layers"]
        kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(c["num_hidden_layers"])]
    return [window if kind == "sliding_attention" else None for kind in kinds]


def frequencies(c, width):
    rope = dict(c.get("rope_parameters") or c.get("rope_scaling") or {})
    theta = rope.get("rope_theta", c.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    base = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    if kind == "default":
        return base
    if kind == "linear":
        return base / rope["factor"]
    if kind != "llama3":
        raise ValueError(f"rope_type {kind} is not supported")
    original, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    turns = original * base / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return base * (smooth + (1 - smooth) / rope["factor"])


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(width)), eps

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, s, window):
        super().__init__()
        self.s, self.window = s, window
        self.wq = nn.Linear(s.width, s.heads * s.head_dim, bias=s.qkv_bias)
        self.wk = nn.Linear(s.width, s.kv_heads * s.head_dim, bias=s.qkv_bias)
        self.wv = nn.Linear(s.width, s.kv_heads * s.head_dim, bias=s.qkv_bias)
        self.wo = nn.Linear(s.heads * s.head_dim, s.width, bias=s.out_bias)
        if s.qk_norm:
            self.q_norm, self.k_norm = RMSNorm(s.head_dim, s.eps), RMSNorm(s.head_dim, s.eps)

    def forward(self, x, cos, sin):
        s, (batch, length, _) = self.s, x.shape
        q, k, v = (w(x).view(batch, length, -1, s.head_dim) for w in (self.wq, self.wk, self.wv))
        if s.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = rotate(q.transpose(1, 2), cos, sin), rotate(k.transpose(1, 2), cos, sin), v.transpose(1, 2)
        k, v = (t.repeat_interleave(s.heads // s.kv_heads, 1) for t in (k, v))
        at = torch.arange(length)
        far = at[:, None] - at
        allowed = far >= 0
        if self.window is not None:
            allowed &= far < self.window
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))


def rotate(x, cos, sin):
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


class Block(nn.Module):
    def __init__(self, s, window):
        super().__init__()
        self.activation = s.activation
        self.norm1, self.norm2 = RMSNorm(s.width, s.eps), RMSNorm(s.width, s.eps)
        self.attention = Attention(s, window)
        self.gate, self.up = (nn.Linear(s.width, s.inner, bias=s.mlp_bias) for _ in range(2))
        self.down = nn.Linear(s.inner, s.width, bias=s.mlp_bias)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        h = self.norm2(x)
        return x + self.down(self.activation(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed = nn.Embedding(s.vocab, s.width)
        self.blocks = nn.ModuleList(Block(s, window) for window in s.windows)
        self.norm = RMSNorm(s.width, s.eps)
        self.head = nn.Linear(s.width, s.vocab, bias=False)
        self.frequencies = s.frequencies

    def forward(self, input_ids):
        angles = torch.outer(torch.arange(input_ids.shape[1], dtype=torch.float64), self.frequencies)
        cos, sin = angles.cos().float(), angles.sin().float()
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


NAMES = {
    "model.embed_tokens.": "embed.",
    "model.layers.": "blocks.",
    "model.norm.": "norm.",
    "lm_head.": "head.",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "self_attn.": "attention.",
    "post_attention_layernorm": "norm2",
    "input_layernorm": "norm1",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}


def load(folder):
    settings = Settings(json.loads(Path(folder, "config.json").read_text()))
    model, state = Model(settings), {}
    for hub, value in load_file(Path(folder, "model.safetensors")).items():
        name = hub
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        state[name] = value
    if settings.tied:
        state["head.weight"] = state["embed.weight"]
    model.load_state_dict(state)
    return model
