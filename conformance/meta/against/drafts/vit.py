"""A ViT with six mistakes; a comment marks each wrong line."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Patches(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.projection = nn.Conv2d(c.num_channels, c.hidden_size, c.patch_size, c.patch_size)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.projection(pixels).transpose(2, 3).flatten(2).mT  # mistake: patches in column-major order


class Embeddings(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        count = (c.image_size // c.patch_size) ** 2 + 1
        self.cls_token = nn.Parameter(torch.zeros(1, 1, c.hidden_size))
        self.position_embeddings = nn.Parameter(torch.zeros(1, count, c.hidden_size))
        self.patch_embeddings = Patches(c)

    def forward(self, pixels: Tensor) -> Tensor:
        first = self.cls_token.expand(len(pixels), -1, -1)
        return torch.cat((first, self.patch_embeddings(pixels)), 1) + self.position_embeddings


class Attention(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.heads = c.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(c.hidden_size, c.hidden_size) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        projected = (project(x) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in projected)
        weights = (q @ k.mT * width**-0.5).softmax(-1)  # mistake: scaled by the width of all heads
        return self.o_proj((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Feed(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.fc1 = nn.Linear(c.hidden_size, c.intermediate_size)
        self.fc2 = nn.Linear(c.intermediate_size, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x)))  # mistake: ReLU in place of GELU


class Layer(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(c), Feed(c)
        self.layernorm_before = nn.LayerNorm(c.hidden_size, eps=1e-3)  # mistake: a different epsilon
        self.layernorm_after = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.layernorm_before(x))
        h = self.layernorm_after(x)
        return h + self.mlp(h)  # mistake: the residual is normalized


class Body(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.embeddings = Embeddings(c)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.layernorm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embeddings(pixels)
        for layer in self.layers:
            x = layer(x)
        return self.layernorm(x)


class Draft(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.vit, self.classifier = Body(c), nn.Linear(c.hidden_size, c.num_labels)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.classifier(self.vit(pixel_values).mean(1))  # mistake: the mean in place of the class token
