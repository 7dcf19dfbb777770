# mypy: ignore-errors
"""A Transformer in the manner of the Annotated Transformer and hkproj's: sublayers that are passed as functions, norms
with n − 1 and eps outside of the root, sinusoids in a buffer, and masks of ones and zeros.
"""

import math

import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.a, self.b, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.a * (x - mean) / (std + self.eps) + self.b


class Attention(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, query, key, value, mask):
        batch = query.size(0)
        given = zip(self.linears[:3], (query, key, value), strict=True)
        q, k, v = (each(x).view(batch, x.size(1), self.heads, -1).transpose(1, 2) for each, x in given)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        weights = scores.masked_fill(mask == 0, -1e9).softmax(dim=-1)
        return self.linears[3]((weights @ v).transpose(1, 2).contiguous().view(batch, query.size(1), -1))


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.second(self.first(x).relu())


class Layer(nn.Module):
    def __init__(self, c, sublayers):
        super().__init__()
        self.norms = nn.ModuleList(Norm(c.embed_dim) for _ in range(sublayers))
        self.attentions = nn.ModuleList(Attention(c.num_heads, c.embed_dim) for _ in range(sublayers - 1))
        self.feed_forward = FeedForward(c.embed_dim, c.feed_forward_dim)

    def sublayer(self, x, function, i):
        return x + function(self.norms[i](x))


class EncoderLayer(Layer):
    def forward(self, x, mask):
        x = self.sublayer(x, lambda y: self.attentions[0](y, y, y, mask), 0)
        return self.sublayer(x, self.feed_forward, len(self.attentions))


class DecoderLayer(Layer):
    def forward(self, x, memory, source_mask, target_mask):
        x = self.sublayer(x, lambda y: self.attentions[0](y, y, y, target_mask), 0)
        x = self.sublayer(x, lambda y: self.attentions[1](y, memory, memory, source_mask), 1)
        return self.sublayer(x, self.feed_forward, 2)


class Positions(nn.Module):
    def __init__(self, width, length):
        super().__init__()
        table = torch.zeros(length, width)
        angles = torch.arange(length).unsqueeze(1) * torch.exp(torch.arange(0, width, 2) * -(math.log(1e4) / width))
        table[:, 0::2], table[:, 1::2] = torch.sin(angles), torch.cos(angles)
        self.register_buffer("table", table.unsqueeze(0), persistent=False)

    def forward(self, x):
        return x + self.table[:, : x.size(1)]


class Transformer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.width = c.embed_dim
        self.source_embed = nn.Embedding(c.source_vocab_size, c.embed_dim)
        self.target_embed = nn.Embedding(c.target_vocab_size, c.embed_dim)
        self.positions = Positions(c.embed_dim, 1024)
        self.encoder = nn.ModuleList(EncoderLayer(c, 2) for _ in range(c.num_encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(c, 3) for _ in range(c.num_decoder_layers))
        self.encoder_norm, self.decoder_norm = Norm(c.embed_dim), Norm(c.embed_dim)
        self.head = nn.Linear(c.embed_dim, c.target_vocab_size)

    def forward(self, source, target, source_mask, target_mask):
        memory = self.positions(self.source_embed(source) * math.sqrt(self.width))
        for layer in self.encoder:
            memory = layer(memory, source_mask)
        memory = self.encoder_norm(memory)
        x = self.positions(self.target_embed(target) * math.sqrt(self.width))
        for layer in self.decoder:
            x = layer(x, memory, source_mask, target_mask)
        return self.head(self.decoder_norm(x))


PARTS = ("query", "key", "value", "output")


def names(c):
    """The port's name of every part."""
    yield from (("encoder.token_embedding", "source_embed"), ("decoder.token_embedding", "target_embed"))
    yield from (("encoder.final_norm", "encoder_norm"), ("decoder.final_norm", "decoder_norm"), ("head", "head"))
    stacks = {"encoder": (c.num_encoder_layers, ["self"]), "decoder": (c.num_decoder_layers, ["self", "cross"])}
    for stack, (layers, kinds) in stacks.items():
        for i in range(layers):
            ours, theirs = f"{stack}.layers.{i}", f"{stack}.{i}"
            for j, kind in enumerate(kinds):
                yield f"{ours}.{kind}_attention_norm", f"{theirs}.norms.{j}"
                for k, part in enumerate(PARTS):
                    yield f"{ours}.{kind}_attention.{part}", f"{theirs}.attentions.{j}.linears.{k}"
            yield f"{ours}.feed_forward_norm", f"{theirs}.norms.{len(kinds)}"
            yield f"{ours}.feed_forward.up", f"{theirs}.feed_forward.first"
            yield f"{ours}.feed_forward.down", f"{theirs}.feed_forward.second"


def build(config, parameters):
    model = Transformer(config)
    weights = {}
    for ours, theirs in names(config):
        for leaf, short in (("weight", "a"), ("bias", "b")):
            if f"{ours}.{leaf}" in parameters:
                weights[f"{theirs}.{short if 'norm' in theirs else leaf}"] = torch.tensor(parameters[f"{ours}.{leaf}"])
    model.load_state_dict(weights)
    model.eval()

    def forward(source, target):
        source, target = torch.tensor(source), torch.tensor(target)
        source_mask = (source != config.pad_id)[:, None, None]
        target_mask = (target != config.pad_id)[:, None, None] & torch.ones(
            target.shape[1], target.shape[1]
        ).tril().bool()
        return model(source, target, source_mask, target_mask)

    return forward
