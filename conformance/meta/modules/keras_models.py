# mypy: ignore-errors
"""Keras models: a functional GPT-2, and a Llama as a subclass of `keras.Model`."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from keras import layers, ops


class Embeddings(layers.Layer):
    """The embeddings of tokens and positions, and the head with tied weights."""

    def __init__(self, vocab, length, width, **named):
        super().__init__(**named)
        self.tokens, self.positions = layers.Embedding(vocab, width), layers.Embedding(length, width)

    def call(self, ids):
        return self.tokens(ids) + self.positions(ops.arange(ops.shape(ids)[1]))

    def logits(self, x):
        return ops.matmul(x, ops.transpose(self.tokens.embeddings))


class Head(layers.Layer):
    def __init__(self, embeddings, **named):
        super().__init__(**named)
        self.embeddings = embeddings

    def call(self, x):
        return self.embeddings.logits(x)


def gpt2(cfg):
    width, eps = cfg.embed_dim, cfg.norm_eps
    ids = keras.Input((None,), dtype="int32")
    embeddings = Embeddings(cfg.target_vocab_size, cfg.max_length, width)
    x = embeddings(ids)
    for i in range(cfg.num_decoder_layers):
        attention = layers.MultiHeadAttention(cfg.num_heads, cfg.head_dim, name=f"attention_{i}")
        h = layers.LayerNormalization(epsilon=eps, name=f"first_norm_{i}")(x)
        x = x + attention(h, h, use_causal_mask=True)
        h = layers.LayerNormalization(epsilon=eps, name=f"second_norm_{i}")(x)
        h = layers.Dense(cfg.feed_forward_dim, name=f"up_{i}")(h)
        h = ops.gelu(h, approximate=True)
        x = x + layers.Dense(width, name=f"down_{i}")(layers.Dropout(0.1)(h))
    x = layers.LayerNormalization(epsilon=cfg.norm_eps, name="final_norm")(x)
    return keras.Model(ids, Head(embeddings)(x))


class RMSNorm(layers.Layer):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x):
        return x * ops.rsqrt(ops.mean(ops.square(x), -1, keepdims=True) + self.eps) * self.scale


class Block(layers.Layer):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        kv = cfg.key_value_heads * cfg.head_dim
        self.q, self.k, self.v = (layers.Dense(units, use_bias=False) for units in (cfg.embed_dim, kv, kv))
        self.o = layers.Dense(cfg.embed_dim, use_bias=False)
        self.gate, self.up = (layers.Dense(cfg.feed_forward_dim, use_bias=False) for _ in range(2))
        self.down = layers.Dense(cfg.embed_dim, use_bias=False)
        self.norms = [RMSNorm(cfg.norm_eps), RMSNorm(cfg.norm_eps)]

    def rope(self, x):
        half = self.cfg.head_dim // 2
        theta = self.cfg.rope_theta
        frequencies = theta ** (-ops.arange(half, dtype="float32") / half)
        angles = ops.outer(ops.arange(ops.shape(x)[1], dtype="float32"), frequencies)[:, None, :]
        first, second = x[..., :half], x[..., half:]
        turned = first * ops.cos(angles) - second * ops.sin(angles), second * ops.cos(angles) + first * ops.sin(angles)
        return ops.concatenate(turned, -1)

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = (ops.reshape(each(x), (batch, length, -1, self.cfg.head_dim)) for each in (self.q, self.k, self.v))
        q, k = self.rope(q), self.rope(k)
        groups = self.cfg.num_heads // self.cfg.key_value_heads
        k, v = ops.repeat(k, groups, 2), ops.repeat(v, groups, 2)
        scores = ops.einsum("bqnh,bknh->bnqk", q, k) / self.cfg.head_dim**0.5
        scores = ops.where(ops.tri(length, dtype="bool"), scores, -float("inf"))
        return self.o(ops.reshape(ops.einsum("bnqk,bknh->bqnh", ops.softmax(scores), v), (batch, length, width)))

    def call(self, x):
        x = x + self.attend(self.norms[0](x))
        h = self.norms[1](x)
        return x + self.down(ops.silu(self.gate(h)) * self.up(h))


class Llama(keras.Model):
    def __init__(self, cfg):
        super().__init__()
        self.embedding = layers.Embedding(cfg.target_vocab_size, cfg.embed_dim)
        self.blocks = [Block(cfg) for _ in range(cfg.num_decoder_layers)]
        self.norm = RMSNorm(cfg.norm_eps)
        self.head = layers.Dense(cfg.target_vocab_size, use_bias=False)

    def call(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


FAMILIES = {"gpt2": gpt2, "llama": Llama}


def model(family):
    return FAMILIES[family]
