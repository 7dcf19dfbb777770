from pathlib import Path

import pytest

from transparity_conformance.against.masks import dropping_line
from transparity_conformance.listening.operation import Source

PORT = """
def model(ids, attention_mask=None):
    x = embed(ids)
    bias = bias_of(attention_mask)
    for layer in layers:
        x = layer(x, {given})
    return x


def layer(x, mask):
    return x + attention(norm(x), {passed})


def attention(x, mask):
    return softmax(x @ x.mT)
"""
LAYER, ATTENTION, SOFTMAX = 6, 11, 15


@pytest.mark.parametrize(
    ("given", "passed", "line"),
    [("None", "mask", LAYER), ("bias", "mask=None", ATTENTION), ("bias", "mask", SOFTMAX)],
)
def test_the_outermost_line_that_drops_the_mask_is_found(tmp_path: Path, given: str, passed: str, line: int) -> None:
    file = tmp_path / "port.py"
    file.write_text(PORT.format(given=given, passed=passed))
    stack = [Source(str(file), number, "") for number in (SOFTMAX, ATTENTION, LAYER)]
    assert dropping_line(stack) == stack[[SOFTMAX, ATTENTION, LAYER].index(line)]


def test_a_mask_that_every_function_reads_is_not_dropped(tmp_path: Path) -> None:
    file = tmp_path / "port.py"
    file.write_text("def attention(x, mask):\n    scores = x @ x.mT + mask\n    return softmax(scores)\n")
    assert dropping_line([Source(str(file), 3, "")]) is None
