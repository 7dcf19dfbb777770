"""ViT and CLIP: image encoders, and CLIP's text decoder.

ViT (Dosovitskiy et al., 2021) encodes the patches of an image. CLIP (Radford et al., 2021) has two towers: a text
decoder that pools at the end token, and an image encoder. Each tower returns one vector per text or image, with or
without a projection. The reference does not preprocess images, and does not compute the similarity of a text and an
image.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.naming import StoredTensor, Table
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.rows import Fields


def _in_batch(name: str) -> StoredTensor:
    matrix = (name, lambda table: table.reshape(-1, table.shape[-1]))
    return StoredTensor((matrix,), lambda parts: parts[0][np.newaxis])


def _kernel(config: TransformerConfig) -> StoredTensor:
    axes = (config.image_channels, *[config.patch_size or 1] * 2)
    matrix = ("encoder.patch_projection.weight", lambda kernel: kernel.reshape(len(kernel), -1))
    return StoredTensor((matrix,), lambda parts: parts[0].reshape(-1, *axes))


def packed_vit(config: TransformerConfig) -> Table:
    return {
        "embeddings.cls_token": _in_batch("encoder.class_embedding.weight"),
        "embeddings.position_embeddings": _in_batch("encoder.position_embedding.weight"),
        "embeddings.patch_embeddings.projection.weight": _kernel(config),
        "embeddings.patch_embeddings.projection.bias": "encoder.patch_projection.bias",
    }


def read_image_size(fields: Fields) -> dict[str, Any]:
    side, patch = row.as_whole(fields, "image_size"), row.as_whole(fields, "patch_size")
    if side % patch:
        raise row.wrong("image_size", side, f"a multiple of patch_size, {patch}")
    return {"max_length": (side // patch) ** 2 + 1}  # the patches and the class token


def read_pooler(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    width = row.as_whole(fields, "hidden_size")
    if fields["pooler_output_size"] not in (None, width):
        raise row.wrong(
            "pooler_output_size", fields["pooler_output_size"], f"{width}, the value of hidden_size, or null"
        )
    return {"head": "pooled" if "pooler.dense.weight" in names else "hidden"}


LEGACY_EOS = 2

"""The `eos_token_id` of CLIP files before 2023, which is not the end token of CLIP's tokenizer. For these files,
`transformers` pools at the position of the largest token id."""


def packed_clip(config: TransformerConfig) -> Table:
    token = StoredTensor((("encoder.class_embedding.weight", np.atleast_2d),), lambda parts: parts[0][0])
    return {"embeddings.class_embedding": token, "embeddings.patch_embedding.weight": _kernel(config)}


def read_pooling(fields: Fields) -> dict[str, Any]:
    end = fields["eos_token_id"]
    if end is None or isinstance(end, list):
        raise row.wrong("eos_token_id", end, "one token id, at whose position the model pools")
    return {"pooling": "largest" if end == LEGACY_EOS else "eos"}


def write_image_size(config: TransformerConfig) -> dict[str, Any]:
    return {"image_size": config.image_size}


def write_pooler(config: TransformerConfig) -> dict[str, Any]:
    return {"pooler_output_size": config.embed_dim}
