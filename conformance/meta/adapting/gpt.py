# mypy: ignore-errors
"""Decoders with learned positions and LayerNorms, in the manner of nanoGPT, minGPT, GPT-2, a lecture, and others."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def causal(q, k, v, scale=None, bias=None):
    scores = q @ k.transpose(-2, -1) * (q.size(-1) ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).tril()
    return scores.masked_fill(~mask, -math.inf).softmax(-1) @ v


class Body(nn.Module):
    """Embeddings, blocks, a last norm, and a head that is tied."""

    def __init__(self, c, block):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(c.target_vocab_size, c.embed_dim),
                "wpe": nn.Embedding(c.max_length, c.embed_dim),
                "h": nn.ModuleList([block(c) for _ in range(c.num_decoder_layers)]),
                "ln_f": nn.LayerNorm(c.embed_dim),
            }
        )
        self.lm_head = nn.Linear(c.embed_dim, c.target_vocab_size, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, input_ids):
        t = self.transformer
        x = t["wte"](input_ids) + t["wpe"](torch.arange(input_ids.size(1)))
        for block in t["h"]:
            x = block(x)
        return self.lm_head(t["ln_f"](x))


class NanoGPT(Body):
    """One linear map for queries, keys and values, split in three."""

    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            d = c.embed_dim
            self.ln_1, self.ln_2, self.heads = nn.LayerNorm(d), nn.LayerNorm(d), c.num_heads
            self.attn = nn.ModuleDict({"c_attn": nn.Linear(d, 3 * d), "c_proj": nn.Linear(d, d)})
            self.mlp = nn.ModuleDict({"c_fc": nn.Linear(d, 4 * d), "c_proj": nn.Linear(4 * d, d)})

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = self.attn["c_attn"](self.ln_1(x)).split(d, dim=2)
            q, k, v = (each.view(b, t, self.heads, -1).transpose(1, 2) for each in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attn["c_proj"](y.transpose(1, 2).contiguous().view(b, t, d))
            return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))

    def __init__(self, c):
        super().__init__(c, self.Block)


class Conv1D(nn.Module):
    def __init__(self, into, out):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(into, out)), nn.Parameter(torch.zeros(out))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class GPT2(Body):
    """Weights as (in, out), and a causal mask among the buffers."""

    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            d, length = c.embed_dim, c.max_length
            self.ln_1, self.ln_2, self.heads = nn.LayerNorm(d), nn.LayerNorm(d), c.num_heads
            self.attn = nn.ModuleDict({"c_attn": Conv1D(d, 3 * d), "c_proj": Conv1D(d, d)})
            self.attn.register_buffer("bias", torch.ones(length, length).tril()[None, None])
            self.mlp = nn.ModuleDict({"c_fc": Conv1D(d, 4 * d), "c_proj": Conv1D(4 * d, d)})

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = self.attn["c_attn"](self.ln_1(x)).split(d, dim=2)
            q, k, v = (each.view(b, t, self.heads, -1).permute(0, 2, 1, 3) for each in (q, k, v))
            w = q @ k.transpose(-1, -2) / math.sqrt(v.size(-1))
            mask = self.attn.bias[:, :, :t, :t]
            w = (w * mask - 1e10 * (1 - mask)).softmax(-1)
            x = x + self.attn["c_proj"]((w @ v).transpose(1, 2).reshape(b, t, d))
            return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))

    def __init__(self, c):
        super().__init__(c, self.Block)


class MinGPT(nn.Module):
    """Keys before queries, blocks and feed-forwards in sequence, a table of positions as a parameter."""

    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            d = c.embed_dim
            self.ln1, self.ln2, self.n_head = nn.LayerNorm(d), nn.LayerNorm(d), c.num_heads
            self.attn = nn.ModuleDict({name: nn.Linear(d, d) for name in ("key", "query", "value", "proj")})
            self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d), nn.Dropout(0.1))

        def forward(self, x):
            b, t, d = x.shape
            y = self.ln1(x)
            k, q, v = (
                self.attn[name](y).view(b, t, self.n_head, -1).transpose(1, 2) for name in ("key", "query", "value")
            )
            x = x + self.attn["proj"](causal(q, k, v).transpose(1, 2).reshape(b, t, d))
            return x + self.mlp(self.ln2(x))

    def __init__(self, c):
        super().__init__()
        self.tok_emb = nn.Embedding(c.target_vocab_size, c.embed_dim)
        self.pos_emb = nn.Parameter(torch.zeros(1, c.max_length, c.embed_dim))
        self.blocks = nn.Sequential(*[self.Block(c) for _ in range(c.num_decoder_layers)])
        self.ln_f, self.head = nn.LayerNorm(c.embed_dim), nn.Linear(c.embed_dim, c.target_vocab_size, bias=False)

    def forward(self, idx):
        return self.head(self.ln_f(self.blocks(self.tok_emb(idx) + self.pos_emb[:, : idx.size(1)])))


class LogitsBias(MinGPT):
    """A bias of the logits that is no parameter, but a buffer, as BART's."""

    def __init__(self, c):
        super().__init__(c)
        self.register_buffer("final_logits_bias", torch.zeros(1, c.target_vocab_size))

    def forward(self, idx):
        return super().forward(idx) + self.final_logits_bias


