"""`torch.nn.Transformer`'s layers, with the fast path that inference takes by itself, and without."""

from __future__ import annotations

import numpy as np
import torch
from benchmarks.peers.torch.tasks import tasks
from benchmarks.task import Run, Task
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity.protocol import Arrays

ATTENTIONS = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}
LINEARS = {"linear1": "feed_forward.up", "linear2": "feed_forward.down"}


class Transformer(nn.Module):
    """Embeddings, the library's stacks, and a head. A decoder alone is the library's encoder with a causal mask."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        for name in config.stacks:
            self.add_module(f"{name}_tokens", nn.Embedding(config.stack_vocab_size(name), config.embed_dim))
            self.add_module(f"{name}_positions", nn.Embedding(config.max_length, config.embed_dim))
            self.add_module(name, _stack(config, name))
        self.head = nn.Linear(config.embed_dim, config.vocab_size)

    def forward(self, tokens: Tensor, source: Tensor | None = None) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        x = self.embed("decoder", tokens)
        decoder = self.get_submodule("decoder")
        if source is None:
            return self.head(decoder(x, mask=mask, is_causal=True))
        memory = self.get_submodule("encoder")(self.embed("encoder", source))
        return self.head(decoder(x, memory, tgt_mask=mask, tgt_is_causal=True))

    def embed(self, name: str, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.get_submodule(f"{name}_tokens")(tokens) + self.get_submodule(f"{name}_positions")(positions)


def _stack(config: TransformerConfig, name: str) -> nn.Module:
    alone = name == "encoder" or not config.has_encoder
    layer = (nn.TransformerEncoderLayer if alone else nn.TransformerDecoderLayer)(
        config.embed_dim,
        config.num_heads,
        config.feed_forward_dim,
        0.0,
        layer_norm_eps=config.norm_eps,
        batch_first=True,
        norm_first=config.norm_position == "pre",
    )
    layers = config.stack_num_layers(name)
    norm = nn.LayerNorm(config.embed_dim, config.norm_eps) if config.final_norm else None
    if isinstance(layer, nn.TransformerEncoderLayer):
        return nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False)
    return nn.TransformerDecoder(layer, layers, norm)


def state(config: TransformerConfig, parameters: Arrays) -> dict[str, Tensor]:
    """The weights under the library's names."""
    renamed = {f"head.{leaf}": parameters[f"head.{leaf}"] for leaf in ("weight", "bias")}
    for name in config.stacks:
        cross = name == "decoder" and config.has_encoder
        renamed[f"{name}_tokens.weight"] = parameters[f"{name}.token_embedding.weight"]
        renamed[f"{name}_positions.weight"] = parameters[f"{name}.position_embedding.weight"]
        layers = config.stack_num_layers(name)
        norms = ["self_attention_norm", *["cross_attention_norm"] * cross, "feed_forward_norm"]
        same = LINEARS | {f"norm{index}": norm for index, norm in enumerate(norms, 1)}
        for layer in (f"{name}.layers.{index}" for index in range(layers)):
            for theirs, ours in list(ATTENTIONS.items())[: 1 + cross]:
                renamed |= _attention(f"{layer}.{theirs}", f"{layer}.{ours}", parameters)
            for theirs, ours in same.items():
                renamed |= {f"{layer}.{theirs}.{leaf}": parameters[f"{layer}.{ours}.{leaf}"] for leaf in LEAVES}
        if config.final_norm:
            renamed |= {f"{name}.norm.{leaf}": parameters[f"{name}.final_norm.{leaf}"] for leaf in LEAVES}
    return {name: torch.as_tensor(value) for name, value in renamed.items()}


LEAVES = ("weight", "bias")


def _attention(theirs: str, ours: str, parameters: Arrays) -> dict[str, np.ndarray]:
    packed = {}
    for leaf in LEAVES:
        roles = [parameters[f"{ours}.{role}.{leaf}"] for role in ("query", "key", "value")]
        packed[f"{theirs}.in_proj_{leaf}"] = np.concatenate(roles)
        packed[f"{theirs}.out_proj.{leaf}"] = parameters[f"{ours}.output.{leaf}"]
    return packed


def build(task: Task, *, fast_path: bool = True, compiled: bool = False) -> Run:
    """With the fast path or without it, eager or compiled."""
    torch.backends.mha.set_fastpath_enabled(fast_path)
    model = Transformer(task.config)
    model.load_state_dict(state(task.config, task.parameters))
    model.to(task.device).eval()
    return tasks(task, model, torch.compile(model) if compiled else model)
