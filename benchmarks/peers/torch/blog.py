"""A transformer in PyTorch as in tutorials: attention of four linear maps and a softmax, and a cache that grows."""

import math
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.peers.torch.tasks import tasks
from benchmarks.workloads import Run, Task
from torch import Tensor, nn

from transparity.config import TransformerConfig

Past = dict[str, Tensor]


class Attention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.heads = num_heads
        self.query, self.key, self.value, self.output = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None, past: Past | None = None) -> Tensor:
        query, key, value = map(self.split, self.project(x, memory))
        if past is not None:
            if past:
                key, value = torch.cat([past["key"], key], 2), torch.cat([past["value"], value], 2)
            past.update(key=key, value=value)
        return self.output(self.attend(query, key, value, mask).transpose(1, 2).flatten(2))

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.query(x), self.key(memory), self.value(memory)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) @ value


class FeedForward(nn.Module):
    def __init__(self, embed_dim: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(embed_dim, hidden), nn.Linear(hidden, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Layer(nn.Module):
    def __init__(self, config: TransformerConfig, attention: type[Attention], *, cross: bool) -> None:
        super().__init__()
        self.pre = config.norm_position == "pre"
        self.self_attention = attention(config.embed_dim, config.num_heads)
        self.self_attention_norm = nn.LayerNorm(config.embed_dim, config.norm_eps)
        if cross:
            self.cross_attention = attention(config.embed_dim, config.num_heads)
            self.cross_attention_norm = nn.LayerNorm(config.embed_dim, config.norm_eps)
        self.feed_forward = FeedForward(config.embed_dim, config.feed_forward_dim)
        self.feed_forward_norm = nn.LayerNorm(config.embed_dim, config.norm_eps)

    def forward(self, x: Tensor, mask: Tensor | None, memory: Tensor | None = None, past: Past | None = None) -> Tensor:
        x = self.residual(x, self.self_attention_norm, lambda x: self.self_attention(x, x, mask, past))
        if memory is not None:
            x = self.residual(x, self.cross_attention_norm, lambda x: self.cross_attention(x, memory, None))
        return self.residual(x, self.feed_forward_norm, self.feed_forward)

    def residual(self, x: Tensor, norm: nn.LayerNorm, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + sublayer(norm(x)) if self.pre else norm(x + sublayer(x))


class Stack(nn.Module):
    def __init__(self, config: TransformerConfig, name: str, attention: type[Attention]) -> None:
        super().__init__()
        layers = config.stack_num_layers(name)
        cross = name == "decoder" and config.has_encoder
        self.token_embedding = nn.Embedding(config.stack_vocab_size(name), config.embed_dim)
        self.position_embedding = nn.Embedding(config.max_length, config.embed_dim)
        self.layers = nn.ModuleList(Layer(config, attention, cross=cross) for _ in range(layers))
        self.final_norm = nn.LayerNorm(config.embed_dim, config.norm_eps) if config.final_norm else nn.Identity()

    def forward(
        self, tokens: Tensor, mask: Tensor | None, memory: Tensor | None = None, past: list[Past] | None = None
    ) -> Tensor:
        seen = past[0]["key"].shape[2] if past and past[0] else 0
        positions = torch.arange(seen, seen + tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for index, layer in enumerate(self.layers):
            x = layer(x, mask, memory, past[index] if past is not None else None)
        return self.final_norm(x)


class Transformer(nn.Module):
    """A transformer with this project's parameter names, so that the weights load without renaming."""

    def __init__(self, config: TransformerConfig, attention: type[Attention] = Attention) -> None:
        super().__init__()
        if config.has_encoder:
            self.encoder = Stack(config, "encoder", attention)
        self.decoder = Stack(config, "decoder", attention)
        self.head = nn.Linear(config.embed_dim, config.vocab_size)

    def forward(self, tokens: Tensor, source: Tensor | None = None) -> Tensor:
        memory = None if source is None else self.encoder(source, None)
        return self.head(self.decoder(tokens, causal(tokens.shape[1], tokens.device), memory))

    def generate(self, prompt: Tensor, new_tokens: int) -> Tensor:
        past: list[Past] = [{} for _ in self.decoder.layers]
        tokens = unseen = prompt
        for _ in range(new_tokens):
            mask = causal(unseen.shape[1], unseen.device) if unseen.shape[1] > 1 else None
            unseen = self.head(self.decoder(unseen, mask, past=past)[:, -1:]).argmax(-1)
            tokens = torch.cat([tokens, unseen], 1)
        return tokens


def causal(length: int, device: Any) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def model_of(task: Task, attention: type[Attention] = Attention) -> Transformer:
    model = Transformer(task.config, attention)
    model.load_state_dict({name: torch.as_tensor(value) for name, value in task.parameters.items()})
    return model.to(task.device, getattr(torch, task.workload.dtype)).eval()


def build(task: Task, *, compiled: bool = False) -> Run:
    model = model_of(task)
    return tasks(task, model, torch.compile(model) if compiled else model)
