"""A transformer of KerasHub's layers on JAX: `TransformerEncoder`, `TransformerDecoder` and their embedding layer."""

from typing import Any

import jax
import keras
from benchmarks.peers.jax.libraries import flax_shapes
from benchmarks.peers.jax.tasks import tasks
from benchmarks.peers.skeleton import by_block, kind_of
from benchmarks.workloads import Run, Task
from keras_hub.layers import TokenAndPositionEmbedding, TransformerDecoder, TransformerEncoder

from transparity.config import TransformerConfig

RENAMED = {
    "encoder.self_attention": "self_attention_layer",
    "decoder.self_attention": "self_attention",
    "self_attention_norm": "self_attention_layer_norm",
    "cross_attention_norm": "cross_attention_layer_norm",
    "feed_forward_norm": "feedforward_layer_norm",
    "feed_forward.up": "feedforward_intermediate_dense",
    "feed_forward.down": "feedforward_output_dense",
}
"""KerasHub's name for each sublayer, by this project's name. A key starts with `encoder` or `decoder` if KerasHub has
different names in encoder and decoder layers."""


def model_of(config: TransformerConfig) -> Any:
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("tokens", "source")}
    memory = stack(config, "encoder", inputs["source"]) if config.has_encoder else None
    x = stack(config, "decoder", inputs["tokens"], memory)
    logits = keras.layers.Dense(config.vocab_size, name="head")(x)
    given = [inputs["tokens"], inputs["source"]] if config.has_encoder else [inputs["tokens"]]
    return keras.Model(given, logits)


def stack(config: TransformerConfig, name: str, tokens: Any, memory: Any = None) -> Any:
    """Return the output of the encoder or decoder, whose layers have the reference's names."""
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


def path_of(scope: str, name: str) -> str:
    """Return Keras's name of a weight; `name` is Flax's name of the weight in the block `scope`."""
    stack, block = scope.split(".")[0], scope.split(".")[-1]
    if block.endswith("embedding"):
        return f"{stack}.embedding/{block}/embeddings"
    *role, leaf = name.replace("out.", "attention_output.").split(".")
    leaf = {"scale": "gamma", "bias": "beta"}[leaf] if block.endswith("norm") else leaf
    if ".layers." not in scope:
        return f"{scope}/{leaf}"
    layer, inner = ".".join(scope.split(".")[:3]), scope.split(".", 3)[3]
    inner = RENAMED.get(f"{stack}.{inner}") or RENAMED.get(inner, inner)
    return "/".join([layer, inner, *role, leaf])


def build(task: Task) -> Run:
    model = model_of(task.config)
    variables = {variable.path: variable for variable in model.variables}
    for scope, weights in by_block(task.parameters).items():
        for name, value in flax_shapes(task.config, kind_of(scope), weights).items():
            variables.pop(path_of(scope, name)).assign(value)
    assert not variables, f"KerasHub also has {', '.join(variables)}"
    arrays = [variable.value for variable in model.trainable_variables]

    def apply(weights: Any, tokens: jax.Array, source: jax.Array | None) -> Any:
        return model.stateless_call(weights, [], [tokens] if source is None else [tokens, source])[0]

    return tasks(task, apply, arrays)
