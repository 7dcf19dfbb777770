"""Load `benchmarks.plugin` if pytest has the option `--benchmark` and pytest-benchmark is installed."""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--benchmark") and config.pluginmanager.hasplugin("benchmark"):
        config.pluginmanager.import_plugin("benchmarks.plugin")
