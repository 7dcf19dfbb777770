"""The pages of causes plot runs of the reference with a planted fault."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from docs.site.causes import at_each_length, runs, section
from docs.site.errors import PRECISION, Run, by_head, by_length, by_position, by_tap
from docs.site.pages import ROOT

from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.diagnosis.walk import walk


@pytest.fixture(scope="module")
def shown() -> dict[str, list[Run]]:
    return runs()


def test_most_causes_of_the_forward_pass_are_shown(shown: dict[str, list[Run]]) -> None:
    placed = {
        page.stem for page in (ROOT / "docs/causes").glob("*.md") if "**At:**" in page.read_text(encoding="utf-8")
    }
    assert shown.keys() <= {page.stem for page in (ROOT / "docs/causes").glob("*.md")}
    # Other faults show only on several ranks, or have no effect where each query sees a key.
    assert len(placed & shown.keys()) >= 0.8 * len(placed), sorted(placed - shown.keys())


def test_what_is_drawn_is_wrong_where_the_fault_is_and_not_before(shown: dict[str, list[Run]]) -> None:
    for name, (run, *_) in shown.items():
        wrong = [tap for tap in run.probe.oracle.expected if tap in run.wrong and run.share(tap) > 1]
        assert wrong, name
        if run.hypothesis.sites and not run.hypothesis.fault.fields:
            order = list(run.probe.oracle.expected)
            assert min(map(order.index, wrong)) >= min(map(order.index, run.hypothesis.sites)), name


def test_without_a_fault_no_bar_is_over_its_budget(shown: dict[str, list[Run]]) -> None:
    run = shown["causal-missing"][0]
    assert 'class="over"' in by_tap(run)
    right = Run(run.probe, Hypothesis(run.hypothesis.fault), walk(run.probe, {}))
    assert 'class="over"' not in by_tap(right)
    assert "the first is none" in by_tap(right)


def test_a_missing_causal_mask_does_not_show_at_length_1(shown: dict[str, list[Run]]) -> None:
    (single,) = (run for run in shown["causal-missing"] if run.probe.name == "one")
    assert single.share("logits") < 1
    assert f"| {single.probe.purpose} | {single.share('logits'):.2f}: it does not show |" in section(
        shown["causal-missing"]
    )


def test_the_heat_map_is_darkest_where_the_result_is_most_wrong(shown: dict[str, list[Run]]) -> None:
    run = shown["causal-missing"][0]
    error = np.abs(run.wrong["logits"] - run.probe.oracle.expected["logits"]).max(axis=-1)
    row, column = np.unravel_index(error.argmax(), error.shape)
    darkest = re.search(r'class="h8" d="([^"]*)"', by_position(run))
    assert darkest
    assert f"M{column} {row}h1" in darkest[1]


def test_a_missing_causal_mask_shows_from_length_2_on(shown: dict[str, list[Run]]) -> None:
    by_its_length = at_each_length(shown["causal-missing"])
    assert [run.share("logits") > 1 for run in by_its_length] == [False, *[True] * (len(by_its_length) - 1)]
    drawn = by_length(by_its_length)
    assert drawn.count('class="within"') == 1
    assert "over budget at 2, 4" in drawn


def test_the_map_of_heads_is_darkest_where_a_head_is_most_wrong(shown: dict[str, list[Run]]) -> None:
    run = next(run for runs_ in shown.values() for run in runs_ if by_head(run))
    tap, drawn = by_head(run) or ("", "")
    error = np.abs(run.wrong[tap] - run.probe.oracle.expected[tap]).max(axis=(0, 3))
    head, position = np.unravel_index(error.argmax(), error.shape)
    darkest = re.search(r'class="h8" d="([^"]*)"', drawn)
    assert darkest
    assert f"M{position} {head}h1" in darkest[1]


def test_a_result_that_is_not_finite_is_told(shown: dict[str, list[Run]]) -> None:
    run = shown["causal-missing"][0]
    broken = dataclasses.replace(run, wrong={**run.wrong, "logits": run.wrong["logits"] * np.nan})
    assert "not finite" in section([broken])
    assert run.probe.oracle.budget("logits", PRECISION) > 0
