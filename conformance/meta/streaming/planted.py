"""Loaders that use transformers and plant a realistic mistake in one layer of a checkpoint.

Each name in `MISTAKES` is a loader, `load(folder)`. The environment variable `PLANTED_ROW` names a NumPy file with the
first row of the layer's query projection, by which the loader recognizes the layer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

Change = Callable[[Any, Any], None]
"""A function that plants a mistake, given the model and the layer."""


def loaded(change: Change) -> Callable[[str], Any]:
    """Return a loader that plants the mistake."""

    def load(folder: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        row = torch.from_numpy(np.load(os.environ["PLANTED_ROW"]))
        for layer in model.model.layers:
            weight = layer.self_attn.q_proj.weight
            if weight.shape[1] == len(row) and torch.equal(weight.data[0], row):
                change(model, layer)
        return model

    return load


def _permuted(model: Any, layer: Any) -> None:
    for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
        weight, dim = projection.weight.data, layer.self_attn.head_dim
        halves = weight.view(len(weight) // dim, 2, dim // 2, -1).transpose(1, 2)
        projection.weight.data = halves.reshape(weight.shape).contiguous()


def _gate_and_up(model: Any, layer: Any) -> None:
    layer.mlp.gate_proj, layer.mlp.up_proj = layer.mlp.up_proj, layer.mlp.gate_proj


def _transposed(model: Any, layer: Any) -> None:
    layer.self_attn.o_proj.weight.data = layer.self_attn.o_proj.weight.data.T.contiguous()


def _base(model: Any, layer: Any) -> None:
    rotary = model.model.rotary_emb
    count = len(rotary.inv_freq)
    rotary.inv_freq = 500.0 ** -(torch.arange(count, dtype=torch.float32) / count)
    rotary.original_inv_freq = rotary.inv_freq


def _eps(model: Any, layer: Any) -> None:
    layer.input_layernorm.variance_epsilon = layer.post_attention_layernorm.variance_epsilon = 1e-2


def _one_plus(model: Any, layer: Any) -> None:
    layer.input_layernorm.weight.data += 1
    layer.post_attention_layernorm.weight.data += 1


def _gelu(model: Any, layer: Any) -> None:
    layer.mlp.act_fn = torch.nn.GELU()


def _scale(model: Any, layer: Any) -> None:
    layer.self_attn.scaling = model.config.hidden_size**-0.5


def _no_scale(model: Any, layer: Any) -> None:
    layer.self_attn.scaling = 1.0


def _norms(model: Any, layer: Any) -> None:
    layer.input_layernorm, layer.post_attention_layernorm = layer.post_attention_layernorm, layer.input_layernorm


class _WithoutResidual(modeling_llama.LlamaDecoderLayer):  # type: ignore[misc] # transformers has no types here
    def forward(self, hidden_states: Any, **named: Any) -> Any:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **named)
        return self.mlp(self.post_attention_layernorm(hidden_states + attended))


def _no_residual(model: Any, layer: Any) -> None:
    layer.__class__ = _WithoutResidual


def _values_are_keys(model: Any, layer: Any) -> None:
    layer.self_attn.v_proj.weight.data = layer.self_attn.k_proj.weight.data.clone()


MISTAKES = {
    "permuted": "rows of queries and keys permuted for the other layout of the rotation",
    "gate_and_up": "gate and up swapped",
    "transposed": "the output projection transposed",
    "base": "another base of the rotation",
    "eps": "eps of the norms 1e-2",
    "one_plus": "gains of the norms 1 + w",
    "gelu": "GELU in place of SiLU",
    "scale": "scores scaled by 1/√embed_dim",
    "no_scale": "scores not scaled",
    "norms": "the two norms swapped",
    "no_residual": "no residual around the feed-forward",
    "values_are_keys": "the keys' weights used for the values",
}

permuted, gate_and_up, transposed, base = map(loaded, (_permuted, _gate_and_up, _transposed, _base))
eps, one_plus, gelu, scale = map(loaded, (_eps, _one_plus, _gelu, _scale))
no_scale, norms, no_residual, values_are_keys = map(loaded, (_no_scale, _norms, _no_residual, _values_are_keys))
right = loaded(lambda model, layer: None)
