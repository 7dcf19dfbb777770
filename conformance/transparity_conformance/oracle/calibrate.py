"""Measure the factors of `budgets`: `python -m transparity_conformance.oracle.calibrate`.

A right program differs from the reference in the order in which it sums. The reference itself becomes such a program
when its features are permuted: heads, the features of a head, hidden features and the model's own. What comes out is
the same to the last feature, and every sum on the way is taken in another order. Its error, over what the oracle
measured at the same weights, is what a budget has to allow. No backend is asked: none certifies itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from rich.console import Console
from rich.progress import track
from rich.table import Table

from transparity.config import TransformerConfig
from transparity.presets import PRESETS
from transparity.taps import recording
from transparity_conformance.oracle.budgets import RULES, epsilon, neighbours_of_drawn
from transparity_conformance.oracle.oracle import Arrays, Oracle, forward_oracle
from transparity_conformance.oracle.probes import probe_parameters, probes
from transparity_conformance.oracle.strategies import models
from transparity_numpy.transformer import transformer


def permuted(config: TransformerConfig, parameters: Arrays, seed: int) -> tuple[Arrays, Arrays]:
    """The parameters with their features permuted, and the permutations by what they permute."""
    random = np.random.default_rng(seed)
    # What goes by its place among the heads, or among a head's features, stays there.
    grouped, turned = config.key_value_heads < config.num_heads, config.positions == "rotary"
    heads = random.permutation(config.num_heads)
    heads = np.arange(config.num_heads) if grouped or config.positions == "alibi" else heads
    within = random.permutation(config.head_dim)
    within = np.arange(config.head_dim) if turned else within
    key_heads = np.arange(config.key_value_heads) if grouped else heads
    orders = {"heads": heads, "key_heads": key_heads, "head_dim": within}
    orders["hidden"] = random.permutation(config.feed_forward_dim)
    orders |= _merged(config, orders)
    # The model's own features stay where they are cut into heads before they are projected.
    shared = config.projection == "shared-per-head"
    orders["model"] = orders["merged"] if shared else random.permutation(config.embed_dim)
    if config.positions == "sinusoidal":  # whose features are given
        orders["model"] = np.arange(config.embed_dim)
        if shared:
            orders |= {"heads": np.arange(config.num_heads), "head_dim": np.arange(config.head_dim)}
            orders["key_heads"] = orders["heads"]
            orders |= _merged(config, orders)
    changed = {}
    for name, value in parameters.items():
        out, into = _axes(config, name)
        rows = value[orders[out]] if out else value
        changed[name] = rows[:, orders[into]] if into else rows
    return changed, orders


def _merged(config: TransformerConfig, orders: Arrays) -> Arrays:
    """The order of all features of queries, and of keys, side by side."""
    return {
        name: (orders[heads][:, None] * config.head_dim + orders["head_dim"]).ravel()
        for name, heads in (("merged", "heads"), ("merged_keys", "key_heads"))
    }


def _axes(config: TransformerConfig, name: str) -> tuple[str, str]:
    """The names of a parameter's rows and columns; empty where they are not permuted."""
    weight = name.endswith("weight") and not name.endswith("norm.weight")
    if name.endswith(("query_norm.weight", "key_norm.weight")):
        return "head_dim", ""
    if name.endswith("relative_bias.weight"):
        return "", "heads"
    for role, merged in (("query", "merged"), ("key", "merged_keys"), ("value", "merged_keys")):
        if f".{role}." in name:
            rows, columns = (merged, "model") if config.projection == "full" else ("head_dim", "head_dim")
            return rows, columns if weight else ""
    for part, rows, columns in (
        ("attention.output.", "model", "merged"),
        ("up.", "hidden", "model"),
        ("gate.", "hidden", "model"),
        ("down.", "model", "hidden"),
        ("head.", "", "model"),
        ("pooler.", "", "model"),
    ):
        if part in name:
            return rows, columns if weight else ""
    return ("", "model") if weight else ("model", "")


def unpermuted(config: TransformerConfig, name: str, value: np.ndarray, orders: Arrays) -> np.ndarray:
    """A tap of the permuted model with its features where they belong."""
    leaf = name.rpartition(".")[2]
    if leaf == "logits" and config.head != "hidden":
        return value
    if leaf in ("scores", "weights"):
        return value[:, np.argsort(orders["heads"])]
    if leaf.startswith(("query", "key", "value")):
        heads = "heads" if leaf.startswith("query") else "key_heads"
        return value[:, np.argsort(orders[heads])][..., np.argsort(orders["head_dim"])]
    order = {"context": "merged", "hidden": "hidden"}.get(leaf, "model")
    return value[..., np.argsort(orders[order])]


def evaluated(config: TransformerConfig, parameters: Arrays, inputs: Arrays, dtype: str) -> Arrays:
    """Every tap in arithmetic of `dtype`: float16 rounds every sum and product on the way, more than any hardware does.
    float64 is shown as float32 is, by the ratio of their epsilons; NumPy has no arithmetic of bfloat16."""
    taps: Arrays = {}
    tokens: dict[str, Any] = dict(inputs)
    cast = {name: value.astype(dtype) for name, value in parameters.items()}
    with np.errstate(over="ignore"):
        transformer(config, cast, tap=recording(taps), **tokens)
    return taps


def ratios(
    config: TransformerConfig, parameters: Arrays, inputs: Arrays, oracle: Oracle, dtype: str
) -> Iterator[float]:
    """The error of the permuted reference at each tap, less the floor, over the noise that the oracle measured."""
    changed, orders = permuted(config, parameters, 0)

    for name, value in evaluated(config, changed, inputs, dtype).items():
        expected = oracle.expected[name]
        error = np.abs(unpermuted(config, name, value.astype(np.float64), orders) - expected).max()
        noise = oracle.noise(dtype)[name]
        allowed = max(0.0, error - RULES[dtype].floor * epsilon(dtype) * np.abs(expected).max())
        yield float(allowed / noise) if noise else (0.0 if allowed == 0 else float("inf"))


def measure(dtype: str, drawn: int, seeds: int) -> list[float]:
    """Measure the ratios on the presets' probes, with several weights, and on drawn configurations."""
    found: list[float] = []
    for case in track(PRESETS, f"{dtype}: presets"):
        for probe in probes(case).values():
            if probe.name == "hot" and dtype not in ("float32", "float64"):
                continue
            for seed in range(seeds):
                parameters = probe_parameters(probe.config, 100 + seed) if seed else probe.parameters
                oracle = forward_oracle(probe.config, parameters, probe.inputs)
                found += ratios(probe.config, parameters, probe.inputs, oracle, dtype)

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
        found.extend(ratios(config, parameters, inputs, oracle, dtype))

    add()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drawn", type=int, default=300, help="how many configurations are drawn")
    parser.add_argument("--seeds", type=int, default=3, help="at how many weights each probe is measured")
    options = parser.parse_args()
    dtypes = [dtype for dtype in RULES if dtype != "bfloat16"]
    table = Table("precision", "taps", "median", "99 %", "worst", "factor", title="error over the oracle's noise")
    for dtype in dtypes:
        found = np.array(measure(dtype, options.drawn, options.seeds))
        shown = [f"{value:.2f}" for value in (*np.quantile(found, [0.5, 0.99]), found.max())]
        table.add_row(dtype, f"{len(found):,}", *shown, f"{RULES[dtype].factor:g}")
    Console().print(table)


if __name__ == "__main__":
    main()
