"""The pool `sizes`: the cost of the oracle for large checkpoints.

Checkpoints are written into `--folder` and kept there; the largest needs 16 GB. Each size is measured in its own
process, for 72 and for 8 positions. The figures are processor seconds and peak memory. Both figures include the
imports, and the computation of the logits in float64 and float32.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from meta.alone import alone
from meta.trial import Measure, Trial
from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import fields_of, tensors_in
from transparity_conformance.checkpoints.importing import family_called, import_checkpoint
from transparity_conformance.oracle.probes import probes_with

DRAWN = 2**22
"""The number of random values; longer tensors repeat these values, rolled by random offsets."""


def llama(layers: int, width: int, hidden: int, heads: int, shared: int, vocabulary: int) -> TransformerConfig:
    return example_config("llama").resized(
        num_decoder_layers=layers,
        embed_dim=width,
        feed_forward_dim=hidden,
        num_heads=heads,
        num_key_value_heads=shared,
        target_vocab_size=vocabulary,
        max_length=8192,
    )


SIZES = {
    "124 million": llama(12, 768, 2048, 12, 4, 32_000),
    "8 layers": llama(8, 1024, 4096, 16, 4, 32_000),
    "16 layers": llama(16, 1024, 4096, 16, 4, 32_000),
    "32 layers": llama(32, 1024, 4096, 16, 4, 32_000),
    "64 layers": llama(64, 1024, 4096, 16, 4, 32_000),
    "1.1 billion": llama(16, 2048, 8192, 32, 8, 32_000),
    "8 billion": llama(32, 4096, 14_336, 32, 8, 128_256),
}

POSITIONS = (72, 8)


def measured(folder: str, positions: int) -> Iterator[dict[str, Any]]:
    """Yield the processor seconds and the peak memory, in bytes, for one probe."""
    began = time.process_time()
    checkpoint = import_checkpoint(folder)
    imported = time.process_time()
    probe = probes_with(checkpoint.config, checkpoint.parameters, "llama")["mixed"]
    inputs = {key: value[:, : positions // len(value)] for key, value in probe.inputs.items()}
    oracle = dataclasses.replace(probe, kept=frozenset(["logits"]), inputs=inputs).oracle
    oracle.budget("logits", "float32")
    yield {"import": imported - began, "oracle": time.process_time() - imported, "peak": peak_memory()}


def peak_memory() -> int:
    """Return the peak memory of this process, in bytes; `getrusage` would include the parent's."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def answer_of(folder: Path, name: str, positions: int) -> dict[str, Any]:
    folder /= name.replace(" ", "-")
    if not folder.exists():
        write(SIZES[name], folder)
    found, why = alone(multiprocessing.get_context("spawn"), 3600.0, measured, str(folder), positions)
    return {"parameters": sum(map(math.prod, parameter_shapes(SIZES[name]).values()))} | (
        found or {"missing": why or "the process died"}
    )


def write(config: TransformerConfig, folder: Path) -> None:
    """Write a checkpoint in bfloat16, with one file for each layer, and one for the other tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    random, family = np.random.default_rng(0), family_called("llama")
    numbers = random.normal(size=DRAWN).astype(np.float32)
    where: dict[str, str] = {}
    for part in ("", *(f".layers.{layer}." for layer in range(config.num_decoder_layers))):
        shapes = parameter_shapes(config).items()
        own = {name: shape for name, shape in shapes if (part in name if part else ".layers." not in name)}
        drawn = {name: _drawn(random, numbers, name, shape) for name, shape in own.items()}
        tensors = {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors_in(family, config, drawn).items()}
        # a file named model.safetensors would be read as the whole checkpoint
        file = f"model{part.replace('.', '-').rstrip('-') or '-outside'}.safetensors"
        save_file(tensors, folder / file)
        where |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": where}), encoding="utf-8"
    )
    (folder / "config.json").write_text(json.dumps(fields_of("llama", family, config)), encoding="utf-8")


def _drawn(random: np.random.Generator, numbers: np.ndarray, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw the values of a parameter: norm weights are near 1, and matrices keep the variance of their input."""
    value = np.empty(math.prod(shape), np.float32)
    is_norm, is_table = len(shape) == 1, "embedding" in name
    scale = 0.3 if is_norm else 1.0 if is_table else shape[1] ** -0.5
    for begin in range(0, value.size, DRAWN):
        moved = np.roll(numbers, int(random.integers(DRAWN)))[: value.size - begin]
        value[begin : begin + len(moved)] = moved * scale + is_norm
    return value.reshape(shape)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, required=True, help="the folder for the checkpoints")


def trials(options: argparse.Namespace) -> list[Trial]:
    return [
        Trial(f"{name}, {positions} positions", functools.partial(answer_of, options.folder, name, positions))
        for name, positions in itertools.product(SIZES, POSITIONS)
    ]


MEASURES: tuple[Measure, ...] = ()
