"""Audit a sample of the planted faults, and test the pool itself; `nox -s power` audits all faults."""

from pathlib import Path

import pytest

from meta.audits.measure import PLANTED, RIGHT, Planted, audit_of, named

FIELDS, TENSORS = ([each for each in PLANTED if each.kind == kind] for kind in ("field", "tensor"))
SAMPLE = (*FIELDS[::20], *TENSORS[::20])


@pytest.mark.parametrize("planted", SAMPLE, ids=str)
def test_a_planted_fault_is_found_by_its_name(planted: Planted, tmp_path: Path) -> None:
    assert planted.name in named(audit_of(planted.load(tmp_path), planted.family, tmp_path))


def test_there_are_as_many_faults_as_were_asked_for_and_each_has_its_place(tmp_path: Path) -> None:
    assert len(FIELDS) >= 40
    assert len(TENSORS) >= 40
    for planted in PLANTED:
        assert planted.family in RIGHT[planted.loader]
        assert callable(planted.load(tmp_path))
