"""What the race is run over: a model, a task, and the shape of its inputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from benchmarks.flops import forward_flops

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.training import Training
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import probe_parameters

Kind = Literal["forward", "decode", "train"]

TRAINING = Training("adamw", learning_rate=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)

TRAINED = 3
"""What a step has done shows in the loss before the next one: so many times the step without dropout is drawn."""


@dataclass(frozen=True)
class Workload:
    """A task: one forward pass, the greedy decoding of `new_tokens` behind a prompt, or `steps` steps of training."""

    name: str
    kind: Kind
    config: TransformerConfig
    batch: int
    lengths: dict[str, int]
    """Of each input; of the prompt when decoding."""
    new_tokens: int = 0
    steps: int = 0
    dtype: str = "float32"
    held: int | None = None
    """So many positions are held to the oracle, where all would take too long: those of a causal model do not depend
    on what follows."""
    growth: str = ""
    """The curve that it is a point of: `length` or `batch`."""

    @property
    def tokens(self) -> int:
        """What tokens a second are counted of: those whose logits are computed, or that are written."""
        last = self.new_tokens or self.lengths[self.config.input_names[-1]]
        return self.batch * last * (self.steps or 1)

    @property
    def flops(self) -> int:
        """The FLOPs of the whole task. Decoding: every token once, as in one pass. Training: a step takes as much as
        three forward passes, for each product has two gradients, and each is a product of the same size."""
        more = max(0, self.new_tokens - 1)
        lengths = {name: length + more for name, length in self.lengths.items()}
        return forward_flops(self.config, self.batch, **lengths) * (3 * self.steps or 1)

    @property
    def bytes_read(self) -> int:
        """The bytes of weights that decoding reads: all but the embeddings' tables, once for each new token."""
        shapes = parameter_shapes(self.config)
        numbers = sum(math.prod(shape) for name, shape in shapes.items() if "embedding.weight" not in name)
        return numbers * (2 if self.dtype == "bfloat16" else 4) * self.new_tokens

    @property
    def weights(self) -> int:
        """How many numbers the model has."""
        return sum(math.prod(shape) for shape in parameter_shapes(self.config).values())

    @property
    def memory(self) -> int:
        """How many bytes a process needs for it, to know how many may be alive at once: about what the middle one
        of its candidates needed at its peak."""
        logits = 0 if self.kind == "decode" else self.batch * max(self.lengths.values()) * self.config.vocab_size
        length = max(self.lengths.values()) + self.new_tokens
        scores = 0 if self.kind == "decode" else self.batch * self.config.num_heads * length**2
        weights, results = (6, 4) if self.kind == "train" else (2, 2)
        return 700_000_000 + 4 * (weights * self.weights + results * (logits + scores))

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return dataclasses.asdict(self) | {"config": self.config.as_dict()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Workload:
        """The workload that `as_dict` wrote."""
        return cls(**fields | {"config": TransformerConfig.from_dict(fields["config"])})


def parameters_of(workload: Workload) -> Arrays:
    """Weights that show mistakes. The head's bias is zero where a decoder stands alone: GPT-2's has none."""
    parameters = probe_parameters(workload.config)
    if workload.config.architecture == "decoder":
        parameters["head.bias"][:] = 0
    return parameters


def inputs_of(workload: Workload) -> Arrays:
    """Tokens by name, and in training what should follow them: the tokens one further."""
    config, random = workload.config, np.random.default_rng(0)
    drawn = {
        name: random.integers(0, config.stack_vocab_size(config.input_stack(name)), (workload.batch, length + 1))
        for name, length in workload.lengths.items()
    }
    inputs = {name: np.ascontiguousarray(tokens[:, :-1]) for name, tokens in drawn.items()}
    if workload.kind == "train":
        inputs["targets"] = np.ascontiguousarray(drawn[config.input_names[-1]][:, 1:])
    return inputs


# The layout that the libraries share: biases everywhere, no padding, masked scores weigh nothing.
BASE = TransformerConfig(
    architecture="encoder-decoder",
    source_vocab_size=10_000,
    target_vocab_size=10_000,
    max_length=128,
    norm_position="post",
    pad_id=None,
)
GPT2 = TransformerConfig(
    architecture="decoder",
    target_vocab_size=50_257,
    max_length=1024,
    embed_dim=768,
    num_heads=12,
    num_decoder_layers=12,
    feed_forward_dim=3072,
    norm_position="pre",
    final_norm=True,
    pad_id=None,
)
GROWING = dataclasses.replace(
    GPT2,
    target_vocab_size=1000,
    max_length=4096,
    embed_dim=512,
    num_heads=8,
    num_decoder_layers=4,
    feed_forward_dim=2048,
)
TINY: dict[str, Any] = {"embed_dim": 24, "num_heads": 3, "feed_forward_dim": 40, "max_length": 16}
TINY_BASE = dataclasses.replace(
    BASE, source_vocab_size=37, target_vocab_size=31, num_encoder_layers=2, num_decoder_layers=2, **TINY
)
TINY_GPT2 = dataclasses.replace(GPT2, target_vocab_size=31, num_decoder_layers=2, **TINY)

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
BATCHES = (1, 2, 4, 8, 16, 32)
HELD = 1024


def _all() -> Iterator[Workload]:
    yield Workload("encoder-decoder", "forward", BASE, 8, {"source": 128, "target": 127})
    yield Workload("gpt2-1x1024", "forward", GPT2, 1, {"tokens": 1024})
    yield Workload("gpt2-8x128", "forward", GPT2, 8, {"tokens": 128})
    yield Workload("decode-1", "decode", GPT2, 1, {"tokens": 32}, new_tokens=64)
    yield Workload("decode-8", "decode", GPT2, 8, {"tokens": 32}, new_tokens=64)
    yield Workload("train", "train", BASE, 8, {"source": 128, "target": 127}, steps=TRAINED)
    yield Workload("bfloat16", "forward", BASE, 8, {"source": 128, "target": 127}, dtype="bfloat16")
    for length in LENGTHS:
        held = HELD if length > HELD else None
        yield Workload(f"length-{length}", "forward", GROWING, 1, {"tokens": length}, held=held, growth="length")
    for batch in BATCHES:
        yield Workload(f"batch-{batch}", "forward", GROWING, batch, {"tokens": LENGTHS[0]}, growth="batch")
    yield Workload("tiny-encoder-decoder", "forward", TINY_BASE, 3, {"source": 9, "target": 7})
    yield Workload("tiny-decoder", "forward", TINY_GPT2, 3, {"tokens": 9})
    yield Workload("tiny-decode", "decode", TINY_GPT2, 2, {"tokens": 5}, new_tokens=6)
    yield Workload("tiny-bfloat16", "forward", TINY_BASE, 3, {"source": 9, "target": 7}, dtype="bfloat16")
    yield Workload("tiny-train", "train", TINY_BASE, 3, {"source": 9, "target": 7}, steps=TRAINED)


WORKLOADS = {workload.name: workload for workload in _all()}

DEFAULT = tuple(name for name in WORKLOADS if not name.startswith("tiny"))
"""What a race is run over if nothing is named: all but the tiny ones, which are for trying it out."""
