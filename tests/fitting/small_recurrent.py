# mypy: ignore-errors
"""Recurrent models with a loop over tokens, and with fused or separate linear layers and convolutions."""

import torch
import torch.nn.functional as F
from torch import nn


class Mamba(nn.Module):
    """Mamba-2 with one fused input layer, one convolution, and a loop over tokens."""

    def __init__(self, d=24, heads=4, head=12, groups=1, state=5, width=3, limits=(0.0, float("inf"))):
        super().__init__()
        self.limits = limits
        self.heads, self.groups, self.state, self.inner = heads, groups, state, heads * head
        self.channels = self.inner + 2 * groups * state
        self.norm = nn.RMSNorm(d, eps=1e-5)
        self.in_proj = nn.Linear(d, self.inner + self.channels + heads, bias=False)
        self.conv = nn.Conv1d(self.channels, self.channels, width, groups=self.channels, padding=width - 1)
        self.dt_bias, self.a_log = nn.Parameter(torch.randn(heads)), nn.Parameter(torch.randn(heads))
        self.d, self.gain = nn.Parameter(torch.ones(heads)), nn.Parameter(torch.ones(self.inner))
        self.out_proj = nn.Linear(self.inner, d, bias=False)

    def forward(self, u):
        b, t, _ = u.shape
        z, xbc, dt = self.in_proj(self.norm(u)).split([self.inner, self.channels, self.heads], -1)
        xbc = F.silu(self.conv(xbc.transpose(1, 2))[..., :t].transpose(1, 2))
        x, k, q = xbc.split([self.inner, self.groups * self.state, self.groups * self.state], -1)
        x = x.unflatten(-1, (self.heads, -1))
        q, k = (y.unflatten(-1, (self.groups, -1)).repeat_interleave(self.heads // self.groups, 2) for y in (q, k))
        dt = F.softplus(dt + self.dt_bias).clamp(*self.limits)
        decay = dt * -torch.exp(self.a_log)
        state, read = x.new_zeros(b, self.heads, x.shape[-1], self.state), []
        for i in range(t):
            state = (
                state * decay[:, i, :, None, None].exp() + (dt[:, i, :, None] * x[:, i])[..., None] * k[:, i, :, None]
            )
            read.append((state * q[:, i, :, None]).sum(-1))
        y = (torch.stack(read, 1) + self.d[:, None] * x).flatten(2)
        y = (y * F.silu(z)).unflatten(-1, (self.groups, -1))
        y = (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).flatten(2) * self.gain
        return u + self.out_proj(y)


class MambaLM(nn.Module):
    def __init__(self, **sizes):
        super().__init__()
        self.emb = nn.Embedding(37, 24)
        self.layers = nn.ModuleList(Mamba(**sizes) for _ in range(2))
        self.norm = nn.RMSNorm(24, eps=1e-5)

    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.emb.weight.T


class Delta(nn.Module):
    """A gated delta network with separate linear layers and convolutions."""

    corrects = 1

    def __init__(self, d=24, heads=4, key_heads=2, key=5, value=7, width=4):
        super().__init__()
        self.heads, self.key_heads = heads, key_heads
        sizes = {"q": key_heads * key, "k": key_heads * key, "v": heads * value}
        self.maps = nn.ModuleDict({name: nn.Linear(d, size, bias=False) for name, size in sizes.items()})
        self.convs = nn.ModuleDict(
            {name: nn.Conv1d(n, n, width, groups=n, padding=width - 1, bias=False) for name, n in sizes.items()}
        )
        self.a, self.b = nn.Linear(d, heads, bias=False), nn.Linear(d, heads, bias=False)
        self.g, self.o = nn.Linear(d, heads * value, bias=False), nn.Linear(heads * value, d, bias=False)
        self.dt_bias, self.a_log = nn.Parameter(torch.randn(heads)), nn.Parameter(torch.randn(heads))
        self.norm = nn.RMSNorm(value, eps=1e-6)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (F.silu(self.convs[n](self.maps[n](x).mT)[..., :t].mT) for n in ("q", "k", "v"))
        q, k = (y.unflatten(-1, (self.key_heads, -1)) for y in (q, k))
        q, k = (y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + 1e-6) for y in (q, k))
        q, k = (y.repeat_interleave(self.heads // self.key_heads, 2) for y in (q, k))
        v, beta = v.unflatten(-1, (self.heads, -1)), self.b(x).sigmoid()
        g = -self.a_log.exp() * F.softplus(self.a(x) + self.dt_bias)
        state, read = x.new_zeros(b, self.heads, k.shape[-1], v.shape[-1]), []
        for i in range(t):
            state = state * g[:, i, :, None, None].exp()
            wrong = v[:, i] - self.corrects * (k[:, i, :, None] @ state)[:, :, 0]
            state = state + k[:, i, :, :, None] * (beta[:, i, :, None] * wrong)[:, :, None]
            read.append((q[:, i, :, None] @ state)[:, :, 0] * q.shape[-1] ** -0.5)
        y = self.norm(torch.stack(read, 1)) * F.silu(self.g(x)).unflatten(-1, (self.heads, -1))
        return self.o(y.flatten(2))


class Causal(nn.Module):
    def __init__(self, d=24, heads=3):
        super().__init__()
        self.heads = heads
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, mixer, d=24):
        super().__init__()
        self.mixer, self.n1, self.n2 = mixer, nn.RMSNorm(d, eps=1e-6), nn.RMSNorm(d, eps=1e-6)
        self.up, self.gate, self.down = (
            nn.Linear(d, 40, bias=False),
            nn.Linear(d, 40, bias=False),
            nn.Linear(40, d, bias=False),
        )

    def forward(self, x):
        x = x + self.mixer(self.n1(x))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Hybrid(nn.Module):
    """A model with three layers: two gated delta networks, then attention."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(37, 24)
        self.blocks = nn.ModuleList([Block(Delta()), Block(Delta()), Block(Causal())])
        self.norm, self.head = nn.RMSNorm(24, eps=1e-6), nn.Linear(24, 37, bias=False)

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def uncorrected():
    """Return the hybrid model without the correction of the delta rule."""
    model = Hybrid()
    for block in model.blocks[:2]:
        block.mixer.corrects = 0
    return model
