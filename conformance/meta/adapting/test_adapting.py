"""Ports of the catalogue are matched without a question: a sample; `nox -s power` has all of them."""

from __future__ import annotations

import pytest

from meta.adapting.catalogue import PORTS
from meta.adapting.measure import adapted
from meta.adapting.wrong import BUGS, file_of
from transparity_conformance.identify.adapting.names import contradicting


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
@pytest.mark.parametrize("name", list(PORTS)[::4])
def test_a_port_is_matched_without_a_question(name: str) -> None:
    result = adapted(name)
    assert result.is_proved
    assert contradicting(result.adapter.lines) == []


def test_every_bug_is_in_its_file() -> None:
    assert [bug for bug in BUGS if bug[1] not in file_of(bug[0]).read_text(encoding="utf-8")] == []
    assert len(set(BUGS)) == len(BUGS)
