"""The pool `fitting`: modules with random configurations, one for each seed, which `fit` must find.

A configuration is found if every field that affects the forward pass has its original value. A field may differ if
`fit` reports it as undetermined. A field may also differ if the configuration ignores it, such as `rope_theta`
without rotary positions. In both cases, the reference must return equal logits with the original and the fitted
value.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from meta.fitting.drawn import MOST_DEPARTURES, computes_the_same, drawn, module, template_of
from meta.trial import Answer, Measure, Trial
from transparity.config import TransformerConfig
from transparity.errors import ConfigError
from transparity_conformance.identify.fitting.answer import NOT_RUN, Fit, differences
from transparity_conformance.identify.fitting.fit import fit

NUMBER, WANTED, SECONDS = 100, 0.95, 60.0


def fitted(seed: int) -> dict[str, Any]:
    """Run `fit` on a random module; return wrong and undetermined fields."""
    name, config = drawn(seed)
    model = module(config, seed)
    answer: dict[str, Any] = {"departures": len(differences(config, template_of(name))), "wrong": {}, "untold": {}}
    began = time.process_time()
    try:
        made = fit(model, seed)
        answer["seconds"] = time.process_time() - began
        answer["wrong"], answer["untold"] = compared(config, made)
        told = f"not confirmed, because the error is {made.share:.2g} × the budget"
        answer["error"] = "" if made.is_confirmed else told
    except Exception as error:  # noqa: BLE001 - it is counted, whatever it is
        answer |= {"error": f"{type(error).__name__}: {error}", "seconds": time.process_time() - began}
    return answer


def is_found(answer: Answer) -> bool:
    return not answer["wrong"] and not answer["error"] and answer["seconds"] <= SECONDS


def compared(config: TransformerConfig, made: Fit) -> tuple[dict[str, tuple[object, object]], ...]:
    """Return the fields with a wrong value, and the fields that `fit` reports as undetermined."""
    fields = [each.name for each in dataclasses.fields(config) if each.name not in NOT_RUN]
    pairs = {name: (getattr(config, name), getattr(made.config, name)) for name in fields}
    differ = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    found = dataclasses.replace(config, **{name: pair[1] for name, pair in differ.items()})
    if differ and not computes_the_same(config, found):
        return differ, {}
    listed = {name: pair for name, pair in differ.items() if name in made.untold}
    others = {name: pair[0] for name, pair in differ.items() if name not in listed}
    unread = {name for name in others if computes_the_same(found, _drawn_again(found, name, others))}
    return {name: differ[name] for name in others if name not in unread}, listed


def _drawn_again(config: TransformerConfig, name: str, drawn_values: dict[str, object]) -> TransformerConfig | None:
    for fields in ({name: drawn_values[name]}, drawn_values):
        try:
            return dataclasses.replace(config, **fields)  # type: ignore[arg-type]
        except ConfigError:
            continue
    return None


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--number", type=int, default=NUMBER, help="number of configurations; their seeds start at `--seed`"
    )


def trials(options: argparse.Namespace) -> list[Trial]:
    seeds = range(options.seed, options.seed + options.number)
    return [Trial(f"{seed} {drawn(seed)[0]}", partial(fitted, seed)) for seed in seeds]


def _with(number: int) -> Callable[[Trial, Answer], bool | None]:
    return lambda _, answer: is_found(answer) if answer["departures"] == number else None


MEASURES = [
    Measure("found", lambda _, answer: is_found(answer), WANTED),
    Measure("found, with no undetermined field", lambda _, answer: is_found(answer) and not answer["untold"]),
    *(Measure(f"found, with {number} changed fields", _with(number)) for number in range(MOST_DEPARTURES + 1)),
]
