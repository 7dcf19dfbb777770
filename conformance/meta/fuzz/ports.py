"""Entry points for ports: Python objects, files, programs, and the command line."""

import functools
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from meta.fuzz import strategies as wild
from meta.fuzz.files import TINY, drawn_text, right_bundle, right_checkpoint, write
from meta.fuzz.outcome import ACCEPTED, SECONDS, WrongAnswerError, unreadable
from meta.fuzz.strategies import Draw
from transparity.text import SENTENCE
from transparity_conformance.checking.check import check
from transparity_conformance.exchange.bundle import ACTUAL
from transparity_conformance.exchange.reading import read_actual
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.running.loading import load_port
from transparity_conformance.running.process.child import run_together
from transparity_conformance.running.process.running import built, run
from transparity_numpy.port import build as right_port

SEARCH = 2.0
"""The seconds for the search for causes."""

VERDICTS = {0: "agrees", 1: "diverges", 2: "bad input", 3: "inconclusive"}


class Surprising(dict[str, Any]):
    """Taps that raise an error when they are read."""

    def items(self) -> Any:
        raise RuntimeError("items")

    def keys(self) -> Any:
        raise SystemExit(0)

    __iter__ = keys


def _raising(error: type[BaseException], what: Any) -> Callable[..., Any]:
    def raises(*_: Any) -> Any:
        raise error(what)

    return raises


Answer = Callable[[dict[str, Any]], Any]
"""A function that turns the correct taps into a port's answer."""

raising: SearchStrategy[Answer] = st.builds(
    _raising, st.sampled_from((*wild.ERRORS, *wild.EXITS)), wild.names | st.builds(lambda: "x" * 10**6) | wild.hostile
)
_unknown = (
    st.sampled_from([name for name in wild.NAMES if name != "logits"]) | st.sampled_from((3, None, (1,))) | wild.hostile
)
_plain: tuple[Answer, ...] = (
    Surprising,
    lambda right: {},
    lambda right: [right["logits"][:1]],
    lambda right: right["logits"][:1],
    lambda right: right["logits"].T,
)


def _one_number(value: float) -> Answer:
    return lambda right: np.where(
        np.arange(right["logits"].size).reshape(right["logits"].shape) == 3, value, right["logits"]
    )


answers: SearchStrategy[Answer] = st.one_of(
    wild.objects.map(lambda value: lambda right: value),
    wild.objects.map(lambda value: lambda right: {"logits": value}),
    st.builds(lambda at, value: lambda right: right | {[*right][at % len(right)]: value}, st.integers(0), wild.objects),
    _unknown.map(lambda name: lambda right: right | {name: right["logits"]}),
    st.sampled_from(_plain),
    st.sampled_from(("float16", "complex128", "bool", "object", "int64", "S8")).map(
        lambda dtype: lambda right: right["logits"].astype(dtype)
    ),
    st.sampled_from(wild.NOT_FINITE).map(_one_number),
    st.sampled_from((0, 1e300, -1, 1e-300)).map(lambda factor: lambda right: right["logits"] * factor),
    raising,
)


def drawn_build(draw: Draw) -> Callable[..., Any]:
    """Draw a port that fails in `build`, or that changes the correct taps equally in every call."""
    wrong, answer = draw(raising | wild.objects.map(lambda value: lambda *_: value)), draw(answers)
    fails_in_build = draw(wild.is_rare)

    def build(config: Any, parameters: Any) -> Any:
        if fails_in_build:
            return wrong(config)
        forward = right_port(config, parameters)
        return lambda **tokens: answer(forward(**tokens))

    return build


@functools.cache
def probe() -> Probe:
    return probes_of(TINY, "config")["one"]


def port_call(draw: Draw, folder: Path) -> str:
    build, logits_only = drawn_build(draw), draw(wild.is_rare)
    run(built(build, probe()), probe(), logits_only=logits_only)
    return ACCEPTED


def port_check(draw: Draw, folder: Path) -> str:
    report = check(drawn_build(draw), config=TINY, budget=SEARCH)
    if report.verdict == "agrees":
        raise WrongAnswerError("the checker agrees with a wrong port")
    if any(not line.isprintable() for line in (*report.notes, *report.not_compared)):
        raise WrongAnswerError("a line of the report is not printable")
    return report.verdict


