# mypy: ignore-errors
"""OPT as a PyTorch module; the loader copies each tensor and counts the copies."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "gelu_new": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu}


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, bias = c["hidden_size"], c["enable_bias"]
        self.heads, self.before, self.act = (
            c["num_attention_heads"],
            c["do_layer_norm_before"],
            c["activation_function"],
        )
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width, bias=bias) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, c["ffn_dim"], bias=bias), nn.Linear(c["ffn_dim"], width, bias=bias)
        self.self_attn_layer_norm, self.final_layer_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def attention(self, x, mask):
        batch, length, width = x.shape
        q, k, v = (
            proj(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(out.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x, mask):
        h = x + self.attention(self.self_attn_layer_norm(x) if self.before else x, mask)
        h = h if self.before else self.self_attn_layer_norm(h)
        hidden = ACTIVATIONS[self.act](self.fc1(self.final_layer_norm(h) if self.before else h))
        y = h + self.fc2(hidden)
        return y if self.before else self.final_layer_norm(y)


class OPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        width = c["hidden_size"]
        if c["word_embed_proj_dim"] != width:
            raise ValueError("embeddings of a different width are not supported")
        self.embed_tokens = nn.Embedding(c["vocab_size"], width)
        self.embed_positions = nn.Embedding(c["max_position_embeddings"] + 2, width)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        has_norm = c["do_layer_norm_before"] and not c["_remove_final_layer_norm"]
        self.final_layer_norm = nn.LayerNorm(width) if has_norm else nn.Identity()
        self.head = self.embed_tokens if c["tie_word_embeddings"] else nn.Linear(width, c["vocab_size"], bias=False)

    def forward(self, input_ids, attention_mask):
        positions = (attention_mask.cumsum(1) * attention_mask).long() - 1
        x = self.embed_tokens(input_ids) + self.embed_positions(positions + 2)
        length, lowest = input_ids.shape[1], torch.finfo(torch.float32).min
        allowed = torch.ones(length, length, dtype=torch.bool).tril() & attention_mask.bool()[:, None, None]
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, lowest)
        for layer in self.layers:
            x = layer(x, mask)
        return F.linear(self.final_layer_norm(x), self.head.weight)


def load(folder):
    c = json.loads(Path(folder, "config.json").read_text())
    model = OPT(c).requires_grad_(False)
    wanted = dict(model.named_parameters())
    with safe_open(Path(folder, "model.safetensors"), framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            ours = name.removeprefix("model.decoder.").replace("self_attn.", "").replace("lm_head.", "head.")
            wanted.pop(ours).copy_(file.get_tensor(name))
    if wanted:
        raise ValueError(f"missing in the file: {', '.join(wanted)}")
    return model
