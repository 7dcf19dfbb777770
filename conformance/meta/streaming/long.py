"""Measure the oracle of long prompts: `python -m meta.streaming.long`.

Each prompt is measured in its own process. The measures are processor seconds and peak memory. They include the logits
in float64 and float32, their budget, and the comparison at every position. The results are written into docs/scale.md.
"""

from __future__ import annotations

import dataclasses
import os
import time

from rich.console import Console

from meta.page import table, write_part
from meta.streaming.measure import in_new_process, llama, peak_memory, size_of
from transparity.config import TransformerConfig
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.oracle.reach.long import long_probes

LONGEST = 32_768
MODEL = dataclasses.replace(
    llama(2, 64, 128, 4, 2, 1000),
    max_length=LONGEST,
    rotary_scaling="llama3",
    rotary_factor=8.0,
    rotary_original_length=8192,
)
PROMPTS = tuple((length, window) for length in (4096, LONGEST) for window in (1024, None))
"""The lengths of the prompts, each with its sliding window or None."""
HEADS = ("positions", "sliding window", "processor seconds", "peak memory, GB")


def measured(config: TransformerConfig, length: int) -> tuple[float, int]:
    """Return the processor seconds and the peak memory, in bytes, for one prompt."""
    began = time.process_time()
    (probe,) = long_probes(config, probe_parameters(config), [length])
    budget = probe.budget("float32")
    expected = probe.oracle.logits(slice(None))  # they stand for the logits of a port
    assert probe.oracle.errors(expected).max() <= budget
    return time.process_time() - began, peak_memory()


def main() -> None:
    """Measure all prompts, and write the table into the page."""
    rows = []
    for length, window in PROMPTS:
        seconds, peak = in_new_process(measured, dataclasses.replace(MODEL, sliding_window=window), length)
        rows.append([f"{length:,}", f"{window:,}" if window else "none", f"{seconds:.0f}", f"{peak / 1e9:.2f}"])
        Console().print(*rows[-1])
    layers, heads = MODEL.num_decoder_layers, MODEL.num_heads
    says = f"The model has {size_of(MODEL):,} parameters, {layers} layers and {heads} heads.\n\n"
    write_part("scale.md", "long prompts", says + table(HEADS, rows, (0, 2, 3)))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
