"""Bugs as changes of the independent port's text, with the ids of the catalogue that are a right name for each.

Most are in threads on real ports (PORT-MISTAKES, FIELD-BUGS); each is one line as a tired person writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Acts = Callable[[Any], bool]


def _everywhere(config: Any) -> bool:
    return True


@dataclass(frozen=True)
class Bug:
    """One wrong line.

    Attributes:
        ids: the causes that name it rightly.
        old: what the line is, the only place of the file with this text.
        new: what it is by mistake.
        acts: whether a configuration runs the line at all; whether it then changes an answer is measured.
        at: the text of a line that is right to point at, too: one that is given the wrong number or the wrong name.
        file: the file of the port.
    """

    ids: tuple[str, ...]
    old: str
    new: str
    acts: Acts = _everywhere
    at: tuple[str, ...] = ()
    file: str = "model.py"

    def __str__(self) -> str:
        return f"{self.ids[0]} ({self.new.strip()})"


ROTATION = "positions.py"

SCORES = ("scores = self.capped(query @ key.transpose(-2, -1) * self.scale())",)
SOFTMAX = ('weights = self.tap(f"{at}.weights", self.shares(at, self.masked(scores, keep)))',)
FILL = ("return scores.masked_fill(~keep, self.masked_score())", "return torch.softmax(wide,", *SOFTMAX)


def _has(field: str, *values: Any) -> Acts:
    return lambda config: getattr(config, field) in values


def _lacks(field: str, *values: Any) -> Acts:
    return lambda config: getattr(config, field) not in values


def _relative(config: Any) -> bool:
    return config.positions == "relative" or bool(config.relative_bias)


def _is_normed_first(config: Any) -> bool:
    """Whether each sublayer of a layer has a norm in front of it, and a residual of its own."""
    return config.norm_position in ("pre", "both") and config.branches == "sequential"


_rotary, _learned = _has("positions", "rotary"), _has("positions", "learned")
_rms, _layer = _has("norm", "rms"), _has("norm", "layer")
_decodes = _has("architecture", "decoder", "encoder-decoder")

ATTENTION = (
    Bug(
        ("attention-scale",),
        '{"head_dim": self.head_dim,',
        '{"head_dim": self.c.embed_dim,',
        _has("attention_scale", "head_dim"),
        SCORES,
    ),
    Bug(("attention-scale",), '"none": 1}', '"none": self.head_dim}', _has("attention_scale", "none"), SCORES),
    Bug(
        ("attention-scale",),
        "float(self.c.attention_multiplier / math.sqrt(width))",
        "float(1 / math.sqrt(width))",
        _lacks("attention_multiplier", 1),
        SCORES,
    ),
    Bug(("softmax-axis",), "torch.softmax(wide, -1).to", "torch.softmax(wide, -2).to"),
    Bug(
        ("head-order",),
        "return self.dense(name, x).unflatten(-1, (heads, -1)).transpose(1, 2)",
        "return self.dense(name, x).unflatten(-1, (-1, heads)).permute(0, 3, 1, 2)",
        _lacks("projection", "shared-per-head"),
    ),
    Bug(
        ("head-split",),
        "context.transpose(1, 2).flatten(-2)",
        "context.reshape(len(context), -1, context.shape[1] * context.shape[3])",
    ),
    Bug(
        ("head-grouping",),
        "key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)",
        "key.repeat(1, shared, 1, 1), value.repeat(1, shared, 1, 1)",
        lambda config: config.num_key_value_heads not in (None, 1),
    ),
    Bug(
        ("weight-duplicated",),
        'self.tap(f"{at}.value", self.split(f"{at}.value", y',
        'self.tap(f"{at}.value", self.split(f"{at}.key", y',
    ),
    Bug(
        ("weight-duplicated",),
        'key = self.tap(f"{at}.key", self.split(f"{at}.key", y',
        'key = self.tap(f"{at}.key", self.split(f"{at}.value", y',
    ),
    Bug(
        ("weight-transpose",),
        'return self.tap(f"{at}.output", self.dense(f"{at}.output", context))',
        'return self.tap(f"{at}.output", F.linear(context, self.p[f"{at}.output.weight"].T, '
        'self.p.get(f"{at}.output.bias")))',
        lambda config: (
            config.embed_dim == config.num_heads * (config.attention_head_dim or 0) or config.attention_head_dim is None
        ),
    ),
    Bug(
        ("bias-dropped",),
        'query = self.tap(f"{at}.query", self.split(f"{at}.query", given, self.c.num_heads))',
        'query = self.tap(f"{at}.query", F.linear(given, self.p[f"{at}.query.weight"])'
        ".unflatten(-1, (self.c.num_heads, -1)).transpose(1, 2))",
        lambda config: config.qkv_bias and config.projection != "shared-per-head",
    ),
    Bug(
        ("attention-cap",),
        "return scores if cap is None else cap * torch.tanh(scores / cap)",
        "return scores",
        _lacks("attention_softcap", None),
        SCORES,
    ),
)

MASKS = (
    Bug(("causal-diagonal",), "(torch.arange(keys) <= where", "(torch.arange(keys) < where", _decodes, FILL),
    Bug(
        ("causal-missing",),
        "return (torch.arange(keys) <= where[..., None])[:, None]",
        "return (torch.arange(keys) < where[..., None] + keys)[:, None]",
        _decodes,
        FILL,
    ),
    Bug(("window-size",), ".abs() < window)", ".abs() <= window)", _lacks("sliding_window", None), FILL),
    Bug(
        ("window-missing",),
        "keep = keep & (self.together if pieces else self.near)(where, keep.shape[-1], window)",
        "keep = keep",
        lambda config: config.sliding_window is not None,
        FILL,
    ),
    Bug(("window-kind",), "(self.together if pieces else self.near)", "self.near", _has("window_kind", "chunks"), FILL),
    Bug(
        ("window-begin",),
        "begin = where - where % window",
        "begin = where - (where + 1) % window",
        _has("window_kind", "chunks"),
        FILL,
    ),
    Bug(
        ("query-temperature",),
        "torch.log(past + 1)",
        "torch.log(past + 2)",
        lambda config: any(own.query_temperature for own in config.layer_kinds.values()),
        SCORES,
    ),
    Bug(
        ("window-layers",),
        "return self.facts(i).sliding_window",
        "return self.c.sliding_window",
        lambda config: len({own.sliding_window for own in config.layer_kinds.values()}) > 1,
        FILL,
    ),
    Bug(
        ("attention-mask", "mask-polarity"),
        "return mask != 0",
        "return mask == 0",
        _has("padding", "attention-mask"),
        FILL,
    ),
    Bug(
        ("padding-ignored",),
        "return real[:, None, None, :]",
        "return torch.ones_like(real)[:, None, None, :]",
        at=FILL,
    ),
    Bug(
        ("mask-value",),
        "value = self.c.mask_value * ",
        "value = -10.0 * ",
        at=FILL,
    ),
)

NORMS = (
    Bug(
        ("norm-eps-placement",),
        "return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.c.norm_eps) * gain)",
        "return (wide / ((wide * wide).mean(-1, keepdim=True).sqrt() + self.c.norm_eps) * gain)",
        _rms,
    ),
    Bug(("norm-eps",), "keepdim=True) + self.c.norm_eps) * gain).to", "keepdim=True) + 1e-3) * gain).to", _rms),
    Bug(("norm-eps",), "eps, wide = self.c.norm_eps,", "eps, wide = 1e-3,", _layer, ("return (away * torch.rsqrt(",)),
    Bug(
        ("norm-kind",),
        "away = wide - wide.mean(-1, keepdim=True)",
        "away = wide",
        _layer,
        ("return (away * torch.rsqrt(",),
    ),
    Bug(
        ("norm-variance",),
        "torch.rsqrt((away * away).mean(-1, keepdim=True) + eps)",
        "torch.rsqrt(wide.var(-1, keepdim=True) + eps)",
        _layer,
    ),
    Bug(
        ("norm-gain",),
        'gain = self.p[f"{name}.weight"] + (1 if self.c.norm_gain == "one-plus-weight" else 0)',
        'gain = self.p[f"{name}.weight"]',
        _has("norm_gain", "one-plus-weight"),
        ("return (wide * torch.rsqrt(",),
    ),
    Bug(
        ("norm-missing",),
        "        if self.c.final_norm:\n",
        "        if False:\n",
        _has("final_norm", True),
        ('return self.tap(f"{name}.output", x)', "return x + by * y", "logits = F.linear(x,"),
    ),
    Bug(
        ("norm-missing",),
        'return self.norm(f"{name}.embedding_norm", x, tap=True) if c.embedding_norm else x',
        "return x",
        _has("embedding_norm", True),
    ),
    Bug(
        ("norm-duplicated",),
        'y = self.before(f"{at}.feed_forward", x)',
        'y = self.before(f"{at}.self_attention", x)',
        _is_normed_first,
    ),
    Bug(("norm-missing",), "if self.c.query_key_norm:", "if False:", _has("query_key_norm", True)),
)

POSITIONS = (
    Bug(("rotary-layout",), 'if layout == "interleaved":', 'if layout != "interleaved":', _rotary, file=ROTATION),
    Bug(
        ("rotary-direction",),
        "factor * angles.cos(), factor * angles.sin()",
        "factor * angles.cos(), -factor * angles.sin()",
        _rotary,
        file=ROTATION,
    ),
    Bug(
        ("rotary-base",),
        "plain = 1.0 / c.rope_theta **",
        "plain = 1.0 / 10_000.0 **",
        lambda config: _rotary(config) and config.rope_theta != 10_000,
        file=ROTATION,
    ),
    Bug(
        ("rotary-scaling",),
        'if c.rotary_scaling == "none":',
        "if True:",
        _lacks("rotary_scaling", "none"),
        ("angles = positions[..., None].double() * frequencies",),
        file=ROTATION,
    ),
    Bug(
        ("rotary-partial",),
        "width = c.rotary_dim or head_dim",
        "width = head_dim",
        _lacks("rotary_dim", None),
        ("plain = 1.0 / c.rope_theta", "angles = positions[..., None].double() * frequencies"),
        file=ROTATION,
    ),
    Bug(
        ("rotary-position",),
        'query = self.placed(at, "query", query, where)',
        'query = self.placed(at, "query", query, where + 1)',
        _rotary,
        ("angles = positions[..., None].double() * frequencies",),
    ),
    Bug(
        ("position-offset",),
        "            return where + self.c.position_offset\n",
        "            return where\n",
        lambda config: _learned(config) and config.position_count == "all" and config.position_offset,
        ('x = x + self.p[f"{name}.position_embedding.weight"]',),
    ),
    Bug(
        ("position-offset",),
        "            return where + self.c.position_offset\n",
        "            return where + 1\n",
        lambda config: _learned(config) and config.position_count == "all" and not config.position_offset,
        ('x = x + self.p[f"{name}.position_embedding.weight"]',),
    ),
    Bug(
        ("position-count",),
        'if self.c.position_count == "all":',
        "if True:",
        lambda config: _learned(config) and config.position_count != "all",
        ('x = x + self.p[f"{name}.position_embedding.weight"]',),
    ),
    Bug(
        ("position-layout",),
        'if c.rope_layout == "halves":',
        'if c.rope_layout != "halves":',
        _has("positions", "sinusoidal"),
        ("return torch.cat([sine, cosine], -1)", "return torch.stack([sine, cosine], -1).flatten(-2)"),
        file=ROTATION,
    ),
    Bug(("alibi-sign",), "return -slope[:, None, None]", "return slope[:, None, None]", _has("positions", "alibi")),
    Bug(
        ("alibi-slopes",),
        "    power = 2 ** math.floor(math.log2(heads))\n",
        "    return [2 ** (-8 * (i + 1) / heads) for i in range(heads)]\n",
        lambda config: config.positions == "alibi" and config.num_heads & (config.num_heads - 1),
        ("slope = torch.tensor(slopes(", "return -slope[:, None, None]"),
        file=ROTATION,
    ),
    Bug(
        ("relative-direction", "relative-buckets"),
        "distance = torch.arange(keys) - where[..., None]",
        "distance = where[..., None] - torch.arange(keys)",
        _relative,
    ),
    Bug(
        ("relative-buckets",),
        'both=name == "encoder")',
        "both=False)",
        lambda config: _relative(config) and config.has_encoder,
        ("distance = (-distance).clamp(min=0)",),
    ),
)

OTHERS = (
    Bug(
        ("gate-swapped", "weight-swapped"),
        "return self.act(gate) * (up + self.c.up_offset)",
        "return gate * self.act(up + self.c.up_offset)",
        _has("gated", True),
    ),
    Bug(
        ("activation",),
        '"gelu-tanh": lambda x: F.gelu(x, approximate="tanh")',
        '"gelu-tanh": F.gelu',
        _has("activation", "gelu-tanh"),
        ("return ACTIVATIONS[self.c.activation](x)",),
    ),
    Bug(
        ("activation",),
        '"silu": F.silu',
        '"silu": F.gelu',
        _has("activation", "silu"),
        ("return ACTIVATIONS[self.c.activation](x)",),
    ),
    Bug(
        ("activation",),
        '"relu": F.relu',
        '"relu": F.gelu',
        _has("activation", "relu"),
        ("return ACTIVATIONS[self.c.activation](x)",),
    ),
    Bug(
        ("activation",),
        '"gelu": F.gelu',
        '"gelu": F.relu',
        _has("activation", "gelu"),
        ("return ACTIVATIONS[self.c.activation](x)",),
    ),
    Bug(
        ("bias-dropped",),
        'self.dense(f"{at}.down", self.tap(f"{at}.hidden", up))',
        'F.linear(self.tap(f"{at}.hidden", up), self.p[f"{at}.down.weight"])',
        _has("feed_forward_bias", True),
    ),
    Bug(
        ("residual-source",),
        'x = self.after(f"{at}.feed_forward", x, self.feed(f"{at}.feed_forward", y))',
        'x = self.after(f"{at}.feed_forward", y, self.feed(f"{at}.feed_forward", y))',
        _is_normed_first,
        ("return x + by * y", 'return x + by * self.norm(f"{name}_post_norm", y, tap=True)'),
    ),
    Bug(
        ("embedding-scale",),
        '        if c.embedding_scale == "embed_dim":\n',
        "        if False:\n",
        _has("embedding_scale", "embed_dim"),
        (
            'x = x + self.p[f"{name}.position_embedding.weight"]',
            "x = x + self.sinusoids(",
            'x = self.tap(f"{name}.embedding", x)',
            "return table[ids]",
        ),
    ),
    Bug(
        ("embedding-scale",),
        '        if c.embedding_scale == "embed_dim":\n',
        "        if True:\n",
        _lacks("embedding_scale", "embed_dim"),
        ("x = x * math.sqrt(c.embed_dim)",),
    ),
    Bug(
        ("head-tied",),
        'weight = self.table("encoder" if c.architecture == "encoder" else "decoder") if c.tied_head else None',
        'weight = self.table("encoder" if c.architecture == "encoder" else "decoder")',
        lambda config: not config.tied_head and config.head == "logits",
        ('logits = F.linear(x, self.p["head.weight"] if weight is None',),
    ),
    Bug(
        ("bias-dropped",),
        'weight, self.p.get("head.bias"))',
        "weight)",
        lambda config: config.head_bias and config.head == "logits",
    ),
    Bug(
        ("logit-cap",),
        "return c.final_softcap * torch.tanh(logits / c.final_softcap) if c.final_softcap else logits",
        "return logits",
        _lacks("final_softcap", None),
        ("logits = F.linear(x,",),
    ),
    Bug(
        ("head-scale",),
        'if c.head_scale == "embed_dim":',
        "if False:",
        _has("head_scale", "embed_dim"),
        ("logits = F.linear(x,",),
    ),
    Bug(
        ("token-types",),
        "        if types is not None:\n",
        "        if False:\n",
        lambda config: config.num_token_types,
        ('x = x + self.p[f"{name}.position_embedding.weight"]',),
    ),
    Bug(
        ("pooling",),
        'x = POOLERS[c.pooler](self.dense("pooler", x))',
        'x = self.dense("pooler", x)',
        lambda config: config.has_pooler,
    ),
    Bug(
        ("pooling",),
        "weights = real.to(self.dtype) / real.sum(1, keepdim=True).clamp(min=1)",
        "weights = torch.full_like(weights, 1 / real.shape[1])",
        lambda config: config.is_pooled and config.pooling == "mean",
    ),
)

BUGS = (*ATTENTION, *MASKS, *NORMS, *POSITIONS, *OTHERS)
