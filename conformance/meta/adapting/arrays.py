# mypy: ignore-errors
"""Ports that are not PyTorch modules with named weights: NumPy dicts, JAX arrays, an nnx module, a parameter list."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def pico_params(c):
    d, f = c.embed_dim, c.feed_forward_dim

    def linear(m, n):
        return {"w": np.zeros((m, n), np.float32), "b": np.zeros(n, np.float32)}

    def norm():
        return {"g": np.ones(d, np.float32), "b": np.zeros(d, np.float32)}

    def block():
        attn = {"c_attn": linear(d, 3 * d), "c_proj": linear(d, d)}
        return {"mlp": {"c_fc": linear(d, f), "c_proj": linear(f, d)}, "attn": attn, "ln_1": norm(), "ln_2": norm()}

    return {
        "wpe": np.zeros((c.max_length, d), np.float32),
        "wte": np.zeros((c.target_vocab_size, d), np.float32),
        "blocks": [block() for _ in range(c.num_decoder_layers)],
        "ln_f": norm(),
    }


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    exp_x = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return exp_x / np.sum(exp_x, axis=-1, keepdims=True)


def layer_norm(x, g, b):
    return g * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) + b


def linear(x, w, b):
    return x @ w + b


def mha(x, c_attn, c_proj, n_head):
    qkv = np.split(linear(x, **c_attn), 3, axis=-1)
    mask = (1 - np.tri(x.shape[0], dtype=x.dtype)) * -1e10
    out = []
    for q, k, v in zip(*(np.split(part, n_head, axis=-1) for part in qkv), strict=True):
        scores = q @ k.T / np.sqrt(q.shape[-1]) + mask
        out.append(softmax(scores) @ v)
    return linear(np.hstack(out), **c_proj)


def pico(c):
    """Return picoGPT: nested dicts of NumPy arrays, matrices stored as (in, out), and a loop over heads."""

    def gpt2(ids, p):
        x = p["wte"][ids] + p["wpe"][: len(ids)]
        for each in p["blocks"]:
            x = x + mha(layer_norm(x, **each["ln_1"]), **each["attn"], n_head=c.num_heads)
            hidden = gelu(linear(layer_norm(x, **each["ln_2"]), **each["mlp"]["c_fc"]))
            x = x + linear(hidden, **each["mlp"]["c_proj"])
        return layer_norm(x, **p["ln_f"]) @ p["wte"].T

    def forward(p, tokens):
        return np.stack([gpt2(row, p) for row in tokens])

    return forward, pico_params(c)


def stacked_params(c):
    import jax.numpy as jnp

    layers, d, f, n, h = c.num_decoder_layers, c.embed_dim, c.feed_forward_dim, c.num_heads, c.head_dim

    def zeros(*shape):
        return jnp.zeros(shape, jnp.float32)

    return {
        "embedding": zeros(c.target_vocab_size, d),
        "layers": {
            "attention": {
                "query": zeros(layers, d, n, h),
                "key": zeros(layers, d, n, h),
                "value": zeros(layers, d, n, h),
                "out": zeros(layers, n, h, d),
            },
            "mlp": {"wi": zeros(layers, d, 2, f), "wo": zeros(layers, f, d)},
            "pre_attention": zeros(layers, d),
            "pre_mlp": zeros(layers, d),
        },
        "final": zeros(d),
        "unembedding": zeros(d, c.target_vocab_size),
    }


def stacked(c):
    """Return a JAX model with the weights of all layers in one array and kernels shaped (model, heads, width)."""
    import jax
    import jax.numpy as jnp

    layers, h = c.num_decoder_layers, c.head_dim

    def norm(x, scale):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale

    def rotate(x):
        rates = c.rope_theta ** (-jnp.arange(0, h, 2) / h)
        turn = jnp.arange(x.shape[1])[:, None, None] * rates
        one, other = jnp.split(x, 2, -1)
        return jnp.concatenate(
            [one * jnp.cos(turn) - other * jnp.sin(turn), other * jnp.cos(turn) + one * jnp.sin(turn)], -1
        )

    def forward(p, tokens):
        x = p["embedding"][tokens]
        mask = jnp.tril(jnp.ones((tokens.shape[1], tokens.shape[1]), bool))
        for i in range(layers):
            a, m = p["layers"]["attention"], p["layers"]["mlp"]
            y = norm(x, p["layers"]["pre_attention"][i])
            q, k, v = (jnp.einsum("btd,dnh->btnh", y, a[name][i]) for name in ("query", "key", "value"))
            scores = jnp.einsum("btnh,bsnh->bnts", rotate(q), rotate(k)) / h**0.5
            w = jax.nn.softmax(jnp.where(mask, scores, -1e30), -1)
            x = x + jnp.einsum("btnh,nhd->btd", jnp.einsum("bnts,bsnh->btnh", w, v), a["out"][i])
            both = jnp.einsum("btd,dcf->cbtf", norm(x, p["layers"]["pre_mlp"][i]), m["wi"][i])
            x = x + (jax.nn.silu(both[0]) * both[1]) @ m["wo"][i]
        return norm(x, p["final"]) @ p["unembedding"]

    return forward, stacked_params(c)


def flax(c):
    """Return an nnx model: a list of blocks that use `nnx.MultiHeadAttention`."""
    import jax.numpy as jnp
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs):
            d, f = c.embed_dim, c.feed_forward_dim
            self.norm1, self.norm2 = (
                nnx.LayerNorm(d, epsilon=1e-5, rngs=rngs),
                nnx.LayerNorm(d, epsilon=1e-5, rngs=rngs),
            )
            self.mha = nnx.MultiHeadAttention(c.num_heads, d, decode=False, rngs=rngs)
            self.lin1, self.lin2 = nnx.Linear(d, f, rngs=rngs), nnx.Linear(f, d, rngs=rngs)

        def __call__(self, x, mask):
            x = x + self.mha(self.norm1(x), mask=mask)
            return x + self.lin2(nnx.gelu(self.lin1(self.norm2(x))))

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(c.target_vocab_size, c.embed_dim, rngs=rngs)
            self.pos = nnx.Embed(c.max_length, c.embed_dim, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(c.num_decoder_layers)])
            self.norm = nnx.LayerNorm(c.embed_dim, epsilon=1e-5, rngs=rngs)

        def __call__(self, tokens):
            length = tokens.shape[1]
            x = self.embed(tokens) + self.pos(jnp.arange(length))
            for block in self.blocks:
                x = block(x, jnp.tril(jnp.ones((1, 1, length, length), bool)))
            return self.embed.attend(self.norm(x))

    return Model(nnx.Rngs(0))


class Numbered(nn.Module):
    """A model whose parameters have no names; they are in a list, in the order of the forward pass."""

    def __init__(self, c):
        super().__init__()
        d, f, self.c = c.embed_dim, c.feed_forward_dim, c
        shapes = [(c.target_vocab_size, d), (c.max_length, d)]
        layer = [(d,), (d,), (d, d), (d, d), (d, d), (d, d), (d,), (d,), (d, f), (f,), (f, d), (d,)]
        shapes += [*layer * c.num_decoder_layers, (d,), (d,), (d, c.target_vocab_size)]
        self.p = nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes])

    def forward(self, tokens):
        wte, wpe, *rest, gain, shift, head = self.p
        x, (b, t), d = wte[tokens] + wpe[: tokens.size(1)], tokens.shape, self.c.embed_dim
        for i in range(self.c.num_decoder_layers):
            g1, b1, wq, wk, wv, wo, g2, b2, w1, c1, w2, c2 = rest[12 * i : 12 * i + 12]
            y = F.layer_norm(x, (d,), g1, b1)
            q, k, v = ((y @ w).view(b, t, self.c.num_heads, -1).transpose(1, 2) for w in (wq, wk, wv))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + y.transpose(1, 2).reshape(b, t, d) @ wo
            x = x + F.relu(F.layer_norm(x, (d,), g2, b2) @ w1 + c1) @ w2 + c2
        return F.layer_norm(x, (d,), gain, shift) @ head


PORTS = {"picogpt": pico, "jax-stacked": stacked, "nnx": flax, "numbered": Numbered}
