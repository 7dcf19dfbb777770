"""The forward pass of the port, as a class with one short method per step; a subclass can replace each step."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meta.independent.positions import bucket, inverse_frequencies, rotate, sinusoids, slopes

Cache = dict[str, Any]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu-quick": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
}


POOLERS = {**ACTIVATIONS, "tanh": torch.tanh}


class Model:
    """A model in one precision; call it with `source=…, target=…` or with `tokens=…`.

    A call returns the taps if `taps` is True, otherwise the logits.
    """

    taps = False

    def __init__(self, config: Any, parameters: dict[str, Any], dtype: str = "float32") -> None:
        self.c, self.precision = config, dtype
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.p = {name: torch.tensor(np.asarray(value)).to(self.dtype) for name, value in parameters.items()}
        self.heard: dict[str, Tensor] = {}
        self.head_dim = config.attention_head_dim or config.embed_dim // config.num_heads
        self.key_heads = config.num_key_value_heads or config.num_heads
        self.prepare()

    def prepare(self) -> None:
        """Prepare the model once, after its parameters are loaded."""

    def __call__(self, **inputs: Any) -> Any:
        with torch.no_grad():
            self.heard = {}
            logits = self.run(**{name: tokens(value) for name, value in inputs.items() if value is not None})
            return self.heard if self.taps else logits

    def run(self, **given: Any) -> Tensor:
        c = self.c
        if c.architecture == "encoder-decoder":
            memory, seen = self.encode(given["source"], given.get("attention_mask"))
            x = self.decode(given["target"], memory, seen)
        elif c.architecture == "encoder":
            x, seen = self.encode(self.read(given), given.get("attention_mask"), given.get("token_types"))
        else:
            x = self.decode(given["tokens"], mask=given.get("attention_mask"))
        if c.is_pooled:
            real = self.real(self.read(given), given.get("attention_mask")) if c.patch_size is None else seen[:, 0, 0]
            x = self.pooled(x, real, self.read(given))
        return self.tap("logits", self.head(x))

    def read(self, given: Any) -> Tensor:
        found: Tensor = given["pixels" if self.c.patch_size else "tokens"]
        return found

    def tap(self, name: str, x: Tensor) -> Tensor:
        """Record a value by its name, unless the name contains a ~."""
        if "~" not in name:
            self.heard[name] = x
        return x

    def encode(self, ids: Tensor, mask: Any = None, types: Any = None) -> tuple[Tensor, Tensor]:
        """Return the encoder's output, and a mask of its visible positions."""
        if ids.is_floating_point():
            x = self.frames(ids.to(self.dtype)) if self.c.mel_bins else self.patches(ids.to(self.dtype))
            real = torch.ones(x.shape[:2], dtype=torch.bool)
        else:
            x, real = self.enter("encoder", ids), self.real(ids, mask)
        where = torch.arange(x.shape[1])[None]
        x = self.embed("encoder", x, where, real, types)
        return self.layers("encoder", x, where, self.padding(real)), self.padding(real)

    def decode(self, ids: Tensor, memory: Any = None, seen: Any = None, mask: Any = None, past: Any = None) -> Tensor:
        """Return the decoder's output; `past` is the cache, which is extended in place."""
        real = self.real(ids, mask)
        begin = 0
        if past is not None:
            begin = past["length"]
            real = past["real"] = torch.cat([past["real"], real], 1)
            past["length"] = begin + ids.shape[1]
        where = torch.arange(begin, begin + ids.shape[1])[None]
        keep = self.causal(where, real.shape[1]) if past is None else self.cached(where, real.shape[1])
        where = where if past is None else self.continued(where)
        x = self.embed("decoder", self.enter("decoder", ids), where, real)
        if self.c.target_mask == "causal-and-padding" or (self.c.padding == "attention-mask" and memory is None):
            keep = keep & self.padding(real)
        return self.layers("decoder", x, where, keep, memory, seen, past)

    def real(self, ids: Tensor, mask: Any) -> Tensor:
        if mask is not None:
            return mask != 0
        return ids != self.c.pad_id if self.c.pad_id is not None else torch.ones_like(ids, dtype=torch.bool)

    def padding(self, real: Tensor) -> Tensor:
        return real[:, None, None, :]

    def causal(self, where: Tensor, keys: int) -> Tensor:
        return (torch.arange(keys) <= where[..., None])[:, None]

    def cached(self, where: Tensor, keys: int) -> Tensor:
        return self.causal(where, keys)

    def continued(self, where: Tensor) -> Tensor:
        """Return the positions of new tokens, which follow the cached tokens."""
        return where

    def frames(self, mel: Tensor) -> Tensor:
        """Apply two convolutions over time; the second halves the number of positions."""
        for name, stride in (("first", 1), ("second", 2)):
            kernel = self.p[f"encoder.{name}_convolution.weight"]
            mel = F.conv1d(F.pad(mel, (1, 1)), kernel, self.p[f"encoder.{name}_convolution.bias"], stride)
            mel = F.gelu(mel)
            self.tap(f"encoder.{name}_convolution", mel.transpose(1, 2))
        return mel.transpose(1, 2)

    def patches(self, pixels: Tensor) -> Tensor:
        """Return the class token, then the patches of the image, row by row."""
        size = self.c.patch_size
        squares = pixels.unfold(2, size, size).unfold(3, size, size)  # (batch, channels, rows, columns, size, size)
        x = self.dense("encoder.patch_projection", squares.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))
        if not self.c.class_token:
            return x
        return torch.cat([self.p["encoder.class_embedding.weight"].expand(len(x), 1, -1), x], 1)

    def enter(self, name: str, ids: Tensor) -> Tensor:
        c, x = self.c, self.lookup(self.table(name), ids)
        if c.embedding_scale == "embed_dim":
            x = x * math.sqrt(c.embed_dim)
        if c.embedding_multiplier != 1:
            x = c.embedding_multiplier * x
        return x

    def embed(self, name: str, x: Tensor, where: Tensor, real: Tensor, types: Any = None) -> Tensor:
        """Add token types and positions to the embeddings of tokens, patches or frames."""
        c = self.c
        as_decoder = name == "decoder" or c.encoder_positions == "as-decoder"
        positions = c.positions if as_decoder else c.encoder_positions
        if types is not None:
            x = x + self.p[f"{name}.token_type_embedding.weight"][types]
        if positions == "learned":
            placed = 1 if c.position_count == "all" or c.position_offset else real[:, where[0], None]
            x = x + self.p[f"{name}.position_embedding.weight"][self.position_rows(where, real)] * placed
        elif positions == "sinusoidal":
            x = x + self.sinusoids(max(real.shape[1], int(where.max()) + 1))[where[0]].to(self.dtype)
        x = self.tap(f"{name}.embedding", x)
        return self.norm(f"{name}.embedding_norm", x, tap=True) if c.embedding_norm else x

    def table(self, name: str) -> Tensor:
        return self.p["encoder.token_embedding.weight" if self.c.shared_embedding else f"{name}.token_embedding.weight"]

    def lookup(self, table: Tensor, ids: Tensor) -> Tensor:
        return table[ids]

    def sinusoids(self, length: int) -> Tensor:
        return sinusoids(self.c, length)

    def position_rows(self, where: Tensor, real: Tensor) -> Tensor:
        if self.c.position_count == "all":
            return where + self.c.position_offset
        counted = torch.where(real, real.long().cumsum(1), 0)
        return counted[:, where[0]] + self.c.position_offset - 1

    def layers(
        self, name: str, x: Tensor, where: Tensor, keep: Tensor, memory: Any = None, seen: Any = None, past: Any = None
    ) -> Tensor:
        bias = self.bias(name, where, keep.shape[-1])
        for i in range(self.c.num_encoder_layers if name == "encoder" else self.c.num_decoder_layers):
            x = self.layer(f"{name}.layers.{i}", i, x, where, (keep, bias), memory, seen, past)
        if self.c.final_norm:
            x = self.norm(f"{name}.final_norm", x)
        return self.tap(f"{name}.output", x)

    def layer(
        self, at: str, i: int, x: Tensor, where: Tensor, own: tuple[Tensor, Any], memory: Any, seen: Any, past: Any
    ) -> Tensor:
        keep, bias = own
        self.own, window = self.facts(i), self.window(i)
        if window is not None:
            pieces = self.own.window_kind == "chunked"
            keep = keep & (self.together if pieces else self.near)(where, keep.shape[-1], window)
        given = self.before(f"{at}.self_attention", x)
        if self.own.mixer == "attention":
            y = self.attend(f"{at}.self_attention", given, given, keep, where, bias, past)
        else:
            y = self.recur(f"{at}.recurrence", given, self.itself(keep, where, len(x)), {} if past is None else past)
        if self.c.branches != "sequential":
            z = given if self.c.branches == "parallel-one-norm" else self.before(f"{at}.feed_forward", x)
            z = self.feed(f"{at}.feed_forward", z)
            return self.tap(f"{at}.output", x + self.c.residual_multiplier * (y + z))
        x = self.after(f"{at}.self_attention", x, y)
        if seen is not None:
            y = self.before(f"{at}.cross_attention", x)
            y = self.attend(f"{at}.cross_attention", y, self.memory(at, memory), seen, None, None, past)
            x = self.after(f"{at}.cross_attention", x, y)
        if self.own.feed_forward_dim == 0:
            return self.tap(f"{at}.output", x)
        y = self.before(f"{at}.feed_forward", x)
        x = self.after(f"{at}.feed_forward", x, self.feed(f"{at}.feed_forward", y))
        return self.tap(f"{at}.output", x)

    def memory(self, at: str, memory: Any) -> Any:
        return self.norm(f"{at}.memory_norm", memory, tap=True) if self.c.memory_norm and memory is not None else memory

    def window(self, i: int) -> Any:
        return self.facts(i).sliding_window

    def facts(self, i: int) -> Any:
        kinds = self.c.layer_types
        own = self.c.layer_overrides.get(kinds[i % len(kinds)], {}) if kinds else {}
        return SimpleNamespace(**{**vars(self.c), **own})

    def near(self, where: Tensor, keys: int, window: int) -> Tensor:
        return ((torch.arange(keys) - where[..., None]).abs() < window)[:, None]

    def together(self, where: Tensor, keys: int, window: int) -> Tensor:
        begin = where - where % window
        inside = torch.arange(keys) - begin[..., None]
        return ((inside >= 0) & (inside < window))[:, None]

    def sharpened(self, query: Tensor, where: Tensor) -> Tensor:
        """Return queries multiplied by a factor that grows with their position."""
        if self.own.query_temperature == 0:
            return query
        past = torch.floor((where + self.c.query_temperature_first).double() / self.c.query_temperature_length)
        factor = 1 + self.own.query_temperature * torch.log(past + 1)
        return query * factor.to(query.dtype).view(len(factor), 1, -1, 1)

    def bias(self, name: str, where: Tensor, keys: int) -> Any:
        """Return the bias of the scores for each distance, or None."""
        distance = torch.arange(keys) - where[..., None]
        if self.c.positions == "relative" or self.c.relative_bias:
            found = bucket(distance, self.c.relative_buckets, self.c.relative_max_distance, both=name == "encoder")
            return self.p[f"{name}.relative_bias.weight"][found].permute(0, 3, 1, 2)
        if self.c.positions == "alibi":
            slope = torch.tensor(slopes(self.c.num_heads), dtype=self.dtype)
            return -slope[:, None, None] * distance.abs().to(self.dtype)[:, None]
        return None

    def before(self, name: str, x: Tensor) -> Tensor:
        absent = name.endswith("self_attention") and not self.own.attention_norm
        return (
            x if self.c.norm_position in ("post", "post-branch") or absent else self.norm(f"{name}_norm", x, tap=True)
        )

    def after(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        by = self.c.residual_multiplier
        if self.c.norm_position == "pre":
            return x + by * y
        if self.c.norm_position == "post-branch":
            return x + by * self.norm(f"{name}_norm", y, tap=True)
        if self.c.norm_position == "sandwich":
            return x + by * self.norm(f"{name}_post_norm", y, tap=True)
        return self.norm(f"{name}_norm", x + by * y, tap=True)

    def norm(self, name: str, x: Tensor, *, tap: bool = False) -> Tensor:
        gain = self.p[f"{name}.weight"] + (1 if self.c.norm_gain == "one-plus-weight" else 0)
        if self.c.norm == "batch":
            mean, variance = self.p[f"{name}.running_mean"], self.p[f"{name}.running_var"]
            y = (x - mean) * torch.rsqrt(variance + self.c.norm_eps) * gain + self.p[f"{name}.bias"]
        else:
            y = self.normalized(x, gain, self.p.get(f"{name}.bias"))
        return self.tap(name, y) if tap else y

    def normalized(self, x: Tensor, gain: Tensor, bias: Any) -> Tensor:
        eps, wide = self.c.norm_eps, x.float() if x.dtype == torch.bfloat16 else x
        if self.c.norm == "rms":
            return self.rms(x, gain)
        bias = 0 if bias is None else bias
        away = wide - wide.mean(-1, keepdim=True)
        if self.c.norm == "layer-unbiased":
            return (away / (wide.std(-1, keepdim=True) + eps) * gain + bias).to(x.dtype)
        return (away * torch.rsqrt((away * away).mean(-1, keepdim=True) + eps) * gain + bias).to(x.dtype)

    def rms(self, x: Tensor, gain: Tensor) -> Tensor:
        wide = x.float() if x.dtype == torch.bfloat16 else x
        return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.c.norm_eps) * gain).to(x.dtype)

    def dense(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.p[f"{name}.weight"], self.p.get(f"{name}.bias"))

    def feed(self, at: str, x: Tensor) -> Tensor:
        if self.own.num_experts:
            return self.tap(f"{at}.output", self.experts(at, x))
        return self.dense_feed(at, x)

    def dense_feed(self, at: str, x: Tensor) -> Tensor:
        up = self.dense(f"{at}.up", x)
        up = self.gated(self.dense(f"{at}.gate", x), up) if self.c.gated else self.act(up)
        return self.tap(f"{at}.output", self.dense(f"{at}.down", self.tap(f"{at}.hidden", up)))

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.c.gate_limit is not None:
            most = torch.tensor(self.c.gate_limit, dtype=up.dtype)
            gate, up = torch.where(gate > most, most, gate), torch.maximum(torch.minimum(up, most), -most)
        return self.act(gate) * (up + self.c.up_offset)

    def experts(self, at: str, x: Tensor) -> Tensor:
        """Apply the chosen experts to each token, one token after another."""
        logits = self.tap(f"{at}.router_logits", self.dense(f"{at}.router", x))
        wide = logits.float() if logits.dtype == torch.bfloat16 else logits
        scores = torch.softmax(wide, -1) if self.c.router_scores == "softmax" else 1 / (1 + torch.exp(-wide))
        _, best = torch.topk(self.ranked(at, scores), self.c.experts_per_token)
        weights = torch.gather(scores, -1, best)
        if self.c.normalize_topk:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = (self.c.router_scale * weights).to(x.dtype)
        self.tap(f"{at}.router_chosen", torch.zeros_like(x[..., :1]).expand_as(logits).scatter(-1, best, 1.0))
        self.tap(f"{at}.router_weights", torch.zeros_like(logits).scatter(-1, best, weights))
        rows = []
        for token, own, share in zip(x.flatten(0, -2), best.flatten(0, -2), weights.flatten(0, -2), strict=True):
            parts = [by * self.quiet(f"{at}.experts.{int(i)}", token) for i, by in zip(own, share, strict=True)]
            rows.append(torch.stack(parts).sum(0))
        y = torch.stack(rows).view_as(x)
        return y + self.shared(at, x) if self.c.shared_expert_dim else y

    def ranked(self, at: str, scores: Tensor) -> Tensor:
        """Return the scores for choosing experts; groups that are not chosen have −∞."""
        c = self.c
        scores = scores + self.p[f"{at}.router_score_bias"] if c.router_score_bias else scores
        if c.router_groups == 1:
            return scores
        groups = scores.unflatten(-1, (c.router_groups, -1))
        best = torch.topk(torch.topk(groups, 2).values.sum(-1), c.topk_groups).indices
        kept = torch.zeros(groups.shape[:-1], dtype=torch.bool).scatter(-1, best, True)
        return torch.where(kept[..., None], groups, -torch.inf).flatten(-2)

    def shared(self, at: str, x: Tensor) -> Tensor:
        y = self.dense_feed(f"{at}.shared_expert", x)
        return torch.sigmoid(self.dense(f"{at}.shared_expert_gate", x)) * y if self.c.shared_expert_gate else y

    def quiet(self, at: str, x: Tensor) -> Tensor:
        up = self.dense(f"{at}.up", x)
        return self.dense(f"{at}.down", self.gated(self.dense(f"{at}.gate", x), up) if self.c.gated else self.act(up))

    def act(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.c.activation](x)

    def split(self, name: str, x: Tensor, heads: int) -> Tensor:
        """Project `x`, and return the result as (batch, heads, length, head_dim)."""
        if self.c.projection == "shared-per-head":
            return self.dense(name, x.unflatten(-1, (heads, -1))).transpose(1, 2)
        return self.dense(name, x).unflatten(-1, (heads, -1)).transpose(1, 2)

    def attend(self, at: str, x: Tensor, y: Any, keep: Tensor, where: Any, bias: Any, past: Any) -> Tensor:
        """Attend from `x` to `y`; `where` is the positions of `x`, or None in cross-attention."""
        given = self.low(at, "query", x) if self.c.q_lora_rank else x
        query = self.tap(f"{at}.query", self.split(f"{at}.query", given, self.c.num_heads))
        query = self.placed(at, "query", query, where)
        query = query if where is None else self.sharpened(query, where)
        if past is not None and where is None:
            key, value = past[at]
        else:
            key, value = self.key_value(at, y, where)
            if past is not None:
                key, value = self.remember(past, at, key, value)
        context = self.weigh(at, query, key, value, keep, bias)
        context = self.tap(f"{at}.context", context.transpose(1, 2).flatten(-2))
        if self.c.attention_gate:
            context = self.tap(f"{at}.gated_context", context / (1 + torch.exp(-self.dense(f"{at}.gate", x))))
        return self.tap(f"{at}.output", self.dense(f"{at}.output", context))

    def itself(self, keep: Tensor, where: Tensor, rows: int) -> Tensor:
        """Return a mask of the queries that may attend to their own position; padding may not."""
        return keep[:, 0].expand(rows, -1, -1).gather(-1, where.expand(rows, -1)[..., None])

    def recur(self, at: str, x: Tensor, real: Tensor, past: Cache) -> Tensor:
        """Apply a recurrence in place of attention; `real` is a mask of the tokens that are not padding."""
        return (self.correct if self.own.mixer == "gated-delta" else self.select)(at, x, real, past)

    def select(self, at: str, x: Tensor, real: Tensor, past: Cache) -> Tensor:
        """Apply Mamba-2: for each token, a head's state decays, is updated, and is read."""
        c, before, x = self.c, past.get(at, {}), x * real
        kept: Cache = {}
        read, write, v = (self.convolved(at, role, x, before, kept, real) for role in ("query", "key", "value"))
        read, write = (y.unflatten(-1, (c.recurrent_key_heads, -1)) for y in (read, write))
        v = v.unflatten(-1, (c.recurrent_heads, -1))
        step = F.softplus(self.dense(f"{at}.decay", x) + self.p[f"{at}.dt_bias"], threshold=1e9)
        step = self.tap(f"{at}.time_step", self.bounded(step))
        left = self.tap(f"{at}.log_decay", step * -self.p[f"{at}.A_log"].exp()).exp()
        heads, kept["state"] = [], []
        for head, state in enumerate(before.get("state", [0.0] * c.recurrent_heads)):
            group, found = self.group(head), []
            for t in range(x.shape[1]):
                added = step[:, t, head, None, None] * v[:, t, head, :, None] * write[:, t, group, None, :]
                state = left[:, t, head, None, None] * state + added  # noqa: PLW2901 - it goes on
                found.append((state * read[:, t, group, None, :]).sum(-1) + self.p[f"{at}.D"][head] * v[:, t, head])
            heads.append(torch.stack(found, 1))
            kept["state"].append(state)
        past[at] = kept
        y = self.gate(at, self.tap(f"{at}.context", torch.cat(heads, -1)), x)
        return self.tap(f"{at}.output", self.dense(f"{at}.output", self.tap(f"{at}.gated_context", y)))

    def group(self, head: int) -> int:
        """Return the index of the group that contains a head's keys and queries."""
        return int(head // (self.c.recurrent_heads // self.c.recurrent_key_heads))

    def bounded(self, step: Tensor) -> Tensor:
        step = torch.maximum(step, torch.tensor(self.c.time_step_min, dtype=step.dtype))
        most = self.c.time_step_max
        return step if most is None else torch.minimum(step, torch.tensor(most, dtype=step.dtype))

    def gate(self, at: str, y: Tensor, x: Tensor) -> Tensor:
        z = self.dense(f"{at}.gate", x)
        groups = (y * z / (1 + torch.exp(-z))).unflatten(-1, (self.c.recurrent_key_heads, -1))
        size = (groups.pow(2).mean(-1, keepdim=True) + self.c.norm_eps).sqrt()
        return (groups / size).flatten(-2) * self.p[f"{at}.gated_norm.weight"]

    def correct(self, at: str, x: Tensor, real: Tensor, past: Cache) -> Tensor:
        """Apply the gated delta rule: for each token, a state decays, is corrected, and is read."""
        c, before, x = self.c, past.get(at, {}), x * real
        kept: Cache = {}
        q, k, v = (self.convolved(at, role, x, before, kept) for role in ("query", "key", "value"))
        q, k = (y.unflatten(-1, (c.recurrent_key_heads, -1)) for y in (q, k))
        q, k = (y / (y.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
        for role, y in (("query", q), ("key", k)):
            self.tap(f"{at}.{role}_normalized", y.transpose(1, 2))
        step = F.softplus(self.dense(f"{at}.decay", x) + self.p[f"{at}.dt_bias"], threshold=1e9)
        decay = self.tap(f"{at}.log_decay", -step * self.p[f"{at}.A_log"].exp())
        beta = self.tap(f"{at}.beta", torch.sigmoid(self.dense(f"{at}.beta", x)))
        shared = c.recurrent_heads // c.recurrent_key_heads
        q, k = (y.repeat_interleave(shared, 2) for y in (q, k))
        v = v.unflatten(-1, (c.recurrent_heads, -1))
        state, read = before.get("state"), []
        if state is None:
            state = torch.zeros(len(x), v.shape[2], k.shape[-1], v.shape[-1], dtype=self.dtype)
        for t in range(x.shape[1]):
            state = state * decay[:, t, :, None, None].exp()
            wrong = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], state)
            state = state + torch.einsum("bh,bhk,bhv->bhkv", beta[:, t], k[:, t], wrong)
            read.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state) / math.sqrt(q.shape[-1]))
        past[at] = {**kept, "state": state}
        y = self.tap(f"{at}.context", torch.stack(read, 1).flatten(-2)).unflatten(-1, (c.recurrent_heads, -1))
        y = self.rms(y, self.p[f"{at}.gated_norm.weight"]).flatten(-2) * F.silu(self.dense(f"{at}.gate", x))
        return self.tap(f"{at}.output", self.dense(f"{at}.output", self.tap(f"{at}.gated_context", y)))

    def convolved(self, at: str, role: str, x: Tensor, before: Cache, kept: Cache, real: Any = 1) -> Tensor:
        """Apply a causal depthwise convolution."""
        kernel = self.p[f"{at}.{role}_convolution.weight"]
        x = self.dense(f"{at}.{role}", x).transpose(1, 2)
        more = kernel.shape[1] - 1
        x = torch.cat([before[role], x], -1) if role in before else F.pad(x, (more, 0))
        kept[role] = x[..., x.shape[-1] - more :]
        y = F.conv1d(x, kernel[:, None], self.p.get(f"{at}.{role}_convolution.bias"), groups=len(kernel))
        return self.tap(f"{at}.{role}_convolved", F.silu(y.transpose(1, 2)) * real)

    def low(self, at: str, role: str, x: Tensor) -> Tensor:
        x = self.dense(f"{at}.{role}_latent", x)
        gain = self.p[f"{at}.{role}_latent_norm.weight"] + (1 if self.c.norm_gain == "one-plus-weight" else 0)
        return self.tap(f"{at}.{role}_latent", self.rms(x, gain))

    def of_latent(self, at: str, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of all heads; the rotated part of the key is shared by all heads."""
        low, heads = self.low(at, "key_value", y), self.c.num_heads
        weights = torch.cat([self.p[f"{at}.{role}.weight"].unflatten(0, (heads, -1)) for role in ("key", "value")], 1)
        both = torch.einsum("btr,hfr->bhtf", low, weights)
        wide = self.c.value_head_dim or self.head_dim
        key, value = both[..., :-wide], both[..., -wide:]
        turned = self.dense(f"{at}.key_rotary", y).unsqueeze(1).repeat(1, heads, 1, 1)
        return torch.cat([key, turned], -1), value

    def key_value(self, at: str, y: Tensor, where: Any) -> tuple[Tensor, Tensor]:
        if self.c.kv_lora_rank:
            key, value = self.of_latent(at, y)
            return self.placed(at, "key", self.tap(f"{at}.key", key), where), self.tap(f"{at}.value", value)
        key = self.tap(f"{at}.key", self.split(f"{at}.key", y, self.key_heads))
        return self.placed(at, "key", key, where), self.tap(f"{at}.value", self.split(f"{at}.value", y, self.key_heads))

    def remember(self, past: Cache, at: str, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if at in past:
            key, value = torch.cat([past[at][0], key], 2), torch.cat([past[at][1], value], 2)
        past[at] = (key, value)
        return key, value

    def placed(self, at: str, role: str, x: Tensor, where: Any) -> Tensor:
        """Apply the norm and the rotation of a query or key."""
        if self.c.query_key_norm:
            gain = self.p[f"{at}.{role}_norm.weight"] + (1 if self.c.norm_gain == "one-plus-weight" else 0)
            if self.c.query_key_norm_over == "projection":
                flat = self.rms(x.transpose(1, 2).flatten(-2), gain)
                x = self.tap(f"{at}.{role}_norm", flat.unflatten(-1, (x.shape[1], -1)).transpose(1, 2))
            else:
                x = self.tap(f"{at}.{role}_norm", self.rms(x, gain))
        if self.own.positions == "rotary" and where is not None:
            first = self.head_dim - self.c.rotary_dim if self.c.kv_lora_rank else 0
            x = self.tap(f"{at}.{role}_rotated", torch.cat([x[..., :first], self.rotated(x[..., first:], where)], -1))
        return x

    def rotated(self, x: Tensor, where: Tensor) -> Tensor:
        return rotate(x, where, self.frequencies(where), self.c.rope_layout, self.own.rotary_attention_factor)

    def scale(self) -> float:
        width = {"head_dim": self.head_dim, "embed_dim": self.c.embed_dim, "none": 1}[self.c.attention_scale]
        return float(self.c.attention_multiplier / math.sqrt(width))

    def masked_score(self) -> float:
        lowest = torch.finfo(self.dtype).min / 2
        value = self.c.mask_value * (self.scale() if self.c.mask_order == "before-scale" else 1)
        return float(max(value, lowest))

    def weigh(self, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        scores = self.tap(f"{at}.scores", self.scores(query, key, bias))
        weights = self.tap(f"{at}.weights", self.shares(at, self.masked(scores, keep)))
        return weights @ value

    def shares(self, at: str, scores: Tensor) -> Tensor:
        """Return the attention weights; a sink is added to the softmax if the model has one."""
        if not self.c.attention_sinks:
            return self.softmax(scores)
        sink = self.p[f"{at.rstrip('~')}.sinks"].view(1, -1, 1, 1).expand(len(scores), -1, scores.shape[2], -1)
        return self.softmax(torch.cat([sink, scores], -1))[..., 1:]

    def scores(self, query: Tensor, key: Tensor, bias: Any) -> Tensor:
        scores = self.capped(query @ key.transpose(-2, -1) * self.scale())
        return scores if bias is None else scores + bias

    def capped(self, scores: Tensor) -> Tensor:
        cap = self.c.attention_softcap
        return scores if cap is None else cap * torch.tanh(scores / cap)

    def wide(self) -> torch.dtype:
        return torch.float32 if self.dtype == torch.bfloat16 else self.dtype

    def frequencies(self, where: Tensor) -> Tensor:
        return inverse_frequencies(self.own, self.head_dim, int(where.max()) + 1)

    def masked(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores.masked_fill(~keep, self.masked_score())

    def softmax(self, scores: Tensor) -> Tensor:
        wide = scores.float() if scores.dtype == torch.bfloat16 else scores
        return torch.softmax(wide, -1).to(scores.dtype)

    def pooled(self, x: Tensor, real: Tensor, tokens: Tensor) -> Tensor:
        """Return one state per row: the state of a chosen position, or the mean of all real positions."""
        weights = torch.zeros_like(real, dtype=self.dtype)
        if self.c.pooling == "mean":
            weights = real.to(self.dtype) / real.sum(1, keepdim=True).clamp(min=1)
        elif self.c.pooling == "first":
            weights[:, 0] = 1
        else:
            wanted = {"last": real, "eos": tokens == self.c.eos_id, "largest": tokens == tokens.amax(1, keepdim=True)}
            for row, marked in enumerate(wanted[self.c.pooling]):
                places = [place for place, is_marked in enumerate(marked.tolist()) if is_marked] or [0]
                weights[row, places[-1 if self.c.pooling == "last" else 0]] = 1
        return self.tap("pooled", (weights[:, None] @ x)[:, 0])

    def head(self, x: Tensor) -> Tensor:
        c = self.c
        if c.head == "hidden":
            return x
        if c.is_pooled and c.pooler != "none":
            x = POOLERS[c.pooler](self.dense("pooler", x))
        if c.head == "pooled":
            return x
        if c.head_transform:
            x = self.norm("head_norm", self.act(self.dense("head_transform", x)))
        if c.head == "classes":
            return self.dense("head", x)
        if c.head_scale == "embed_dim":
            x = x / math.sqrt(c.embed_dim)
        weight = self.table("encoder" if c.architecture == "encoder" else "decoder") if c.tied_head else None
        x = x * c.head_multiplier
        logits = F.linear(x, self.p["head.weight"] if weight is None else weight, self.p.get("head.bias"))
        return c.final_softcap * torch.tanh(logits / c.final_softcap) if c.final_softcap else logits


def tokens(value: Any) -> Tensor:
    found = torch.as_tensor(np.asarray(value))
    return found if found.is_floating_point() else found.long()
