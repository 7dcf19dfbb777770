"""What the tests of the tools share: every installed backend, and an error that is one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import entry_points

import pytest

from transparity.errors import TransparityError
from transparity.protocol import ENTRY_POINTS, Backend


@pytest.fixture(params=["numpy", "pytorch", "flax"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each of our backends, found as a stranger's would be."""
    (entry_point,) = entry_points(group=ENTRY_POINTS, name=request.param)
    build: Backend = entry_point.load()
    return build


@pytest.fixture
def refused() -> Callable[..., AbstractContextManager[None]]:
    """`with refused(ParameterError, "Parameter 'head.bias' is missing"):` — by one sentence that begins so."""

    @contextmanager
    def refusal(error: type[TransparityError], begins: str) -> Iterator[None]:
        with pytest.raises(error) as caught:
            yield
        message = str(caught.value)
        assert message.startswith(begins)
        assert message.endswith(".")
        assert "\n" not in message
        assert ". " not in message, "one sentence"

    return refusal
