# mypy: ignore-errors
"""Rotary decoders whose queries, keys and values are fused, in the manner of Phi-3, NeoX, Falcon and x-transformers."""

import torch.nn.functional as F
from torch import nn

from meta.adapting.llama import RMSNorm, attend, heads, rotate_halves, rotate_pairs


class Phi3(nn.Module):
    """All queries, then all keys, then all values, of which there are fewer."""

    class Layer(nn.Module):
        def __init__(self, c):
            super().__init__()
            d, self.c = c.embed_dim, c
            self.rows = [c.num_heads * c.head_dim, *[c.key_value_heads * c.head_dim] * 2]
            self.self_attn = nn.ModuleDict(
                {"qkv_proj": nn.Linear(d, sum(self.rows), bias=False), "o_proj": nn.Linear(d, d, bias=False)}
            )
            f = c.feed_forward_dim
            self.mlp = nn.ModuleDict(
                {"gate_up_proj": nn.Linear(d, 2 * f, bias=False), "down_proj": nn.Linear(f, d, bias=False)}
            )
            self.input_layernorm, self.post_attention_layernorm = RMSNorm(d), RMSNorm(d)

        def forward(self, x):
            c = self.c
            q, k, v = self.self_attn["qkv_proj"](self.input_layernorm(x)).split(self.rows, -1)
            q, k = (rotate_halves(heads(y, n), c.rope_theta) for y, n in ((q, c.num_heads), (k, c.key_value_heads)))
            x = x + self.self_attn["o_proj"](attend(q, k, heads(v, c.key_value_heads)))
            gate, up = self.mlp["gate_up_proj"](self.post_attention_layernorm(x)).chunk(2, -1)
            return x + self.mlp["down_proj"](up * F.silu(gate))

    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.target_vocab_size, c.embed_dim)
        self.layers = nn.ModuleList([self.Layer(c) for _ in range(c.num_decoder_layers)])
        self.norm, self.lm_head = RMSNorm(c.embed_dim), nn.Linear(c.embed_dim, c.target_vocab_size, bias=False)

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class NeoX(nn.Module):
    """Queries, keys and values of each head beside each other, LayerNorms, biases everywhere."""

    class Layer(nn.Module):
        def __init__(self, c):
            super().__init__()
            d, f, self.c = c.embed_dim, c.feed_forward_dim, c
            self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(d), nn.LayerNorm(d)
            self.attention = nn.ModuleDict({"query_key_value": nn.Linear(d, 3 * d), "dense": nn.Linear(d, d)})
            self.mlp = nn.ModuleDict({"dense_h_to_4h": nn.Linear(d, f), "dense_4h_to_h": nn.Linear(f, d)})

        def forward(self, x):
            fused = self.attention["query_key_value"](self.input_layernorm(x))
            q, k, v = heads(fused, self.c.num_heads).chunk(3, -1)
            q, k = rotate_halves(q, self.c.rope_theta), rotate_halves(k, self.c.rope_theta)
            x = x + self.attention["dense"](attend(q, k, v))
            return x + self.mlp["dense_4h_to_h"](F.gelu(self.mlp["dense_h_to_4h"](self.post_attention_layernorm(x))))

    def __init__(self, c):
        super().__init__()
        self.embed_in, d = nn.Embedding(c.target_vocab_size, c.embed_dim), c.embed_dim
        self.layers = nn.ModuleList([self.Layer(c) for _ in range(c.num_decoder_layers)])
        self.final_layer_norm, self.embed_out = nn.LayerNorm(d), nn.Linear(d, c.target_vocab_size, bias=False)

    def forward(self, input_ids):
        x = self.embed_in(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.embed_out(self.final_layer_norm(x))


class Falcon(nn.Module):
    """The queries of a group beside the key and the value that they share; neighbours are rotated."""

    class Layer(nn.Module):
        def __init__(self, c):
            super().__init__()
            d, f, self.c = c.embed_dim, c.feed_forward_dim, c
            rows = (c.num_heads + 2 * c.key_value_heads) * c.head_dim
            self.ln_attn, self.ln_mlp = nn.LayerNorm(d), nn.LayerNorm(d)
            self.query_key_value, self.dense = nn.Linear(d, rows, bias=False), nn.Linear(d, d, bias=False)
            self.up, self.down = nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)

        def forward(self, x):
            c, (b, t, _) = self.c, x.shape
            grouped = self.query_key_value(self.ln_attn(x)).view(b, t, c.key_value_heads, -1, c.head_dim)
            q = grouped[..., :-2, :].reshape(b, t, c.num_heads, -1).transpose(1, 2)
            k, v = (grouped[..., part, :].transpose(1, 2) for part in (-2, -1))
            q, k = rotate_pairs(q, c.rope_theta), rotate_pairs(k, c.rope_theta)
            x = x + self.dense(attend(q, k, v))
            return x + self.down(F.gelu(self.up(self.ln_mlp(x))))

    def __init__(self, c):
        super().__init__()
        self.word_embeddings = nn.Embedding(c.target_vocab_size, c.embed_dim)
        self.h = nn.ModuleList([self.Layer(c) for _ in range(c.num_decoder_layers)])
        self.ln_f, self.lm_head = nn.LayerNorm(c.embed_dim), nn.Linear(c.embed_dim, c.target_vocab_size, bias=False)

    def forward(self, input_ids):
        x = self.word_embeddings(input_ids)
        for layer in self.h:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


class ToKV(nn.Module):
    """Keys and values fused, apart from queries; layers are pairs in a list; the names have no words for roles."""

    def __init__(self, c):
        super().__init__()
        d, f, self.c = c.embed_dim, c.feed_forward_dim, c
        self.emb = nn.Embedding(c.target_vocab_size, d)
        self.stack = nn.ModuleList()
        for _ in range(c.num_decoder_layers):
            attention = [RMSNorm(d), nn.Linear(d, d, bias=False), nn.Linear(d, 2 * d, bias=False)]
            attention.append(nn.Linear(d, d, bias=False))
            feed = [RMSNorm(d), nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)]
            self.stack.append(nn.ModuleList([nn.ModuleList(attention), nn.ModuleList(feed)]))
        self.last, self.out = RMSNorm(d), nn.Linear(d, c.target_vocab_size, bias=False)

    def forward(self, input_ids):
        c, x = self.c, self.emb(input_ids)
        for (norm, to_q, to_kv, to_out), (before, one, other, down) in self.stack:
            y = norm(x)
            q, (k, v) = heads(to_q(y), c.num_heads), (heads(z, c.num_heads) for z in to_kv(y).chunk(2, -1))
            x = x + to_out(attend(rotate_halves(q, c.rope_theta), rotate_halves(k, c.rope_theta), v))
            y = before(x)
            x = x + down(F.silu(one(y)) * other(y))
        return self.out(self.last(x))
