"""Measure the constants in `budgets`: `python -m transparity_conformance.oracle.calibrate`, or `nox -s calibrate`.

The exit code is 1 if a constant is smaller than its measurement.

A right program may sum in another order than the reference, and a tolerance must cover the resulting error. To measure
this error, the reference runs with permuted heads, head features, hidden features and model features. The permutation
changes the order of every sum, but not the exact results. Backends are not measured, because a backend must not
determine its own tolerance.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from rich.console import Console
from rich.progress import track
from rich.table import Table

from transparity.config import TransformerConfig
from transparity.presets import PRESETS
from transparity.taps import recording
from transparity_conformance.oracle.budgets import RULES, BudgetRule, epsilon, neighbours_of_drawn
from transparity_conformance.oracle.oracle import Arrays, Oracle, forward_oracle
from transparity_conformance.oracle.probes import probe_parameters, probes
from transparity_conformance.oracle.strategies import models
from transparity_numpy.transformer import transformer


def permuted(config: TransformerConfig, parameters: Arrays, seed: int) -> tuple[Arrays, Arrays]:
    """Return the parameters with permuted features, and the permutation of each kind of feature."""
    random = np.random.default_rng(seed)
    # Do not permute heads or head features if the model uses their index.
    grouped, turned = config.key_value_heads < config.num_heads, config.positions == "rotary"
    heads = random.permutation(config.num_heads)
    stay = grouped or config.positions == "alibi" or config.kv_lora_rank is not None
    heads = np.arange(config.num_heads) if stay else heads
    within = random.permutation(config.head_dim)
    within = np.arange(config.head_dim) if turned else within
    key_heads = np.arange(config.key_value_heads) if grouped else heads
    orders = {"heads": heads, "key_heads": key_heads, "head_dim": within}
    orders["hidden"] = random.permutation(config.feed_forward_dim)
    orders |= _merged(config, orders)
    # Shared projections split the model's features into heads, so model features and heads are permuted together.
    shared = config.projection == "shared-per-head"
    orders["model"] = orders["merged"] if shared else random.permutation(config.embed_dim)
    if "sinusoidal" in (config.positions, config.encoder_positions):  # sinusoids depend on the index of a feature
        orders["model"] = np.arange(config.embed_dim)
        if shared:
            orders |= {"heads": np.arange(config.num_heads), "head_dim": np.arange(config.head_dim)}
            orders["key_heads"] = orders["heads"]
            orders |= _merged(config, orders)
    changed = {}
    for name, value in parameters.items():
        out, into = _axes(config, name)
        if value.shape[0 if out == "hidden" else -1] != config.feed_forward_dim and "hidden" in (out, into):
            out, into = ("", into) if out == "hidden" else (out, "")  # keep the order in a layer of another width
        rows = value[orders[out]] if out else value
        changed[name] = rows[:, orders[into]] if into else rows
    return changed, orders


def _merged(config: TransformerConfig, orders: Arrays) -> Arrays:
    return {
        name: (orders[heads][:, None] * config.head_dim + orders["head_dim"]).ravel()
        for name, heads in (("merged", "heads"), ("merged_keys", "key_heads"))
    }


def _axes(config: TransformerConfig, name: str) -> tuple[str, str]:
    """Return the kinds of features in a parameter's rows and columns, such as `heads`; "" if not permuted."""
    rows, columns = next(axes for pattern, *axes in _axes_by_name(config) if re.search(pattern, name))
    return rows, columns if name.endswith("weight") and not name.endswith("norm.weight") else ""


