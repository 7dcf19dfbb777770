# mypy: ignore-errors
"""A BERT with its pooler, in PyTorch."""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class Bert:
    def __init__(self, folder):
        self.c = json.loads(Path(folder, "config.json").read_text())
        self.w = {name.removeprefix("bert."): w for name, w in load_file(f"{folder}/model.safetensors").items()}

    def linear(self, name, x):
        return F.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def norm(self, name, x):
        eps = self.c["layer_norm_eps"]
        return F.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.w[f"{name}.bias"], eps)

    def attention(self, at, x, hidden):
        heads = (self.c["num_attention_heads"], -1)
        q, k, v = (
            self.linear(f"{at}.self.{part}", x).unflatten(-1, heads).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + hidden[:, None, None]
        return self.linear(f"{at}.output.dense", (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def forward(self, input_ids, attention_mask, token_type_ids):
        hidden = attention_mask * -10000.0
        x = self.w["embeddings.word_embeddings.weight"][input_ids]
        x = x + self.w["embeddings.position_embeddings.weight"][: input_ids.shape[1]]
        x = x + self.w["embeddings.token_type_embeddings.weight"][token_type_ids]
        x = self.norm("embeddings.LayerNorm", x)
        for i in range(self.c["num_hidden_layers"]):
            at = f"encoder.layer.{i}"
            x = self.norm(f"{at}.attention.output.LayerNorm", x + self.attention(f"{at}.attention", x, hidden))
            y = F.gelu(self.linear(f"{at}.intermediate.dense", x))
            x = self.norm(f"{at}.output.LayerNorm", x + self.linear(f"{at}.output.dense", y))
        return torch.tanh(self.linear("pooler.dense", x[:, 0]))


def load(folder):
    return Bert(folder).forward
