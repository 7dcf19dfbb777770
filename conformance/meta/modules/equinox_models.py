# mypy: ignore-errors
"""Equinox models: a GPT-2 for one sequence, and a Llama for a batch."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp


class Block(eqx.Module):
    ln_1: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    ln_2: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, cfg, key):
        keys, width, eps = jax.random.split(key, 3), cfg.embed_dim, cfg.norm_eps
        biases = dict.fromkeys(("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias"), True)
        self.ln_1, self.ln_2 = eqx.nn.LayerNorm(width, eps=eps), eqx.nn.LayerNorm(width, eps=eps)
        self.attention = eqx.nn.MultiheadAttention(cfg.num_heads, width, **biases, key=keys[0])
        self.up = eqx.nn.Linear(width, cfg.feed_forward_dim, key=keys[1])
        self.down = eqx.nn.Linear(cfg.feed_forward_dim, width, key=keys[2])
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x, mask):
        h = jax.vmap(self.ln_1)(x)
        x = x + self.dropout(self.attention(h, h, h, mask))
        hidden = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.ln_2)(x)), approximate=True)
        return x + self.dropout(jax.vmap(self.down)(hidden))


class GPT2(eqx.Module):
    wte: eqx.nn.Embedding
    wpe: eqx.nn.Embedding
    blocks: list[Block]
    ln_f: eqx.nn.LayerNorm

    def __init__(self, cfg, key):
        keys = jax.random.split(key, cfg.num_decoder_layers + 2)
        self.wte = eqx.nn.Embedding(cfg.target_vocab_size, cfg.embed_dim, key=keys[0])
        self.wpe = eqx.nn.Embedding(cfg.max_length, cfg.embed_dim, key=keys[1])
        self.blocks = [Block(cfg, each) for each in keys[2:]]
        self.ln_f = eqx.nn.LayerNorm(cfg.embed_dim, eps=cfg.norm_eps)

    def __call__(self, tokens):
        x = jax.vmap(self.wte)(tokens) + jax.vmap(self.wpe)(jnp.arange(len(tokens)))
        mask = jnp.tri(len(tokens), dtype=bool)
        for block in self.blocks:
            x = block(x, mask)
        return jax.vmap(self.ln_f)(x) @ self.wte.weight.T


class Layer(eqx.Module):
    norms: tuple[jax.Array, jax.Array]
    projections: dict[str, jax.Array]

    def __init__(self, cfg, key):
        width, kv = cfg.embed_dim, cfg.key_value_heads * cfg.head_dim
        shapes = {"q": (width, width), "k": (width, kv), "v": (width, kv), "o": (width, width)}
        shapes |= {"gate": (width, cfg.feed_forward_dim), "up": (width, cfg.feed_forward_dim)}
        shapes |= {"down": (cfg.feed_forward_dim, width)}
        self.norms = jnp.ones(width), jnp.ones(width)
        keys = jax.random.split(key, len(shapes))
        self.projections = {
            name: jax.random.normal(each, shape) for each, (name, shape) in zip(keys, shapes.items(), strict=True)
        }


class Llama(eqx.Module):
    embeddings: jax.Array
    layers: list[Layer]
    norm: jax.Array
    head: jax.Array
    heads: int = eqx.field(static=True)
    theta: float = eqx.field(static=True)
    eps: float = eqx.field(static=True)

    def __init__(self, cfg, key):
        keys, shape = jax.random.split(key, cfg.num_decoder_layers + 2), (cfg.target_vocab_size, cfg.embed_dim)
        self.embeddings, self.head = jax.random.normal(keys[0], shape), jax.random.normal(keys[1], shape)
        self.layers, self.norm = [Layer(cfg, each) for each in keys[2:]], jnp.ones(cfg.embed_dim)
        self.heads, self.theta, self.eps = cfg.num_heads, cfg.rope_theta, cfg.norm_eps

    def rms(self, x, weight):
        return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + self.eps) * weight

    def rope(self, x):
        half = x.shape[-1] // 2
        angles = jnp.outer(jnp.arange(x.shape[1]), self.theta ** (-jnp.arange(half) / half))[:, None, :]
        first, second = x[..., :half], x[..., half:]
        turned = first * jnp.cos(angles) - second * jnp.sin(angles), second * jnp.cos(angles) + first * jnp.sin(angles)
        return jnp.concatenate(turned, -1)

    def attend(self, p, x):
        batch, length, width = x.shape
        q, k, v = ((x @ p[name]).reshape(batch, length, -1, width // self.heads) for name in "qkv")
        q, k = self.rope(q), self.rope(k)
        groups = q.shape[2] // k.shape[2]
        k, v = jnp.repeat(k, groups, 2), jnp.repeat(v, groups, 2)
        scores = jnp.einsum("bqnh,bknh->bnqk", q, k) / jnp.sqrt(q.shape[-1])
        scores = jnp.where(jnp.tri(length, dtype=bool), scores, -jnp.inf)
        return jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(scores), v).reshape(batch, length, width) @ p["o"]

    def __call__(self, tokens):
        x = self.embeddings[tokens]
        for layer in self.layers:
            p = layer.projections
            x = x + self.attend(p, self.rms(x, layer.norms[0]))
            h = self.rms(x, layer.norms[1])
            x = x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
        return self.rms(x, self.norm) @ self.head.T


FAMILIES = {"gpt2": GPT2, "llama": Llama}


def model(family):
    return functools.partial(FAMILIES[family], key=jax.random.key(0))
