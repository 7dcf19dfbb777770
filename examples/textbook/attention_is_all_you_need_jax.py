"""The transformer of "Attention Is All You Need" (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762) in JAX.

`Transformer(vocab_size, rngs=nnx.Rngs(0))(source, target)` returns the logits. The default sizes are the sizes of
the paper's base model.

Shapes: B batch, T length of `x`, S length of `memory`, D model (`d_model`), H heads, K features of a head (`d_k`),
V vocabulary. A mask is True where a query may see a key.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

PAD = 0


def positional_encoding(length: int, d_model: int) -> np.ndarray:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)),  PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model))   (§3.5)."""
    # NumPy computes in float64, JAX in float32 by default.
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, d_model, 2) / d_model)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, d_model)


def padding_mask(tokens: Array) -> Array:
    """Hide padding from every query: (B, 1, 1, S)."""
    return (tokens != PAD)[:, None, None, :]


def causal_mask(length: int) -> Array:
    """Hide the future: query t sees the keys 0 … t (§3.2.3): (T, T)."""
    return jnp.tri(length, dtype=bool)


def attention(query: Array, key: Array, value: Array, mask: Array) -> Array:
    """Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V   (§3.2.1): (B, H, T, K).

    Masked scores are −10⁹; with −∞, a query that sees no key would become NaN.
    """
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = jnp.where(mask, scores, -1e9)
    return jax.nn.softmax(scores) @ value


def split_heads(x: Array, heads: int) -> Array:
    """(B, T, D) → (B, H, T, K)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def merge_heads(x: Array) -> Array:
    """(B, H, T, K) → (B, T, D)."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


class MultiHeadAttention(nnx.Module):
    """MultiHead = Concat(head₁, …, headₕ) Wᴼ,  headᵢ = Attention(x Wᵢᵠ, memory Wᵢᴷ, memory Wᵢⱽ)   (§3.2.2)."""

    def __init__(self, d_model: int, heads: int, *, rngs: nnx.Rngs) -> None:
        self.heads = heads
        self.query = nnx.Linear(d_model, d_model, use_bias=False, rngs=rngs)
        self.key = nnx.Linear(d_model, d_model, use_bias=False, rngs=rngs)
        self.value = nnx.Linear(d_model, d_model, use_bias=False, rngs=rngs)
        self.output = nnx.Linear(d_model, d_model, use_bias=False, rngs=rngs)

    def __call__(self, x: Array, memory: Array, mask: Array) -> Array:
        query = split_heads(self.query(x), self.heads)
        key = split_heads(self.key(memory), self.heads)
        value = split_heads(self.value(memory), self.heads)
        context = attention(query, key, value, mask)
        return self.output(merge_heads(context))


class FeedForward(nnx.Module):
    """FFN(x) = max(0, x W₁ + b₁) W₂ + b₂   (§3.3)."""

    def __init__(self, d_model: int, d_ff: int, *, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(d_model, d_ff, rngs=rngs)
        self.down = nnx.Linear(d_ff, d_model, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        hidden = nnx.relu(self.up(x))
        return self.down(hidden)


class EncoderLayer(nnx.Module):
    """Self-attention, then the feed-forward; each is LayerNorm(x + Dropout(Sublayer(x)))   (§3.1, §5.4)."""

    def __init__(self, d_model: int, heads: int, d_ff: int, dropout: float, *, rngs: nnx.Rngs) -> None:
        self.self_attention = MultiHeadAttention(d_model, heads, rngs=rngs)
        self.self_attention_norm = nnx.LayerNorm(d_model, epsilon=1e-5, rngs=rngs)  # Flax's default is 1e-6
        self.feed_forward = FeedForward(d_model, d_ff, rngs=rngs)
        self.feed_forward_norm = nnx.LayerNorm(d_model, epsilon=1e-5, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x: Array, mask: Array) -> Array:
        attended = self.self_attention(x, x, mask)
        x = self.self_attention_norm(x + self.dropout(attended))
        transformed = self.feed_forward(x)
        return self.feed_forward_norm(x + self.dropout(transformed))


class DecoderLayer(nnx.Module):
    """As in the encoder, with attention to the encoder's output between the two sublayers   (§3.1)."""

    def __init__(self, d_model: int, heads: int, d_ff: int, dropout: float, *, rngs: nnx.Rngs) -> None:
        self.self_attention = MultiHeadAttention(d_model, heads, rngs=rngs)
        self.self_attention_norm = nnx.LayerNorm(d_model, epsilon=1e-5, rngs=rngs)
        self.cross_attention = MultiHeadAttention(d_model, heads, rngs=rngs)
        self.cross_attention_norm = nnx.LayerNorm(d_model, epsilon=1e-5, rngs=rngs)
        self.feed_forward = FeedForward(d_model, d_ff, rngs=rngs)
        self.feed_forward_norm = nnx.LayerNorm(d_model, epsilon=1e-5, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x: Array, memory: Array, mask: Array, memory_mask: Array) -> Array:
        attended = self.self_attention(x, x, mask)
        x = self.self_attention_norm(x + self.dropout(attended))
        attended = self.cross_attention(x, memory, memory_mask)
        x = self.cross_attention_norm(x + self.dropout(attended))
        transformed = self.feed_forward(x)
        return self.feed_forward_norm(x + self.dropout(transformed))


class Transformer(nnx.Module):
    """Tokens (B, S) and (B, T) → logits (B, T, V)."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 512,
        heads: int = 8,
        d_ff: int = 2048,
        layers: int = 6,
        dropout: float = 0.1,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        self.token_embedding = nnx.Embed(vocab_size, d_model, rngs=rngs)
        self.encoder = nnx.List(EncoderLayer(d_model, heads, d_ff, dropout, rngs=rngs) for _ in range(layers))
        self.decoder = nnx.List(DecoderLayer(d_model, heads, d_ff, dropout, rngs=rngs) for _ in range(layers))
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def embed(self, tokens: Array) -> Array:
        """√d_model · E[tokens] + PE   (§3.4, §3.5): (B, T, D)."""
        x = self.token_embedding(tokens)
        d_model = x.shape[-1]
        return self.dropout(x * d_model**0.5 + positional_encoding(tokens.shape[1], d_model).astype(x.dtype))

    def encode(self, source: Array) -> Array:
        """Tokens (B, S) → memory (B, S, D)."""
        x, mask = self.embed(source), padding_mask(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return x

    def decode(self, target: Array, memory: Array, memory_mask: Array) -> Array:
        """Tokens (B, T) → logits (B, T, V) of each next token; the embedding is also the last projection   (§3.4)."""
        x, mask = self.embed(target), padding_mask(target) & causal_mask(target.shape[1])
        for layer in self.decoder:
            x = layer(x, memory, mask, memory_mask)
        return self.token_embedding.attend(x)

    def __call__(self, source: Array, target: Array) -> Array:
        return self.decode(target, self.encode(source), padding_mask(source))
