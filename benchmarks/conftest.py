"""With `--benchmark`, load `benchmarks.plugin`; without, or without pytest-benchmark, import nothing."""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--benchmark") and config.pluginmanager.hasplugin("benchmark"):
        config.pluginmanager.import_plugin("benchmarks.plugin")
