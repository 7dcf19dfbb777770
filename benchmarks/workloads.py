"""Workloads to time: a model, a task (forward pass, decoding or training), and the shapes of the inputs."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from benchmarks.flops import forward_flops

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.presets import PRESETS, preset
from transparity.training import Training
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import probe_parameters

Kind = Literal["forward", "decode", "train"]

TRAINING = Training("adamw", learning_rate=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)


@dataclass(frozen=True)
class Workload:
    """A model and a task: a forward pass, greedy decoding of `new_tokens` tokens, or `steps` steps of training."""

    name: str
    kind: Kind
    config: TransformerConfig
    batch: int
    lengths: dict[str, int]
    """The length of each input, by the input's name; for decoding, the length of the prompt."""
    new_tokens: int = 0
    steps: int = 0
    """The number of training steps; only the losses before each step are compared, so the last update is unchecked."""
    dtype: str = "float32"
    held: int | None = None
    """The number of positions, from the first on, that are compared with the reference. None means all positions.

    A causal model's logits do not depend on later tokens, so the reference reads only the first `held` tokens.
    """
    growth: str = ""
    """The plot that shows this workload: `length` (time by input length), `batch` (time by batch size), or empty for no
    plot."""
    device: str = ""
    """The only device on which the workload is timed by default, such as `cuda`; empty for all devices."""
    head_bias: bool = True
    """Whether the head has a nonzero bias; the head of GPT-2 has none."""
    peers: bool = True
    """Whether other libraries' candidates can run the model; false for the presets."""

    def __str__(self) -> str:
        return self.name

    @property
    def tokens(self) -> int:
        """Return the number of generated tokens; in other tasks, the number of tokens that have logits."""
        last = self.new_tokens or self.lengths[self.config.input_names[-1]]
        return self.batch * last * (self.steps or 1)

    @property
    def flops(self) -> int:
        """Return the FLOPs of the whole task (`benchmarks.flops`).

        Decoding with a cache has the FLOPs of one forward pass over all tokens. A training step counts as three forward
        passes, because the backward pass has two products of equal size for every product.
        """
        more = max(0, self.new_tokens - 1)
        lengths = {name: length + more for name, length in self.lengths.items()}
        return forward_flops(self.config, self.batch, **lengths) * (3 * self.steps or 1)

    @property
    def bytes_read(self) -> int:
        """Return the bytes of weights that decoding reads: for each new token, all weights except embeddings."""
        shapes = parameter_shapes(self.config)
        numbers = sum(math.prod(shape) for name, shape in shapes.items() if "embedding.weight" not in name)
        return numbers * (2 if self.dtype == "bfloat16" else 4) * self.new_tokens

    @property
    def weights(self) -> int:
        return sum(math.prod(shape) for shape in parameter_shapes(self.config).values())

    @property
    def memory(self) -> int:
        """Return an estimate of a process's peak memory in bytes, near the median of all candidates."""
        logits = 0 if self.kind == "decode" else self.batch * max(self.lengths.values()) * self.config.vocab_size
        length = max(self.lengths.values()) + self.new_tokens
        scores = 0 if self.kind == "decode" else self.batch * self.config.num_heads * length**2
        weights, results = (6, 4) if self.kind == "train" else (2, 2)
        return 700_000_000 + 4 * (weights * self.weights + results * (logits + scores))

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"config": self.config.as_dict()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Workload:
        return cls(**fields | {"config": TransformerConfig.from_dict(fields["config"])})


Run = Callable[[], Any]
"""A function that runs the task once, and returns the logits, the prompt with the new tokens, or each step's loss."""


@dataclass(frozen=True)
class Task:
    workload: Workload
    parameters: Arrays
    inputs: Arrays
    folder: str
    """The folder of the workload's oracle, where candidates also share files."""
    device: str = "cpu"

    @property
    def config(self) -> TransformerConfig:
        return self.workload.config

    @property
    def tokens(self) -> Arrays:
        named = {"tokens": self.inputs[self.config.input_names[-1]]}
        return named | {"source": self.inputs["source"]} if self.config.has_encoder else named


Build = Callable[[Task], Run]


def parameters_of(workload: Workload) -> Arrays:
    parameters = probe_parameters(workload.config)
    if not workload.head_bias:
        parameters["head.bias"][:] = 0
    return parameters


def inputs_of(workload: Workload) -> Arrays:
    """Return random tokens by input name, without padding; for training also `targets`, the next tokens."""
    config, random = workload.config, np.random.default_rng(0)
    drawn = {}
    for name, length in workload.lengths.items():
        tokens = np.arange(config.stack_vocab_size(config.input_stack(name)))
        drawn[name] = random.choice(tokens[tokens != config.pad_id], (workload.batch, length + 1))
    inputs = {name: np.ascontiguousarray(tokens[:, :-1]) for name, tokens in drawn.items()}
    if workload.kind == "train":
        inputs["targets"] = np.ascontiguousarray(drawn[config.input_names[-1]][:, 1:])
    return inputs


def _workloads() -> Iterator[Workload]:
    """Yield the workloads of workloads.toml, with a head bias only in encoder-decoders, then the presets' workloads."""
    tables = tomllib.loads(Path(__file__).with_name("workloads.toml").read_text(encoding="utf-8"))
    for row in tables["workloads"]:
        fields = tables["configs"][row["config"]]
        fields = tables["configs"].get(fields.get("like"), {}) | fields
        config = TransformerConfig(**{name: fields[name] for name in fields if name != "like"}, pad_id=None)
        yield Workload(**row | {"config": config}, head_bias=config.has_encoder)
    for row, name in product(tables["presets"], PRESETS):
        config = preset(name)
        lengths = dict.fromkeys(config.input_names, min(row["length"], config.max_length))
        shape = f"{name}-{row['batch']}x{row['length']}"
        yield Workload(shape, "forward", config, row["batch"], lengths, peers=False)


WORKLOADS = {workload.name: workload for workload in _workloads()}


def default(device: str) -> list[str]:
    """Return the names of the default workloads: the presets, because all other workloads take hours."""
    return [name for name, each in WORKLOADS.items() if not each.peers and each.device in ("", device)]
