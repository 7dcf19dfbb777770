"""Recording takes at most as long as three eager passes plus two seconds."""

from __future__ import annotations

import pytest

from meta.listening.cost import FRAMEWORKS, measured


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_pass_of_a_probe_that_is_listened_to_is_within_the_target(framework: str) -> None:
    found = measured(framework, "probe")
    assert found["is_within"], found
    assert found["operations"] > 100 and found["recorded"] > found["taps"]
