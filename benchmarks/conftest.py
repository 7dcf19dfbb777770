"""Without `--benchmark` nothing here is imported; with it, `benchmarks.plugin` takes over."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-modes",
        action="store_true",
        help="Benchmark every mode of each backend, not the first alone.",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--benchmark"):
        config.pluginmanager.import_plugin("benchmarks.plugin")
