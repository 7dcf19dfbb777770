from pathlib import Path

import pytest
from docs.site import kept
from docs.site.causes import runs
from docs.site.errors import Run
from docs.site.gallery import FOLDER, PLACE, Diagnosis, checked, diagnoses, table
from docs.site.pages import ROOT


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
