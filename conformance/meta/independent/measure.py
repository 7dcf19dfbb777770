"""Measure the checker on the independent port: `python -m meta.independent.measure [--sample N] [--only WORD]`.

Faults of capabilities have to be named by their own id or a listed tie, right ports have to agree, and no name may be
given with certainty to a fault that no catalogue has. A fault that cannot act in a configuration is left out, and shown
to change nothing there in float64.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta.independent.capability_faults import FAULTS, CapabilityFault
from meta.independent.port import Port, build_with
from meta.independent.right_ports import RightPort, right_ports
from meta.independent.uncatalogued import UncataloguedFault, uncatalogued_faults
from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.presets import PRESETS
from transparity_conformance import check
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.report.report import Report

CONFIGS = {name: each.config.resized() for name, each in PRESETS.items()} | CASES
"""The presets at the size of probes, and the families."""

CAPABLE = ("translation", "notes-lm", "pre-norm", "llama", "t5", "qwen3-next")
"""Configurations in which the faults of capabilities are made."""

RIGHT, UNCATALOGUED = 500, 300


@dataclass(frozen=True)
class Trial:
    """One check of one port, and its measure."""

    measure: str
    says: str
    run: Callable[[], Report]
    is_right: Callable[[Report], bool]


def capability_trials() -> Iterator[Trial]:
    """Every fault of a capability in every configuration where it acts."""
    for name in CAPABLE:
        for fault in FAULTS:
            if fault.acts(CONFIGS[name]):
                yield capability_trial(fault, name)


def capability_trial(fault: CapabilityFault, name: str) -> Trial:
    def run() -> Report:
        which: dict[str, Any] = {"preset": name} if name in PRESETS else {"config": CONFIGS[name]}
        return check(fault.build_alone, **which)

    return Trial("faults of capabilities named", f"{name}: {fault}", run, lambda report: is_named(report, fault))


def is_named(report: Report, fault: CapabilityFault) -> bool:
    """Return whether the capability that shows the fault diverges, named by its own id or a listed tie."""
    return report.verdict == "diverges" and any(
        fault.id in (*(cause.mistake for cause in divergence.causes[:1]), *divergence.indistinguishable)
        for divergence in report.faults
        if divergence.where == fault.shows
    )


def right_trial(port: RightPort) -> Trial:
    def run() -> Report:
        return check(port.build, config=port.config, dtype=port.dtype)

    return Trial("right ports agree", str(port), run, lambda report: report.verdict == "agrees")


def uncatalogued_trial(fault: UncataloguedFault) -> Trial:
    def run() -> Report:
        return check(fault.build, config=fault.config, budget=8.0)

    return Trial("uncatalogued faults found, and not named with certainty", str(fault), run, is_unnamed)


def is_unnamed(report: Report) -> bool:
    """Return whether the port diverges, and every cause is one of several, or leaves something to explain."""
    certain = [each for each in report.faults if each.causes and not each.indistinguishable]
    return report.verdict == "diverges" and not any(each.causes[0].residual <= each.budget for each in certain)


def trials() -> list[Trial]:
    """All of them."""
    right = [right_trial(port) for port in right_ports(CONFIGS, RIGHT)]
    unknown = [uncatalogued_trial(fault) for fault in uncatalogued_faults(CONFIGS, UNCATALOGUED)]
    return [*capability_trials(), *right, *unknown]


def left_out() -> list[tuple[str, CapabilityFault]]:
    """Faults that cannot act in a configuration."""
    return [(name, fault) for name in CAPABLE for fault in FAULTS if not fault.acts(CONFIGS[name])]


def changes_nothing(name: str, fault: CapabilityFault) -> bool:
    """Return whether a port with the fault answers in float64 what the right one does, to the last bit."""
    config = CONFIGS[name]
    random_ = np.random.default_rng(7)
    shapes = parameter_shapes(config)
    parameters = {key: random_.normal(0, 0.4, shape) + ("norm.weight" in key) for key, shape in shapes.items()}
    wrong = fault.build(config, parameters, "float64")
    right = build_with(base=Port)(config, parameters, "float64")
    return all(np.array_equal(a, b) for a, b in zip(answers(wrong, config), answers(right, config), strict=True))


def answers(port: Any, config: TransformerConfig) -> Iterator[np.ndarray]:
    """Generation, beams with a length penalty, and cached steps, with padding among the tokens."""
    random_ = np.random.default_rng(3)
    ids = random_.integers(3, config.vocab_size, (3, 5))
    ids[0, :2] = 0 if config.pad_id is None else config.pad_id
    given: dict[str, Any] = {}
    if config.has_encoder:
        given["source"] = random_.integers(3, config.stack_vocab_size("encoder"), (3, 4))
        given["source"][1, 2:] = 0 if config.pad_id is None else config.pad_id
    yield port.generate(ids, 4, **given)
    yield from port.beam_search(ids, 3, 3, length_penalty=0.8, **given)
    first, cache = port.step(ids[:, :2], None, **given)
    second, _ = port.step(ids[:, 2:], cache)
    yield np.concatenate([first.numpy(), second.numpy()], 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials, print every wrong answer at once and the shares at the end; 1 if one is wrong."""
    parser = argparse.ArgumentParser(description="Measure the checker on an independent port.")
    parser.add_argument("--sample", type=int, metavar="N", help="N of all trials; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="WORD", help="only measures with this in their title")
    options = parser.parse_args(arguments)
    every = [trial for trial in trials() if options.only in trial.measure]
    every = random.Random(options.seed).sample(every, min(options.sample or len(every), len(every)))
    tally: dict[str, list[bool]] = {}
    for trial in every:
        began, crash = time.perf_counter(), ""
        try:
            right = trial.is_right(trial.run())
        except Exception as error:  # noqa: BLE001 - it is counted, whatever it is
            right, crash = False, f" ({error!r:.200})"
        tally.setdefault(trial.measure, []).append(right)
        if not right:
            print(f"not {trial.measure}: {trial.says}{crash}, {time.perf_counter() - began:.1f} s", flush=True)  # noqa: T201
    for measure, found in tally.items():
        print(f"{measure}: {sum(found)} of {len(found)}")  # noqa: T201
    noops = left_out()
    acting = [f"{name}: {fault}" for name, fault in noops if not changes_nothing(name, fault)]
    print(f"left out as no-ops: {len(noops)}, of which {len(acting)} change something {acting or ''}")  # noqa: T201
    return int(bool(acting) or not all(all(found) for found in tally.values()))


if __name__ == "__main__":
    raise SystemExit(main())
