# mypy: ignore-errors
"""A GPT-2 in PyTorch, whose linear maps compute x @ W as in OpenAI's code."""

import json
from pathlib import Path

import torch.nn.functional as F
from safetensors.torch import load_file


class GPT2:
    def __init__(self, folder):
        self.c = json.loads(Path(folder, "config.json").read_text())
        self.w = {name.removeprefix("transformer."): w for name, w in load_file(f"{folder}/model.safetensors").items()}

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def norm(self, name, x):
        eps = self.c["layer_norm_epsilon"]
        return F.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.w[f"{name}.bias"], eps)

    def attention(self, at, x):
        parts = self.linear(f"{at}.c_attn", x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.c["n_head"], -1)).transpose(1, 2) for part in parts)
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.linear(f"{at}.c_proj", context.transpose(1, 2).flatten(2))

    def __call__(self, input_ids):
        x = self.w["wte.weight"][input_ids] + self.w["wpe.weight"][: input_ids.shape[1]]
        for i in range(self.c["n_layer"]):
            x = x + self.attention(f"h.{i}.attn", self.norm(f"h.{i}.ln_1", x))
            hidden = F.gelu(self.linear(f"h.{i}.mlp.c_fc", self.norm(f"h.{i}.ln_2", x)))
            x = x + self.linear(f"h.{i}.mlp.c_proj", hidden)
        return self.norm("ln_f", x) @ self.w["wte.weight"].T


def load(folder):
    return GPT2(folder)
