import importlib.util
import json
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
import torch
from tests.golden.ports import GPT2
from tests.golden.test_hostile import RIGHT, calling

from meta.independent.model import Model
from transparity.config import TransformerConfig
from transparity.errors import UsageError
from transparity_conformance import check, work
from transparity_conformance.capabilities.port_calls import PortCallError, PortError, call_port, has_method
from transparity_conformance.diagnosis.search.clock import WORK, Clock, OutOfTime
from transparity_conformance.running.process.child import checked_timeout
from transparity_numpy.port import build as numpy_build


def checking(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a check from the command line; Ctrl-C interrupts the check even in a background job of a shell."""
    restore = "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-c", restore, sys.executable, "-m", "transparity_conformance", "check", *arguments]
    pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, text=True, **pipes | options)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_takes_nothing_is_no_verdict() -> None:
    reading, closed = os.pipe()
    os.close(reading)
    full = "The operating system reports an error (No space left on device); fix the cause and try again.\n"
    for output, says in ((os.open("/dev/full", os.O_WRONLY), full), (closed, "")):
        command = [sys.executable, "-m", "transparity_conformance", "presets"]
        ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        os.close(output)
        assert (ended.returncode, ended.stderr) == (2, says)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_one_sentence_and_exit_code_2(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "port.py"
    file.write_text(RIGHT + calling(f"open({str(tmp_path / 'runs')!r}, 'w').close(); time.sleep(60)"))
    process = checking(f"{file}:build", "--preset", "notes-lm")
    while not (tmp_path / "runs").exists():
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said == "Interrupted before a verdict was reached.\n"


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


def test_a_model_of_transformers_without_pytorch_names_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "site-packages/transformers/models.py"
    library.parent.mkdir(parents=True)
    library.write_text("def load(folder):\n    raise ImportError('Llama requires PyTorch')\n")
    load = runpy.run_path(str(library))["load"]

    def described() -> str:
        with pytest.raises(PortCallError) as raised:
            call_port(load, "folder")
        return str(raised.value)

    assert described() == "ImportError: Llama requires PyTorch (transformers/models.py, line 2)"
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    missing = "torch is not installed (transformers/models.py, line 2)"
    assert described() == f'ModuleNotFoundError: {missing}: python -m pip install "transparity[pytorch]"'


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
    process = checking(f"{file}:build", "--preset", "notes-lm", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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


PORT = """
from tests.golden.ports import ScaledByTheWidth

class Two(ScaledByTheWidth):
    def dense_feed(self, at, x):
        y = super().dense_feed(at, x)
        return y + x.roll(3, -1).sin() + x.mean(1, keepdim=True)
"""


CHATTY = """
import os, sys
print("importing")
from meta.independent.model import Model

class Chatty(Model):
    def __call__(self, **tokens):
        print("calling", flush=True)
        os.write(1, b"writing")
        return super().__call__(**tokens)
"""


def started(folder: Path, name: str, *options: str, terminal: bool = False) -> subprocess.Popen[str]:
    (folder / "port.py").write_text(PORT if name in PORT else CHATTY)
    (folder / "config.json").write_text(GPT2.to_json())
    shown = {"TTY_COMPATIBLE": "1", "COLUMNS": "200"} if terminal else {}
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    command = (f"port.py:{name}", "--config", "config.json", *options)
    return checking(*command, cwd=folder, env=os.environ | paths | shown)


def test_ctrl_c_in_the_search_keeps_what_was_found(tmp_path: Path) -> None:
    with started(tmp_path, "Two", "--json", "report.json", "--html", "report.html", terminal=True) as process:
        assert process.stdout is not None and process.stderr is not None
        shown, is_interrupted = "", False
        while part := process.stderr.read(1):
            shown += part
            if not is_interrupted and "differs at decoder.layers.0.self_attention.scores, model.py:" in shown:
                process.send_signal(signal.SIGINT)
                is_interrupted = True
        said = process.stdout.read()
    assert process.returncode == 1
    assert "differs at logits" in shown
    assert "port.py:Two differs from the reference" in said
    (report,) = json.loads((tmp_path / "report.json").read_text())
    assert (report["port"], report["verdict"]) == ("port.py:Two", "diverges")
    assert report["faults"][0]["where"] == "decoder.layers.0.self_attention.scores"
    assert report["faults"][0]["source"]["code"].startswith("scores = ")
    assert any(note.startswith("the check was interrupted") for note in report["notes"])
    assert "port.py:Two differs from the reference" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_search_counts_its_work_and_shows_its_progress() -> None:
    shown: list[tuple[str, int, int]] = []
    clock = Clock(watch=lambda *step: shown.append(step))
    assert list(clock.each(range(3))) == [0, 1, 2]
    assert shown == [("looking for causes, 0 candidates tried", 0, WORK)]
    work.count(int(2 * WORK / work.NUMBER))
    assert clock.is_over and not Clock().is_over
    with pytest.raises(OutOfTime):
        clock.check()
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
    class Chatty(Model):
        def feed(self, at: str, x: torch.Tensor) -> torch.Tensor:
            sys.stdout.write("feeding")
            return super().feed(at, x)

    check(Chatty, config=GPT2, budget=0)
    said = capsys.readouterr()
    assert (said.out, "feeding" in said.err) == ("", True)
