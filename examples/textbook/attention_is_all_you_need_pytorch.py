"""The transformer of "Attention Is All You Need" (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762) in PyTorch.

`Transformer(vocab_size)(source, target)` returns the logits. The default sizes are the sizes of the paper's base model.

Shapes: B batch, T length of `x`, S length of `memory`, D model (`d_model`), H heads, K features of a head (`d_k`),
V vocabulary. A mask is True where a query may see a key.
"""

import torch
from torch import Tensor, nn

PAD = 0


def positional_encoding(length: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)),  PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model))   (§3.5)."""
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, d_model, 2).double() / d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(length, d_model)


def padding_mask(tokens: Tensor) -> Tensor:
    """Hide padding from every query: (B, 1, 1, S)."""
    return (tokens != PAD)[:, None, None, :]


def causal_mask(length: int) -> Tensor:
    """Hide the future: query t sees the keys 0 … t (§3.2.3): (T, T)."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V   (§3.2.1): (B, H, T, K).

    Masked scores are −10⁹; with −∞, a query that sees no key would become NaN.
    """
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = scores.masked_fill(~mask, -1e9)
    return scores.softmax(dim=-1) @ value


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, D) → (B, H, T, K)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, K) → (B, T, D)."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


class MultiHeadAttention(nn.Module):
    """MultiHead = Concat(head₁, …, headₕ) Wᴼ,  headᵢ = Attention(x Wᵢᵠ, memory Wᵢᴷ, memory Wᵢⱽ)   (§3.2.2)."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        query = split_heads(self.query(x), self.heads)
        key = split_heads(self.key(memory), self.heads)
        value = split_heads(self.value(memory), self.heads)
        context = attention(query, key, value, mask)
        return self.output(merge_heads(context))


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W₁ + b₁) W₂ + b₂   (§3.3)."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x).relu()
        return self.down(hidden)


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward; each is LayerNorm(x + Dropout(Sublayer(x)))   (§3.1, §5.4)."""

    def __init__(self, d_model: int, heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, heads)
        self.self_attention_norm = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        attended = self.self_attention(x, x, mask)
        x = self.self_attention_norm(x + self.dropout(attended))
        transformed = self.feed_forward(x)
        return self.feed_forward_norm(x + self.dropout(transformed))


class DecoderLayer(nn.Module):
    """As in the encoder, with attention to the encoder's output between the two sublayers   (§3.1)."""

    def __init__(self, d_model: int, heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, heads)
        self.self_attention_norm = nn.LayerNorm(d_model)
        self.cross_attention = MultiHeadAttention(d_model, heads)
        self.cross_attention_norm = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor, memory_mask: Tensor) -> Tensor:
        attended = self.self_attention(x, x, mask)
        x = self.self_attention_norm(x + self.dropout(attended))
        attended = self.cross_attention(x, memory, memory_mask)
        x = self.cross_attention_norm(x + self.dropout(attended))
        transformed = self.feed_forward(x)
        return self.feed_forward_norm(x + self.dropout(transformed))


class Transformer(nn.Module):
    """Tokens (B, S) and (B, T) → logits (B, T, V)."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 512,
        heads: int = 8,
        d_ff: int = 2048,
        layers: int = 6,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.token_embedding.weight, std=d_model**-0.5)
        self.encoder = nn.ModuleList(EncoderLayer(d_model, heads, d_ff, dropout) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(d_model, heads, d_ff, dropout) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)

    def embed(self, tokens: Tensor) -> Tensor:
        """√d_model · E[tokens] + PE   (§3.4, §3.5): (B, T, D)."""
        x = self.token_embedding(tokens)
        d_model = x.shape[-1]
        return self.dropout(x * d_model**0.5 + positional_encoding(tokens.shape[1], d_model).to(x))

    def encode(self, source: Tensor) -> Tensor:
        """Tokens (B, S) → memory (B, S, D)."""
        x, mask = self.embed(source), padding_mask(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return x

    def decode(self, target: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """Tokens (B, T) → logits (B, T, V) of each next token; the embedding is also the last projection   (§3.4)."""
        x, mask = self.embed(target), padding_mask(target) & causal_mask(target.shape[1]).to(target.device)
        for layer in self.decoder:
            x = layer(x, memory, mask, memory_mask)
        return x @ self.token_embedding.weight.T

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.decode(target, self.encode(source), padding_mask(source))
