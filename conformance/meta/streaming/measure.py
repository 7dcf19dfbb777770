"""Measure the oracle of large checkpoints: `python -m meta.streaming.measure FOLDER [--sizes NAME …]`.

Checkpoints are written into FOLDER and kept there. Each size is measured in its own process. The figures are
processor seconds and peak memory. Both include the import, and the logits in float64 and float32, for 72 and for 8
positions. The results are written into docs/scale.json, and predictions for other sizes into NOTES.md.

Without FOLDER, the program measures long prompts, each in its own process, and writes the results into
NOTES.md. The figures include the logits in float64 and float32, their budget, and the comparison at every
position.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from safetensors.numpy import save_file

from meta.page import DOCS, NOTES, table, write_part
from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import fields_of, tensors_in
from transparity_conformance.checkpoints.importing import family_called, import_checkpoint
from transparity_conformance.oracle.probes import probe_parameters, probes_with
from transparity_conformance.oracle.reach.long import long_probes

DRAWN = 2**22
"""The number of random values; longer tensors repeat these, shifted by random offsets."""


def llama(layers: int, width: int, hidden: int, heads: int, shared: int, vocabulary: int) -> TransformerConfig:
    """Return a Llama of these sizes, with `shared` key and value heads and 8,192 positions."""
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
FORETOLD = {
    "70 billion": llama(80, 8192, 28_672, 64, 8, 128_256),
    "405 billion": llama(126, 16_384, 53_248, 128, 8, 128_256),
}
HELD_OUT = "8 billion"
"""The size that the fit leaves out, to test its predictions."""

LONGEST = 32_768
LONG = dataclasses.replace(
    llama(2, 64, 128, 4, 2, 1000),
    max_length=LONGEST,
    rotary_scaling="llama3",
    rotary_factor=8.0,
    rotary_original_length=8192,
)
"""The model that reads long prompts."""

PROMPTS = tuple((length, window) for length in (4096, LONGEST) for window in (1024, None))
"""Pairs of a length and a sliding window, or None."""

PROBES = {"mixed": 72, "one": 8}
"""The number of positions in each probe."""


def size_of(config: Any) -> int:
    return sum(map(math.prod, parameter_shapes(config).values()))


def measured(folder: str, name: str) -> dict[str, Any]:
    """Return the processor seconds and the peak memory, in bytes, for one probe."""
    began = time.process_time()
    checkpoint = import_checkpoint(folder)
    imported = time.process_time()
    probe = probes_with(checkpoint.config, checkpoint.parameters, "llama")["mixed"]
    inputs = {key: value if name == "mixed" else value[:, :1] for key, value in probe.inputs.items()}
    oracle = dataclasses.replace(probe, kept=frozenset(["logits"]), inputs=inputs).oracle
    oracle.budget("logits", "float32")
    ended, peak = time.process_time(), peak_memory()
    return {"import": imported - began, "oracle": ended - imported, "peak": peak, "positions": PROBES[name]}


def peak_memory(process: int | str = "self") -> int:
    """Return the peak memory of a process since its start, in bytes; `getrusage` would include the parent's."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def in_new_process(function: Callable[..., Any], *given: Any) -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *given).result()


def measured_prompt(length: int, window: int | None) -> list[str]:
    """Return a prompt's row: length and window, processor seconds, and peak memory in GB."""
    began = time.process_time()
    config = dataclasses.replace(LONG, sliding_window=window)
    (probe,) = long_probes(config, probe_parameters(config), [length])
    budget = probe.budget("float32")
    expected = probe.oracle.logits(slice(None))  # in place of a port's logits
    assert probe.oracle.errors(expected).max() <= budget
    seconds, peak = time.process_time() - began, peak_memory()
    return [f"{length:,}", f"{window:,}" if window else "none", f"{seconds:.0f}", f"{peak / 1e9:.2f}"]


def write_long_prompts() -> None:
    rows = [in_new_process(measured_prompt, *prompt) for prompt in PROMPTS]
    says = f"The model has {size_of(LONG):,} parameters, {LONG.num_decoder_layers} layers and {LONG.num_heads} heads."
    heads = ("positions", "sliding window", "processor seconds", "peak memory, GB")
    write_part(NOTES, "long prompts", f"{says}\n\n{table(heads, rows, (0, 2, 3))}")


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


def rates(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Estimate the seconds per parameter of the import, of the cast, and of one position's matrix product."""
    fitted = [row for row in rows if row["size"] != HELD_OUT]
    known = np.array([[row["parameters"], row["parameters"] * row["positions"]] for row in fitted])
    weights = 1 / known[:, :1]  # weigh small models as much as large ones
    cast, product = np.linalg.lstsq(known * weights, np.array([row["oracle"] for row in fitted]) * weights[:, 0])[0]
    imported = float(np.median([row["import"] / row["parameters"] for row in fitted]))
    return {"import": imported, "cast": float(cast), "product": float(product)}


def foretold(config: Any, found: dict[str, float]) -> float:
    return size_of(config) * (found["import"] + found["cast"] + found["product"] * PROBES["mixed"])


def activations(config: Any) -> int:
    """Return the bytes of the logits and of one layer's activations, in float64."""
    return 8 * PROBES["mixed"] * (config.target_vocab_size + 3 * config.feed_forward_dim + 8 * config.embed_dim)


def page(rows: Sequence[dict[str, Any]]) -> str:
    found, lines, more = rates(rows), [], []
    for row in (each for each in rows if each["positions"] == PROBES["mixed"]):
        config = SIZES[row["size"]]
        seconds = row["import"] + row["oracle"]
        cells = [f"{row['parameters'] / 1e9:.2f}", str(config.num_decoder_layers), f"{seconds:.0f}"]
        lines.append([row["size"], *cells, f"{foretold(config, found):.0f}", f"{row['peak'] / 1e9:.2f}"])
    base = min(row["peak"] - activations(SIZES[row["size"]]) for row in rows if row["positions"] == PROBES["mixed"])
    for name, config in FORETOLD.items():
        cells = [f"{2 * size_of(config) / 1e9:,.0f}", f"{foretold(config, found) / 60:.0f}"]
        more.append([name, *cells, f"{(base + activations(config)) / 1e9:.1f}"])
    heads = ["model", "billion parameters", "layers", "processor seconds", "predicted seconds", "peak memory, GB"]
    beyond = table(["model", "file, GB", "processor minutes", "peak memory, GB"], more, (1, 2, 3))
    return f"{table(heads, lines, (1, 2, 3, 4, 5))}\n\n{beyond}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure the oracle of large checkpoints.")
    parser.add_argument(
        "folder", type=Path, nargs="?", help="the folder for the checkpoints; without it, measure long prompts"
    )
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    options = parser.parse_args(arguments)
    if options.folder is None:
        write_long_prompts()
        return
    file = DOCS / "scale.json"
    rows = [row for row in json.loads(file.read_text()) if row["size"] not in options.sizes] if file.exists() else []
    for name in options.sizes:
        folder = options.folder / name.replace(" ", "-")
        if not folder.exists():
            write(SIZES[name], folder)
        for probe in PROBES:
            rows.append(
                {"size": name, "parameters": size_of(SIZES[name])} | in_new_process(measured, str(folder), probe)
            )
            Console().print_json(json.dumps(rows[-1]), indent=None)
    rows.sort(key=lambda row: (list(SIZES).index(row["size"]), -row["positions"]))
    file.write_text("[\n " + ",\n ".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
    write_part(NOTES, "sizes", page(rows))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
