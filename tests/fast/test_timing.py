"""A report contains the time of each stage of a check."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.golden.test_hostile import invoke

from meta.pool.port import port_with
from transparity_conformance import check
from transparity_conformance.checking import check as checking
from transparity_conformance.report.check.terminal import as_text
from transparity_conformance.report.parts import Stopwatch, Timing

PORT = """
from transparity_numpy.port import build as of_reference

def build(config, parameters):
    forward = of_reference(config, parameters)
    return lambda **tokens: forward(**tokens)["logits"]
"""


def test_every_stage_that_ran_has_a_time_in_order() -> None:
    report = check(port_with("attention-scale-twice"), "translation", budget=0)
    stages = [stage.__name__.replace("_", " ") for stage, *_ in checking.STAGES]
    assert list(report.timing) == [stage for stage in stages if stage in report.timing]
    assert {"run probes", "listen", "judge answers"} <= report.timing.keys()
    assert "find unsteady line" not in report.timing, "this stage did not run"
    assert all(time.port is None for time in report.timing.values()), "a port in this process has no separate time"


def test_a_stage_has_the_time_that_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep_and_work(evidence: object) -> None:
        time.sleep(0.2)
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass

    monkeypatch.setattr(checking, "STAGES", ((sleep_and_work,),))
    timed = check(port_with(), "translation").timing["sleep and work"]
    assert timed.seconds >= 0.3 and 0.1 <= timed.processor < timed.seconds


def test_a_stage_that_raises_counts() -> None:
    watch = Stopwatch(lambda: None)
    with pytest.raises(KeyboardInterrupt), watch.timed("a stage"):
        raise KeyboardInterrupt
    assert watch.stages["a stage"].seconds >= 0


def test_a_port_that_is_started_again_counts_no_negative_time() -> None:
    assert Timing(2, 2, 0.5).since(Timing(1, 1, 3.0)) == Timing(1, 1, 0.0)


def test_the_command_writes_and_shows_the_time_since_its_start(tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(PORT)
    target = tmp_path / "report.json"
    line = ["check", f"{tmp_path}/port.py:build", "--preset", "notes-lm", "--preset", "pre-norm", "--logits-only"]
    result = invoke(*line, "--verbose", "--json", target)
    first, second = (report["timing"] for report in json.loads(target.read_text()))
    assert result.exit_code == 0 and next(iter(first)) == "start" and "start" not in second
    assert sum(each["processor"] for each in first.values()) > 0
    if Path("/proc/self/stat").exists():
        assert sum(each["port"] for each in first.values()) > 0


def test_the_answer_shows_a_table_if_asked() -> None:
    report = check(port_with("attention-scale-twice"), "translation")
    assert "processor" not in as_text([report])
    rows = [line.split() for line in as_text([report], verbose=True).splitlines()]
    (whole,) = (row for row in rows if row[:1] == ["all"])
    assert whole[1] == f"{sum(time.seconds for time in report.timing.values()):.1f}"
