"""Without `--benchmark` nothing here is imported; with it, `benchmarks.plugin` takes over."""

from __future__ import annotations

from pathlib import Path

import pytest

ROUNDS = 15


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-modes",
        action="store_true",
        help="Benchmark every mode of each backend, not the first alone.",
    )
    parser.addoption(
        "--race",
        nargs="?",
        type=int,
        const=ROUNDS,
        metavar="ROUNDS",
        help="With --benchmark: run the race (`python -m benchmarks.race`) instead, so that its figures can be saved "
        "and compared as pytest-benchmark does.",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--benchmark"):
        config.pluginmanager.import_plugin("benchmarks.plugin")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The race, or all else."""
    if not collection_path.name.startswith("test_"):
        return None
    is_race = collection_path.name == "test_race.py"
    return True if is_race != (config.getoption("--race") is not None) else None
