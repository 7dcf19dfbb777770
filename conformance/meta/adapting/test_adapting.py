"""Test that `adapt` matches a sample of the catalogue without asking; `nox -s power` tests all ports."""

from __future__ import annotations

from pathlib import Path

import pytest

from meta.adapting.measure import BUGS, PORTS, adapted, broken
from transparity_conformance.checking.adapting import contradicting


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
@pytest.mark.parametrize("name", list(PORTS)[::4])
def test_a_port_is_matched_without_a_question(name: str) -> None:
    result = adapted(name)
    assert result.is_proved
    assert contradicting(result.adapter.lines) == []


def test_every_bug_is_in_its_file(tmp_path: Path) -> None:
    assert all(callable(broken(tmp_path, **bug)) for bug in BUGS)
    assert len(BUGS) == len({tuple(bug.values()) for bug in BUGS}) == 33
