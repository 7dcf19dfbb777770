"""Test that the gallery and the pages of causes show current runs of the checker and of the reference."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from docs.site import gallery, kept
from docs.site.causes import at_each_length, runs, section
from docs.site.errors import PRECISION, Run, by_head, by_length, by_position, by_tap
from docs.site.gallery import FOLDER, PLACE, Diagnosis, checked, diagnoses, table
from docs.site.pages import ROOT

from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.diagnosis.walk import walk

QUICK = next(each for each in diagnoses() if each.port == "inverse_rotation")


def test_every_port_of_the_folder_is_in_the_table_and_its_cause_has_a_page() -> None:
    assert sorted(each.port for each in diagnoses()) == sorted(path.stem for path in FOLDER.glob("*.py"))
    assert len(diagnoses()) == 10
    assert (ROOT / "docs/gallery.md").read_text(encoding="utf-8").count(PLACE) == 1
    assert table() in (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    assert [each.cause for each in diagnoses() if not (ROOT / f"docs/causes/{each.cause}.md").exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("diagnosis", diagnoses(), ids=lambda each: each.port)
def test_the_cause_of_the_table_is_found(diagnosis: Diagnosis) -> None:
    assert checked(diagnosis).verdict == "diverges"


@pytest.mark.long
def test_a_page_shows_the_line_and_the_verdict_and_a_report_names_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gallery, "kept", lambda name, inputs, make: kept.kept(name, inputs, make, tmp_path))
    monkeypatch.setattr(gallery, "diagnoses", lambda: [QUICK])
    text, reports = gallery.gallery()
    assert 'linenums="23" hl_lines="3"' in text
    assert "> inverse_rotation.py:25 `return x * cos - " in text
    assert "[The report](gallery/inverse-rotation.html)" in text
    assert "<html" in reports["gallery/inverse-rotation.html"]
    assert str(ROOT) not in reports["gallery/inverse-rotation.html"]


@pytest.mark.long
def test_another_cause_than_that_of_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"finds the causes \['rotary-direction'\]; expected norm-eps"):
        checked(dataclasses.replace(QUICK, cause="norm-eps"))


def test_a_text_is_kept_until_what_it_depends_on_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make() -> str:
        made.append("")
        return f"text {len(made)}"

    assert kept.kept("a", [b"1"], make, tmp_path) == kept.kept("a", [b"1"], make, tmp_path) == "text 1"
    assert kept.kept("a", [b"2"], make, tmp_path) == "text 2"
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(kept, "code_digest", lambda: "other code")
    assert kept.kept("a", [b"2"], make, tmp_path) == "text 3"


def test_a_digest_is_of_names_contents_and_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("1")
    found = [kept.digest_of([tmp_path])]
    (tmp_path / "a.py").write_text("2")
    found.append(kept.digest_of([tmp_path]))
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    found.append(kept.digest_of([tmp_path]))
    monkeypatch.setattr(kept, "version", lambda name: f"{name} 2")
    found.append(kept.digest_of([tmp_path]))
    assert len(set(found)) == 4


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


@pytest.mark.long
def test_without_a_fault_no_bar_is_over_its_budget_and_a_result_that_is_not_finite_is_told(
    shown: dict[str, list[Run]],
) -> None:
    run = shown["causal-missing"][0]
    assert 'class="over"' in by_tap(run)
    right = Run(run.probe, Hypothesis(run.hypothesis.fault), walk(run.probe, {}))
    assert 'class="over"' not in by_tap(right)
    assert "Error by activation: 0 of" in by_tap(right)
    broken = dataclasses.replace(run, wrong={**run.wrong, "logits": run.wrong["logits"] * np.nan})
    assert "not finite" in section([broken])
    assert run.probe.oracle.budget("logits", PRECISION) > 0


@pytest.mark.long
def test_a_missing_causal_mask_shows_from_length_2_on(shown: dict[str, list[Run]]) -> None:
    (single,) = (run for run in shown["causal-missing"] if run.probe.name == "one")
    assert f"| {single.probe.purpose} | {single.share('logits'):.2f}: the fault does not show |" in section(
        shown["causal-missing"]
    )
    by_its_length = at_each_length(shown["causal-missing"])
    assert [run.share("logits") > 1 for run in by_its_length] == [False, *[True] * (len(by_its_length) - 1)]
    drawn = by_length(by_its_length)
    assert drawn.count('class="within"') == 1
    assert "lengths above the tolerance: 2, 4" in drawn


def darkest(drawn: str) -> str:
    (found,) = re.findall(r'class="h8" d="([^"]*)"', drawn)[:1]
    return str(found)


@pytest.mark.long
def test_the_heat_maps_are_darkest_where_the_result_or_a_head_is_most_wrong(shown: dict[str, list[Run]]) -> None:
    run = shown["causal-missing"][0]
    error = np.abs(run.wrong["logits"] - run.probe.oracle.expected["logits"]).max(axis=-1)
    row, column = np.unravel_index(error.argmax(), error.shape)
    assert f"M{column} {row}h1" in darkest(by_position(run))
    run = next(run for runs_ in shown.values() for run in runs_ if by_head(run))
    tap, drawn = by_head(run) or ("", "")
    error = np.abs(run.wrong[tap] - run.probe.oracle.expected[tap]).max(axis=(0, 3))
    head, position = np.unravel_index(error.argmax(), error.shape)
    assert f"M{position} {head}h1" in darkest(drawn)
