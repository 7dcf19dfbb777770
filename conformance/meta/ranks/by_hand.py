"""A decoder that is sharded by hand, as a person writes one for `torchrun`: heads and hidden features over the ranks,
or layers in stages, or rows of the batch; right, or with one mistake in the line where people make it.

`by_hand.py:tensor`, `:tensor_padded`, … are right; `by_hand.py:tensor__bias` makes the mistake `bias`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from meta.ranks.collectives import copied, gather, gathered, join_group, reduced, scatter, summed
from transparity.config import TransformerConfig

RANK, RANKS = join_group()

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu-tanh": functools.partial(F.gelu, approximate="tanh"),
}

COLUMNS, ROWS = ("query", "key", "value", "gate", "up"), ("output", "down")


class Decoder:
    """The parts that all plans share."""

    def __init__(self, config: TransformerConfig, parameters: Mapping[str, np.ndarray], plan: str, fault: str) -> None:
        self.c, self.plan, self.fault = config, plan, fault
        self.full = {name: torch.tensor(value) for name, value in parameters.items()}
        self.p = {name: self.local(name, value).requires_grad_() for name, value in self.full.items()}
        self.taps: dict[str, torch.Tensor] = {}
        self.placements: dict[str, Any] = {}

    def local(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    def __call__(self, tokens: Any) -> Any:
        with torch.no_grad():
            return self.answer(self.logits(torch.as_tensor(tokens)))

    def answer(self, logits: torch.Tensor) -> Any:
        return {**self.taps, "logits": logits} if self.plan.endswith("taps") else logits

    def linear(self, at: str, x: torch.Tensor, bias: bool = True) -> torch.Tensor:
        return F.linear(x, self.p[f"{at}.weight"], self.p.get(f"{at}.bias") if bias else None)

    def norm(self, at: str, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.p[f"{at}.weight"], self.p.get(f"{at}.bias")
        if self.c.norm == "rms":
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.c.norm_eps) * weight
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.c.norm_eps)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        x = F.embedding(tokens, self.p["decoder.token_embedding.weight"])
        if self.c.positions == "learned":
            rows = torch.arange(tokens.shape[1]) + self.c.position_offset
            x = x + self.p["decoder.position_embedding.weight"][rows]
        x = self.drop("embedding", x)
        return self.norm("decoder.embedding_norm", x) if self.c.embedding_norm else x

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        pairs = self.c.head_dim // 2
        angles = torch.arange(x.shape[2])[:, None] * self.c.rope_theta ** (-torch.arange(pairs) / pairs)
        cos, sin = angles.cos(), angles.sin()
        a, b = x[..., :pairs], x[..., pairs:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def slopes(self, heads: int) -> torch.Tensor:
        below = 2 ** int(math.log2(heads))
        first = [2 ** (-8 * (i + 1) / below) for i in range(below)]
        between = [2 ** (-4 * (2 * i + 1) / below) for i in range(heads - below)]
        return torch.tensor(first + between, dtype=torch.float32)

    def bias(self, length: int, heads: range) -> torch.Tensor | None:
        """The bias of distances of some heads."""
        far = (torch.arange(length)[:, None] - torch.arange(length)).clamp(min=0)
        if self.c.positions == "alibi":
            slopes = self.slopes(len(heads)) if self.fault == "slopes" else self.slopes(self.c.num_heads)[list(heads)]
            return -slopes[:, None, None] * far
        if self.c.positions != "relative":
            return None
        exact, most = self.c.relative_buckets // 2, self.c.relative_max_distance
        share = torch.log(far.clamp(min=1).double() / exact) / math.log(most / exact) + 1e-9
        shared = (exact + (share * (self.c.relative_buckets - exact)).int()).clamp(max=self.c.relative_buckets - 1)
        table = self.p["decoder.relative_bias.weight"]
        table = table if table.shape[1] == len(heads) else table[:, list(heads)]
        return table[torch.where(far < exact, far, shared)].permute(2, 0, 1)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: range, window: int | None) -> Any:
        """Attention of some heads; those of keys and values are shared by as many consecutive ones as divide evenly."""
        length = q.shape[2]
        if self.c.positions == "rotary":
            q, k = self.rotated(q), self.rotated(k)
        k, v = (x.repeat_interleave(len(heads) // x.shape[1], 1) for x in (k, v))
        scores = q @ k.mT * self.c.score_scale
        bias = self.bias(length, heads)
        scores = scores if bias is None else scores + bias
        far = torch.arange(length)[:, None] - torch.arange(length)
        hidden = (far < 0) | (far >= window if window else torch.zeros_like(far, dtype=torch.bool))
        weights = self.drop(f"weights.{heads}", scores.masked_fill(hidden, max(self.c.masked_score, -1e30)).softmax(-1))
        return (weights @ v).transpose(1, 2).flatten(2)

    def heads_of(self, at: str, role: str, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(f"{at}.{role}", x)
        return y.unflatten(-1, (-1, self.c.head_dim)).transpose(1, 2)

    def layer(self, i: int, x: torch.Tensor) -> torch.Tensor:
        at = f"decoder.layers.{i}"
        x = x + self.tap(f"{at}.self_attention.output", self.attention(i, self.norm(f"{at}.self_attention_norm", x)))
        y = self.feed_forward(f"{at}.feed_forward", self.norm(f"{at}.feed_forward_norm", x))
        return self.tap(f"{at}.output", x + self.tap(f"{at}.feed_forward.output", y))

    def attention(self, i: int, x: torch.Tensor) -> torch.Tensor:
        at, window = f"decoder.layers.{i}.self_attention", self.c.for_layer("decoder", i).sliding_window
        q, k, v = (self.heads_of(at, role, x) for role in ("query", "key", "value"))
        return self.linear(f"{at}.output", self.attend(q, k, v, range(self.c.num_heads), window))

    def feed_forward(self, at: str, x: torch.Tensor) -> torch.Tensor:
        activation = ACTIVATIONS[self.c.activation]
        up = self.linear(f"{at}.up", x)
        hidden = activation(self.linear(f"{at}.gate", x)) * up if self.c.gated else activation(up)
        return self.linear(f"{at}.down", hidden)

    def drop(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x

    def tap(self, name: str, x: torch.Tensor) -> torch.Tensor:
        if self.plan.endswith("taps"):
            self.taps[name] = x.detach()
        return x

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for i in range(self.c.num_decoder_layers):
            x = self.layer(i, x)
        return self.head(self.norm("decoder.final_norm", x))

    def head(self, x: torch.Tensor) -> torch.Tensor:
        name = "decoder.token_embedding.weight" if self.c.tied_head else "head.weight"
        return F.linear(x, self.p[name], self.p.get("head.bias"))


class TensorParallel(Decoder):
    """Heads and hidden features over the ranks; with `padded` and `columns`, the vocabulary, too."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        columns = {f"*.{role}.{kind}": "sharded:0" for role in COLUMNS for kind in ("weight", "bias")}
        self.placements = columns | {f"*.{role}.weight": "sharded:1" for role in ROWS}
        if self.c.key_value_heads % RANKS:
            self.placements = dict.fromkeys(("*.key.*", "*.value.*"), "replicated") | self.placements
        if self.plan.startswith("columns"):
            self.placements |= {"logits": "sharded:-1", "head.*": "sharded:0"}
        if self.plan.startswith("padded"):
            self.placements |= {"logits": "padded:-1"}

    def local(self, name: str, value: torch.Tensor) -> torch.Tensor:
        role = name.split(".")[-2]
        if role in ("key", "value") and self.c.key_value_heads % RANKS:
            return value.clone()
        if role in COLUMNS or (role == "head" and self.plan.startswith("columns")):
            return self.cut(name, value).clone()
        if role in ROWS and name.endswith("weight"):
            return value.chunk(RANKS, 1)[RANK].clone()
        return value.clone()

    def cut(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """The rows of a rank; with the mistake `fused`, those of the matrix of all maps of one input."""
        *parts, role, kind = name.split(".")
        scope = ".".join(parts)
        roles = {"gate": ("gate", "up"), "up": ("gate", "up")}.get(role, ("query", "key", "value"))
        fuses = self.fault == ("fused_gate" if role in ("gate", "up") else "fused") and role != "head"
        if not fuses or not all(f"{scope}.{each}.{kind}" in self.full for each in roles):
            return value.chunk(RANKS)[RANK]
        fused = [self.full[f"{scope}.{each}.{kind}"] for each in roles]
        sizes = [len(each) // RANKS for each in fused]
        return dict(zip(roles, torch.cat(fused).chunk(RANKS)[RANK].split(sizes), strict=True))[role]

    def bias(self, length: int, heads: range) -> torch.Tensor | None:
        first = range(len(heads)) if self.fault == "heads" else heads
        return super().bias(length, first)

    def attention(self, i: int, x: torch.Tensor) -> torch.Tensor:
        at, window = f"decoder.layers.{i}.self_attention", self.c.for_layer("decoder", i).sliding_window
        count, x = self.c.num_heads // RANKS, copied(x)
        heads = range(RANK * count, (RANK + 1) * count)
        q, k, v = (self.heads_of(at, role, x) for role in ("query", "key", "value"))
        if self.c.key_value_heads % RANKS:  # every rank has all keys and values, and takes those of its heads
            group = self.c.num_heads // self.c.key_value_heads
            k, v = (y[:, [head // group for head in heads]] for y in (k, v))
        return self.row(f"{at}.output", self.attend(q, k, v, heads, window))

    def feed_forward(self, at: str, x: torch.Tensor) -> torch.Tensor:
        activation, x = ACTIVATIONS[self.c.activation], copied(x)
        up = self.linear(f"{at}.up", x)
        hidden = activation(self.linear(f"{at}.gate", x)) * up if self.c.gated else activation(up)
        return self.row(f"{at}.down", hidden)

    def row(self, at: str, x: torch.Tensor) -> torch.Tensor:
        """A map whose inputs are sharded."""
        bias = self.p.get(f"{at}.bias")
        if self.fault == "bias" or (self.fault == "bias_down" and at.endswith("down")):
            return reduced(self.linear(at, x))
        if self.fault == "not_reduced" and at.endswith("down"):
            return self.linear(at, x)
        if self.fault == "bias_share" and bias is not None:  # right on the way forward, a share of it on the way back
            return reduced(self.linear(at, x, bias=False) + bias / RANKS)
        y = reduced(self.linear(at, x, bias=False))
        y = y if bias is None else y + bias
        return reduced(y) if self.fault == "twice" and at.endswith("down") else y

    def norm(self, at: str, x: torch.Tensor) -> torch.Tensor:
        """With `sequence`, every rank normalizes its share of the positions."""
        if not self.plan.startswith("sequence"):
            return super().norm(at, x)
        padded = F.pad(x, (0, 0, 0, -x.shape[1] % RANKS))
        return gather(super().norm(at, scatter(padded, 1)), 1)[:, : x.shape[1]]

    def head(self, x: torch.Tensor) -> torch.Tensor:
        if self.plan.startswith("columns"):
            return F.linear(copied(x), self.p["head.weight"], self.p.get("head.bias"))
        logits = super().head(x)
        more = -logits.shape[-1] % (64 * RANKS)
        return F.pad(logits, (0, more)) if self.plan.startswith("padded") else logits

    def whole(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits over the whole vocabulary, without its padding."""
        if self.plan.startswith("columns"):
            return gather(logits, -1)
        return logits if self.fault == "padded_loss" else logits[..., : self.c.target_vocab_size]

    def loss(self, targets: Any, tokens: Any) -> torch.Tensor:
        logits = self.whole(self.logits(torch.as_tensor(tokens)))
        ignored = -100 if self.c.pad_id is None else self.c.pad_id
        return F.cross_entropy(logits.flatten(0, 1), torch.as_tensor(targets).flatten(), ignore_index=ignored)

    def loss_and_gradients(self, targets: Any, tokens: Any) -> Any:
        """The loss, and the gradients of the rank's own parameters."""
        loss = self.loss(targets, tokens)
        names = list(self.p)
        found = torch.autograd.grad(loss, [self.p[name] for name in names], allow_unused=True)
        given = {n: torch.zeros_like(self.p[n]) if g is None else g for n, g in zip(names, found, strict=True)}
        return loss.detach(), {name: self.settled(name, gradient) for name, gradient in given.items()}

    def train(self, batches: Any, training: Any) -> Any:
        """Steps of SGD with momentum or of AdamW on a copy of the rank's own parameters."""
        given = {name: value.numpy() for name, value in self.full.items()}
        return type(self)(self.c, given, self.plan, self.fault).trained(batches, training)

    def trained(self, batches: Any, training: Any) -> Any:
        losses, first, second = [], {}, {}  # type: ignore[var-annotated]
        for step, batch in enumerate(batches, 1):
            tokens = {"targets": batch["targets"], "tokens": batch["tokens"]}
            loss, gradients = self.loss_and_gradients(**tokens)
            losses.append(float(loss))
            if training.max_norm is not None:
                factor = min(1.0, training.max_norm / self.norm_of(gradients))
                gradients = {name: factor * gradient for name, gradient in gradients.items()}
            rate, (beta1, beta2) = training.rate(step, self.c.embed_dim), training.betas
            for name, gradient in gradients.items():
                value, before = self.p[name].detach(), first.get(name, torch.zeros_like(gradient))
                if training.optimizer == "sgd":
                    first[name] = training.momentum * before + gradient
                    change = rate * first[name]
                else:
                    first[name] = beta1 * before + (1 - beta1) * gradient
                    square = second.get(name, torch.zeros_like(gradient))
                    second[name] = beta2 * square + (1 - beta2) * gradient.square()
                    mean, spread = first[name] / (1 - beta1**step), second[name] / (1 - beta2**step)
                    change = rate * mean / (spread.sqrt() + training.eps) + rate * training.weight_decay * value
                self.p[name] = (value - change).requires_grad_()
        return losses, {name: value.detach() for name, value in self.p.items()}

    def norm_of(self, gradients: Mapping[str, torch.Tensor]) -> float:
        """The norm of all gradients: the squares of shards are added up over the ranks, those of replicas are not."""
        own, everywhere = torch.zeros(()), torch.zeros(())
        for name, gradient in gradients.items():
            is_shard = gradient.shape != self.full[name].shape
            own += gradient.square().sum() * is_shard
            everywhere += gradient.square().sum() * (not is_shard)
        if self.fault == "norm_of_shards":
            return float((own + everywhere).sqrt())
        if self.fault == "norm_of_replicas":
            return float(summed(own + everywhere).sqrt())
        return float((summed(own) + everywhere).sqrt())

    def settled(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of a replica, summed over the ranks where each has seen a part."""
        is_norm = "norm" in name and self.plan.startswith("sequence")
        return summed(gradient) if is_norm and self.fault != "norms" else gradient


class Dropping(TensorParallel):
    """The same with a pass as in training: replicas have one seed on all ranks, shards one of each rank."""

    rate = 0.0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.placements |= {"*.weights": "sharded:1"}

    def with_dropout(self, tokens: Any) -> dict[str, torch.Tensor]:
        self.rate, self.taps = 0.3, {}
        self.alike = torch.Generator().manual_seed(1 + RANK * (self.fault == "replicas"))
        self.apart = torch.Generator().manual_seed(2 + RANK * (self.fault != "same_seed"))
        with torch.no_grad():
            self.logits(torch.as_tensor(tokens))
        self.rate = 0.0
        return self.taps

    def drop(self, name: str, x: torch.Tensor) -> torch.Tensor:
        if not self.rate:
            return x
        random = self.alike if name == "embedding" else self.apart
        kept = torch.rand(x.shape, generator=random) >= self.rate
        x = x * kept / (1 - self.rate)
        tap = "embedding" if name == "embedding" else f"layers.{self.layers_passed}.self_attention.weights"
        self.taps[f"decoder.{tap}"] = x
        return x

    def attention(self, i: int, x: torch.Tensor) -> torch.Tensor:
        self.layers_passed = i
        return super().attention(i, x)


class Stages(Decoder):
    """Layers in stages; the last rank has the logits."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.placements = {"logits": "rank:-1"} if self.plan.startswith("stages") else {}

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        size = self.c.num_decoder_layers // RANKS
        x = self.embed(tokens)
        for stage in range(RANKS):
            if stage == RANK:
                for i in range(size):
                    x = self.stage_layer(i, stage * size + i, x)
            x = summed(x if stage == RANK else torch.zeros_like(x))  # from the stage to all others
        return self.head(self.norm("decoder.final_norm", x))

    def stage_layer(self, local: int, i: int, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "layer_weights":
            return self.layer(local, x)
        if self.fault == "layer_windows":
            self.own_window = self.c.for_layer("decoder", local).sliding_window
        return self.layer(i, x)

    def attend(self, q: Any, k: Any, v: Any, heads: range, window: int | None) -> Any:
        return super().attend(q, k, v, heads, self.own_window if self.fault == "layer_windows" else window)

    def answer(self, logits: torch.Tensor) -> Any:
        return logits if RANK == RANKS - 1 or not self.placements else None


class Rows(Decoder):
    """Rows of the batch over the ranks; one that is left without any takes the first."""

    def own(self, rows: torch.Tensor) -> torch.Tensor:
        padded = torch.cat([rows, rows[:1].expand(-len(rows) % RANKS, -1)])
        return padded.chunk(RANKS)[RANK]

    def __call__(self, tokens: Any) -> Any:
        tokens = torch.as_tensor(tokens)
        with torch.no_grad():
            return gathered(self.logits(self.own(tokens)), 0)[: len(tokens)]

    def loss(self, targets: Any, tokens: Any) -> Any:
        tokens, targets = torch.as_tensor(tokens), torch.as_tensor(targets)
        ignored = -100 if self.c.pad_id is None else self.c.pad_id
        keep = self.own(torch.arange(len(tokens) + -len(tokens) % RANKS)[:, None])[:, 0] < len(tokens)
        mine = torch.where(keep[:, None], self.own(targets), ignored)
        logits = self.logits(self.own(tokens)).flatten(0, 1)
        total = F.cross_entropy(logits, mine.flatten(), ignore_index=ignored, reduction="sum")
        count = (mine != ignored).sum()
        if self.fault == "mean_of_means":
            return reduced(total / count.clamp(min=1)) / RANKS
        return reduced(total) / summed(count)

    def loss_and_gradients(self, targets: Any, tokens: Any) -> Any:
        """The loss, and its gradients summed over the ranks."""
        loss = self.loss(targets, tokens)
        found = torch.autograd.grad(loss, list(self.p.values()))
        whole = found if self.fault == "not_summed" else [summed(gradient) for gradient in found]
        return loss.detach(), dict(zip(self.p, whole, strict=True))


PLANS: dict[str, type[Decoder]] = {
    "tensor": TensorParallel,
    "columns": TensorParallel,
    "padded": TensorParallel,
    "sequence": TensorParallel,
    "dropping": Dropping,
    "stages": Stages,
    "everywhere": Stages,
    "rows": Rows,
}


class ForwardAlone:
    """A model that does not learn."""

    def __init__(self, model: Decoder) -> None:
        self.model, self.placements = model, model.placements

    def __call__(self, tokens: Any) -> Any:
        return self.model(tokens)


def __getattr__(name: str) -> Callable[..., Any]:
    """`PLAN__FAULT`, as a `build(config, parameters)`; a PLAN that ends in `_taps` shows activations, and one that ends
    in `_learning` offers its loss, gradients and training."""
    plan, _, fault = name.partition("__")
    kind = PLANS.get(plan.removesuffix("_taps").removesuffix("_learning"))
    if kind is None:
        raise AttributeError(name)

    def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Decoder | ForwardAlone:
        model = kind(config, parameters, plan, fault)
        return model if plan.endswith("_learning") else ForwardAlone(model)

    return build
