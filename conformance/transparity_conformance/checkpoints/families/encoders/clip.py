"""CLIP (Radford et al. 2021): its tower of texts, a decoder of which the end token is pooled, and that of images. What
is compared of both is one vector a row, projected or not; norm and temperature of a pair are outside."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families.encoders.vit import with_axes
from transparity_conformance.checkpoints.fields import (
    Classifier,
    Family,
    Fields,
    activation,
    activation_name,
    whole,
    wrong,
)
from transparity_conformance.checkpoints.naming import Stored, Table, linears

LEGACY_EOS = 2
"""The `eos_token_id` of files until 2023, which is not that of their tokenizer: the largest token is pooled."""

_ROLES = {"self_attn.q_proj": "query", "self_attn.k_proj": "key", "self_attn.v_proj": "value"}
_PARTS = {theirs: f"self_attention.{ours}" for theirs, ours in (_ROLES | {"self_attn.out_proj": "output"}).items()}
_PARTS |= {"layer_norm1": "self_attention_norm", "layer_norm2": "feed_forward_norm"}
_PARTS |= {"mlp.fc1": "feed_forward.up", "mlp.fc2": "feed_forward.down"}


def _names(stack: str, **norms: str) -> Table:
    layers = {f"encoder.layers.{{i}}.{theirs}": f"{stack}.layers.{{i}}.{ours}" for theirs, ours in _PARTS.items()}
    position = {"embeddings.position_embedding.weight": f"{stack}.position_embedding.weight"}
    return linears(layers | {theirs: f"{stack}.{ours}" for theirs, ours in norms.items()}) | position


def _row(tensor: np.ndarray) -> np.ndarray:
    return tensor[np.newaxis]


def _packed(config: TransformerConfig) -> Table:
    patch = config.patch_size or 1
    kernel = with_axes("encoder.patch_projection.weight", config.image_channels, patch, patch)
    token = Stored((("encoder.class_embedding.weight", _row),), lambda parts: parts[0][0])
    return {"embeddings.class_embedding": token, "embeddings.patch_embedding.weight": kernel}


def _of_text(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    end = fields["eos_token_id"]
    if end is None or isinstance(end, list):
        raise wrong("eos_token_id", end, "one token, which is pooled")
    pooling = "largest" if end == LEGACY_EOS else "eos"
    return {"activation": activation(fields, "hidden_act"), "pooling": pooling, "head": "pooled"}


def _of_images(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    side, patch = whole(fields, "image_size"), whole(fields, "patch_size")
    if side % patch:
        raise wrong("image_size", side, f"a multiple of patch_size, {patch}")
    found = {"max_length": (side // patch) ** 2 + 1, "activation": activation(fields, "hidden_act")}
    return found | {"head": "pooled"}


def _write(config: TransformerConfig) -> dict[str, Any]:
    size = {"image_size": config.image_size} if config.reads_pixels else {}
    return size | {"hidden_act": activation_name(config)}


def _family(projection: str, **of_tower: Any) -> Family:
    """A tower: what both have, and its own."""
    stack = of_tower["always"]["architecture"]
    both = {"norm": "layer", "norm_position": "pre", "final_norm": True, "positions": "learned", "pooler": "none"}
    sizes = {"hidden_size": "embed_dim", "num_attention_heads": "num_heads", "intermediate_size": "feed_forward_dim"}
    sizes |= {"layer_norm_eps": "norm_eps", "num_hidden_layers": f"num_{stack}_layers"}
    usual = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "projection_dim": 512, "num_hidden_layers": 12}
    of_tower["always"] = both | {"head_bias": False} | of_tower["always"]
    of_tower["fields"] = sizes | of_tower["fields"]
    of_tower["defaults"] = usual | of_tower["defaults"]
    return Family(
        write=_write,
        classifier=Classifier(
            names={projection: "head.weight"}, fields={}, task="ModelWithProjection", size="projection_dim"
        ),
        unneeded=("attention_dropout", "dropout"),
        **of_tower,
    )


TEXT = _family(
    "text_projection.weight",
    always={"architecture": "decoder"},
    fields={"vocab_size": "target_vocab_size", "max_position_embeddings": "max_length"},
    configure=_of_text,
    model="CLIPTextModel",
    reads=("hidden_act", "eos_token_id", "projection_dim"),
    defaults={"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, "vocab_size": 49408}
    | {"max_position_embeddings": 77, "pad_token_id": 1, "bos_token_id": 49406, "eos_token_id": 49407},
    names={
        "embeddings.token_embedding.weight": "decoder.token_embedding.weight",
        **_names("decoder", final_layer_norm="final_norm"),
    },
    prefixes=("text_model.",),
    no_parameters=("embeddings.position_ids",),
)

VISION = _family(
    "visual_projection.weight",
    always={"architecture": "encoder", "class_token": True, "patch_bias": False, "embedding_norm": True},
    fields={"patch_size": "patch_size", "num_channels": "image_channels"},
    configure=_of_images,
    model="CLIPVisionModel",
    reads=("image_size", "hidden_act", "projection_dim"),
    defaults={"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    | {"image_size": 224, "patch_size": 32, "num_channels": 3},
    names=_names("encoder", pre_layrnorm="embedding_norm", post_layernorm="final_norm"),
    packed=_packed,
    prefixes=("vision_model.",),
    no_parameters=("embeddings.position_ids",),
)

FAMILIES = {"clip_text_model": TEXT, "clip_vision_model": VISION}
