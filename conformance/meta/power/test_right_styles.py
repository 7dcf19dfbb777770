"""The parts that no preset has, each written in other right ways: they are right, by the oracle's budget, and the
checker agrees; on a sample. `nox -s power` tries all of them, however they are looked at."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from meta.power.family_port import FamilyFault, Wrong, build_port
from meta.power.judgement import agrees, judged
from meta.power.right import styles
from meta.power.simulated import SimulatedPort, case_probes
from transparity.config import TransformerConfig
from transparity_conformance.oracle.cases import MODELS
from transparity_conformance.oracle.undetermined import judged as where_no_convention_decides
from transparity_conformance.report.comparison import difference

STYLES = tuple(styles())

each_style = pytest.mark.parametrize("style", STYLES, ids=str)


def case_of(style: FamilyFault) -> str:
    """One of the configurations that have the part."""
    return random.Random(str(style)).choice([case for case, config in MODELS.items() if style.acts(config)])


def test_there_are_forty_styles_of_the_parts_that_no_preset_has() -> None:
    assert len({str(style) for style in STYLES}) == len(STYLES) >= 40
    assert [style for style in STYLES if not any(map(style.acts, MODELS.values()))] == []


def test_every_style_is_a_style_of_its_port() -> None:
    """What it exchanges is used by the port, with as many arguments as the style has: else it is the reference."""
    for style in STYLES:
        used = set[str]()
        exchanged = {name: _noting(name, made, used) for name, made in style.exchanged.items()}
        probe = min(case_probes(case_of(style)).values(), key=lambda each: sum(x.size for x in each.inputs.values()))
        build_port(dataclasses.replace(style, exchanged=exchanged))(probe.config, probe.parameters)(**probe.inputs)
        assert used == set(style.exchanged), str(style)


def _noting(name: str, made: Wrong, used: set[str]) -> Wrong:
    """What `made` makes, a function or a table of them, which adds `name` to `used` when it is called."""

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*arguments: Any, **options: Any) -> Any:
            used.add(name)
            return function(*arguments, **options)

        return noting

    def of(config: TransformerConfig) -> Any:
        exchanged = made(config)
        is_table = isinstance(exchanged, Mapping)
        return {key: noted(each) for key, each in exchanged.items()} if is_table else noted(exchanged)

    return of


@pytest.mark.sampled(19)
@each_style
def test_a_style_is_right(style: FamilyFault) -> None:
    """By the oracle's budget, not by the checker: else an alarm might not be a false one."""
    case = case_of(style)
    for probe in case_probes(case).values():
        logits = build_port(style)(probe.config, probe.parameters)(**probe.inputs)["logits"]
        expected = probe.oracle.expected["logits"]
        assert logits.dtype == np.float32
        error = difference(where_no_convention_decides(probe, "logits", logits, expected), expected)
        assert error <= probe.oracle.budget("logits", "float32"), (case, probe.name)


@pytest.mark.sampled(19)
@each_style
def test_there_is_no_alarm(style: FamilyFault) -> None:
    answer = judged(SimulatedPort("style", case_of(style), (style,), view="taps"))
    assert agrees(answer), answer