@functools.lru_cache(maxsize=64)
def _axes_by_name(config: TransformerConfig) -> tuple[tuple[str, str, str], ...]:
    """Return (pattern of parameter names, kind of rows, kind of columns); the first match applies."""
    over = ("merged", "merged_keys") if config.query_key_norm_over == "projection" else ("head_dim", "head_dim")
    heads = ("merged", "merged_keys", "model") if config.projection == "full" else ("head_dim",) * 3
    latents = "query_latent|key_value_latent|key_rotary" + ("" if config.q_lora_rank else "|query")
    return (
        # In a recurrence, only the features of the model are permuted.
        (r"\.recurrence\..*\boutput\.", "model", ""),
        (r"\.recurrence\..*_convolution", "", ""),
        (r"\.recurrence\.", "", "model"),
        (r"query_norm\.weight$", over[0], ""),
        (r"key_norm\.weight$", over[1], ""),
        (r"relative_bias\.weight$", "", "heads"),
        (r"\.sinks$", "heads", ""),
        *(
            (
                (r"\.self_attention\..*\boutput\.", "model", ""),
                (rf"\.self_attention\.({latents})\.", "", "model"),
                (r"\.self_attention\.", "", ""),
            )
            if config.kv_lora_rank
            else ()
        ),
        (r"second_convolution\.", "model", ""),
        (r"_convolution\.", "", ""),
        (r"\.(router|shared_expert).*\.down\.", "model", ""),
        (r"\.(router|shared_expert)", "", "model"),
        (r"\.query\.", heads[0], heads[2]),
        (r"\.(key|value)\.", heads[1], heads[2]),
        (r"attention\.output\.", "model", "merged"),
        (r"attention\.gate\.", "merged", "model"),
        (r"(up|gate)\.", "hidden", "model"),
        (r"down\.", "model", "hidden"),
        (r"head\.", "", "" if config.has_pooler else "model"),
        (r"pooler\.", "", "model"),
        (r"head_transform\.", "model", "model"),
        (r"weight$(?<!norm\.weight)", "", "model"),
        (r"", "model", ""),
    )


def unpermuted(config: TransformerConfig, name: str, value: np.ndarray, orders: Arrays) -> np.ndarray:
    leaf = name.rpartition(".")[2]
    is_inside = ("router", ".shared_expert", ".recurrence.", *(("self_attention.",) if config.kv_lora_rank else ()))
    stays = any(part in name for part in is_inside) and (leaf != "output" or "router" in name)
    stays |= leaf == "logits" and (config.has_pooler or config.head in ("logits", "classes"))
    stays |= leaf == "hidden" and value.shape[-1] != config.feed_forward_dim
    if stays or leaf == "first_convolution":
        return value
    if leaf in ("scores", "weights"):
        return value[:, np.argsort(orders["heads"])]
    if leaf.startswith(("query", "key", "value")):
        heads = "heads" if leaf.startswith("query") else "key_heads"
        return value[:, np.argsort(orders[heads])][..., np.argsort(orders["head_dim"])]
    order = {"context": "merged", "gated_context": "merged", "hidden": "hidden"}.get(leaf, "model")
    return value[..., np.argsort(orders[order])]


def evaluated(config: TransformerConfig, parameters: Arrays, inputs: Arrays, dtype: str) -> Arrays:
    """Return each activation, computed in `dtype`.

    In float16, NumPy rounds each sum and product, but hardware sums in a wider precision. NumPy has no bfloat16.
    """
    taps: Arrays = {}
    tokens: dict[str, Any] = dict(inputs)
    cast = {name: value.astype(dtype) for name, value in parameters.items()}
    with np.errstate(over="ignore"):
        transformer(config, cast, tap=recording(taps), **tokens)
    return taps


@dataclass(frozen=True)
class Sample:
    """The error of the permuted reference at one activation."""

    error: float
    noise: float
    """The reference's own error at this activation, as the oracle measures it."""
    ulp: float
    """The spacing of floating-point numbers near the largest expected value."""

    def ratio(self, floor: float) -> float:
        """Return (error − floor × ulp) / noise, at least 0."""
        over = max(0.0, self.error - floor * self.ulp)
        return over / self.noise if self.noise else (0.0 if over == 0 else math.inf)


