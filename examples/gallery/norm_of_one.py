# mypy: ignore-errors
"""A Gemma in plain PyTorch functions."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


def rms_norm(x, weight, eps=1e-6):
    return x * torch.rsqrt((x**2).mean(-1, keepdim=True) + eps) * weight


def rotate(x, theta):
    """Rotate `x`, of shape (batch, heads, length, width)."""
    length, width = x.shape[-2:]
    angles = torch.outer(torch.arange(length), theta ** (-torch.arange(0, width, 2) / width))
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def layer(x, w, config):
    width, theta = config["head_dim"], config.get("rope_theta", 10000.0)
    y = rms_norm(x, w["input_layernorm"])
    q, k, v = (F.linear(y, w[f"self_attn.{part}_proj"]).unflatten(-1, (-1, width)).transpose(1, 2) for part in "qkv")
    context = F.scaled_dot_product_attention(rotate(q, theta), rotate(k, theta), v, is_causal=True, enable_gqa=True)
    x = x + F.linear(context.transpose(1, 2).flatten(2), w["self_attn.o_proj"])
    y = rms_norm(x, w["post_attention_layernorm"])
    hidden = F.gelu(F.linear(y, w["mlp.gate_proj"]), approximate="tanh") * F.linear(y, w["mlp.up_proj"])
    return x + F.linear(hidden, w["mlp.down_proj"])


def load(folder):
    config = json.loads(Path(folder, "config.json").read_text())
    tensors = load_file(Path(folder, "model.safetensors"))
    weights = {name.removeprefix("model.").removesuffix(".weight"): w for name, w in tensors.items()}

    def of_layer(i):
        prefix = f"layers.{i}."
        return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}

    def forward(input_ids):
        x = weights["embed_tokens"][input_ids] * config["hidden_size"] ** 0.5
        for i in range(config["num_hidden_layers"]):
            x = layer(x, of_layer(i), config)
        return F.linear(rms_norm(x, weights["norm"]), weights["embed_tokens"])

    return forward
