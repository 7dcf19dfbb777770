"""Backends are found if their framework is installed; missing backends are listed with the reason."""

from __future__ import annotations

import pytest

from transparity_conformance.oracle import backends


def _missing(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Add a second backend whose import fails because `module` is missing."""

    def backend(name: str) -> object:
        if name == "theirs":
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return object()

    monkeypatch.setattr(
        backends, "named", lambda: {"numpy": "transparity_numpy.port:build", "theirs": "theirs.port:build"}
    )
    monkeypatch.setattr(backends, "backend", backend)
    monkeypatch.setattr(backends, "absent", backends.absent.__wrapped__)


def test_a_backend_without_its_framework_is_left_out_and_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    _missing(monkeypatch, "a_framework")
    assert backends.installed() == ["numpy"]
    assert backends.absent() == {"theirs": "it cannot be imported (No module named 'a_framework')"}


def test_a_backend_that_lacks_a_module_of_its_own_is_broken_not_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    _missing(monkeypatch, "theirs.attention")
    with pytest.raises(ModuleNotFoundError):
        backends.installed()


def test_every_backend_of_this_project_is_installed_where_it_is_tested() -> None:
    assert {"numpy", "pytorch", "flax"} <= set(backends.installed())
