# mypy: ignore-errors
"""Encoder-decoders: the Annotated Transformer, and PyTorch's `nn.Transformer`."""

import math

import torch
from torch import nn

from meta.adapting.decoders import heads


def attend(q, k, v, mask, scale):
    scores = (q @ k.transpose(-2, -1) * scale).masked_fill(mask == 0, -1e9)
    y = scores.softmax(-1) @ v
    return y.transpose(1, 2).reshape(y.size(0), y.size(2), -1)


class Annotated(nn.Module):
    """The Annotated Transformer: four projections in a list, pre-norm sublayers in lists, sinusoids in a buffer."""

    class Attention(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.linears, self.h = nn.ModuleList([nn.Linear(c.embed_dim, c.embed_dim) for _ in range(4)]), c.num_heads

        def forward(self, query, memory, mask):
            given = zip(self.linears, (query, memory, memory), strict=False)
            q, k, v = (heads(each(x), self.h) for each, x in given)
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


PORTS = {"annotated": Annotated, "torch-transformer": Torch}
