# mypy: ignore-errors
"""Decoders like GPT-2 and Llama: one implementation, configured by the styles in `decoders.toml`."""

import functools
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


class Conv1D(nn.Module):
    """A linear layer whose weight is stored as (in, out)."""

    def __init__(self, into, out, bias=True):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(into, out)), nn.Parameter(torch.zeros(out))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


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


def attend_sdpa(layer, q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attend_added(layer, q, k, v):
    groups = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    mask = torch.full(scores.shape[-2:], -math.inf).triu(1)
    return (scores + mask).softmax(-1) @ v


def attend_filled(layer, q, k, v, bias=0):
    scores = q @ k.transpose(-2, -1) * q.size(-1) ** -0.5 + bias
    mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril()
    return scores.masked_fill(~mask, -math.inf).softmax(-1) @ v


def attend_alibi(layer, q, k, v):
    steps, number = torch.arange(q.size(-2)), q.size(1)
    slopes = 2.0 ** (-8 * torch.arange(1, number + 1) / number)
    return attend_filled(layer, q, k, v, -slopes[:, None, None] * (steps[:, None] - steps).clamp(min=0))


def attend_buffer(layer, q, k, v):
    w = q @ k.transpose(-1, -2) / math.sqrt(v.size(-1))
    mask = layer.attn.bias[:, :, : q.size(-2), : q.size(-2)]
    return (w * mask - 1e10 * (1 - mask)).softmax(-1) @ v


def heads(x, number):
    return x.view(*x.shape[:2], number, -1).transpose(1, 2)


def apart(c, q, k, v):
    return heads(q, c.num_heads), heads(k, c.key_value_heads), heads(v, c.key_value_heads)


def keys_first(c, k, q, v):
    return apart(c, q, k, v)


def in_rows(c, fused):
    """Split a matrix whose rows are all queries, then all keys, then all values."""
    rows = (c.num_heads * c.head_dim, *[c.key_value_heads * c.head_dim] * 2)
    return apart(c, *fused.split(rows, dim=2))


def by_head(c, fused):
    """Split a matrix in which query, key and value of one head are adjacent."""
    return heads(fused, c.num_heads).chunk(3, -1)


def by_group(c, fused):
    """Split a matrix in which the queries of one group and their shared key and value are adjacent."""
    grouped = fused.view(*fused.shape[:2], c.key_value_heads, -1, c.head_dim)
    k, v = (grouped[..., part, :].transpose(1, 2) for part in (-2, -1))
    return grouped[..., :-2, :].reshape(*fused.shape[:2], c.num_heads, -1).transpose(1, 2), k, v


def beside_queries(c, q, kv):
    return apart(c, q, *kv.chunk(2, -1))


PACKED: dict[Callable, tuple[str, ...]] = {
    apart: ("n", "k", "k"),
    keys_first: ("k", "n", "k"),
    beside_queries: ("n", "kk"),
}
"""For each split function, the outputs of the projections that it reads: `n` is all query heads, `k` all key or all
value heads. Split functions that are not listed read one matrix with queries, keys and values."""


def plain(act, up):
    return act(up)


def gated(act, gate, up):
    return act(gate) * up


def gate_up(act, both):
    gate, up = both.chunk(2, dim=-1)
    return act(gate) * up


def up_gate(act, both):
    up, gate = both.chunk(2, dim=-1)
    return act(gate) * up


def in_turn(act, both):
    return act(both[..., ::2]) * both[..., 1::2]


WIDTHS: dict[Callable, tuple[int, ...]] = {plain: (1,), gated: (1, 1)}
"""The output widths of a feed-forward's first layers, in multiples of its hidden size. Functions that are not listed
read the output of one layer, whose width is twice the hidden size."""


@dataclass(frozen=True)
class Style:
    """The names of a decoder's submodules, and the functions that it calls."""

    names: str
    norms: str
    attention: str
    mlp: str
    split: Callable
    feed: Callable
    attend: Callable = attend_added
    rotate: Callable | str = ""
    act: Callable = F.silu
    norm: Callable = RMSNorm
    linear: Callable = nn.Linear
    biases: tuple[bool, bool, bool] = (False, False, False)
    """Whether the projections, the attention output and the feed-forward layers have a bias."""
    positions: str = ""
    embedding_norm: str = ""
    dropout: float = 0.0
    is_tied: bool = False
    also: dict[str, Any] = field(default_factory=dict)
    """Additional modules and buffers of a layer, by name."""


def put(root: nn.Module, path: str, part: Any) -> None:
    """Register a module, a parameter or a buffer under a dotted path."""
    *holders, name = path.split(".")
    for each in holders:
        if each not in root._modules:
            root.add_module(each, nn.Module())
        root = root._modules[each]
    if isinstance(part, nn.Module):
        root.add_module(name, part)
    elif isinstance(part, nn.Parameter):
        root.register_parameter(name, part)
    else:
        root.register_buffer(name, part)


class Layer(nn.Module):
    def __init__(self, c, style):
        super().__init__()
        self.c, self.style, d, f = c, style, c.embed_dim, c.feed_forward_dim
        width = {"n": c.num_heads * c.head_dim, "k": c.key_value_heads * c.head_dim}
        into = [sum(width[each] for each in part) for part in PACKED.get(style.split, ("nkk",))]
        hidden = [f * each for each in WIDTHS.get(style.feed, (2,))]
        sizes = [*((d, n) for n in into), (width["n"], d), *((d, n) for n in hidden), (f, d)]
        biases = [bias for bias, n in zip(style.biases, (len(into), 1, len(hidden) + 1), strict=True) for _ in range(n)]
        for name in style.norms.split():
            put(self, name, style.norm(d))
        for name, size, bias in zip((style.attention + " " + style.mlp).split(), sizes, biases, strict=True):
            put(self, name, style.linear(*size, bias=bias))
        for name, make in style.also.items():
            put(self, name, make(c))

    def project(self, y):
        c, style = self.c, self.style
        q, k, v = style.split(c, *(self.get_submodule(name)(y) for name in style.attention.split()[:-1]))
        if "self_attn.q_norm" in style.also:
            q, k = self.self_attn.q_norm(q), self.self_attn.k_norm(k)
        return (style.rotate(q, c.rope_theta), style.rotate(k, c.rope_theta), v) if style.rotate else (q, k, v)

    def forward(self, x):
        style, (first, second) = self.style, map(self.get_submodule, self.style.norms.split())
        output, down = (self.get_submodule(names.split()[-1]) for names in (style.attention, style.mlp))
        y = style.attend(self, *self.project(first(x)))
        x = x + output(y.transpose(1, 2).reshape(*x.shape[:2], -1))
        y = second(x)
        hidden = style.feed(style.act, *(self.get_submodule(name)(y) for name in style.mlp.split()[:-1]))
        return x + (F.dropout(down(hidden), style.dropout, self.training) if style.dropout else down(hidden))


class Decoder(nn.Module):
    def __init__(self, c, style):
        super().__init__()
        self.style, (table, layers, norm, *head) = style, style.names.split()
        self.scale = c.embed_dim**0.5 if c.embedding_scale == "embed_dim" else 1
        put(self, table, nn.Embedding(c.target_vocab_size, c.embed_dim))
        if style.positions:
            put(self, style.positions, nn.Embedding(c.max_length, c.embed_dim))
        if style.embedding_norm:
            put(self, style.embedding_norm, style.norm(c.embed_dim))
        put(self, layers, nn.ModuleList([Layer(c, style) for _ in range(c.num_decoder_layers)]))
        put(self, norm, style.norm(c.embed_dim))
        for name in head:
            put(self, name, nn.Linear(c.embed_dim, c.target_vocab_size, bias=False))
            if style.is_tied:
                self.get_submodule(name).weight = self.get_submodule(table).weight

    def forward(self, input_ids):
        table, layers, norm, *head = map(self.get_submodule, self.style.names.split())
        x = table(input_ids) * self.scale
        if self.style.positions:
            x = x + self.get_submodule(self.style.positions)(torch.arange(input_ids.size(1)))
        if self.style.embedding_norm:
            x = self.get_submodule(self.style.embedding_norm)(x)
        for layer in layers:
            x = layer(x)
        return head[0](norm(x)) if head else norm(x) @ table.weight.T


class MinGPT(nn.Module):
    """A GPT like minGPT: an `nn.Sequential` of blocks, and position embeddings in a parameter."""

    def __init__(self, c):
        super().__init__()
        self.tok_emb = nn.Embedding(c.target_vocab_size, c.embed_dim)
        self.pos_emb = nn.Parameter(torch.zeros(1, c.max_length, c.embed_dim))
        self.blocks = nn.Sequential(*[Layer(c, style("mingpt")) for _ in range(c.num_decoder_layers)])
        self.ln_f, self.head = nn.LayerNorm(c.embed_dim), nn.Linear(c.embed_dim, c.target_vocab_size, bias=False)

    def forward(self, idx):
        return self.head(self.ln_f(self.blocks(self.tok_emb(idx) + self.pos_emb[:, : idx.size(1)])))


class LogitsBias(MinGPT):
    """minGPT with a bias of the logits; the bias is a buffer, not a parameter, as in BART."""

    def __init__(self, c):
        super().__init__(c)
        self.register_buffer("final_logits_bias", torch.zeros(1, c.target_vocab_size))

    def forward(self, idx):
        return super().forward(idx) + self.final_logits_bias


class Lecture(nn.Module):
    """A GPT like nanoGPT's lecture: one module per head, no biases in attention, scores scaled by 1/√embed_dim."""

    class Head(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.key, self.query, self.value = (nn.Linear(c.embed_dim, c.head_dim, bias=False) for _ in range(3))
            self.register_buffer("tril", torch.tril(torch.ones(c.max_length, c.max_length)))

        def forward(self, x):
            _, t, d = x.shape
            wei = self.query(x) @ self.key(x).transpose(-2, -1) * d**-0.5
            return wei.masked_fill(self.tril[:t, :t] == 0, -math.inf).softmax(-1) @ self.value(x)

    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            d, f = c.embed_dim, c.feed_forward_dim
            put(self, "sa.heads", nn.ModuleList([Lecture.Head(c) for _ in range(c.num_heads)]))
            put(self, "sa.proj", nn.Linear(d, d))
            self.ffwd = nn.Sequential(nn.Linear(d, f), nn.ReLU(), nn.Linear(f, d))
            self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)

        def forward(self, x):
            y = self.ln1(x)
            x = x + self.sa.proj(torch.cat([head(y) for head in self.sa.heads], dim=-1))
            return x + self.ffwd(self.ln2(x))

    def __init__(self, c):
        super().__init__()
        self.token_embedding_table = nn.Embedding(c.target_vocab_size, c.embed_dim)
        self.position_embedding_table = nn.Embedding(c.max_length, c.embed_dim)
        self.blocks = nn.Sequential(*[self.Block(c) for _ in range(c.num_decoder_layers)])
        self.ln_f, self.lm_head = nn.LayerNorm(c.embed_dim), nn.Linear(c.embed_dim, c.target_vocab_size)

    def forward(self, idx):
        x = self.token_embedding_table(idx) + self.position_embedding_table(torch.arange(idx.size(1)))
        return self.lm_head(self.ln_f(self.blocks(x)))


def causal_buffer(c):
    return torch.ones(c.max_length, c.max_length).tril()[None, None]


def rates_buffer(c):
    return c.rope_theta ** (-torch.arange(0, c.head_dim, 2) / c.head_dim)


def head_norm(c):
    return RMSNorm(c.head_dim, 1e-6)


WAYS = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "layer_norm": nn.LayerNorm,
    "rms_norm_of_qwen": functools.partial(RMSNorm, eps=1e-6),
    "rms_norm_of_gemma": functools.partial(RMSNorm, eps=1e-6, one_plus=True),
    **{name: value for name, value in globals().items() if callable(value)},
}
ROWS = tomllib.loads(Path(__file__).with_name("decoders.toml").read_text(encoding="utf-8"))


def style(name):
    """Return the style in a row of `decoders.toml`; the row refers to functions by name."""
    row = dict(ROWS[name])
    fields = vars(style(row.pop("like"))) if "like" in row else {}
    also = {part: WAYS[value] for part, value in row.pop("also", {}).items()}
    row = {field: WAYS.get(value, value) if isinstance(value, str) else value for field, value in row.items()}
    return Style(**fields | row | ({"also": also} if also else {}))


PORTS = {name: functools.partial(Decoder, style=style(name)) for name in ROWS.keys() - {"gpt", "hub", "mingpt"}}
PORTS |= {"mingpt": MinGPT, "logits-bias": LogitsBias, "lecture": Lecture}
