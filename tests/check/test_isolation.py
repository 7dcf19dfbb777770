"""From the command line a port runs in its own process, and the exit code is always 0, 1, 2 or 3."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden.test_hostile import RIGHT, calling

from transparity.config import TransformerConfig
from transparity.errors import UsageError
from transparity_conformance import check
from transparity_conformance.capabilities.port_calls import (
    PortCallError,
    PortError,
    PortProcessError,
    call_port,
    has_method,
)
from transparity_conformance.running.loading import load_port
from transparity_conformance.running.process.child import checked_timeout
from transparity_numpy.port import build as numpy_build


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_takes_nothing_is_no_verdict() -> None:
    reading, closed = os.pipe()
    os.close(reading)
    full = "The operating system reports an error (No space left on device); free this resource and try again.\n"
    for output, says in ((os.open("/dev/full", os.O_WRONLY), full), (closed, "")):
        command = [sys.executable, "-m", "transparity_conformance", "presets"]
        ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        os.close(output)
        assert (ended.returncode, ended.stderr) == (2, says)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_one_sentence_and_exit_code_2(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "port.py"
    file.write_text(RIGHT + calling(f"open({str(tmp_path / 'runs')!r}, 'w').close(); time.sleep(60)"))
    # background jobs of a shell ignore Ctrl-C, and so do their children
    restore = "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-m", "transparity_conformance", "check", f"{file}:build", "--preset", "notes-lm"]
    process = subprocess.Popen(
        [sys.executable, "-c", restore, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "runs").exists():
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said == "Interrupted before a verdict was reached.\n"


def test_check_isolates_a_function_that_can_be_imported(tmp_path: Path) -> None:
    file = tmp_path / "isolated_port.py"
    file.write_text(RIGHT + calling("os._exit(0)"))
    build = load_port(f"{file}:build")
    with pytest.raises(PortProcessError, match="ended with the exit code 0"):
        check(build, preset="notes-lm", isolated=True)


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300"])
def test_a_timeout_that_never_ends_is_refused(seconds: str) -> None:
    with pytest.raises(UsageError, match=r"expected seconds above 0, at most 1e\+06"):
        checked_timeout(float(seconds))


def test_check_says_that_it_cannot_isolate_a_lambda() -> None:
    with pytest.raises(PortError, match="another process cannot import"):
        check(lambda config, parameters: lambda **tokens: 0, preset="notes-lm", isolated=True)


def test_the_error_state_of_numpy_is_put_back_after_every_call_in_this_process() -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Callable[..., Any]:
        forward = numpy_build(config, parameters, dtype="float32")

        def port(**tokens: np.ndarray) -> Any:
            logits = forward(**tokens)["logits"]
            np.seterr(all="raise")
            sys.stdout = None
            return logits

        return port

    before = np.geterr(), sys.stdout
    assert check(build, preset="notes-lm").verdict == "agrees"
    assert (np.geterr(), sys.stdout) == before


@pytest.mark.parametrize(
    "ends", [SystemExit(0), KeyboardInterrupt(), GeneratorExit(), type("PanicException", (BaseException,), {})()]
)
def test_an_exit_in_this_process_is_an_error_of_the_port(ends: BaseException) -> None:
    def forward(**tokens: np.ndarray) -> Any:
        raise ends

    with pytest.raises(PortError, match=f"raised {type(ends).__name__}"):
        check(lambda config, parameters: forward, preset="notes-lm")


def test_a_port_that_swallows_ctrl_c_does_not_keep_it_from_the_user() -> None:
    def forward(**tokens: np.ndarray) -> Any:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            pass
        return np.zeros(1)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            check(lambda config, parameters: forward, preset="notes-lm")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_that_our_code_raises_for_a_port_has_the_line_of_the_port(tmp_path: Path) -> None:
    file = tmp_path / "port.py"
    file.write_text("from transparity.presets import preset\n\n\ndef build():\n    preset('none')\n")
    with pytest.raises(PortCallError, match=r"There is no preset 'none'.*\(port\.py, line 5\)"):
        call_port(runpy.run_path(str(file))["build"])


def test_a_capability_that_raises_when_it_is_looked_up_is_offered() -> None:
    class Port:
        @property
        def step(self) -> Any:
            raise RuntimeError("no cache")

    assert has_method(Port(), "step")
    assert not has_method(Port(), "generate")


def test_a_port_does_not_outlive_a_checker_that_was_killed(tmp_path: Path) -> None:
    file, started = tmp_path / "port.py", tmp_path / "started"
    file.write_text(RIGHT + calling(f"open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(60)"))
    command = [sys.executable, "-m", "transparity_conformance", "check", f"{file}:build", "--preset", "notes-lm"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (started.exists() and started.read_text()):
        time.sleep(0.05)
    process.kill()
    process.wait()
    for _ in range(100):
        try:
            os.kill(int(started.read_text()), 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("the port's process is still running")
