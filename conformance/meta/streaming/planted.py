"""Loaders that use transformers and plant a realistic mistake in one layer of a checkpoint.

Each name in `MISTAKES` is a loader, `load(folder)`. The loader recognizes the layer by the first row of its query
projection. The environment variable `PLANTED_ROW` names a NumPy file with this row.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

Change = Callable[[Any, Any], None]
"""A function that plants a mistake, given the model and the layer."""


MISTAKES: dict[str, str] = {}
"""The sentence that describes each mistake, by name."""


def mistake(says: str) -> Callable[[Change], Callable[[str], Any]]:
    """Return a decorator that turns a change into a loader with this mistake, and lists it in `MISTAKES`."""

    def listed(change: Change) -> Callable[[str], Any]:
        MISTAKES[change.__name__] = says
        return loaded(change)

    return listed


def loaded(change: Change) -> Callable[[str], Any]:
    def load(folder: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        row = torch.from_numpy(np.load(os.environ["PLANTED_ROW"]))
        for layer in model.model.layers:
            weight = layer.self_attn.q_proj.weight
            if weight.shape[1] == len(row) and torch.equal(weight.data[0], row):
                change(model, layer)
        return model

    return load


@mistake("rows of queries and keys permuted for the other layout of the rotation")
def permuted(model: Any, layer: Any) -> None:
    for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
        weight, dim = projection.weight.data, layer.self_attn.head_dim
        halves = weight.view(len(weight) // dim, 2, dim // 2, -1).transpose(1, 2)
        projection.weight.data = halves.reshape(weight.shape).contiguous()


@mistake("gate and up swapped")
def gate_and_up(model: Any, layer: Any) -> None:
    layer.mlp.gate_proj, layer.mlp.up_proj = layer.mlp.up_proj, layer.mlp.gate_proj


@mistake("the output projection transposed")
def transposed(model: Any, layer: Any) -> None:
    layer.self_attn.o_proj.weight.data = layer.self_attn.o_proj.weight.data.T.contiguous()


@mistake("another base of the rotation")
def base(model: Any, layer: Any) -> None:
    rotary = model.model.rotary_emb
    count = len(rotary.inv_freq)
    rotary.inv_freq = 500.0 ** -(torch.arange(count, dtype=torch.float32) / count)
    rotary.original_inv_freq = rotary.inv_freq


@mistake("eps of the norms 1e-2")
def eps(model: Any, layer: Any) -> None:
    layer.input_layernorm.variance_epsilon = layer.post_attention_layernorm.variance_epsilon = 1e-2


@mistake("the norms multiply by 1 + w instead of w")
def one_plus(model: Any, layer: Any) -> None:
    layer.input_layernorm.weight.data += 1
    layer.post_attention_layernorm.weight.data += 1


@mistake("GELU in place of SiLU")
def gelu(model: Any, layer: Any) -> None:
    layer.mlp.act_fn = torch.nn.GELU()


@mistake("scores scaled by 1/√embed_dim")
def scale(model: Any, layer: Any) -> None:
    layer.self_attn.scaling = model.config.hidden_size**-0.5


@mistake("scores not scaled")
def no_scale(model: Any, layer: Any) -> None:
    layer.self_attn.scaling = 1.0


@mistake("the two norms swapped")
def norms(model: Any, layer: Any) -> None:
    layer.input_layernorm, layer.post_attention_layernorm = layer.post_attention_layernorm, layer.input_layernorm


class _WithoutResidual(modeling_llama.LlamaDecoderLayer):  # type: ignore[misc] # transformers has no types here
    def forward(self, hidden_states: Any, **named: Any) -> Any:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **named)
        return self.mlp(self.post_attention_layernorm(hidden_states + attended))


@mistake("no residual around the feed-forward")
def no_residual(model: Any, layer: Any) -> None:
    layer.__class__ = _WithoutResidual


@mistake("the keys' weights used for the values")
def values_are_keys(model: Any, layer: Any) -> None:
    layer.self_attn.v_proj.weight.data = layer.self_attn.k_proj.weight.data.clone()


right = loaded(lambda model, layer: None)