def samples(
    config: TransformerConfig, parameters: Arrays, inputs: Arrays, oracle: Oracle, dtype: str
) -> Iterator[Sample]:
    changed, orders = permuted(config, parameters, 0)
    for name, value in evaluated(config, changed, inputs, dtype).items():
        expected = oracle.expected[name]
        error = np.abs(unpermuted(config, name, value.astype(np.float64), orders) - expected).max()
        ulp = epsilon(dtype) * float(np.abs(expected).max())
        yield Sample(float(error), oracle.noise(dtype)[name], ulp)


def measure(dtype: str, drawn: int, seeds: int, cases: Sequence[str] = tuple(PRESETS)) -> list[Sample]:
    found: list[Sample] = []
    for case in track(cases, f"{dtype}: presets"):
        for probe in probes(case).values():
            if probe.name == "hot" and dtype not in ("float32", "float64"):
                continue
            for seed in range(seeds):
                parameters = probe_parameters(probe.config, 100 + seed) if seed else probe.parameters
                oracle = forward_oracle(probe.config, parameters, probe.inputs, neighbours=probe.neighbours)
                found += samples(probe.config, parameters, probe.inputs, oracle, dtype)
    if drawn:
        found += _measure_drawn(dtype, drawn)
    return found


def _measure_drawn(dtype: str, drawn: int) -> list[Sample]:
    found: list[Sample] = []

    @settings(
        max_examples=drawn,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(models())
    def add(model: tuple[TransformerConfig, int, Arrays]) -> None:
        config, seed, inputs = model
        parameters = probe_parameters(config, seed)
        oracle = forward_oracle(config, parameters, inputs, neighbours=neighbours_of_drawn(inputs))
        found.extend(samples(config, parameters, inputs, oracle, dtype))

    add()
    return found


@dataclass(frozen=True)
class CalibratedConstant:
    name: str
    dtype: str
    taps: int
    measured: float
    """The measurement that the constant must cover; the constant must be at least as large."""
    constant: float
    median: float
    most: float
    """The 99th percentile of the measurements."""

    @property
    def covers(self) -> bool:
        return self.measured <= self.constant


def rows(dtype: str, found: Sequence[Sample], rule: BudgetRule) -> list[CalibratedConstant]:
    """Return the measurements of the factor and of the floor in one precision.

    The floor is measured at activations where the reference makes no error. In float16, the factor must cover only 99 %
    of the measurements. In the other 1 %, a variance underflows, because NumPy rounds every sum to float16.
    """
    over = np.array([sample.ratio(rule.floor) for sample in found])
    bare = np.array([sample.error / sample.ulp for sample in found if not sample.noise and sample.ulp] or [0.0])
    covered = {"factor": (over, 0.99 if dtype == "float16" else 1.0), "floor": (bare, 1.0)}
    return [
        CalibratedConstant(
            name,
            dtype,
            len(values),
            float(np.quantile(values, share, method="lower")),
            {"factor": rule.factor, "floor": rule.floor}[name],
            *(float(value) for value in np.quantile(values, [0.5, 0.99], method="lower")),
        )
        for name, (values, share) in covered.items()
    ]


def as_table(measured: Sequence[CalibratedConstant]) -> Table:
    heads = ("constant", "precision", "taps", "median", "99 %", "to cover", "value", "covers")
    table = Table(*heads, title="constants of tolerances")
    for row in measured:
        shown = [f"{value:.2f}" for value in (row.median, row.most, row.measured)]
        table.add_row(row.name, row.dtype, f"{row.taps:,}", *shown, f"{row.constant:g}", "yes" if row.covers else "NO")
    return table


def main() -> int:
    """Measure every constant, print a table, and return 1 if a constant is smaller than its measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drawn", type=int, default=300, help="number of drawn configurations")
    parser.add_argument("--seeds", type=int, default=3, help="number of random sets of weights per probe")
    options = parser.parse_args()
    measured: list[CalibratedConstant] = []
    for dtype in (dtype for dtype in RULES if dtype != "bfloat16"):  # NumPy has no bfloat16 arithmetic
        measured += rows(dtype, measure(dtype, options.drawn, options.seeds), RULES[dtype])
    Console().print(as_table(measured))
    return 0 if all(row.covers for row in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
