# mypy: ignore-errors
"""Encoders and encoder-decoders: BERT, T5, the Annotated Transformer, and PyTorch's `nn.Transformer`."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def split(x, heads):
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def attend(q, k, v, mask, scale):
    scores = (q @ k.transpose(-2, -1) * scale).masked_fill(mask == 0, -1e9)
    y = scores.softmax(-1) @ v
    return y.transpose(1, 2).reshape(y.size(0), y.size(2), -1)


class Bert(nn.Module):
    """BERT with separate query, key and value layers, three embedding tables, post-norm sublayers, and a pooler."""

    class Layer(nn.Module):
        def __init__(self, c):
            super().__init__()
            d, f, self.heads = c.embed_dim, c.feed_forward_dim, c.num_heads
            self.attention = nn.ModuleDict(
                {
                    "self": nn.ModuleDict({name: nn.Linear(d, d) for name in ("query", "key", "value")}),
                    "output": nn.ModuleDict({"dense": nn.Linear(d, d), "LayerNorm": nn.LayerNorm(d, 1e-12)}),
                }
            )
            self.intermediate = nn.ModuleDict({"dense": nn.Linear(d, f)})
            self.output = nn.ModuleDict({"dense": nn.Linear(f, d), "LayerNorm": nn.LayerNorm(d, 1e-12)})

        def forward(self, x, mask):
            inner, out = self.attention["self"], self.attention["output"]
            q, k, v = (split(inner[name](x), self.heads) for name in ("query", "key", "value"))
            y = attend(q, k, v, mask, q.size(-1) ** -0.5)
            x = out["LayerNorm"](out["dense"](y) + x)
            return self.output["LayerNorm"](self.output["dense"](F.gelu(self.intermediate["dense"](x))) + x)

    def __init__(self, c):
        super().__init__()
        d = c.embed_dim
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(c.source_vocab_size, d),
                "position_embeddings": nn.Embedding(c.max_length, d),
                "token_type_embeddings": nn.Embedding(c.num_token_types, d),
                "LayerNorm": nn.LayerNorm(d, 1e-12),
            }
        )
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList([self.Layer(c) for _ in range(c.num_encoder_layers)])})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(d, d)})
        self.is_pooled = c.head == "pooled"

    def forward(self, input_ids, attention_mask, token_type_ids):
        e = self.embeddings
        x = e["word_embeddings"](input_ids) + e["token_type_embeddings"](token_type_ids)
        x = e["LayerNorm"](x + e["position_embeddings"](torch.arange(input_ids.size(1))))
        for layer in self.encoder["layer"]:
            x = layer(x, attention_mask[:, None, None])
        return torch.tanh(self.pooler["dense"](x[:, 0])) if self.is_pooled else x


class T5Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class T5(nn.Module):
    """T5 with numbered lists of sublayers, one shared embedding, and relative biases in each stack's first layer."""

    def attention(self, c, bias):
        d, a = c.embed_dim, c.num_heads * c.head_dim
        parts = {name: nn.Linear(d, a, bias=False) for name in "qkv"} | {"o": nn.Linear(a, d, bias=False)}
        if bias:
            parts["relative_attention_bias"] = nn.Embedding(c.relative_buckets, c.num_heads)
        return nn.ModuleDict(parts)

    def stack(self, c, layers, crosses):
        d, f, blocks = c.embed_dim, c.feed_forward_dim, []
        for i in range(layers):
            parts = [nn.ModuleDict({"SelfAttention": self.attention(c, i == 0), "layer_norm": T5Norm(d)})]
            if crosses:
                parts.append(nn.ModuleDict({"EncDecAttention": self.attention(c, False), "layer_norm": T5Norm(d)}))
            dense = nn.ModuleDict({"wi": nn.Linear(d, f, bias=False), "wo": nn.Linear(f, d, bias=False)})
            parts.append(nn.ModuleDict({"DenseReluDense": dense, "layer_norm": T5Norm(d)}))
            blocks.append(nn.ModuleDict({"layer": nn.ModuleList(parts)}))
        return nn.ModuleDict({"block": nn.ModuleList(blocks), "final_layer_norm": T5Norm(d)})

    def __init__(self, c):
        super().__init__()
        self.c, self.shared = c, nn.Embedding(c.source_vocab_size, c.embed_dim)
        self.encoder = self.stack(c, c.num_encoder_layers, False)
        self.decoder = self.stack(c, c.num_decoder_layers, True)

    def bias(self, stack, queries, keys, both):
        c = self.c
        table = stack["block"][0]["layer"][0]["SelfAttention"]["relative_attention_bias"]
        far = torch.arange(keys) - torch.arange(queries)[:, None]
        number, start = c.relative_buckets, torch.zeros_like(far)
        if both:
            number //= 2
            start, far = (far > 0) * number, far.abs()
        else:
            far = (-far).clamp(min=0)
        exact = number // 2
        ratio = torch.log(far.clamp(min=1).float() / exact) / math.log(c.relative_max_distance / exact)
        large = (exact + (ratio * (number - exact)).long()).clamp(max=number - 1)
        return table(start + torch.where(far < exact, far, large)).permute(2, 0, 1)

    def attended(self, a, x, memory, mask, bias):
        q, k, v = (split(a[name](y), self.c.num_heads) for name, y in (("q", x), ("k", memory), ("v", memory)))
        scores = q @ k.transpose(-1, -2) + bias
        y = scores.masked_fill(mask == 0, torch.finfo(torch.float32).min).softmax(-1) @ v
        return a["o"](y.transpose(1, 2).flatten(2))

    def run(self, stack, ids, mask, memory=None, memory_mask=None):
        x, length = self.shared(ids), ids.size(1)
        bias = self.bias(stack, length, length, memory is None)
        for block in stack["block"]:
            first, *cross, last = block["layer"]
            y = first["layer_norm"](x)
            x = x + self.attended(first["SelfAttention"], y, y, mask, bias)
            for part in cross:
                y = part["layer_norm"](x)
                x = x + self.attended(part["EncDecAttention"], y, memory, memory_mask, 0)
            dense = last["DenseReluDense"]
            x = x + dense["wo"](F.relu(dense["wi"](last["layer_norm"](x))))
        return stack["final_layer_norm"](x)

    def forward(self, input_ids, decoder_input_ids):
        source = (input_ids != self.c.pad_id)[:, None, None]
        length = decoder_input_ids.size(1)
        future = torch.ones(length, length, dtype=torch.bool).tril()
        memory = self.run(self.encoder, input_ids, source)
        y = self.run(self.decoder, decoder_input_ids, future, memory, source)
        return y * self.c.embed_dim**-0.5 @ self.shared.weight.T


