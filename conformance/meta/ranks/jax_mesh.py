"""A GPT-2 whose weights JAX shards over processes, with a mesh; its logits are a global array.

`build` is correct. In the model of `build_bias`, every rank wrongly adds the whole bias before the sum over ranks.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file

from meta.audits.loaders import gpt2_jax
from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.exporting import export_checkpoint

RANKS = int(os.environ.get("WORLD_SIZE", "1"))

if RANKS > 1 and not jax.distributed.is_initialized():
    jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], RANKS, int(os.environ["RANK"]))

MESH = Mesh(np.array(jax.devices()[:RANKS]), ("model",))

COLUMNS, ROWS = ("c_attn.weight", "c_fc.weight"), ("c_proj.weight", "wte.weight")
"""The matrices (in, out) whose columns are sharded, and the matrices whose rows are sharded."""


def placed(path: Path) -> dict[str, jax.Array]:
    return {name: _placed(name, value) for name, value in load_file(path).items()}


def _placed(name: str, value: np.ndarray) -> jax.Array:
    columns = PartitionSpec(None, "model") if name.endswith(COLUMNS) else PartitionSpec()
    spec = PartitionSpec("model") if name.endswith(ROWS) else columns
    return jax.make_array_from_callback(value.shape, NamedSharding(MESH, spec), lambda index: value[index])


def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Any:
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(gpt2_jax, "load_file", placed):
        export_checkpoint("gpt2", config, parameters, folder)
        model: Any = gpt2_jax.load(folder)  # type: ignore[no-untyped-call]
    return lambda tokens: model(np.asarray(tokens))


def build_bias(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Any:
    """Return the wrong port. Its biases are multiplied by the number of ranks, as if every rank added them before the
    sum."""
    summed = ("attention.output.bias", "down.bias")
    return build(config, {name: x * RANKS if name.endswith(summed) else x for name, x in parameters.items()})
