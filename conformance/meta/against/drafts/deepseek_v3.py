"""A DeepSeek-V3 with seven mistakes; a comment marks each wrong line."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotated(x: Tensor, base: float) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = angles.cos(), -angles.sin()  # mistake: the sign of the rotation is inverted
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.c, self.sizes = c, [c.qk_nope_head_dim, c.qk_rope_head_dim]
        width, heads = c.hidden_size, c.num_attention_heads
        self.q_a_proj, self.q_a_layernorm = nn.Linear(width, c.q_lora_rank, bias=False), Norm(c.q_lora_rank)
        self.q_b_proj = nn.Linear(c.q_lora_rank, heads * c.qk_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(width, c.kv_lora_rank + c.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = Norm(c.kv_lora_rank)
        self.kv_b_proj = nn.Linear(c.kv_lora_rank, heads * (c.qk_nope_head_dim + c.v_head_dim), bias=False)
        self.o_proj = nn.Linear(heads * c.v_head_dim, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        c, (batch, length, _) = self.c, x.shape
        base = c.rope_parameters["rope_theta"]
        q = self.q_b_proj(self.q_a_proj(x))  # mistake: the latent is not normalized
        q, q_rotary = q.view(batch, length, -1, c.qk_head_dim).transpose(1, 2).split(self.sizes, -1)
        latent, k_rotary = self.kv_a_proj_with_mqa(x).split([c.kv_lora_rank, c.qk_rope_head_dim], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(batch, length, c.num_attention_heads, -1).transpose(1, 2)
        k, v = kv.split([c.qk_nope_head_dim, c.v_head_dim], -1)
        k_rotary = rotated(k_rotary[:, None], base).expand(-1, c.num_attention_heads, -1, -1)
        scores = torch.cat((q, rotated(q_rotary, base)), -1) @ torch.cat((k, k_rotary), -1).mT
        scores = scores * c.qk_nope_head_dim**-0.5  # mistake: the rotary features are missing from the width
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(batch, length, -1))


class Feed(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.c, self.weight = c, nn.Parameter(torch.zeros(c.n_routed_experts, c.hidden_size))
        self.e_score_correction_bias = nn.Buffer(torch.zeros(c.n_routed_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = (x @ self.weight.T).sigmoid()
        choice = scores + self.e_score_correction_bias
        groups = choice.view(len(x), self.c.n_group, -1)
        best = groups.topk(2, -1).values.sum(-1).topk(self.c.topk_group, -1).indices
        kept = torch.zeros(len(x), self.c.n_group, dtype=torch.bool).scatter(1, best, True)
        choice = groups.masked_fill(~kept[..., None], float("-inf")).flatten(1)
        chosen = choice.topk(self.c.num_experts_per_tok, -1).indices
        weights = scores.gather(1, chosen)
        return weights * self.c.routed_scaling_factor, chosen  # mistake: weights are not divided by their sum


class Experts(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(c.n_routed_experts, 2 * c.moe_intermediate_size, c.hidden_size))
        self.down_proj = nn.Parameter(torch.zeros(c.n_routed_experts, c.hidden_size, c.moe_intermediate_size))

    def forward(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        found = torch.zeros_like(x)
        for number, (inner, outer) in enumerate(zip(self.gate_up_proj, self.down_proj, strict=True)):
            row, place = (chosen == number).nonzero(as_tuple=True)
            if len(row):
                gate, up = F.linear(x[row], inner).chunk(2, -1)
                hidden = F.gelu(gate) * up  # mistake: GELU in place of SiLU
                found.index_add_(0, row, F.linear(hidden, outer) * weights[row, place, None])
        return found


class Mixture(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.gate, self.experts = Router(c), Experts(c)
        self.shared_experts = Feed(c.hidden_size, c.moe_intermediate_size * c.n_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        return self.experts(rows, *self.gate(rows)).view(x.shape)  # mistake: the shared experts are missing


class Layer(nn.Module):
    def __init__(self, c: Any, number: int) -> None:
        super().__init__()
        is_dense = number < c.first_k_dense_replace
        self.self_attn = Attention(c)
        self.mlp = Feed(c.hidden_size, c.intermediate_size) if is_dense else Mixture(c)
        self.input_layernorm, self.post_attention_layernorm = Norm(c.hidden_size), Norm(c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(c.vocab_size, c.hidden_size), Norm(c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, number) for number in range(c.num_hidden_layers))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed_tokens(x)
        for layer in self.layers:
            x = layer(x)
        return x  # mistake: the final norm is missing


class Draft(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.model = Model(c)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.lm_head(self.model(input_ids))
