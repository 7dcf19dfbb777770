# mypy: ignore-errors
"""Decoders with rotary positions, in the manner of Meta's Llama, transformers, Qwen, Phi-3, NeoX, Falcon and others."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-5, one_plus=False):
        super().__init__()
        self.weight, self.eps, self.one_plus = nn.Parameter(torch.ones(width)), eps, one_plus

    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * (1 + self.weight) if self.one_plus else x * self.weight


def angles(length, width, theta):
    rates = 1.0 / theta ** (torch.arange(0, width, 2).float() / width)
    return torch.outer(torch.arange(length).float(), rates)


def rotate_halves(x, theta):
    turn = angles(x.size(-2), x.size(-1), theta)
    cos, sin = torch.cat([turn.cos()] * 2, -1), torch.cat([turn.sin()] * 2, -1)
    one, other = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-other, one], -1) * sin


def rotate_pairs(x, theta):
    turn = angles(x.size(-2), x.size(-1), theta)
    as_complex = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(as_complex * torch.polar(torch.ones_like(turn), turn)).flatten(-2)


def attend(q, k, v):
    groups = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    mask = torch.full(scores.shape[-2:], -math.inf).triu(1)
    b, n, t, h = q.shape
    return ((scores + mask).softmax(-1) @ v).transpose(1, 2).reshape(b, t, n * h)


def heads(x, number):
    return x.view(*x.shape[:2], number, -1).transpose(1, 2)


class Meta(nn.Module):
    """wq, wk, wv, wo, w1, w2, w3, and pairs of neighbours that are rotated as complex numbers."""

    class Layer(nn.Module):
        def __init__(self, c):
            super().__init__()
            d, self.c, kv = c.embed_dim, c, c.key_value_heads * c.head_dim
            sizes = {"wq": (d, c.num_heads * c.head_dim), "wk": (d, kv), "wv": (d, kv), "wo": (d, d)}
            self.attention = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})
            f = c.feed_forward_dim
            sizes = {"w1": (d, f), "w2": (f, d), "w3": (d, f)}
            self.feed_forward = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})
            self.attention_norm, self.ffn_norm = RMSNorm(d), RMSNorm(d)

        def forward(self, x):
            c, a, f = self.c, self.attention, self.feed_forward
            y = self.attention_norm(x)
            q, k, v = heads(a["wq"](y), c.num_heads), heads(a["wk"](y), c.key_value_heads), a["wv"](y)
            q, k = rotate_pairs(q, c.rope_theta), rotate_pairs(k, c.rope_theta)
            x = x + a["wo"](attend(q, k, heads(v, c.key_value_heads)))
            y = self.ffn_norm(x)
            return x + f["w2"](F.silu(f["w1"](y)) * f["w3"](y))

    def __init__(self, c):
        super().__init__()
        self.tok_embeddings = nn.Embedding(c.target_vocab_size, c.embed_dim)
        self.layers = nn.ModuleList([self.Layer(c) for _ in range(c.num_decoder_layers)])
        self.norm, self.output = RMSNorm(c.embed_dim), nn.Linear(c.embed_dim, c.target_vocab_size, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


class HubLlama(nn.Module):
    """The names of transformers, and `inv_freq` in a buffer."""

    bias, norms, tied, one_plus, eps = False, False, False, False, 1e-5

    class Layer(nn.Module):
        def __init__(self, c, kind):
            super().__init__()
            d, self.c, n, k, h = c.embed_dim, c, c.num_heads, c.key_value_heads, c.head_dim
            bias = kind.bias
            self.self_attn = nn.ModuleDict(
                {
                    "q_proj": nn.Linear(d, n * h, bias=bias),
                    "k_proj": nn.Linear(d, k * h, bias=bias),
                    "v_proj": nn.Linear(d, k * h, bias=bias),
                    "o_proj": nn.Linear(n * h, d, bias=False),
                }
            )
            if kind.norms:
                self.self_attn["q_norm"], self.self_attn["k_norm"] = RMSNorm(h, kind.eps), RMSNorm(h, kind.eps)
            self.mlp = nn.ModuleDict(kind.mlp(d, c.feed_forward_dim))
            self.input_layernorm = RMSNorm(d, kind.eps, kind.one_plus)
            self.post_attention_layernorm = RMSNorm(d, kind.eps, kind.one_plus)
            self.register_buffer("inv_freq", c.rope_theta ** (-torch.arange(0, h, 2) / h))

        def forward(self, x, kind):
            c, a = self.c, self.self_attn
            y = self.input_layernorm(x)
            q, k, v = (
                heads(a[name](y), number)
                for name, number in (
                    ("q_proj", c.num_heads),
                    ("k_proj", c.key_value_heads),
                    ("v_proj", c.key_value_heads),
                )
            )
            if kind.norms:
                q, k = a["q_norm"](q), a["k_norm"](k)
            q, k = rotate_halves(q, c.rope_theta), rotate_halves(k, c.rope_theta)
            x = x + a["o_proj"](attend(q, k, v))
            return x + kind.feed(self.mlp, self.post_attention_layernorm(x))

    @staticmethod
    def mlp(d, f):
        return {
            "gate_proj": nn.Linear(d, f, bias=False),
            "up_proj": nn.Linear(d, f, bias=False),
            "down_proj": nn.Linear(f, d, bias=False),
        }

    @staticmethod
    def feed(mlp, x):
        return mlp["down_proj"](F.silu(mlp["gate_proj"](x)) * mlp["up_proj"](x))

    def __init__(self, c):
        super().__init__()
        self.width = c.embed_dim
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(c.target_vocab_size, c.embed_dim),
                "layers": nn.ModuleList([self.Layer(c, type(self)) for _ in range(c.num_decoder_layers)]),
                "norm": RMSNorm(c.embed_dim, self.eps, self.one_plus),
            }
        )
        self.lm_head = nn.Linear(c.embed_dim, c.target_vocab_size, bias=False)
        if self.tied:
            self.lm_head.weight = self.model["embed_tokens"].weight

    def forward(self, input_ids):
        x = self.model["embed_tokens"](input_ids) * (self.width**0.5 if self.one_plus else 1)
        for layer in self.model["layers"]:
            x = layer(x, type(self))
        return self.lm_head(self.model["norm"](x))


class Qwen2(HubLlama):
    """Biases of queries, keys and values, gates and ups fused, a tied head."""

    bias, tied, eps = True, True, 1e-6

    @staticmethod
    def mlp(d, f):
        return {"gate_up_proj": nn.Linear(d, 2 * f, bias=False), "down_proj": nn.Linear(f, d, bias=False)}

    @staticmethod
    def feed(mlp, x):
        gate, up = mlp["gate_up_proj"](x).chunk(2, dim=-1)
        return mlp["down_proj"](F.silu(gate) * up)


class Qwen3(HubLlama):
    """Norms of queries and keys, and gates and ups in turn."""

    norms, eps = True, 1e-6

    @staticmethod
    def mlp(d, f):
        return {"fc1": nn.Linear(d, 2 * f, bias=False), "fc2": nn.Linear(f, d, bias=False)}

    @staticmethod
    def feed(mlp, x):
        both = mlp["fc1"](x)
        return mlp["fc2"](F.silu(both[..., ::2]) * both[..., 1::2])


class Gemma(HubLlama):
    """Gains that are added to 1, scaled embeddings, and ups before gates."""

    one_plus, tied, eps = True, True, 1e-6

    @staticmethod
    def mlp(d, f):
        return {"up_gate": nn.Linear(d, 2 * f, bias=False), "linear": nn.Linear(f, d, bias=False)}

    @staticmethod
    def feed(mlp, x):
        up, gate = mlp["up_gate"](x).chunk(2, dim=-1)
        return mlp["linear"](F.gelu(gate, approximate="tanh") * up)
