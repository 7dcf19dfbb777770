"""Measure `transparity fit` on drawn configurations: `python -m meta.fitting.measure [--number N] [--seed S]`.

A configuration is found if every field that a forward pass reads has the drawn value. A field may differ only if the
report lists it as one that cannot be told, or the drawn configuration does not read it (rope_theta without rotary
positions); with either, the reference must compute exactly the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meta.fitting.drawn import computes_the_same, drawn, module, template_of
from transparity.config import TransformerConfig
from transparity.errors import ConfigError
from transparity_conformance.identify.fitting.fit import Fit, fit
from transparity_conformance.identify.fitting.templates import NOT_RUN, differences

NUMBER, WANTED, SECONDS = 100, 0.95, 60.0


@dataclass(frozen=True)
class Outcome:
    """One drawn configuration, and what was found."""

    seed: int
    template: str
    departures: int
    wrong: dict[str, tuple[object, object]]
    """Fields with the drawn and the found value, in which the two are different models."""
    untold: dict[str, tuple[object, object]]
    """Fields that differ and are listed as such that cannot be told."""
    seconds: float
    error: str = ""

    @property
    def is_found(self) -> bool:
        return not self.wrong and not self.error and self.seconds <= SECONDS

    def __str__(self) -> str:
        says = "found" if self.is_found else self.error or f"wrong in {self.wrong}"
        rest = f"; not told: {self.untold}" if self.untold else ""
        return f"{self.seed} {self.template}, {self.departures} departures, {self.seconds:.1f} s: {says}{rest}"


def compared(config: TransformerConfig, made: Fit) -> tuple[dict[str, tuple[object, object]], ...]:
    """The fields in which the found configuration is wrong, and those in which it may be."""
    fields = [each.name for each in dataclasses.fields(config) if each.name not in NOT_RUN]
    pairs = {name: (getattr(config, name), getattr(made.config, name)) for name in fields}
    differ = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    found = dataclasses.replace(config, **{name: pair[1] for name, pair in differ.items()})
    if differ and not computes_the_same(config, found):
        return differ, {}
    listed = {name: pair for name, pair in differ.items() if name in made.untold}
    others = {name: pair[0] for name, pair in differ.items() if name not in listed}
    unread = {name for name in others if computes_the_same(found, _with(found, name, others))}
    return {name: differ[name] for name in others if name not in unread}, listed


def _with(config: TransformerConfig, name: str, drawn_values: dict[str, object]) -> TransformerConfig | None:
    """`config` with the drawn value of a field, or, where that alone is impossible, those of all fields."""
    for fields in ({name: drawn_values[name]}, drawn_values):
        try:
            return dataclasses.replace(config, **fields)  # type: ignore[arg-type]
        except ConfigError:
            continue
    return None


def outcome(seed: int, *, single: bool = False) -> Outcome:
    """Draw a configuration, fit its module, which computes in float32 alone if `single`, and compare."""
    name, config = drawn(seed)
    count = len(differences(config, template_of(name)))
    began = time.process_time()
    model = module(config, seed)
    if single:
        model.double = lambda: model  # type: ignore[method-assign]
    try:
        made = fit(model, seed)
    except Exception as error:  # noqa: BLE001 - it is counted, whatever it is
        return Outcome(seed, name, count, {}, {}, time.process_time() - began, f"{type(error).__name__}: {error}")
    seconds = time.process_time() - began
    wrong, untold = compared(config, made)
    failed = "" if made.is_confirmed else f"not confirmed ({made.share:.2g} × the budget)"
    return Outcome(seed, name, count, wrong, untold, seconds, failed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit the drawn configurations, print each and the share; 1 if it is below the target."""
    parser = argparse.ArgumentParser(description="Measure how often the configuration of a module is found.")
    parser.add_argument("--number", type=int, default=NUMBER)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--float32", action="store_true", help="modules that compute in float32 alone")
    options = parser.parse_args(arguments)
    tally = []
    for seed in range(options.seed, options.seed + options.number):
        tally.append(outcome(seed, single=options.float32))
        print(tally[-1], flush=True)  # noqa: T201
    found = sum(each.is_found for each in tally)
    literal = sum(each.is_found and not each.untold for each in tally)
    slowest = max(each.seconds for each in tally)
    print(f"found: {found} of {len(tally)} (wanted {WANTED:.0%}), {literal} of them in every field")  # noqa: T201
    print(f"departures: {[sum(each.departures == n for each in tally) for n in range(7)]}")  # noqa: T201
    print(f"seconds: at most {slowest:.1f}, median {float(np.median([each.seconds for each in tally])):.1f}")  # noqa: T201
    return int(found < WANTED * len(tally))


if __name__ == "__main__":
    raise SystemExit(main())
