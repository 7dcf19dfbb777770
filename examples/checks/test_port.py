"""Check a port in a test: `pytest examples/checks/test_port.py`. If the test fails, its message is the report."""

from examples.checks.torch_module import build  # put your own port in its place

from transparity_conformance import assert_conforms


def test_the_port_conforms() -> None:
    assert_conforms(build, preset="notes-lm")
