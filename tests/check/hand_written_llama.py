# mypy: ignore-errors
"""A Llama in plain PyTorch with its own loader, written like third-party code that does not know the checker."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def rope(x, theta):
    length, dim = x.shape[-2:]
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.head_dim = cfg["hidden_size"] // cfg["num_attention_heads"]
        self.kv_heads = cfg["num_key_value_heads"]
        inner = cfg["num_attention_heads"] * self.head_dim
        self.wq = nn.Linear(cfg["hidden_size"], inner, bias=False)
        self.wk = nn.Linear(cfg["hidden_size"], self.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(cfg["hidden_size"], self.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(inner, cfg["hidden_size"], bias=False)
        self.w1 = nn.Linear(cfg["hidden_size"], cfg["intermediate_size"], bias=False)
        self.w3 = nn.Linear(cfg["hidden_size"], cfg["intermediate_size"], bias=False)
        self.w2 = nn.Linear(cfg["intermediate_size"], cfg["hidden_size"], bias=False)
        self.attention_norm = RMSNorm(cfg["hidden_size"], cfg["rms_norm_eps"])
        self.ffn_norm = RMSNorm(cfg["hidden_size"], cfg["rms_norm_eps"])

    def attention(self, x):
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rope(q, self.cfg["rope_theta"]), rope(k, self.cfg["rope_theta"])
        groups = self.cfg["num_attention_heads"] // self.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(torch.triu(torch.ones(length, length, dtype=torch.bool), 1), float("-inf"))
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg["vocab_size"], cfg["hidden_size"])
        self.layers = nn.ModuleList(Block(cfg) for _ in range(cfg["num_hidden_layers"]))
        self.norm = RMSNorm(cfg["hidden_size"], cfg["rms_norm_eps"])
        self.out = nn.Linear(cfg["hidden_size"], cfg["vocab_size"], bias=False)
        self.answer = lambda logits: logits

    def forward(self, idx):
        x = self.tok(idx)
        for layer in self.layers:
            x = layer(x)
        return self.answer(self.out(self.norm(x)))


NAMES = {
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "w1": "mlp.gate_proj",
    "w3": "mlp.up_proj",
    "w2": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def load(folder):
    cfg = json.loads(Path(folder, "config.json").read_text())
    if cfg["hidden_act"] != "silu" or cfg["rope_scaling"] or cfg["attention_bias"] or cfg["mlp_bias"]:
        raise NotImplementedError("a plain Llama only")
    model = Llama(cfg)
    hub = load_file(Path(folder, "model.safetensors"))
    state = {"tok.weight": hub["model.embed_tokens.weight"], "norm.weight": hub["model.norm.weight"]}
    state["out.weight"] = hub["lm_head.weight"]
    for i in range(cfg["num_hidden_layers"]):
        for ours, theirs in NAMES.items():
            state[f"layers.{i}.{ours}.weight"] = hub[f"model.layers.{i}.{theirs}.weight"]
    model.load_state_dict(state)
    return model


def load_without_theta(folder):
    model = load(folder)
    for layer in model.layers:
        layer.cfg = {**layer.cfg, "rope_theta": 500000.0}
    return model


def load_with_o_transposed(folder):
    model = load(folder)
    for layer in model.layers:
        layer.wo.weight.data = layer.wo.weight.data.T.contiguous()
    return model


def load_only_groups(folder):
    model = load(folder)
    if model.out.weight.shape[1] == 16:
        raise ValueError("this model is 24 wide")
    return model


def load_a_tuple(folder):
    model = load(folder)
    model.answer = lambda logits: (logits, ["a cache"])
    return model


def load_an_object(folder):
    model = load(folder)
    model.answer = lambda logits: SimpleNamespace(logits=logits, past_key_values=object())
    return model


def load_in_training(folder):
    model = load(folder)
    model.answer = nn.Dropout(0.5)
    return model.train()


def load_with_a_drawn_head(folder):
    model = load(folder)
    nn.init.normal_(model.out.weight)
    return model


class Steps:
    """A model whose cache is the list of tokens so far; each step runs on all of them."""

    def __init__(self, model):
        self.model = model

    def __call__(self, tokens):
        return self.model(tokens)

    def step(self, tokens, cache):
        seen = tokens if cache is None else torch.cat([cache, tokens], 1)
        return self.model(seen)[:, -tokens.shape[1] :], seen


class Generating(Steps):
    """A model with greedy generation until the end token of each row."""

    def __init__(self, model, end, forgets):
        super().__init__(model)
        self.end, self.forgets = end, forgets

    def generate(self, prompt, max_new_tokens):
        ended = torch.zeros(len(prompt), dtype=torch.bool)
        for _ in range(max_new_tokens):
            if ended.all():
                break
            logits = self.model(prompt[:, -1:] if self.forgets else prompt)[:, -1]
            token = torch.where(ended, self.end or 0, logits.argmax(-1))
            ended |= token == self.end if self.end is not None else ended
            prompt = torch.cat([prompt, token[:, None]], 1)
        return prompt


class Forgetful(Steps):
    def step(self, tokens, cache):
        return super().step(tokens, None)


def load_with_a_cache(folder):
    return Steps(load(folder))


def load_that_forgets(folder):
    return Forgetful(load(folder))


def load_that_generates(folder, forgets=False):
    cfg = json.loads(Path(folder, "config.json").read_text())
    return Generating(load(folder), cfg.get("eos_token_id"), forgets)


def load_that_generates_from_one_token(folder):
    return load_that_generates(folder, forgets=True)


def load_nothing(folder):
    return None


def load_what_is_not_there(folder):
    return load_file(Path(folder, "pytorch_model.safetensors"))


def build(config, parameters):
    raise RuntimeError("not asked for")


def neither(one, two, three):
    raise RuntimeError("not asked for")
