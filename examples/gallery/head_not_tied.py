# mypy: ignore-errors
"""An OPT in PyTorch: its modules are created, then filled with the tensors in the folder."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c["num_attention_heads"]
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(c["hidden_size"], c["hidden_size"]))

    def forward(self, x, seen):
        q, k, v = (
            proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out_proj(context.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn = Attention(c)
        self.self_attn_layer_norm, self.final_layer_norm = (nn.LayerNorm(c["hidden_size"]) for _ in range(2))
        self.fc1, self.fc2 = nn.Linear(c["hidden_size"], c["ffn_dim"]), nn.Linear(c["ffn_dim"], c["hidden_size"])

    def forward(self, x, seen):
        x = x + self.self_attn(self.self_attn_layer_norm(x), seen)
        return x + self.fc2(F.relu(self.fc1(self.final_layer_norm(x))))


class OPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.embed_positions = nn.Embedding(c["max_position_embeddings"] + 2, c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.final_layer_norm = nn.LayerNorm(c["hidden_size"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)

    def forward(self, input_ids, attention_mask):
        positions = (attention_mask.cumsum(1) * attention_mask).long() - 1
        x = self.embed_tokens(input_ids) + self.embed_positions(positions + 2)
        length = input_ids.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool).tril() & attention_mask.bool()[:, None, None]
        for layer in self.layers:
            x = layer(x, seen)
        return self.lm_head(self.final_layer_norm(x))


def load(folder):
    model = OPT(json.loads(Path(folder, "config.json").read_text()))
    tensors = load_file(Path(folder, "model.safetensors"))
    model.load_state_dict({name.removeprefix("model.decoder."): w for name, w in tensors.items()}, strict=False)
    return model
