# mypy: ignore-errors
"""Gemma and Gemma 2 as PyTorch functions that read the file's tensors; rotations are complex multiplications."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

ACTIVATIONS = {"gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"), "gelu": F.gelu, "silu": F.silu}


class Gemma:
    def __init__(self, c, p):
        self.c, self.p, self.second = c, p, c["model_type"] == "gemma2"
        self.eps, self.heads, self.kv_heads = c["rms_norm_eps"], c["num_attention_heads"], c["num_key_value_heads"]
        self.head_dim, rope = c["head_dim"], c.get("rope_parameters") or {}
        self.theta = rope["rope_theta"] if rope else c["rope_theta"]
        scaling = rope if rope else c["rope_scaling"] or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind not in ("default", "linear"):
            raise ValueError(f"unknown rope_type {kind}")
        self.factor = scaling["factor"] if kind == "linear" else 1.0
        name = c["hidden_activation"] if self.second else c.get("hidden_activation") or c["hidden_act"]
        self.act = ACTIVATIONS["gelu_pytorch_tanh" if name == "gelu" and not self.second else name]
        self.scale = (c["query_pre_attn_scalar"] if self.second else self.head_dim) ** -0.5
        self.attention_cap = c["attn_logit_softcapping"] if self.second else None
        self.final_cap = c["final_logit_softcapping"] if self.second else None
        self.kinds = c["layer_types"] if self.second else ["full_attention"] * c["num_hidden_layers"]
        self.window = c["sliding_window"] if self.second else None

    def norm(self, name, x):
        return F.rms_norm(x, x.shape[-1:], 1 + self.p[f"{name}.weight"], self.eps)

    def linear(self, name, x):
        return F.linear(x, self.p[f"{name}.weight"], self.p[f"{name}.bias"] if self.c["attention_bias"] else None)

    def attention(self, at, x, kind):
        b, t, _ = x.shape
        q, k, v = (self.linear(f"{at}.{n}_proj", x).view(b, t, -1, self.head_dim).transpose(1, 2) for n in "qkv")
        steps = torch.arange(0, self.head_dim, 2).double() / self.head_dim
        turns = torch.polar(torch.ones(1).double(), torch.arange(t).double()[:, None] / self.factor / self.theta**steps)
        q, k = turned(q, turns.cfloat()) * self.scale, turned(k, turns.cfloat())
        k, v = (each.repeat_interleave(self.heads // self.kv_heads, 1) for each in (k, v))
        scores = capped(q @ k.mT, self.attention_cap)
        hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
        if kind == "sliding_attention":
            hidden |= torch.ones(t, t, dtype=torch.bool).tril(-self.window)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return self.linear(f"{at}.o_proj", (weights @ v).transpose(1, 2).flatten(2))

    def mlp(self, at, x):
        gate, up, down = (self.p[f"{at}.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return F.linear(self.act(F.linear(x, gate)) * F.linear(x, up), down)

    def __call__(self, input_ids):
        table = self.p["model.embed_tokens.weight"]
        x = table[input_ids] * self.c["hidden_size"] ** 0.5
        for i, kind in enumerate(self.kinds):
            at = f"model.layers.{i}"
            attended = self.attention(f"{at}.self_attn", self.norm(f"{at}.input_layernorm", x), kind)
            if self.second:
                x = x + self.norm(f"{at}.post_attention_layernorm", attended)
                fed = self.mlp(f"{at}.mlp", self.norm(f"{at}.pre_feedforward_layernorm", x))
                x = x + self.norm(f"{at}.post_feedforward_layernorm", fed)
            else:
                x = x + attended
                x = x + self.mlp(f"{at}.mlp", self.norm(f"{at}.post_attention_layernorm", x))
        head = table if self.c["tie_word_embeddings"] else self.p["lm_head.weight"]
        return capped(F.linear(self.norm("model.norm", x), head), self.final_cap)


def turned(x, turns):
    parts = torch.view_as_real(torch.complex(*x.chunk(2, -1)) * turns)
    return torch.cat([parts[..., 0], parts[..., 1]], -1)


def capped(x, cap):
    return x if cap is None else cap * torch.tanh(x / cap)


def load(folder):
    c = json.loads(Path(folder, "config.json").read_text())
    return Gemma(c, load_file(Path(folder, "model.safetensors")))
