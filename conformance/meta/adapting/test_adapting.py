"""Ports of the catalogue are matched without a question: a sample; `nox -s power` has all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from meta.adapting.catalogue import PORTS
from meta.adapting.measure import adapted
from meta.adapting.wrong import BUGS, FOLDER
from transparity_conformance.ports.adapting.names import contradicting


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
@pytest.mark.parametrize("name", list(PORTS)[::4])
def test_a_port_is_matched_without_a_question(name: str) -> None:
    result = adapted(name)
    assert result.is_proved
    assert contradicting(result.adapter.lines) == []


def test_every_bug_is_in_its_file() -> None:
    texts = {file: Path(FOLDER, f"{file}.py").read_text(encoding="utf-8") for file, _, _ in BUGS}
    assert [bug for bug in BUGS if bug[1] not in texts[bug[0]]] == []
    assert len(set(BUGS)) == len(BUGS)