class Lecture(nn.Module):
    """A module for each head, without biases, and a scale by the width of the model."""

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
            self.sa = nn.ModuleDict(
                {"heads": nn.ModuleList([Lecture.Head(c) for _ in range(c.num_heads)]), "proj": nn.Linear(d, d)}
            )
            self.ffwd = nn.Sequential(nn.Linear(d, f), nn.ReLU(), nn.Linear(f, d))
            self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)

        def forward(self, x):
            y = self.ln1(x)
            x = x + self.sa["proj"](torch.cat([head(y) for head in self.sa["heads"]], dim=-1))
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


class Bloom(nn.Module):
    """Queries, keys and values of a head beside each other, linear biases, and a norm behind the embedding."""

    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            d = c.embed_dim
            self.heads = c.num_heads
            self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(d), nn.LayerNorm(d)
            self.self_attention = nn.ModuleDict({"query_key_value": nn.Linear(d, 3 * d), "dense": nn.Linear(d, d)})
            f = c.feed_forward_dim
            self.mlp = nn.ModuleDict({"dense_h_to_4h": nn.Linear(d, f), "dense_4h_to_h": nn.Linear(f, d)})

        def forward(self, x, alibi):
            b, t, d = x.shape
            fused = self.self_attention["query_key_value"](self.input_layernorm(x))
            fused = fused.view(b, t, self.heads, 3, -1)
            q, k, v = (fused[..., part, :].transpose(1, 2) for part in range(3))
            y = causal(q, k, v, bias=alibi).transpose(1, 2).reshape(b, t, d)
            x = x + self.self_attention["dense"](y)
            y = F.gelu(self.mlp["dense_h_to_4h"](self.post_attention_layernorm(x)), approximate="tanh")
            return x + self.mlp["dense_4h_to_h"](y)

    def __init__(self, c):
        super().__init__()
        d, self.heads = c.embed_dim, c.num_heads
        self.word_embeddings, self.word_embeddings_layernorm = nn.Embedding(c.target_vocab_size, d), nn.LayerNorm(d)
        self.h = nn.ModuleList([self.Block(c) for _ in range(c.num_decoder_layers)])
        self.ln_f = nn.LayerNorm(d)

    def forward(self, input_ids):
        x = self.word_embeddings_layernorm(self.word_embeddings(input_ids))
        steps = torch.arange(input_ids.size(1))
        slopes = 2.0 ** (-8 * torch.arange(1, self.heads + 1) / self.heads)
        alibi = -slopes[:, None, None] * (steps[:, None] - steps).clamp(min=0)
        for block in self.h:
            x = block(x, alibi)
        return self.ln_f(x) @ self.word_embeddings.weight.T


class StarCoder(Body):
    """One head of keys and values for all, fused behind the queries."""

    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            d, self.heads, self.width = c.embed_dim, c.num_heads, c.head_dim
            self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.attn = nn.ModuleDict({"c_attn": nn.Linear(d, d + 2 * c.head_dim), "c_proj": nn.Linear(d, d)})
            f = c.feed_forward_dim
            self.mlp = nn.ModuleDict({"c_fc": nn.Linear(d, f), "c_proj": nn.Linear(f, d)})

        def forward(self, x):
            b, t, d = x.shape
            q, kv = self.attn["c_attn"](self.ln_1(x)).split((d, 2 * self.width), dim=2)
            k, v = kv[:, None].chunk(2, dim=-1)
            y = causal(q.view(b, t, self.heads, -1).transpose(1, 2), k, v)
            x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(b, t, d))
            return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))

    def __init__(self, c):
        super().__init__(c, self.Block)
