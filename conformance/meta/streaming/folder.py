"""Llama folders of any size, with random weights of a spread that shows mistakes, written layer by layer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import fields_of, tensors_in
from transparity_conformance.checkpoints.importing import family_called

DRAWN = 2**22
"""Numbers that are drawn; longer tensors repeat them, each from another one on."""


def llama(layers: int, width: int, hidden: int, heads: int, shared: int, vocabulary: int) -> TransformerConfig:
    """A Llama of these sizes; `shared` heads of keys and values, and 8,192 positions."""
    return example_config("llama").resized(
        num_decoder_layers=layers,
        embed_dim=width,
        feed_forward_dim=hidden,
        num_heads=heads,
        num_key_value_heads=shared,
        target_vocab_size=vocabulary,
        max_length=8192,
    )


def write(config: TransformerConfig, folder: Path) -> None:
    """Write a hub's folder in bfloat16, one file for each layer."""
    folder.mkdir(parents=True, exist_ok=True)
    random, family = np.random.default_rng(0), family_called("llama")
    numbers = random.normal(size=DRAWN).astype(np.float32)
    where: dict[str, str] = {}
    for part in ("", *(f".layers.{layer}." for layer in range(config.num_decoder_layers))):
        shapes = parameter_shapes(config).items()
        own = {name: shape for name, shape in shapes if (part in name if part else ".layers." not in name)}
        drawn = {name: _drawn(random, numbers, name, shape) for name, shape in own.items()}
        tensors = {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors_in(family, config, drawn).items()}
        # a file of the name model.safetensors would be taken for all of it
        file = f"model{part.replace('.', '-').rstrip('-') or '-outside'}.safetensors"
        save_file(tensors, folder / file)
        where |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": where}), encoding="utf-8"
    )
    (folder / "config.json").write_text(json.dumps(fields_of("llama", family, config)), encoding="utf-8")


def _drawn(random: np.random.Generator, numbers: np.ndarray, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A parameter: of a norm around 1, of a matrix so that what it makes spreads as what it is given."""
    value = np.empty(math.prod(shape), np.float32)
    is_norm, is_table = len(shape) == 1, "embedding" in name
    scale = 0.3 if is_norm else 1.0 if is_table else shape[1] ** -0.5
    for begin in range(0, value.size, DRAWN):
        moved = np.roll(numbers, int(random.integers(DRAWN)))[: value.size - begin]
        value[begin : begin + len(moved)] = moved * scale + is_norm
    return value.reshape(shape)
