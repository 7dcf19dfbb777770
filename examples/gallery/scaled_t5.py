# mypy: ignore-errors
"""A T5 in PyTorch, with attention in separate steps."""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


def buckets(queries, keys, c, both):
    """Return the buckets of all distances, of shape (queries, keys)."""
    distance, number = torch.arange(keys) - torch.arange(queries)[:, None], c["relative_attention_num_buckets"]
    base = 0
    if both:
        number //= 2
        base = (distance > 0) * number
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = number // 2
    far = (distance.clamp(min=1) / exact).log() / math.log(c["relative_attention_max_distance"] / exact)
    far = (exact + (far * (number - exact)).long()).clamp(max=number - 1)
    return base + torch.where(distance < exact, distance, far)


class T5:
    def __init__(self, folder):
        self.c = json.loads(Path(folder, "config.json").read_text())
        self.w = load_file(Path(folder, "model.safetensors"))

    def linear(self, name, x):
        return F.linear(x, self.w[f"{name}.weight"])

    def norm(self, name, x):
        return F.rms_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.c["layer_norm_epsilon"])

    def attention(self, at, x, memory, bias, hidden):
        heads = (self.c["num_heads"], self.c["d_kv"])
        q, k, v = (
            self.linear(f"{at}.{part}", given).unflatten(-1, heads).transpose(1, 2)
            for part, given in (("q", x), ("k", memory), ("v", memory))
        )
        scores = q @ k.mT / math.sqrt(self.c["d_kv"]) + bias
        weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
        return self.linear(f"{at}.o", (weights @ v).transpose(1, 2).flatten(2))

    def bias(self, stack, length, both):
        table = self.w[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        return table[buckets(length, length, self.c, both)].permute(2, 0, 1)

    def stack(self, name, ids, layers, bias, hidden, memory=None, padding=None):
        x = self.w["shared.weight"][ids]
        for i in range(layers):
            at = f"{name}.block.{i}.layer"
            y = self.norm(f"{at}.0.layer_norm", x)
            x = x + self.attention(f"{at}.0.SelfAttention", y, y, bias, hidden)
            if memory is not None:
                y = self.norm(f"{at}.1.layer_norm", x)
                x = x + self.attention(f"{at}.1.EncDecAttention", y, memory, 0.0, padding)
            last = f"{at}.{1 if memory is None else 2}"
            y = F.relu(self.linear(f"{last}.DenseReluDense.wi", self.norm(f"{last}.layer_norm", x)))
            x = x + self.linear(f"{last}.DenseReluDense.wo", y)
        return self.norm(f"{name}.final_layer_norm", x)

    def forward(self, input_ids, decoder_input_ids, attention_mask):
        padding = ~attention_mask.bool()[:, None, None]
        bias = self.bias("encoder", input_ids.shape[1], both=True)
        memory = self.stack("encoder", input_ids, self.c["num_layers"], bias, padding)
        length = decoder_input_ids.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        bias = self.bias("decoder", length, both=False)
        x = self.stack("decoder", decoder_input_ids, self.c["num_decoder_layers"], bias, future, memory, padding)
        return F.linear(x * self.c["d_model"] ** -0.5, self.w["shared.weight"])


def load(folder):
    return T5(folder).forward