class Annotated(nn.Module):
    """The Annotated Transformer: four projections in a list, pre-norm sublayers in lists, sinusoids in a buffer."""

    class Attention(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.linears, self.h = nn.ModuleList([nn.Linear(c.embed_dim, c.embed_dim) for _ in range(4)]), c.num_heads

        def forward(self, query, memory, mask):
            given = zip(self.linears, (query, memory, memory), strict=False)
            q, k, v = (split(each(x), self.h) for each, x in given)
            return self.linears[-1](attend(q, k, v, mask, q.size(-1) ** -0.5))

    class Norm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.a_2, self.b_2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

        def forward(self, x):
            return self.a_2 * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.b_2

    def layer(self, c, attentions):
        d, f = c.embed_dim, c.feed_forward_dim
        names = ["self_attn", "src_attn"][:attentions]
        parts = {name: self.Attention(c) for name in names}
        parts["feed_forward"] = nn.ModuleDict({"w_1": nn.Linear(d, f), "w_2": nn.Linear(f, d)})
        norms = [nn.ModuleDict({"norm": self.Norm(d)}) for _ in range(attentions + 1)]
        return nn.ModuleDict(parts | {"sublayer": nn.ModuleList(norms)})

    def __init__(self, c):
        super().__init__()
        d = c.embed_dim
        embeds = {"src_embed": c.source_vocab_size, "tgt_embed": c.target_vocab_size}
        for name, size in embeds.items():
            setattr(self, name, nn.ModuleList([nn.ModuleDict({"lut": nn.Embedding(size, d)})]))
        for name, count, layers in (("encoder", 1, c.num_encoder_layers), ("decoder", 2, c.num_decoder_layers)):
            parts = nn.ModuleList([self.layer(c, count) for _ in range(layers)])
            setattr(self, name, nn.ModuleDict({"layers": parts, "norm": self.Norm(d)}))
        self.generator, self.c = nn.ModuleDict({"proj": nn.Linear(d, c.target_vocab_size)}), c
        rate = torch.exp(torch.arange(0, d, 2) * -(math.log(10000.0) / d))
        turn = torch.arange(c.max_length)[:, None] * rate
        self.register_buffer("pe", torch.stack([turn.sin(), turn.cos()], -1).flatten(-2)[None])

    def embed(self, table, ids):
        return table[0]["lut"](ids) * math.sqrt(self.c.embed_dim) + self.pe[:, : ids.size(1)]

    def run(self, stack, x, mask, memory=None, memory_mask=None):
        for layer in stack["layers"]:
            norms = [each["norm"] for each in layer["sublayer"]]
            y = norms[0](x)
            x = x + layer["self_attn"](y, y, mask)
            if memory is not None:
                x = x + layer["src_attn"](norms[1](x), memory, memory_mask)
            f = layer["feed_forward"]
            x = x + f["w_2"](f["w_1"](norms[-1](x)).relu())
        return stack["norm"](x)

    def forward(self, src, tgt):
        hidden, length = (src != self.c.pad_id)[:, None, None], tgt.size(1)
        memory = self.run(self.encoder, self.embed(self.src_embed, src), hidden)
        future = torch.ones(length, length).tril()
        return self.generator["proj"](self.run(self.decoder, self.embed(self.tgt_embed, tgt), future, memory, hidden))


class Torch(nn.Module):
    """`nn.Transformer`, which stores queries, keys and values in the plain parameter `in_proj_weight`."""

    def __init__(self, c):
        super().__init__()
        d, self.c = c.embed_dim, c
        self.source, self.target = nn.Embedding(c.source_vocab_size, d), nn.Embedding(c.target_vocab_size, d)
        self.source_positions = nn.Parameter(torch.zeros(c.max_length, d))
        self.target_positions = nn.Parameter(torch.zeros(c.max_length, d))
        sizes = (d, c.num_heads, c.num_encoder_layers, c.num_decoder_layers, c.feed_forward_dim)
        self.transformer = nn.Transformer(*sizes, batch_first=True)
        self.out = nn.Linear(d, c.target_vocab_size)

    def forward(self, src, tgt):
        padded = src == self.c.pad_id
        x = self.source(src) + self.source_positions[: src.size(1)]
        y = self.target(tgt) + self.target_positions[: tgt.size(1)]
        future = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
        options = {"src_key_padding_mask": padded, "memory_key_padding_mask": padded, "tgt_mask": future}
        return self.out(self.transformer(x, y, **options))


PORTS = {"bert": Bert, "t5": T5, "annotated": Annotated, "torch-transformer": Torch}
