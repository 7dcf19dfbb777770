"""`transparity fit` on ports with hidden properties; a check's probes confirm or reject the result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fitting import odd_ports as ports
from tests.looping import for_each
from typer.testing import CliRunner

from transparity_conformance.cli import app
from transparity_conformance.identify.adapting.adapt import adapt
from transparity_conformance.identify.fitting.fit import fit
from transparity_conformance.identify.fitting.subject import FitError

ROWS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "eps 1e-7": (lambda: ports.rms(1e-7), {"norm_eps": 1e-7}),
    "eps 1e-8": (lambda: ports.rms(1e-8), {"norm_eps": 1e-8}),
    "eps 3e-9": (lambda: ports.rms(3e-9), {"norm_eps": 3e-9}),
    "a usual eps": (lambda: ports.rms(1e-6), {"norm_eps": 1e-6}),
    "a buffer": (lambda: ports.Decoder(attend=ports.in_buffer), {"num_heads": 3}),
    "a buffer of sevens": (lambda: ports.Decoder(attend=functools.partial(ports.in_buffer, fill=7.0)), {}),
    "a buffer, by hand": (lambda: ports.Decoder(attend=functools.partial(ports.in_buffer, by_hand=True)), {}),
    "no buffer": (ports.Decoder, {"num_heads": 3, "max_length": 40}),
    "two masks": (ports.TwoMasks, {"padding": "attention-mask"}),
    "head by head": (lambda: ports.Decoder(by_head=True), {"num_heads": 3}),
    "padded to all places": (ports.padded, {"num_heads": 3, "max_length": 40}),
    "rows second": (ports.RowsSecond, {"norm_position": "post"}),
    "rows second, norms first": (lambda: ports.RowsSecond(norm_first=True), {"norm_position": "pre"}),
    "rows second, GELU": (lambda: ports.RowsSecond(activation="gelu"), {"activation": "gelu"}),
}

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "one length": (ports.Whole, "when it was called with tokens (8, 9)"),
    "a wider result": (ports.Narrow, "Layer 1 of the decoder does not end with a feed-forward"),
    "images by another name": (ports.Images, "The image embedding was not recognized"),
}


@pytest.mark.long
@for_each(("name", "row"), ROWS.items())
def test_a_port_that_hides_something_is_found_and_confirmed(name: str, row: tuple[Any, dict[str, Any]]) -> None:
    make, fields = row
    made = fit(make)
    assert made.is_confirmed, (name, made.remarks)
    assert {field: getattr(made.config, field) for field in fields} == fields, name


@for_each(("name", "row"), REFUSED.items())
def test_what_stops_a_fit_is_told_with_what_is_known(name: str, row: tuple[Any, str]) -> None:
    make, says = row
    with pytest.raises(FitError) as raised:
        fit(make)
    assert says in str(raised.value), (name, str(raised.value))


def test_what_only_the_probes_of_a_check_show_is_not_confirmed() -> None:
    """Check a lower bound in place of eps, which is visible only for small activations; the first calls have none."""
    made = fit(lambda: ports.Decoder(ports.Bounded))
    assert not made.is_confirmed
    assert "weights of a check" in " ".join(made.remarks)


def test_a_fit_that_stops_writes_what_it_found(tmp_path: Path) -> None:
    file = tmp_path / "partial.json"
    result = CliRunner().invoke(app, ["fit", f"{ports.__file__}:Whole", "--json", str(file)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "The nearest template is" in result.stderr and "--against" in result.stderr
    assert '"num_heads": 3' in file.read_text()


def test_what_is_in_a_buffer_is_adapted() -> None:
    config = fit(ports.Decoder).config
    assert adapt(lambda: ports.Decoder(attend=ports.in_buffer), config).is_proved
