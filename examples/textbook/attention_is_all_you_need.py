"""The transformer of "Attention Is All You Need" (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762) in NumPy.

`transformer(p, source, target, heads=8)` returns the logits. `p` holds the weights by name, as in
`p["decoder"][0]["cross_attention"]["query"]["weight"]`.

Shapes: B batch, T length of `x`, S length of `memory`, D model (`d_model`), H heads, K features of a head (`d_k`),
V vocabulary. A mask is True where a query may see a key.
"""

from typing import Any

import numpy as np
from numpy import ndarray as Array

Weights = dict[str, Any]
PAD = 0


def linear(p: Weights, x: Array) -> Array:
    """x Wᵀ + b, with W of shape (out, in)."""
    return x @ p["weight"].T + p.get("bias", 0)


def layer_norm(p: Weights, x: Array) -> Array:
    """γ · (x − mean) / √(variance + ε) + β, over the features."""
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    return centered / np.sqrt(variance + 1e-5) * p["weight"] + p["bias"]


def softmax(x: Array) -> Array:
    """eˣ / Σ eˣ, over the last axis; subtracting the maximum avoids overflow."""
    exp = np.exp(x - x.max(axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


def positional_encoding(length: int, d_model: int) -> Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)),  PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model))   (§3.5)."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, d_model, 2) / d_model)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, d_model)


def padding_mask(tokens: Array) -> Array:
    """Hide padding from every query: (B, 1, 1, S)."""
    return (tokens != PAD)[:, None, None, :]


def causal_mask(length: int) -> Array:
    """Hide the future: query t sees the keys 0 … t (§3.2.3): (T, T)."""
    return np.tri(length, dtype=bool)


def attention(query: Array, key: Array, value: Array, mask: Array) -> Array:
    """Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V   (§3.2.1): (B, H, T, K).

    Masked scores are −10⁹; with −∞, a query that sees no key would become NaN.
    """
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = np.where(mask, scores, -1e9)
    return softmax(scores) @ value


def split_heads(x: Array, heads: int) -> Array:
    """(B, T, D) → (B, H, T, K)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def merge_heads(x: Array) -> Array:
    """(B, H, T, K) → (B, T, D)."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def multi_head_attention(p: Weights, x: Array, memory: Array, mask: Array, heads: int) -> Array:
    """MultiHead = Concat(head₁, …, headₕ) Wᴼ,  headᵢ = Attention(x Wᵢᵠ, memory Wᵢᴷ, memory Wᵢⱽ)   (§3.2.2)."""
    query = split_heads(linear(p["query"], x), heads)
    key = split_heads(linear(p["key"], memory), heads)
    value = split_heads(linear(p["value"], memory), heads)
    context = attention(query, key, value, mask)
    return linear(p["output"], merge_heads(context))


def feed_forward(p: Weights, x: Array) -> Array:
    """FFN(x) = max(0, x W₁ + b₁) W₂ + b₂   (§3.3)."""
    hidden = np.maximum(linear(p["up"], x), 0)
    return linear(p["down"], hidden)


def encoder_layer(p: Weights, x: Array, mask: Array, heads: int) -> Array:
    """Self-attention, then the feed-forward; each is LayerNorm(x + Sublayer(x))   (§3.1)."""
    attended = multi_head_attention(p["self_attention"], x, x, mask, heads)
    x = layer_norm(p["self_attention_norm"], x + attended)
    transformed = feed_forward(p["feed_forward"], x)
    return layer_norm(p["feed_forward_norm"], x + transformed)


def decoder_layer(p: Weights, x: Array, memory: Array, mask: Array, memory_mask: Array, heads: int) -> Array:
    """As in the encoder, with attention to the encoder's output between the two sublayers   (§3.1)."""
    attended = multi_head_attention(p["self_attention"], x, x, mask, heads)
    x = layer_norm(p["self_attention_norm"], x + attended)
    attended = multi_head_attention(p["cross_attention"], x, memory, memory_mask, heads)
    x = layer_norm(p["cross_attention_norm"], x + attended)
    transformed = feed_forward(p["feed_forward"], x)
    return layer_norm(p["feed_forward_norm"], x + transformed)


def embed(p: Weights, tokens: Array) -> Array:
    """√d_model · E[tokens] + PE   (§3.4, §3.5): (B, T, D)."""
    table = p["token_embedding"]["weight"]
    d_model = table.shape[1]
    return table[tokens] * d_model**0.5 + positional_encoding(tokens.shape[1], d_model).astype(table.dtype)


def encode(p: Weights, source: Array, heads: int) -> Array:
    """Tokens (B, S) → memory (B, S, D)."""
    x, mask = embed(p, source), padding_mask(source)
    for layer in p["encoder"]:
        x = encoder_layer(layer, x, mask, heads)
    return x


def decode(p: Weights, target: Array, memory: Array, memory_mask: Array, heads: int) -> Array:
    """Tokens (B, T) → logits (B, T, V) of each next token; the embedding is also the last projection   (§3.4)."""
    x, mask = embed(p, target), padding_mask(target) & causal_mask(target.shape[1])
    for layer in p["decoder"]:
        x = decoder_layer(layer, x, memory, mask, memory_mask, heads)
    return x @ p["token_embedding"]["weight"].T


def transformer(p: Weights, source: Array, target: Array, heads: int) -> Array:
    """Tokens (B, S) and (B, T) → logits (B, T, V)."""
    return decode(p, target, encode(p, source, heads), padding_mask(source), heads)
