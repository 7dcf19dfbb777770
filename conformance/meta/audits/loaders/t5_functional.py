# mypy: ignore-errors
"""T5 as PyTorch functions; distances for the relative bias are integers."""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "gelu_new": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu}


class T5:
    def __init__(self, c, p):
        if c.get("scale_decoder_outputs") is not None:
            raise ValueError("scale_decoder_outputs belongs to a newer format")
        self.c, self.p, self.heads, self.eps = c, p, c["num_heads"], c["layer_norm_epsilon"]
        self.pad = c["pad_token_id"]
        self.gated = c["feed_forward_proj"].startswith("gated-")
        name = c["feed_forward_proj"].removeprefix("gated-")
        self.act = ACTIVATIONS["gelu_new" if self.gated and name == "gelu" else name]
        self.head = p["shared.weight"] if c["tie_word_embeddings"] else p["lm_head.weight"]
        self.scale = c["d_model"] ** -0.5 if c["tie_word_embeddings"] else 1.0
        if p["encoder.block.0.layer.0.SelfAttention.q.weight"].shape[0] != c["d_kv"] * self.heads:
            raise ValueError("d_kv does not match the tensors")

    def norm(self, name, x):
        return F.rms_norm(x, x.shape[-1:], self.p[f"{name}.weight"], self.eps)

    def bias(self, stack, queries, keys):
        buckets, furthest = self.c["relative_attention_num_buckets"], self.c["relative_attention_max_distance"]
        far = torch.arange(keys)[None] - torch.arange(queries)[:, None]
        first = torch.zeros_like(far)
        if stack == "encoder":
            buckets //= 2
            first, far = buckets * (far > 0), far.abs()
        else:
            far = -far.clamp(max=0)
        exact = buckets // 2
        steps = torch.log(far.clamp(min=1).float() / exact) / math.log(furthest / exact) * (buckets - exact)
        large = (exact + steps.long()).clamp(max=buckets - 1)
        table = self.p[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        return table[first + torch.where(far < exact, far, large)].permute(2, 0, 1)

    def attention(self, at, x, memory, bias):
        q = self.split(at, "q", x)
        k, v = (self.split(at, name, memory) for name in "kv")
        weights = (q @ k.mT + bias).softmax(-1)
        return F.linear((weights @ v).transpose(1, 2).flatten(2), self.p[f"{at}.o.weight"])

    def split(self, at, name, x):
        return F.linear(x, self.p[f"{at}.{name}.weight"]).unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def feed(self, at, x):
        if self.gated:
            hidden = self.act(F.linear(x, self.p[f"{at}.wi_0.weight"])) * F.linear(x, self.p[f"{at}.wi_1.weight"])
        else:
            hidden = self.act(F.linear(x, self.p[f"{at}.wi.weight"]))
        return F.linear(hidden, self.p[f"{at}.wo.weight"])

    def stack(self, stack, ids, hidden, count, memory=None, memory_hidden=None):
        x, bias = self.p["shared.weight"][ids], self.bias(stack, ids.shape[1], ids.shape[1]) + hidden
        for i in range(count):
            at = f"{stack}.block.{i}.layer"
            n = self.norm(f"{at}.0.layer_norm", x)
            x = x + self.attention(f"{at}.0.SelfAttention", n, n, bias)
            if memory is not None:
                n = self.norm(f"{at}.1.layer_norm", x)
                x = x + self.attention(f"{at}.1.EncDecAttention", n, memory, memory_hidden)
            last = 1 if memory is None else 2
            x = x + self.feed(f"{at}.{last}.DenseReluDense", self.norm(f"{at}.{last}.layer_norm", x))
        return self.norm(f"{stack}.final_layer_norm", x)

    def __call__(self, input_ids, decoder_input_ids, attention_mask):
        lowest, length = torch.finfo(torch.float32).min, decoder_input_ids.shape[1]
        hidden = (1.0 - attention_mask[:, None, None].float()) * lowest
        memory = self.stack("encoder", input_ids, hidden, self.c["num_layers"])
        future = torch.full((length, length), lowest).triu(1)
        count = self.c["num_decoder_layers"]
        x = self.stack("decoder", decoder_input_ids, future, count, memory, hidden)
        return F.linear(x * self.scale, self.head)


def load(folder):
    return T5(json.loads(Path(folder, "config.json").read_text()), load_file(Path(folder, "model.safetensors")))
