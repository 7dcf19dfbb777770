"""The independent port, sharded by hand as for `torchrun`.

The ranks divide heads and hidden features, layers (in stages), or rows of the batch. A port is correct, or has one
common mistake. `by_hand.py:tensor`, `:padded`, … are correct; `by_hand.py:tensor__bias` has the mistake `bias` of
mistakes.toml.
"""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meta.independent.model import tokens
from meta.independent.port import Port, as_numpy
from meta.pool import bug
from meta.ranks.collectives import copied, gather, gathered, join_group, reduced, scatter, summed
from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.running.loading import load_port

RANK, RANKS = join_group()

COLUMNS, ROWS = ("query", "key", "value", "gate", "up"), ("output", "down")
TAPS = ("self_attention.output", "feed_forward.output")
"""The activations that a plan returns if its name ends in `_taps`."""


class Sharded(Port):
    """The base class of all plans, with the full parameters and the rank's shards."""

    plan = ""
    offers: tuple[str, ...] = ("loss", "loss_and_gradients")
    placements: dict[str, Any]

    def prepare(self) -> None:
        self.placements, self.shapes = {}, parameter_shapes(self.c)
        self.full = dict(self.p)
        self.p = {name: self.local(name, value) for name, value in self.full.items()}

    def local(self, name: str, value: Tensor) -> Tensor:
        return value.clone()

    def __call__(self, **inputs: Any) -> Any:
        logits = super().__call__(**inputs)
        shown = {name: x for name, x in self.heard.items() if ".layers." in name and name.endswith((*TAPS, ".output"))}
        shown = {name: x for name, x in shown.items() if name.endswith(TAPS) or name.count(".") == 3}
        return {**shown, "logits": logits} if self.plan.endswith("taps") else logits

    def ignored(self) -> int:
        return -100 if self.c.pad_id is None else self.c.pad_id


