"""A transformer of KerasHub's blocks on JAX: `TransformerEncoder`, `TransformerDecoder` and their embedding."""

from __future__ import annotations

from typing import Any

import jax
import keras
from benchmarks.peers.jax.flax_linen import placed
from benchmarks.peers.jax.tasks import tasks
from benchmarks.task import Run, Task
from keras_hub.layers import TokenAndPositionEmbedding, TransformerDecoder, TransformerEncoder

from transparity.config import TransformerConfig

RENAMED: dict[Any, str] = {
    ("encoder", "self_attention"): "self_attention_layer",
    "self_attention_norm": "self_attention_layer_norm",
    "cross_attention_norm": "cross_attention_layer_norm",
    "feed_forward_norm": "feedforward_layer_norm",
    "up": "feedforward_intermediate_dense",
    "down": "feedforward_output_dense",
    "out": "attention_output",
}
"""Names that differ, in one stack or in both."""


def model_of(config: TransformerConfig) -> Any:
    """Logits from tokens, and from the source if there is an encoder."""
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("tokens", "source")}
    memory = stack(config, "encoder", inputs["source"]) if config.has_encoder else None
    x = stack(config, "decoder", inputs["tokens"], memory)
    logits = keras.layers.Dense(config.vocab_size, name="head")(x)
    given = [inputs["tokens"], inputs["source"]] if config.has_encoder else [inputs["tokens"]]
    return keras.Model(given, logits)


def stack(config: TransformerConfig, name: str, tokens: Any, memory: Any = None) -> Any:
    """Embeddings and layers, named as ours are."""
    size = config.stack_vocab_size(name)
    x = TokenAndPositionEmbedding(size, config.max_length, config.embed_dim, name=f"{name}.embedding")(tokens)
    block, seen = (TransformerEncoder, ()) if name == "encoder" else (TransformerDecoder, (memory,))
    for index in range(config.stack_num_layers(name)):
        layer = block(
            config.feed_forward_dim,
            config.num_heads,
            layer_norm_epsilon=config.norm_eps,
            normalize_first=config.norm_position == "pre",
            name=f"{name}.layers.{index}",
        )
        x = layer(x, *seen)
    norm = keras.layers.LayerNormalization(epsilon=config.norm_eps, name=f"{name}.final_norm")
    return norm(x) if config.final_norm else x


def path_of(config: TransformerConfig, name: str, value: Any) -> tuple[str, Any]:
    """The name of a weight in Keras, and its value in the shape of Keras, which is that of Flax."""
    (*scopes, leaf), shaped = placed(config, name, value)
    if scopes[-1].endswith("embedding"):
        return f"{scopes[0]}.embedding/{scopes[-1]}/embeddings", shaped
    leaf = {"scale": "gamma", "bias": "beta"}[leaf] if scopes[-1].endswith("norm") else leaf
    layer = ".".join(scopes[:3]) if "layers" in scopes else ".".join(scopes)
    inner = [RENAMED.get((scopes[0], scope)) or RENAMED.get(scope, scope) for scope in scopes[3:]]
    return "/".join([layer, *inner, leaf]), shaped


def build(task: Task) -> Run:
    """Jitted."""
    model = model_of(task.config)
    variables = {variable.path: variable for variable in model.variables}
    for name, value in task.parameters.items():
        path, shaped = path_of(task.config, name, value)
        variables.pop(path).assign(shaped)
    assert not variables, f"KerasHub has {', '.join(variables)} besides"
    weights = [variable.value for variable in model.trainable_variables]

    def apply(weights: Any, tokens: jax.Array, source: jax.Array | None) -> Any:
        inputs = [tokens] if source is None else [tokens, source]
        return model.stateless_call(weights, [], inputs)[0]

    return tasks(task, apply, weights)
