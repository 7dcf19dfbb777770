# mypy: ignore-errors
"""A Llama with a mask and a cache, written for an export; options plant mistakes."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class Llama(torch.nn.Module):
    def __init__(self, folder, dtype=torch.float32, **options):
        super().__init__()
        self.cfg = json.loads(Path(folder, "config.json").read_text()) | options
        self.w = {name: value.to(dtype) for name, value in load_file(Path(folder, "model.safetensors")).items()}

    def forward(self, input_ids, attention_mask=None, *past):
        given, past = (past[0], past[1:]) if self.cfg.get("takes_positions") else (None, past)
        length, before = input_ids.shape[1], past[0].shape[2] if past else 0
        positions = torch.arange(length) + (0 if self.cfg.get("forget_offset") else before)
        positions = positions if given is None else given[0]
        keys = torch.arange(length + before)
        hidden = keys[None, :] > (torch.arange(length) + before)[:, None]
        hidden = hidden[None, None]
        if attention_mask is not None:
            padded = (attention_mask == 0)[:, None, None, :]
            hidden = hidden | (padded.transpose(2, 3) if self.cfg.get("masks_queries") else padded)
        x, present = self.w["model.embed_tokens.weight"][input_ids], []
        for i in range(self.cfg["num_hidden_layers"]):
            x, key, value = self.layer(i, x, positions, hidden, past[2 * i : 2 * i + 2])
            present += [key, value]
        logits = F.linear(self.norm("model.norm", x), self.w["lm_head.weight"]).float()
        return (logits, *present) if past else logits

    def attend(self, q, k, v, hidden, past):
        if past:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        groups = q.shape[1] // k.shape[1]
        keys = k.repeat(1, groups, 1, 1) if self.cfg.get("tiled") else k.repeat_interleave(groups, 1)
        values = v.repeat(1, groups, 1, 1) if self.cfg.get("tiled") else v.repeat_interleave(groups, 1)
        scores = q @ keys.transpose(-2, -1) * self.cfg.get("scale", q.shape[-1] ** -0.5)
        weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
        mixed = weights @ values
        return mixed.transpose(1, 2).flatten(2), k, v

    def norm(self, name, x):
        return self.w[f"{name}.weight"] * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.cfg["rms_norm_eps"])

    def heads(self, name, x):
        return F.linear(x, self.w[f"{name}.weight"]).unflatten(-1, (-1, self.cfg["head_dim"])).transpose(1, 2)

    def rope(self, x, positions):
        dim = self.cfg["head_dim"]
        angles = torch.outer(
            positions.to(x.dtype), 1.0 / self.cfg["rope_theta"] ** (torch.arange(0, dim, 2).to(x.dtype) / dim)
        )
        cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def layer(self, i, x, positions, hidden, past):
        at = f"model.layers.{i}"
        h = self.norm(f"{at}.input_layernorm", x)
        q, k, v = (self.heads(f"{at}.self_attn.{each}_proj", h) for each in "qkv")
        q, k = self.rope(q, positions), self.rope(k, positions)
        mixed, k, v = self.attend(q, k, v, hidden, past)
        x = x + F.linear(mixed, self.w[f"{at}.self_attn.o_proj.weight"])
        h = self.norm(f"{at}.post_attention_layernorm", x)
        gate, up = (F.linear(h, self.w[f"{at}.mlp.{each}_proj.weight"]) for each in ("gate", "up"))
        gate = F.gelu(gate) if self.cfg.get("gelu") else F.silu(gate)
        return x + F.linear(gate * up, self.w[f"{at}.mlp.down_proj.weight"]), k, v


def export(
    folder: Path, path: Path, *, masked: bool = True, cached: bool = False, fixed: bool = False, **options: Any
) -> Path:
    """Export a graph with the usual input names; unless `fixed`, batch size and length are dynamic."""
    model = Llama(folder, **options)
    ids, free = torch.randint(0, 30, (2, 5)), {0: "batch", 1: "length"}
    given, names, axes = [ids], ["input_ids"], {"input_ids": free, "logits": free}
    outputs = ["logits"]
    if masked:
        given.append(torch.ones(2, 5 + (3 if cached else 0), dtype=torch.long))
        names.append("attention_mask")
        axes["attention_mask"] = {0: "batch", 1: "total"}
    if options.get("takes_positions"):
        given.append(torch.arange(5)[None].expand(2, 5))
        names.append("position_ids")
        axes["position_ids"] = free
    for i in range(model.cfg["num_hidden_layers"] if cached else 0):
        for part in ("key", "value"):
            given.append(torch.zeros(2, model.cfg["num_key_value_heads"], 3, model.cfg["head_dim"]))
            names.append(f"past_key_values.{i}.{part}")
            outputs.append(f"present.{i}.{part}")
            axes |= {names[-1]: {0: "batch", 2: "past"}, outputs[-1]: {0: "batch", 2: "total"}}
    return written(model.eval(), given, path, names, outputs, None if fixed else axes)


def written(model: Any, given: Any, path: Path, inputs: list[str], outputs: list[str], axes: Any) -> Path:
    named = {"input_names": inputs, "output_names": outputs, "dynamic_axes": axes}
    with warnings.catch_warnings(action="ignore"):  # this exporter is deprecated, but quick
        torch.onnx.export(model, tuple(given), str(path), **named, dynamo=False)
    return path