class TensorParallel(Sharded):
    """A plan that divides heads and hidden features over the ranks, and the vocabulary if `padded` or `columns`."""

    offers: tuple[str, ...] = ("loss", "loss_and_gradients", "train")

    def prepare(self) -> None:
        super().prepare()
        columns = {f"*.{role}.{kind}": "sharded:0" for role in COLUMNS for kind in ("weight", "bias")}
        self.placements = columns | {f"*.{role}.weight": "sharded:1" for role in ROWS}
        if self.c.query_key_norm_over == "projection":
            self.placements |= {"*.query_norm.weight": "sharded:0", "*.key_norm.weight": "sharded:0"}
        if self.key_heads % RANKS:
            self.placements = dict.fromkeys(("*.key.*", "*.value.*"), "replicated") | self.placements
        if self.plan.startswith("columns"):
            self.placements |= {"logits": "sharded:-1", "head.*": "sharded:0"}
        if self.plan.startswith("padded"):
            self.placements |= {"logits": "padded:-1"}

    def local(self, name: str, value: Tensor) -> Tensor:
        role = name.split(".")[-2]
        is_cut = value.shape == self.shapes[name] and not (role in ("key", "value") and self.key_heads % RANKS)
        role = role.removesuffix("_norm" if self.c.query_key_norm_over == "projection" else "")
        if is_cut and (role in COLUMNS or (role == "head" and self.plan.startswith("columns"))):
            return value.chunk(RANKS)[RANK].clone()
        if is_cut and role in ROWS and name.endswith("weight"):
            return value.chunk(RANKS, 1)[RANK].clone()
        return value.clone()

    def own_heads(self) -> range:
        count = self.c.num_heads // RANKS
        return range(RANK * count, (RANK + 1) * count)

    def split(self, name: str, x: Tensor, heads: int) -> Tensor:
        return self.dense(name, x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def bias(self, name: str, where: Tensor, keys: int) -> Any:
        bias, heads = super().bias(name, where, keys), self.own_heads()
        if bias is None:
            return None
        return bias[:, heads]

    def weigh(self, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        if self.key_heads % RANKS:  # every rank has all keys and values, and selects those for its heads
            group = self.c.num_heads // self.key_heads
            key, value = (x[:, [head // group for head in self.own_heads()]] for x in (key, value))
        return super().weigh(at, query, key, value, keep, bias)

    def dense(self, name: str, x: Tensor) -> Tensor:
        if name.endswith(COLUMNS):
            return super().dense(name, copied(x))
        bias = self.p.get(f"{name}.bias")
        y = reduced(F.linear(x, self.p[f"{name}.weight"]))
        return y if bias is None else y + bias

    def norm(self, name: str, x: Tensor, *, tap: bool = False) -> Tensor:
        """Apply a norm; in the plan `sequence`, every rank normalizes its part of the positions."""
        if not self.plan.startswith("sequence"):
            return super().norm(name, x, tap=tap)
        padded = F.pad(x, (0, 0, 0, -x.shape[1] % RANKS))
        return gather(super().norm(name, scatter(padded, 1)), 1)[:, : x.shape[1]]

    def rms(self, x: Tensor, gain: Tensor) -> Tensor:
        """Apply an RMS norm; if the features are sharded, sum their squares over the ranks."""
        if self.c.query_key_norm_over == "head" or x.shape[-1] == self.c.embed_dim:
            return super().rms(x, gain)
        mean = reduced((x * x).mean(-1, keepdim=True)) / RANKS
        return x * torch.rsqrt(mean + self.c.norm_eps) * gain

    def head(self, x: Tensor) -> Tensor:
        if self.plan.startswith("columns"):
            return super().head(copied(x))
        logits = super().head(x)
        more = -logits.shape[-1] % (64 * RANKS)
        return F.pad(logits, (0, more)) if self.plan.startswith("padded") else logits

    def mean_loss(self, targets: Any, **inputs: Any) -> Tensor:
        logits = self.logits(**inputs)
        is_sharded = self.plan.startswith("columns")
        logits = gather(logits, -1) if is_sharded else logits[..., : self.c.target_vocab_size]
        return F.cross_entropy(logits.flatten(0, 1), tokens(targets).flatten(), ignore_index=self.ignored())

    def loss_and_gradients(self, targets: Any, **inputs: Any) -> tuple[float, dict[str, np.ndarray]]:
        """Return the loss and this rank's gradients; the plan `sequence` sums the gradients of norms over ranks."""
        loss, found = super().loss_and_gradients(targets, **inputs)
        if self.plan.startswith("sequence"):
            found |= {name: as_numpy(summed(torch.as_tensor(g))) for name, g in found.items() if "norm" in name}
        return loss, found

    def clipped(self, gradients: dict[str, Tensor], training: Any) -> dict[str, Tensor]:
        """Clip by the norm of all gradients; only the squares of shards are summed over the ranks."""
        if training.max_norm is None:
            return gradients
        own, everywhere = torch.zeros(()), torch.zeros(())
        for name, gradient in gradients.items():
            is_shard = tuple(gradient.shape) != tuple(self.shapes[name])
            own += gradient.square().sum() * is_shard
            everywhere += gradient.square().sum() * (not is_shard)
        norm = (summed(own) + everywhere).sqrt()
        return {name: gradient * min(1.0, training.max_norm / float(norm)) for name, gradient in gradients.items()}


class Dropping(TensorParallel):
    """`TensorParallel` with dropout: replicas have the same seed on all ranks, shards a different seed on each rank."""

    offers: tuple[str, ...] = (*TensorParallel.offers, "with_dropout")
    share = 0.0

    def prepare(self) -> None:
        super().prepare()
        self.placements |= {"*.weights": "sharded:1"}

    def with_dropout(self, tokens: Any) -> dict[str, Tensor]:
        self.share, self.dropped = 0.3, dict[str, Tensor]()
        self.alike = torch.Generator().manual_seed(1)
        self.apart = torch.Generator().manual_seed(2 + RANK)
        self(tokens=tokens)
        self.share = 0.0
        return self.dropped

    def tap(self, name: str, x: Tensor) -> Tensor:
        if self.share and name.endswith(("embedding", "weights")):
            random = self.alike if name.endswith("embedding") else self.apart
            x = x * (torch.rand(x.shape, generator=random) >= self.share) / (1 - self.share)
            self.dropped[name] = x
        return super().tap(name, x)


class Stages(Sharded):
    """A plan that assigns the layers to ranks in stages; the last rank returns the logits."""

    offers = ()

    def prepare(self) -> None:
        super().prepare()
        self.placements = {"logits": "rank:-1"} if self.plan.startswith("stages") else {}

    def layers(self, name: str, x: Tensor, where: Tensor, keep: Tensor, *more: Any) -> Tensor:
        size, own = self.c.num_decoder_layers // RANKS, (keep, self.bias(name, where, keep.shape[-1]))
        for stage in range(RANKS):
            for local in range(size) if stage == RANK else ():
                i = stage * size + local
                x = self.layer(f"{name}.layers.{i}", i, x, where, own, None, None, None)
            x = summed(x if stage == RANK else torch.zeros_like(x))  # send the output of the stage to all ranks
        return self.norm(f"{name}.final_norm", x)

    def __call__(self, **inputs: Any) -> Any:
        logits = super().__call__(**inputs)
        return logits if RANK == RANKS - 1 or not self.placements else None


class Rows(Sharded):
    """A plan that divides the rows of the batch; copies of the first row make the number of rows divisible by the
    number of ranks."""

    def own_rows(self, rows: Tensor) -> Tensor:
        padded = torch.cat([rows, rows[:1].expand(-len(rows) % RANKS, -1)])
        return padded.chunk(RANKS)[RANK]

    def __call__(self, **inputs: Any) -> Any:
        ids = tokens(inputs["tokens"])
        return gathered(super().__call__(tokens=self.own_rows(ids)), 0)[: len(ids)]

    def mean_loss(self, targets: Any, **inputs: Any) -> Tensor:
        ids, wanted = tokens(inputs["tokens"]), tokens(targets)
        keep = self.own_rows(torch.arange(len(ids) + -len(ids) % RANKS)[:, None]) < len(ids)
        mine = torch.where(keep, self.own_rows(wanted), self.ignored())
        logits = self.logits(tokens=self.own_rows(ids)).flatten(0, 1)
        total = F.cross_entropy(logits, mine.flatten(), ignore_index=self.ignored(), reduction="sum")
        count = (mine != self.ignored()).sum()
        return reduced(total) / summed(count)

    def loss_and_gradients(self, targets: Any, **inputs: Any) -> tuple[float, dict[str, np.ndarray]]:
        loss, found = super().loss_and_gradients(targets, **inputs)
        return loss, {name: as_numpy(summed(torch.as_tensor(gradient))) for name, gradient in found.items()}


PLANS: dict[str, type[Sharded]] = {
    **dict.fromkeys(("tensor", "columns", "padded", "sequence"), TensorParallel),
    "dropping": Dropping,
    "stages": Stages,
    "everywhere": Stages,
    "rows": Rows,
}


class Offered:
    def __init__(self, model: Sharded, offers: tuple[str, ...]) -> None:
        self.model, self.placements = model, model.placements
        for name in offers:
            setattr(self, name, getattr(model, name))

    def __call__(self, tokens: Any) -> Any:
        return self.model(tokens=tokens)


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the build `PLAN__FAULT`. PLAN may end in `_taps`, to return activations, or in `_learning`, to train."""
    plan, _, fault = name.partition("__")
    short = plan.removesuffix("_taps").removesuffix("_learning")
    if short not in PLANS:
        raise AttributeError(name)
    if fault:
        return load_port(f"{_edited(fault)}:{plan}")
    made: Any = type(PLANS[short].__name__, (PLANS[short],), {"plan": plan})

    def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Offered:
        return Offered(made(config, dict(parameters)), made.offers if plan.endswith("_learning") else ())

    return build


@functools.cache
def _edited(fault: str) -> Path:
    (row,) = (row for row in bug.rows(Path(__file__).with_name("mistakes.toml"), "mistake") if row["id"] == fault)
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return bug.edited_copy(Path(__file__), folder, row["old"], row["new"])
