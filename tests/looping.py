"""Run many cases in one test, and list each case that fails."""

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

Test = Callable[..., None]


def for_each(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Call a test for each of `values`, like `pytest.mark.parametrize`, and list the failing cases. Every case
    has its own `tmp_path` and `monkeypatch`; other fixtures are shared."""
    cases = [dict(zip(names, each, strict=True)) if isinstance(names, tuple) else {names: each} for each in values]
    assert cases, "there are no cases"

    def looping(test: Test) -> Test:
        @functools.wraps(test)
        def all_of_them(**fixtures: Any) -> None:
            failures = [failure for case in cases if (failure := _failure(test, fixtures, case))]
            assert not failures, "\n".join([f"{len(failures)} of {len(cases)} cases:", *failures])

        asked = inspect.signature(test).parameters.values()
        left = [each for each in asked if each.name not in cases[0]]
        all_of_them.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined]
        return all_of_them

    return looping


def _failure(test: Test, fixtures: dict[str, Any], case: dict[str, Any]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        own: dict[str, Any] = {"monkeypatch": patch} if "monkeypatch" in fixtures else {}
        if "tmp_path" in fixtures:
            folder: Path = fixtures["tmp_path"]
            own["tmp_path"] = folder / str(sum(1 for _ in folder.iterdir()))
            own["tmp_path"].mkdir()
        try:
            test(**fixtures | own, **case)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - any failure of a case is told
            given = ", ".join(f"{name} {str(value)[:60]!r}" for name, value in case.items())
            return f"{given}: {type(error).__name__}: {error}"
    return ""
