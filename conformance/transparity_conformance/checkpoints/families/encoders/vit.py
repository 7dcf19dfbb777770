"""ViT (Dosovitskiy et al. 2021): an encoder of the patches of an image. Resizing, mean and deviation are outside."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.fields import (
    Classifier,
    Family,
    Fields,
    activation,
    activation_name,
    flag,
    whole,
    wrong,
)
from transparity_conformance.checkpoints.naming import Stored, Table, linears

LAYER = "encoder.layers.{i}"

NAMES: Table = linears(
    {
        "encoder.layer.{i}.attention.attention.query": f"{LAYER}.self_attention.query",
        "encoder.layer.{i}.attention.attention.key": f"{LAYER}.self_attention.key",
        "encoder.layer.{i}.attention.attention.value": f"{LAYER}.self_attention.value",
        "encoder.layer.{i}.attention.output.dense": f"{LAYER}.self_attention.output",
        "encoder.layer.{i}.layernorm_before": f"{LAYER}.self_attention_norm",
        "encoder.layer.{i}.intermediate.dense": f"{LAYER}.feed_forward.up",
        "encoder.layer.{i}.output.dense": f"{LAYER}.feed_forward.down",
        "encoder.layer.{i}.layernorm_after": f"{LAYER}.feed_forward_norm",
        "layernorm": "encoder.final_norm",
        "pooler.dense": "pooler",
    }
)


def with_axes(name: str, *axes: int) -> Stored:
    """A parameter of two axes that is stored with these in place of the last."""
    return Stored(((name, _of_two_axes),), partial(_of_more_axes, axes))


def _of_two_axes(tensor: np.ndarray) -> np.ndarray:
    """A kernel (features, channels, height, width) as a matrix, or a table without its axes of 1 in front."""
    is_kernel = tensor.ndim == 4
    return tensor.reshape(len(tensor), -1) if is_kernel else tensor.reshape(-1, tensor.shape[-1])


def _of_more_axes(axes: tuple[int, ...], parts: Any) -> np.ndarray:
    shape = (len(parts[0]), *axes) if len(axes) == 3 else (1, *parts[0].shape)
    return np.asarray(parts[0].reshape(shape))


def _packed(config: TransformerConfig) -> Table:
    patch = config.patch_size or 1
    kernel = with_axes("encoder.patch_projection.weight", config.image_channels, patch, patch)
    return {
        "embeddings.cls_token": with_axes("encoder.class_embedding.weight"),
        "embeddings.position_embeddings": with_axes("encoder.position_embedding.weight"),
        "embeddings.patch_embeddings.projection.weight": kernel,
        "embeddings.patch_embeddings.projection.bias": "encoder.patch_projection.bias",
    }


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    side, patch, width = (whole(fields, name) for name in ("image_size", "patch_size", "hidden_size"))
    if side % patch:
        raise wrong("image_size", side, f"a multiple of patch_size, {patch}")
    if fields["pooler_output_size"] not in (None, width):
        raise wrong("pooler_output_size", fields["pooler_output_size"], f"{width}, as hidden_size is, or none")
    return {
        "max_length": (side // patch) ** 2 + 1,
        "activation": activation(fields, "hidden_act"),
        "qkv_bias": flag(fields, "qkv_bias"),
        "head": "pooled" if "pooler.dense.weight" in names else "hidden",
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    found = {"image_size": config.image_size, "hidden_act": activation_name(config), "qkv_bias": config.qkv_bias}
    return found | {"pooler_output_size": config.embed_dim}


VIT = Family(
    always={
        "architecture": "encoder",
        "class_token": True,
        "norm": "layer",
        "norm_position": "pre",
        "final_norm": True,
        "positions": "learned",
    },
    fields={
        "patch_size": "patch_size",
        "num_channels": "image_channels",
        "hidden_size": "embed_dim",
        "num_hidden_layers": "num_encoder_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "feed_forward_dim",
        "layer_norm_eps": "norm_eps",
    },
    configure=_configure,
    write=_write,
    model="ViTModel",
    reads=("image_size", "hidden_act", "qkv_bias", "pooler_output_size"),
    defaults={
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "qkv_bias": True,
        "pooler_output_size": None,
    },
    only={"pooler_act": ("tanh",)},
    unneeded=("attention_probs_dropout_prob", "hidden_dropout_prob", "encoder_stride"),
    names=NAMES,
    packed=_packed,
    prefixes=("vit.",),
    classifier=Classifier(
        names=linears({"classifier": "head"}),
        fields={"pooling": "first", "pooler": "none"},
        task="ForImageClassification",
    ),
)

FAMILIES = {"vit": VIT}
