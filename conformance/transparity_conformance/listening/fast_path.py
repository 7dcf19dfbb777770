"""What PyTorch's fast path of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` hides in one kernel.

The same formulas in plain operations and float64, which are heard as such.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

ATTENTION, LAYER = "aten._native_multi_head_attention.default", "aten._transformer_encoder_layer_fwd.default"

INPUT = {ATTENTION: "query", LAYER: "src"}
"""The argument that a kernel computes from; attention has a fast path only if query, key and value are one."""


def parts(name: str, given: Mapping[str, Any]) -> Any:
    """Compute a kernel's output (B, T, D) from its arguments by name; floats in float64, nested ones padded."""
    if name == ATTENTION:
        return _attention(given["query"], given)
    return _layer(given["src"], given)


def in_float64(value: Any) -> Any:
    """Cast a floating tensor; a nested one is padded by 0."""
    import torch

    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    value = value.to_padded_tensor(0.0) if value.is_nested else value
    return value.detach().to(torch.float64)


def padding_of(value: Any) -> Any:
    """The mask (B, T) of a nested tensor, True where it has no token; None for other tensors."""
    import torch

    if not value.is_nested:
        return None
    lengths = torch.tensor([len(row) for row in value.unbind()])
    return torch.arange(int(lengths.max())) >= lengths[:, None]


def _attention(x: Any, given: Mapping[str, Any]) -> Any:
    from torch.nn import functional as F

    heads = given.get("num_heads", given.get("num_head"))
    projected = F.linear(x, given["qkv_weight"], given["qkv_bias"])
    query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in projected.chunk(3, -1))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if given.get("mask") is not None:
        scores = scores.masked_fill(_broadcast(given["mask"].bool(), given.get("mask_type")), -math.inf)
    context = scores.softmax(-1) @ value
    return F.linear(context.transpose(1, 2).flatten(2), given["proj_weight"], given["proj_bias"])


def _layer(x: Any, given: Mapping[str, Any]) -> Any:
    if given["norm_first"]:
        x = x + _attention(_norm(x, given, 1), given)
        return x + _feed_forward(_norm(x, given, 2), given)
    x = _norm(x + _attention(x, given), given, 1)
    return _norm(x + _feed_forward(x, given), given, 2)


def _norm(x: Any, given: Mapping[str, Any], which: int) -> Any:
    from torch.nn import functional as F

    return F.layer_norm(x, x.shape[-1:], given[f"norm_weight_{which}"], given[f"norm_bias_{which}"], given["eps"])


def _feed_forward(x: Any, given: Mapping[str, Any]) -> Any:
    from torch.nn import functional as F

    activation = F.gelu if given["use_gelu"] else F.relu
    hidden = activation(F.linear(x, given["ffn_weight_1"], given["ffn_bias_1"]))
    return F.linear(hidden, given["ffn_weight_2"], given["ffn_bias_2"])


def _broadcast(mask: Any, kind: int | None) -> Any:
    """A mask of the queries and keys (0, T × T), of padding (1, B × T) or of both (2, B × N × T × T), to the last."""
    return mask[:, None, None, :] if kind == 1 and mask.ndim == 2 else mask
