"""BERT and similar encoders: RoBERTa, XLM-R, DistilBERT and MPNet.

References: BERT (Devlin et al., 2019), RoBERTa (Liu et al., 2019), XLM-R (Conneau et al., 2020). DistilBERT (Sanh et
al., 2019) has half of BERT's layers, no token types and no pooler. MPNet (Song et al., 2020) has the positions and
heads of RoBERTa, and the relative bias of T5.
"""

from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.rows import Fields


def read_counted(fields: Fields) -> dict[str, Any]:
    """Return the fields for positions that start at pad_token_id + 1 and do not count padding."""
    pad = fields["pad_token_id"]
    if not isinstance(pad, int):
        raise row.wrong("pad_token_id", pad, "a token id, because the first position is pad_token_id + 1")
    length = row.as_whole(fields, "max_position_embeddings") - pad - 1
    return {"position_offset": pad + 1, "position_count": "visible", "max_length": length}


def write_counted(config: TransformerConfig) -> dict[str, Any]:
    return {"max_position_embeddings": config.num_positions}


PAD, BUCKETS = 1, 32
"""Constants of MPNet in `transformers`: the padding token, and the number of buckets."""


def read_counted_from_pad(fields: Fields) -> dict[str, Any]:
    if fields["pad_token_id"] is None:
        raise row.wrong("pad_token_id", None, f"{PAD}, which transformers always uses for MPNet")
    return read_counted({**fields, "pad_token_id": PAD})


def read_masked_head(
    fields: Fields, names: Collection[str], *, tensor: str, needs_gelu: bool = False
) -> dict[str, Any]:
    """Choose the output: `pooled` if a file has a pooler, else `logits` if the file has a masked-language head, else
    `hidden`.

    An untied masked-language head is ignored, because `transformers` never reads one of the head's two biases. `tensor`
    is a weight that only a masked-language head has. `needs_gelu` means that the head always uses GELU, even if the
    layers have another activation function.
    """
    is_masked = tensor in names and not (needs_gelu and row.as_activation(fields, "hidden_act") != "gelu")
    is_masked = is_masked and row.as_flag(fields, "tie_word_embeddings")
    head = "pooled" if "pooler.dense.weight" in names else "logits" if is_masked else "hidden"
    return {"head": head} | ({"head_transform": True, "tied_head": True} if is_masked else {})


def write_counted_from_pad(config: TransformerConfig) -> dict[str, Any]:
    return write_counted(config) | {"relative_attention_num_buckets": BUCKETS}
