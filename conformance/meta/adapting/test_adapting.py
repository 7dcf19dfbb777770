from pathlib import Path

from meta.adapting.measure import BUGS, broken


def test_every_bug_is_in_its_file(tmp_path: Path) -> None:
    assert all(callable(broken(tmp_path, **bug)) for bug in BUGS)
    assert len(BUGS) == len({tuple(bug.values()) for bug in BUGS}) == 33
