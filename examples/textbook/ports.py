"""The textbook's three files as ports: `assert_conforms(build_numpy, config=PAPER)` compares one port."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig

Arrays = Mapping[str, np.ndarray]

PAPER = TransformerConfig(
    architecture="encoder-decoder",
    source_vocab_size=37_000,
    target_vocab_size=37_000,
    positions="sinusoidal",
    embedding_scale="embed_dim",
    target_mask="causal-and-padding",
    shared_embedding=True,
    tied_head=True,
    qkv_bias=False,
    output_bias=False,
    head_bias=False,
    dropout=0.1,
).resized(source_vocab_size=31, target_vocab_size=31)
"""The configuration of the paper's base model, at a size that is quick to check."""


def build_numpy(config: TransformerConfig, parameters: Arrays) -> Callable[..., Any]:
    """Return the NumPy transformer with the reference's weights."""
    from examples.textbook.attention_is_all_you_need import transformer

    weights = nested(parameters)
    return lambda source, target: transformer(weights, source, target, config.num_heads)


def build_pytorch(config: TransformerConfig, parameters: Arrays) -> Callable[..., Any]:
    """Return the PyTorch transformer with the reference's weights; its parameters have the same names."""
    import torch
    from examples.textbook.attention_is_all_you_need_pytorch import Transformer

    model = Transformer(*sizes(config)).eval()
    model.load_state_dict({short(name): torch.tensor(value) for name, value in parameters.items()})
    return lambda source, target: model(torch.tensor(source), torch.tensor(target))


def build_jax(config: TransformerConfig, parameters: Arrays) -> Callable[..., Any]:
    """Return the JAX transformer with the reference's weights; Flax has other names and transposed matrices."""
    import jax.numpy as jnp
    from examples.textbook.attention_is_all_you_need_jax import Transformer
    from flax import nnx

    model = Transformer(*sizes(config), rngs=nnx.Rngs(0))
    model.set_attributes(deterministic=True)
    for name, value in parameters.items():
        *path, last = short(name).split(".")
        layer: Any = model
        for part in path:
            layer = layer[int(part)] if part.isdigit() else getattr(layer, part)
        if last == "weight":
            last = {"Linear": "kernel", "Embed": "embedding", "LayerNorm": "scale"}[type(layer).__name__]
        getattr(layer, last)[...] = jnp.asarray(value.T if last == "kernel" else value)
    forward = nnx.jit(Transformer.__call__)
    return lambda source, target: forward(model, jnp.asarray(source), jnp.asarray(target))


def sizes(config: TransformerConfig) -> tuple[int, ...]:
    """Return the arguments of `Transformer` except the dropout."""
    vocabulary = config.stack_vocab_size("decoder")
    return vocabulary, config.embed_dim, config.num_heads, config.feed_forward_dim, config.num_decoder_layers


def short(name: str) -> str:
    """Return the textbook's name of a parameter: `encoder.0` for `encoder.layers.0`."""
    return name.replace("encoder.token_embedding", "token_embedding").replace(".layers.", ".")


def nested(parameters: Arrays) -> dict[str, Any]:
    """Return a nested dict from flat names: `p["encoder"][0]["feed_forward"]["up"]["weight"]`."""
    tree: dict[str, Any] = {}
    for name, value in parameters.items():
        *path, last = (int(part) if part.isdigit() else part for part in short(name).split("."))
        node: Any = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return tree | {stack: list(tree[stack].values()) for stack in ("encoder", "decoder")}
