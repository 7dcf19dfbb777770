# mypy: ignore-errors
"""BERT and RoBERTa as a PyTorch module with the file's parameter names and PyTorch's fused attention."""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "gelu_new": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu}


def tree(**parts):
    return nn.ModuleDict(parts)


class Bert(nn.Module):
    def __init__(self, c):
        super().__init__()
        if c.get("position_embedding_type", "absolute") != "absolute":
            raise ValueError("only absolute positions are supported")
        d, eps = c["hidden_size"], c["layer_norm_eps"]
        self.heads, self.roberta, self.pad = c["num_attention_heads"], c["model_type"] == "roberta", c["pad_token_id"]
        self.act = ACTIVATIONS[c["hidden_act"]]
        self.embeddings = tree(
            word_embeddings=nn.Embedding(c["vocab_size"], d),
            position_embeddings=nn.Embedding(c["max_position_embeddings"], d),
            token_type_embeddings=nn.Embedding(c["type_vocab_size"], d),
            LayerNorm=nn.LayerNorm(d, eps),
        )
        self.encoder = tree(layer=nn.ModuleList(self.layer(c, d, eps) for _ in range(c["num_hidden_layers"])))
        self.pooler = tree(dense=nn.Linear(d, d))

    def layer(self, c, d, eps):
        inner = c["intermediate_size"]
        attention = nn.ModuleDict({"self": tree(query=nn.Linear(d, d), key=nn.Linear(d, d), value=nn.Linear(d, d))})
        attention["output"] = tree(dense=nn.Linear(d, d), LayerNorm=nn.LayerNorm(d, eps))
        output = tree(dense=nn.Linear(inner, d), LayerNorm=nn.LayerNorm(d, eps))
        return tree(attention=attention, intermediate=tree(dense=nn.Linear(d, inner)), output=output)

    def embed(self, input_ids, token_type_ids):
        e = self.embeddings
        positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        if self.roberta:
            real = (input_ids != self.pad).long()
            positions = real.cumsum(1) * real + self.pad
        x = e["word_embeddings"](input_ids) + e["position_embeddings"](positions)
        return e["LayerNorm"](x + e["token_type_embeddings"](token_type_ids))

    def forward(self, input_ids, attention_mask, token_type_ids):
        x = self.embed(input_ids, token_type_ids)
        b, t, d = x.shape
        bias = (1.0 - attention_mask[:, None, None].float()) * torch.finfo(torch.float32).min
        for layer in self.encoder["layer"]:
            attention = layer["attention"]
            q, k, v = (
                attention["self"][name](x).view(b, t, self.heads, -1).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(b, t, d)
            x = attention["output"]["LayerNorm"](x + attention["output"]["dense"](context))
            hidden = self.act(layer["intermediate"]["dense"](x))
            x = layer["output"]["LayerNorm"](x + layer["output"]["dense"](hidden))
        pooled = torch.tanh(self.pooler["dense"](x[:, 0]))
        return SimpleNamespace(last_hidden_state=x, pooler_output=pooled)


def load(folder):
    model = Bert(json.loads(Path(folder, "config.json").read_text()))
    model.load_state_dict(load_file(Path(folder, "model.safetensors")))
    return model
