"""Check a Flax module: a small GPT in nnx.

`python examples/checks/flax_module.py` prints the verdict, which determines the exit code.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from transparity.config import TransformerConfig
from transparity_conformance import check
from transparity_conformance.report.check.findings import sentence


# The module uses JAX's own attention. It is unchanged for the check.
class Block(nnx.Module):
    """A layer: attention and a feed-forward, each after a norm."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        width, hidden = config.embed_dim, config.feed_forward_dim
        # By default, Flax adds 1e-6 to the variance, and PyTorch adds 1e-5.
        self.self_attention_norm = nnx.LayerNorm(width, epsilon=config.norm_eps, rngs=rngs)
        self.feed_forward_norm = nnx.LayerNorm(width, epsilon=config.norm_eps, rngs=rngs)
        self.query, self.key, self.value = (nnx.Linear(width, width, use_bias=False, rngs=rngs) for _ in range(3))
        self.output = nnx.Linear(width, width, rngs=rngs)
        self.up, self.down = nnx.Linear(width, hidden, rngs=rngs), nnx.Linear(hidden, width, rngs=rngs)
        self.heads = config.num_heads

    def __call__(self, x: Array) -> Array:
        """Add both sublayers to `x`, of shape (batch, length, width)."""
        normed, (batch, length, width) = self.self_attention_norm(x), x.shape
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (part(normed).reshape(split) for part in (self.query, self.key, self.value))
        # Document 001 divides by the square root of the model's width, not of a head's width.
        context = jax.nn.dot_product_attention(query, key, value, scale=width**-0.5, is_causal=True)
        x = x + self.output(context.reshape(x.shape))
        return x + self.down(jax.nn.relu(self.up(self.feed_forward_norm(x))))


# The model adds learned positions to the embeddings of the tokens.
class GPT(nnx.Module):
    """A GPT, which maps tokens to logits."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        vocabulary, width = config.stack_vocab_size("decoder"), config.embed_dim
        self.token_embedding = nnx.Embed(vocabulary, width, rngs=rngs)
        self.position_embedding = nnx.Embed(config.max_length, width, rngs=rngs)
        self.layers = nnx.List(Block(config, rngs) for _ in range(config.num_decoder_layers))
        self.final_norm = nnx.LayerNorm(width, epsilon=config.norm_eps, rngs=rngs)
        self.head = nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, tokens: Array) -> Array:
        """Return the logits (batch, length, vocabulary)."""
        x = self.token_embedding(tokens) + self.position_embedding(jnp.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final_norm(x))


# The checker calls `build` with a configuration and the parameters of the reference. `build` returns a function from
# tokens to logits.
def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Callable[..., Array]:
    """Return the port: the module with the parameters of the reference."""
    model = GPT(config, nnx.Rngs(0))
    for name, value in parameters.items():
        path = name.removeprefix("decoder.").replace("self_attention.", "").replace("feed_forward.", "").split(".")
        module: Any = model
        for part in path[:-1]:
            module = module[int(part)] if part.isdigit() else getattr(module, part)
        place(module, path[-1], value)
    forward = nnx.jit(GPT.__call__)
    return lambda tokens: forward(model, jnp.asarray(tokens))


# Flax stores a matrix as (in, out) and calls it `kernel`; the reference stores (out, in).
def place(module: nnx.Module, name: str, value: np.ndarray) -> None:
    """Put a parameter of the reference into a Flax layer; Flax's matrices are transposed."""
    if isinstance(module, nnx.Linear) and name == "weight":
        module.kernel = nnx.Param(jnp.asarray(value.T))
    elif isinstance(module, nnx.Embed):
        module.embedding = nnx.Param(jnp.asarray(value))
    else:
        setattr(module, "scale" if name == "weight" else name, nnx.Param(jnp.asarray(value)))


# Run the check on the preset of document 001. The checker draws weights, calls `build`, and compares the logits with a
# float64 reference. The answer is a `Report`; `sentence` is its summary.
if __name__ == "__main__":
    report = check(build, preset="notes-lm")
    print(sentence(report))
    sys.exit(report.exit_code)
