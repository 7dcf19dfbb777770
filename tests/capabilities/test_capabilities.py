import inspect
from pathlib import Path

import pytest

from transparity_conformance.capabilities.capability import Capability
from transparity_conformance.capabilities.table import CAPABILITIES
from transparity_conformance.cli import SECTIONS, check, export

DOCS = Path(__file__).parents[2] / "docs"
ROWS = pytest.mark.parametrize("row", CAPABILITIES.values(), ids=lambda row: row.name)


def rows_of(page: str, begins: str) -> list[str]:
    return [line for line in (DOCS / page).read_text().splitlines() if line.startswith(f"| `{begins}")]


@ROWS
def test_the_pages_have_a_row_for_it(row: Capability) -> None:
    assert len(rows_of("capabilities.md", f"{row.attribute}(")) == 1
    (written,) = rows_of("bundles.md", f"--{row.name}`")
    assert row.file in written


def test_no_way_and_no_file_comes_twice() -> None:
    claims = [way.claim for row in CAPABILITIES.values() for way in row.ways]
    files = [row.file for row in CAPABILITIES.values() if row.file]
    assert len(set(claims)) == len(claims)
    assert len(set(files)) == len(files)


def test_every_capability_has_an_option() -> None:
    assert list(SECTIONS) == list(CAPABILITIES)
    for command in (check, export):
        assert inspect.signature(command).parameters.keys() >= SECTIONS.keys()
