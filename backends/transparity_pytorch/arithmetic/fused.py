"""Fused attention for inference and training, by PyTorch's kernel."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transparity.config import EXACT_MASK_BELOW
from transparity.taps import Tap, identity
from transparity_pytorch.masks import causal_mask
from transparity_pytorch.shapes import Bias, MaskArray, Queries, Sinks
from transparity_pytorch.state.context import Mask


def applies(tap: Tap, masked_score: float, softcap: float | None, query: Queries) -> bool:
    """Return whether to compute attention by the kernel instead of by the explicit computation.

    This requires that no tap function is used, that masked keys have the weight 0, and that scores are not capped.
    Dropout is a tap function, so the kernel is not used in training with dropout.

    For a single query on a GPU, the kernel takes twice as long as the explicit computation. In half precision, the
    kernel is used all the same, because the explicit computation rounds the scores.
    """
    alone = query.is_cuda and query.shape[2] == 1 and query.dtype in (torch.float32, torch.float64)
    return tap is identity and masked_score < EXACT_MASK_BELOW and softcap is None and not alone


def attention(
    query: Queries,
    key: Float[Tensor, "batch heads keys head_dim"],
    value: Float[Tensor, "batch heads keys value_dim"],
    mask: Mask,
    *,
    scale: float,
    bias: Bias | None = None,
    sinks: Sinks | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """softmax(query · keyᵀ · scale + bias) · value in one kernel.

    Without a bias, the kernel is called without the array of a causal or full mask, which is faster. On a CPU, a mask
    whose kind is `some` or unknown is compared with the causal and the full mask; compiled code skips this comparison.

    The kernel would return zeros for a query whose keys are all masked. Such a query is set to 0 and its keys are
    unmasked, so that their weights are equal, as in the explicit computation.
    """
    array, kind = mask
    if sinks is not None:
        key, value, array, bias = _with_sinks(key, value, array, bias, sinks)
    if kind in ("causal", "full") and bias is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=kind == "causal", scale=scale)
    # On a GPU, reading the mask would wait for the device. During compilation, the mask cannot be read.
    is_readable = bias is None and array.device.type == "cpu" and not torch.compiler.is_compiling()
    if is_readable:
        if array.all():
            return F.scaled_dot_product_attention(query, key, value, scale=scale)
        keys = key.shape[2]
        if array.shape[2] == keys and torch.equal(array, causal_mask(torch.arange(keys)[None], keys)):
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    shown = array if bias is None else bias.masked_fill(~array, -torch.inf)
    if kind is None:
        query, shown = _seeing(query, array, shown, is_readable=is_readable)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=shown, scale=scale)


def _seeing(query: Queries, mask: MaskArray, shown: Tensor, *, is_readable: bool) -> tuple[Tensor, Tensor]:
    """Set every query whose keys are all masked to 0, and unmask its keys."""
    sees = mask.any(dim=-1, keepdim=True)
    if is_readable and sees.all():
        return query, shown
    shown = shown | ~sees if shown.dtype == torch.bool else shown.masked_fill(~sees, 0)
    return query.masked_fill(~sees, 0), shown


def _with_sinks(
    key: Float[Tensor, "batch heads keys head_dim"],
    value: Float[Tensor, "batch heads keys value_dim"],
    mask: MaskArray,
    bias: Bias | None,
    sinks: Sinks,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Append a key and a value of zeros to each head, with the sink as the key's score; the kernel takes no sinks."""
    one = (0, 0, 0, 1)
    bias = torch.zeros_like(mask, dtype=key.dtype).expand(-1, len(sinks), -1, -1) if bias is None else bias
    bias = torch.cat([bias, sinks[:, None, None].expand(*bias.shape[:-1], 1)], dim=-1)
    return F.pad(key, one), F.pad(value, one), F.pad(mask, (0, 1), value=True), bias
