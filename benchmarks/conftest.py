"""With `--benchmark`, load `benchmarks.plugin`; without, or without pytest-benchmark, import nothing."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--benchmark") and config.pluginmanager.hasplugin("benchmark"):
        config.pluginmanager.import_plugin("benchmarks.plugin")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect the race alone, or all else."""
    if not collection_path.name.startswith("test_"):
        return None
    is_race = collection_path.name == "test_race.py"
    return True if is_race != (config.getoption("--race") is not None) else None
