"""A Gemma 3 with seven mistakes; a comment marks each wrong line."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * self.weight  # mistake: weight in place of 1 + weight


def rotated(x: Tensor, base: float) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


class Attention(nn.Module):
    def __init__(self, c: Any, kind: str) -> None:
        super().__init__()
        self.c, self.window = c, c.sliding_window if kind == "sliding_attention" else 0
        self.base = c.rope_parameters[kind]["rope_theta"]
        query, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj, self.o_proj = (
            nn.Linear(c.hidden_size, query, bias=False),
            nn.Linear(query, c.hidden_size, bias=False),
        )
        self.k_proj, self.v_proj = (nn.Linear(c.hidden_size, keys, bias=False) for _ in range(2))
        self.q_norm, self.k_norm = (Norm(c.head_dim, c.rms_norm_eps) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        projected = (project(x) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (each.view(batch, length, -1, self.c.head_dim).transpose(1, 2) for each in projected)
        q = rotated(self.q_norm(q), self.base)
        k = self.k_norm(rotated(k, self.base))  # mistake: rotated before it is normalized
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = q @ k.mT * self.c.hidden_size**-0.5  # mistake: not the scale from the configuration
        distance = torch.arange(length)[:, None] - torch.arange(length)
        hidden = distance < 0
        if self.window:
            hidden = hidden | (distance > self.window)  # mistake: the window is one key too wide
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(batch, length, -1))


class Feed(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(c.hidden_size, c.intermediate_size, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # mistake: SiLU in place of GELU


class Layer(nn.Module):
    def __init__(self, c: Any, kind: str) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(c, kind), Feed(c)
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            setattr(self, f"{name}_layernorm", Norm(c.hidden_size, c.rms_norm_eps))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x)))
        return x + self.mlp(self.pre_feedforward_layernorm(x))  # mistake: the post-feed-forward norm is missing


class Model(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.c, self.embed_tokens = c, nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, kind) for kind in c.layer_types)
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed_tokens(x)  # mistake: not multiplied by √embed_dim
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Draft(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.model, self.lm_head = Model(c), nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.lm_head(self.model(input_ids))
