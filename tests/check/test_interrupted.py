"""A divergence is reported before the search for causes, and Ctrl-C does not lose it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.alignment.test_alignment import GPT2, Gpt2

from transparity_conformance import check
from transparity_conformance.diagnosis.search.clock import BUDGET, Clock, OutOfTime
from transparity_conformance.report.report import Interrupted, Report

PORT = """
from tests.alignment.test_alignment import Gpt2, ScaledByTheWidth

class Two(ScaledByTheWidth):
    def feed_forward(self, at, x):
        y = super().feed_forward(at, x)
        return y + x.roll(3, -1).sin() + x.mean(1, keepdim=True)
"""


CHATTY = """
import os, sys
print("importing")
from tests.alignment.test_alignment import Gpt2

class Chatty(Gpt2):
    def __call__(self, tokens):
        print("calling", flush=True)
        os.write(1, b"writing")
        return super().__call__(tokens)
"""


def started(folder: Path, name: str, *options: str, terminal: bool = False) -> subprocess.Popen[str]:
    """Start a check of a port from the command line; in a `terminal`, it shows its progress."""
    (folder / "port.py").write_text(PORT if name in PORT else CHATTY)
    (folder / "config.json").write_text(GPT2.to_json())
    # background jobs of a shell ignore Ctrl-C, and so do their children
    restore = "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execv(sys.executable, sys.argv[1:])"
    shown = {"TTY_COMPATIBLE": "1", "COLUMNS": "200"} if terminal else {}
    command = ["-m", "transparity_conformance", "check", f"port.py:{name}", "--config", "config.json", *options]
    return subprocess.Popen(
        [sys.executable, "-c", restore, sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])} | shown,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_in_the_search_keeps_what_was_found(tmp_path: Path) -> None:
    with started(tmp_path, "Two", "--json", "report.json", "--html", "report.html", terminal=True) as process:
        assert process.stdout is not None and process.stderr is not None
        shown, is_interrupted = "", False
        while part := process.stderr.read(1):
            shown += part
            if not is_interrupted and "differs at decoder.layers.0.self_attention.scores, test_alignment.py:" in shown:
                process.send_signal(signal.SIGINT)
                is_interrupted = True
        said = process.stdout.read()
    assert process.returncode == 1
    assert "differs at logits" in shown
    assert "port.py:Two differs from the reference" in said
    (report,) = json.loads((tmp_path / "report.json").read_text())
    assert (report["port"], report["verdict"]) == ("port.py:Two", "diverges")
    assert report["faults"][0]["where"] == "decoder.layers.0.self_attention.scores"
    assert report["faults"][0]["source"]["code"].startswith("att = ")
    assert any(note.startswith("the check was interrupted") for note in report["notes"])
    assert "port.py:Two on config diverges" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_causes_found_before_ctrl_c_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a cause is kept if the search for a second cause is interrupted."""
    namespace: dict[str, type[Gpt2]] = {}
    exec(PORT, namespace)
    found: list[Report] = []

    def interrupted(clock: Clock) -> None:
        if found and clock.tried > 400 and not clock.is_interrupted:
            signal.raise_signal(signal.SIGINT)
        real(clock)

    real = Clock.check
    monkeypatch.setattr(Clock, "check", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(Interrupted) as ended:
            check(namespace["Two"], config=GPT2, located=found.append)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    faults = ended.value.report.faults
    assert [cause.mistake for cause in faults[0].causes] == ["attention-scale"]
    assert any(not fault.causes for fault in faults)


def test_the_search_has_thirty_seconds_and_shows_its_progress() -> None:
    shown: list[tuple[str, int, int]] = []
    clock = Clock(watch=lambda *step: shown.append(step))
    assert list(clock.each(range(3))) == [0, 1, 2]
    assert clock.seconds == BUDGET == 30
    assert shown == [("looking for causes, 0 candidates tried", 0, 30)]
    with pytest.raises(OutOfTime):
        Clock(0).check()


def test_what_a_port_prints_is_not_in_json_on_standard_output(tmp_path: Path) -> None:
    with started(tmp_path, "Chatty", "--json", "-") as process:
        said, others = process.communicate(timeout=60)
    (report,) = json.loads(said)
    assert (process.returncode, report["verdict"]) == (0, "agrees")
    for text in ("importing", "calling", "writing", "port.py:Chatty agrees with"):
        assert text in others


def test_what_a_port_prints_in_this_process_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    class Chatty(Gpt2):
        def feed_forward(self, at: str, x: torch.Tensor) -> torch.Tensor:
            sys.stdout.write("feeding")
            return super().feed_forward(at, x)

    check(Chatty, config=GPT2, budget=0)
    said = capsys.readouterr()
    assert (said.out, "feeding" in said.err) == ("", True)
