"""The layers of `torch.nn.Transformer`, with or without PyTorch's fast path for inference."""

import re

import numpy as np
import torch
from benchmarks.peers.skeleton import LEAVES, by_block, kind_of
from benchmarks.peers.torch.tasks import tasks
from benchmarks.workloads import Run, Task
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity.protocol import Arrays

NAMES = {
    r"\.token_embedding": "_tokens",
    r"\.position_embedding": "_positions",
    "self_attention_norm": "norm1",
    "cross_attention_norm": "norm2",
    "final_norm": "norm",
    "self_attention": "self_attn",
    "cross_attention": "multihead_attn",
    "feed_forward.up": "linear1",
    "feed_forward.down": "linear2",
}


class Transformer(nn.Module):
    """Embeddings, PyTorch's stacks and a head; for a decoder-only model, `nn.TransformerEncoder` with a causal mask."""

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
    """Return the weights with PyTorch's names, and with query, key and value in one matrix."""
    renamed: dict[str, np.ndarray] = {}
    for scope, weights in by_block(parameters).items():
        crosses = config.has_encoder and scope.startswith("decoder")
        theirs = scope
        for ours, name in (NAMES | {"feed_forward_norm": "norm3" if crosses else "norm2"}).items():
            theirs = re.sub(rf"{ours}$", name, theirs)
        for leaf in LEAVES:
            if kind_of(scope) == "attention":
                roles = [weights[f"{role}.{leaf}"] for role in ("query", "key", "value")]
                renamed[f"{theirs}.in_proj_{leaf}"] = np.concatenate(roles)
                renamed[f"{theirs}.out_proj.{leaf}"] = weights[f"output.{leaf}"]
            elif leaf in weights:
                renamed[f"{theirs}.{leaf}"] = weights[leaf]
    return {name: torch.as_tensor(value) for name, value in renamed.items()}


def build(task: Task, *, fast_path: bool = True, compiled: bool = False) -> Run:
    torch.backends.mha.set_fastpath_enabled(fast_path)
    model = Transformer(task.config)
    model.load_state_dict(state(task.config, task.parameters))
    model.to(task.device).eval()
    return tasks(task, model, torch.compile(model) if compiled else model)