_TEXTS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("ports.toml").read_text(encoding="utf-8"))
SOURCES, HARM, PROGRAMS, COMMANDS = (tuple(_TEXTS[name]) for name in ("sources", "harm", "programs", "commands"))
"""Sources of wrong ports, sources of ports that would end or block the checker's own process, shell programs, and
command lines."""


def _source(draw: Draw, sources: tuple[str, ...], path: Path) -> Path:
    error, text = draw(st.sampled_from((*wild.ERRORS, *wild.EXITS))).__name__, draw(wild.names)
    number = draw(st.sampled_from((0, 1, 2, 3, 9, 11)))
    source = draw(st.sampled_from(sources)).format(error=error, text=text, number=number)
    path.write_text(source, encoding="latin-1")
    return path


def port_file(draw: Draw, folder: Path) -> str:
    path = _source(draw, SOURCES, folder / "port.py")
    name = draw(st.sampled_from(("build", "build", "build", "x y", "", "__name__", "é", "a.b")))
    spec = draw(st.one_of(*[st.just(f"{path}:{name}")] * 2, wild.names, wild.names.map(lambda file: f"{file}:{name}")))
    run(built(load_port(spec), probe()), probe())
    return ACCEPTED


NO_PROGRAMS = (*wild.NAMES, "'", "/", "/etc/passwd", "x" * 10**5)


def program(draw: Draw, folder: Path) -> str:
    bundle, files = right_bundle()
    (folder / "bundle").mkdir()
    write(folder / "bundle", {"config.json": files["config.json"]})
    (folder / "source").write_bytes(draw(wild.damaged(files["expected.safetensors"])))
    paths = {"source": folder / "source", "actual": folder / ACTUAL, "bundle": folder / "bundle"}
    script = draw(st.sampled_from(PROGRAMS)).format(**paths, number=draw(st.integers(1, 64)))
    command = draw(st.one_of(*[st.just(f"sh -c {shlex.quote(script)}")] * 5, st.sampled_from(NO_PROGRAMS)))
    run_together(command, folder / "bundle", [(folder / ACTUAL, {})], timeout=5)
    read_actual(folder / ACTUAL, bundle)
    return ACCEPTED


def command_line(draw: Draw, folder: Path) -> str:
    """Run `transparity` with drawn arguments and files; all ports are wrong, so `check` must not agree."""
    _, files = right_bundle()
    write(folder, files | {"actual.safetensors": draw(wild.damaged(files["expected.safetensors"]))})
    config, ours, hub = folder / "a.json", folder / "b.json", folder / "hub"
    changes = draw(st.dictionaries(wild.names, wild.json_values, max_size=1))
    config.write_bytes(drawn_text(draw, TINY.as_dict() | changes))
    ours.write_text(TINY.to_json())
    hub.mkdir()
    checkpoint = right_checkpoint("llama")
    write(hub, checkpoint | {"model.safetensors": draw(wild.damaged(checkpoint["model.safetensors"]))})
    port = _source(draw, (*SOURCES, *HARM), folder / "port.py")
    name = draw(st.sampled_from([name for name in wild.NAMES if "\0" not in name and "\ud800" not in name]))
    paths = {"port": port, "ours": ours, "config": config, "hub": hub, "folder": folder, "name": name}
    return _run([part.format(**paths) for part in draw(st.sampled_from(COMMANDS)).split()], folder)


def _run(arguments: list[str], folder: Path) -> str:
    program = [sys.executable, "-P", "-m", "transparity_conformance", *arguments]
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "400"}
    ended = subprocess.run(program, cwd=folder, env=environment, capture_output=True, timeout=SECONDS * 3, check=False)
    text = ended.stderr.decode("utf-8", "replace").strip()
    if ended.returncode not in VERDICTS:
        raise WrongAnswerError(f"unknown exit code {ended.returncode} of {arguments}: {text[-200:]!a}")
    if "Traceback" in text:
        raise WrongAnswerError(f"a traceback in the output of {arguments}: {text[-300:]!a}")
    is_usage = text.startswith("Usage:")
    is_cut = any(len(argument) >= SENTENCE for argument in arguments)  # the message quotes a long argument
    last = text.splitlines()[-1] if text else ""
    if ended.returncode == 2 and not (is_usage or is_cut) and (problem := unreadable(last)):
        raise WrongAnswerError(f"{arguments}: {problem}")
    if ended.returncode == 0 and arguments[0] == "check":
        raise WrongAnswerError(f"the checker agrees with a wrong port: {arguments}")
    return VERDICTS[ended.returncode]
