# mypy: ignore-errors
"""A Gemma in JAX."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
from safetensors.numpy import load_file


def rms_norm(x, weight, eps=1e-6):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def rotate(x, theta):
    """Rotate (batch, length, heads, width)."""
    _, length, _, width = x.shape
    angles = jnp.outer(jnp.arange(length), theta ** (-jnp.arange(0, width, 2) / width))[:, None]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def layer(x, w, config):
    width, theta = config["head_dim"], config.get("rope_theta", 10000.0)
    y = rms_norm(x, w["input_layernorm"])
    q, k, v = (jnp.reshape(y @ w[f"self_attn.{part}_proj"].T, (*x.shape[:2], -1, width)) for part in "qkv")
    context = jax.nn.dot_product_attention(rotate(q, theta), rotate(k, theta), v, is_causal=True)
    x = x + jnp.reshape(context, (*x.shape[:2], -1)) @ w["self_attn.o_proj"].T
    y = rms_norm(x, w["post_attention_layernorm"])
    hidden = jax.nn.gelu(y @ w["mlp.gate_proj"].T, approximate=True) * (y @ w["mlp.up_proj"].T)
    return x + hidden @ w["mlp.down_proj"].T


def load(folder):
    config = json.loads(Path(folder, "config.json").read_text())
    tensors = load_file(Path(folder, "model.safetensors"))
    weights = {name.removeprefix("model.").removesuffix(".weight"): jnp.asarray(w) for name, w in tensors.items()}

    def of_layer(i):
        prefix = f"layers.{i}."
        return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}

    def forward(input_ids):
        x = weights["embed_tokens"][input_ids] * config["hidden_size"] ** 0.5
        for i in range(config["num_hidden_layers"]):
            x = layer(x, of_layer(i), config)
        return rms_norm(x, weights["norm"]) @ weights["embed_tokens"].T

    return forward
