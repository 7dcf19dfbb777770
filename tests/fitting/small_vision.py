# mypy: ignore-errors
"""Image encoders: some reshape patches, and all have one linear layer for query, key and value."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, d, heads, hidden):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(y)
        return x + self.mlp(self.n2(x))


class PlainViT(nn.Module):
    """A ViT like vit-pytorch's simple ViT: channels of one pixel are adjacent, mean pooling, no class token."""

    def __init__(self, side=4, patch=2, channels=3, d=24, heads=3, classes=5):
        super().__init__()
        self.patch = patch
        self.to_patch = nn.Linear(channels * patch * patch, d)
        self.pos = nn.Parameter(torch.randn(1, side * side, d))
        self.blocks = nn.ModuleList(Block(d, heads, 40) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, classes)

    def forward(self, img):
        b, c, h, w = img.shape
        p = self.patch
        x = img.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1).reshape(b, -1, p * p * c)
        x = self.to_patch(x) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class TimmViT(nn.Module):
    """A ViT like timm's: patches by a convolution, and a class token whose state is classified."""

    def __init__(self, size=6, patch=2, channels=1, d=24, heads=1, classes=4):
        super().__init__()
        self.conv = nn.Conv2d(channels, d, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d))
        self.pos_embed = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, d))
        self.blocks = nn.ModuleList(Block(d, heads, 40) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, classes)

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class NormedViT(PlainViT):
    """A ViT that normalizes patches before it adds positions."""

    def __init__(self):
        super().__init__()
        self.to_patch = nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24))


class UnplacedViT(PlainViT):
    """A ViT without positions, which accepts any number of patches."""

    def __init__(self):
        super().__init__()
        del self.pos
        self.pos = 0
