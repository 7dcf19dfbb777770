"""The gallery shows the checker's answers to ten real bugs, cached under a hash of everything that affects them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from docs.site import gallery, kept
from docs.site.gallery import FOLDER, PLACE, Diagnosis, checked, diagnoses
from docs.site.pages import ROOT

QUICK = next(each for each in diagnoses() if each.port == "inverse_rotation")


def test_every_port_of_the_folder_is_in_the_table_and_there_are_ten() -> None:
    assert sorted(each.port for each in diagnoses()) == sorted(path.stem for path in FOLDER.glob("*.py"))
    assert len(diagnoses()) == 10
    assert (ROOT / "docs/gallery.md").read_text(encoding="utf-8").count(PLACE) == 1


def test_every_cause_has_a_page() -> None:
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
    with pytest.raises(ValueError, match=r"the causes found are \['rotary-direction'\], not norm-eps"):
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
