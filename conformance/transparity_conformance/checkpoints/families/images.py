"""ViT and CLIP: encoders of images, and CLIP's decoder of text.

ViT (Dosovitskiy et al., 2021) encodes the patches of an image. CLIP (Radford et al., 2021) has two towers: a text
decoder that pools at the end token, and an image encoder. Each tower returns one vector per row, with or without a
projection. The preprocessing of images is not included. The similarity of a text and an image is not included, either,
because it needs CLIP's norm and temperature.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families.bert import EXAMPLE
from transparity_conformance.checkpoints.naming import StoredTensor, Table, linears, projections
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.codecs import Classifier, Family
from transparity_conformance.checkpoints.tables.rows import Fields

BLOCK, LAYER = "encoder.layer.{i}", "encoder.layers.{i}"


def _in_batch(name: str) -> StoredTensor:
    matrix = (name, lambda table: table.reshape(-1, table.shape[-1]))
    return StoredTensor((matrix,), lambda parts: parts[0][np.newaxis])


def _kernel(config: TransformerConfig) -> StoredTensor:
    axes = (config.image_channels, *[config.patch_size or 1] * 2)
    matrix = ("encoder.patch_projection.weight", lambda kernel: kernel.reshape(len(kernel), -1))
    return StoredTensor((matrix,), lambda parts: parts[0].reshape(-1, *axes))


def _packed(config: TransformerConfig) -> Table:
    return {
        "embeddings.cls_token": _in_batch("encoder.class_embedding.weight"),
        "embeddings.position_embeddings": _in_batch("encoder.position_embedding.weight"),
        "embeddings.patch_embeddings.projection.weight": _kernel(config),
        "embeddings.patch_embeddings.projection.bias": "encoder.patch_projection.bias",
    }


def _positions(fields: Fields) -> dict[str, Any]:
    side, patch = row.as_whole(fields, "image_size"), row.as_whole(fields, "patch_size")
    if side % patch:
        raise row.wrong("image_size", side, f"a multiple of patch_size, {patch}")
    return {"max_length": (side // patch) ** 2 + 1}  # the patches and the class token


def _pooler(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    width = row.as_whole(fields, "hidden_size")
    if fields["pooler_output_size"] not in (None, width):
        raise row.wrong(
            "pooler_output_size", fields["pooler_output_size"], f"{width}, the value of hidden_size, or null"
        )
    return {"head": "pooled" if "pooler.dense.weight" in names else "hidden"}


LAYERS = row.sizes("encoder")[2:]
"""The rows for the sizes of a model that has no vocabulary."""

IMAGE_SIZE = row.derived(_positions, lambda config: {"image_size": config.image_size}, image_size=224)

IMAGES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
IMAGES |= {"image_size": 6, "patch_size": 2}

ALWAYS: dict[str, Any] = {"norm": "layer", "norm_position": "pre", "final_norm": True, "positions": "learned"}

VIT = Family(
    model="ViTModel",
    example=IMAGES,
    always=ALWAYS | {"architecture": "encoder", "class_token": True},
    rows=(
        IMAGE_SIZE,
        row.rename("patch_size", "patch_size", 16),
        row.rename("num_channels", "image_channels", 3),
        *LAYERS,
        row.rename("layer_norm_eps", "norm_eps", 1e-12),
        row.activation("hidden_act", "gelu"),
        row.flag("qkv_bias", "qkv_bias", True),
        row.by_tensors(_pooler, lambda config: {"pooler_output_size": config.embed_dim}, pooler_output_size=None),
    ),
    only={"pooler_act": ("tanh",)},
    unneeded=("attention_probs_dropout_prob", "hidden_dropout_prob", "encoder_stride"),
    names={
        **linears(
            projections("attention.query", "attention.key", "attention.value", "output.dense"),
            *(f"{BLOCK}.attention", f"{LAYER}.self_attention"),
        ),
        **linears({"layernorm_before": "self_attention_norm", "layernorm_after": "feed_forward_norm"}, BLOCK, LAYER),
        **linears({"intermediate.dense": "feed_forward.up", "output.dense": "feed_forward.down"}, BLOCK, LAYER),
        **linears({"layernorm": "encoder.final_norm", "pooler.dense": "pooler"}),
    },
    packed=_packed,
    prefixes=("vit.",),
    classifier=Classifier(
        names=linears({"classifier": "head"}),
        fields={"pooling": "first", "pooler": "none"},
        task="ForImageClassification",
    ),
)

LEGACY_EOS = 2
"""The `eos_token_id` of CLIP files before 2023, which is not the end token of CLIP's tokenizer. For these files,
`transformers` pools at the position of the largest token id."""


def _names(stack: str, **norms: str) -> Table:
    layer, own = "encoder.layers.{i}", f"{stack}.layers.{{i}}"
    layers = {
        **linears(projections("q_proj", "k_proj", "v_proj", "out_proj"), f"{layer}.self_attn", f"{own}.self_attention"),
        **linears({"layer_norm1": "self_attention_norm", "layer_norm2": "feed_forward_norm"}, layer, own),
        **linears({"fc1": "up", "fc2": "down"}, f"{layer}.mlp", f"{own}.feed_forward"),
    }
    position = {"embeddings.position_embedding.weight": f"{stack}.position_embedding.weight"}
    return layers | linears(norms, ours=stack) | position


def _packed_clip(config: TransformerConfig) -> Table:
    token = StoredTensor((("encoder.class_embedding.weight", np.atleast_2d),), lambda parts: parts[0][0])
    return {"embeddings.class_embedding": token, "embeddings.patch_embedding.weight": _kernel(config)}


def _pooling(fields: Fields) -> dict[str, Any]:
    end = fields["eos_token_id"]
    if end is None or isinstance(end, list):
        raise row.wrong("eos_token_id", end, "one token id, at whose position the model pools")
    return {"pooling": "largest" if end == LEGACY_EOS else "eos"}


OF_CLIP = (
    row.rename("layer_norm_eps", "norm_eps", 1e-5),
    row.activation("hidden_act", "quick_gelu"),
    row.derived(lambda fields: {}, row.unwritten, projection_dim=512),
)

VISION = Family(
    model="CLIPVisionModel",
    example=IMAGES | {"projection_dim": 7},
    always=ALWAYS
    | {"architecture": "encoder", "pooler": "none", "head": "pooled", "head_bias": False}
    | {"class_token": True, "patch_bias": False, "embedding_norm": True},
    rows=(
        *LAYERS,
        *OF_CLIP,
        row.rename("patch_size", "patch_size", 32),
        row.rename("num_channels", "image_channels", 3),
        IMAGE_SIZE,
    ),
    unneeded=("attention_dropout", "dropout"),
    names=_names("encoder", pre_layrnorm="embedding_norm", post_layernorm="final_norm"),
    packed=_packed_clip,
    prefixes=("vision_model.",),
    no_parameters=("embeddings.position_ids",),
    classifier=Classifier(
        names={"visual_projection.weight": "head.weight"}, fields={}, task="ModelWithProjection", size="projection_dim"
    ),
).variant(defaults={"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 12})

TEXT = Family(
    model="CLIPTextModel",
    example=EXAMPLE | {"eos_token_id": 36, "projection_dim": 7},
    always=ALWAYS | {"architecture": "decoder", "pooler": "none", "head": "pooled", "head_bias": False},
    rows=(
        *row.sizes("decoder", 77),
        *OF_CLIP,
        row.derived(_pooling, row.unwritten, "eos_token_id"),
        row.tokens(pad=1, bos=49_406, eos=49_407),
    ),
    unneeded=("attention_dropout", "dropout"),
    names={
        "embeddings.token_embedding.weight": "decoder.token_embedding.weight",
        **_names("decoder", final_layer_norm="final_norm"),
    },
    prefixes=("text_model.",),
    no_parameters=("embeddings.position_ids",),
    classifier=Classifier(
        names={"text_projection.weight": "head.weight"}, fields={}, task="ModelWithProjection", size="projection_dim"
    ),
).variant(
    defaults={"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
    | {"num_hidden_layers": 12, "vocab_size": 49_408}
)

FAMILIES = {"vit": VIT, "clip_text_model": TEXT, "clip_vision_model": VISION}
