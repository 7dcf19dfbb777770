# mypy: ignore-errors
"""A Llama in plain PyTorch that attends in blocks of queries, with mistakes that appear only in long prompts."""

import math

import torch
import torch.nn.functional as F

BLOCK = 256


def positions(length):
    return torch.arange(length)


def frequencies(config, length):
    plain = 1.0 / config.rope_theta ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    if config.rotary_scaling == "none":
        return plain
    turns = config.rotary_original_length * plain / (2 * math.pi)
    low, high = config.rotary_slow_turns, config.rotary_fast_turns
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * plain / config.rotary_factor + smooth * plain


def sees(queries, keys, window):
    distance = queries[:, None] - keys[None]
    return (distance >= 0) & (distance < window) if window else distance >= 0


def rms(x, weight, eps):
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def build_with(positions=positions, frequencies=frequencies, sees=sees):
    """Return a `build` with some of its functions replaced by wrong ones."""

    def rotated(x, config):
        at = positions(x.shape[2])
        angles = at[:, None].float() * frequencies(config, x.shape[2])
        cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def attention(config, weights, x, window):
        def heads(name):
            return F.linear(x, weights(name)).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)

        q, k, v = rotated(heads("query"), config), rotated(heads("key"), config), heads("value")
        k, v = (each.repeat_interleave(config.num_heads // each.shape[1], 1) for each in (k, v))
        at, parts = torch.arange(x.shape[1]), []
        for block in at.split(BLOCK):
            near = at[max(0, int(block[0]) - window - 1) if window else 0 : int(block[-1]) + 1]
            mask = sees(block, near, window)
            parts.append(F.scaled_dot_product_attention(q[:, :, block], k[:, :, near], v[:, :, near], attn_mask=mask))
        return F.linear(torch.cat(parts, 2).transpose(1, 2).flatten(2), weights("output"))

    def build(config, parameters):
        held = {name: torch.tensor(value) for name, value in parameters.items()}

        @torch.no_grad()
        def forward(tokens):
            x = held["decoder.token_embedding.weight"][torch.as_tensor(tokens)]
            for i in range(config.num_decoder_layers):

                def of(name, layer=f"decoder.layers.{i}."):
                    return held[f"{layer}{name}.weight"]

                y = rms(x, of("self_attention_norm"), config.norm_eps)
                x = x + attention(
                    config,
                    lambda name, of=of: of(f"self_attention.{name}"),
                    y,
                    config.for_layer("decoder", i).sliding_window,
                )
                y = rms(x, of("feed_forward_norm"), config.norm_eps)
                inner = F.silu(F.linear(y, of("feed_forward.gate"))) * F.linear(y, of("feed_forward.up"))
                x = x + F.linear(inner, of("feed_forward.down"))
            return F.linear(rms(x, held["decoder.final_norm.weight"], config.norm_eps), held["head.weight"])

        return forward

    return build


def in_bfloat16(length):
    """Return positions in bfloat16, which lacks some integers above 256."""
    return torch.arange(length).bfloat16()


def in_float16(length):
    return torch.arange(length).half()


def in_int16(length):
    return torch.arange(length).to(torch.int16)


def in_a_short_table(size):
    """Return a function that clamps positions to the last row of a table."""
    return lambda length: torch.arange(length).clamp(max=size - 1)


def begun_again(size):
    return lambda length: torch.arange(length) % size


def scaled_beyond(config, length):
    """Scale the frequencies only in prompts that are longer than the original length."""
    scaling = config.rotary_scaling if length > config.rotary_original_length else "none"
    return frequencies(_with(config, rotary_scaling=scaling), length)


def scaled_below(config, length):
    scaling = config.rotary_scaling if length <= config.rotary_original_length else "none"
    return frequencies(_with(config, rotary_scaling=scaling), length)


def _with(config, **fields):
    import dataclasses

    return dataclasses.replace(config, **fields)


def one_more(queries, keys, window):
    return sees(queries, keys, window + 1 if window else window)


def one_more_far_away(queries, keys, window):
    """Return a mask that is off by one at large positions."""
    far = queries[:, None] >= 2 * window if window else False
    return sees(queries, keys, window) | (far & sees(queries, keys, window + 1 if window else window))


in_a_table_of_512 = in_a_short_table(512)
begun_again_at_256 = begun_again(256)
build = build_with()
