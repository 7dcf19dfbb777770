from collections.abc import Iterator
from importlib.metadata import entry_points

import pytest

from transparity.protocol import ENTRY_POINTS, HARNESS_ENTRY_POINTS, Backend, Harness
from transparity_conformance import cache
from transparity_conformance.checkpoints import importing
from transparity_conformance.oracle import probes


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use an empty cache, because a test may change the reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(params=["numpy", "pytorch", "flax"])
def column(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def backend(column: str) -> Backend:
    """Return the column's backend, loaded by its entry point like a third-party backend."""
    (entry_point,) = entry_points(group=ENTRY_POINTS, name=column)
    build: Backend = entry_point.load()
    return build


@pytest.fixture
def harness(column: str) -> Harness:
    """Return the column's harness, loaded by its entry point like a third-party harness."""
    (entry_point,) = entry_points(group=HARNESS_ENTRY_POINTS, name=column)
    parts: Harness = entry_point.load()
    return parts


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "LARGE", 0)
    monkeypatch.setattr(probes, "LARGE", 0)
