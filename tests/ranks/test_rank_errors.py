import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import invoke

from meta.ranks.measure import started
from transparity_conformance.capabilities.port_calls import PortError, PortProcessError
from transparity_conformance.checking.check import check
from transparity_conformance.report.report import Report
from transparity_conformance.running.process import ranks
from transparity_conformance.running.process.isolation import IsolatedBuild
from transparity_conformance.running.process.ranks import group_of

PORTS = Path(__file__).with_name("failing_ports.py")


@pytest.fixture(scope="module")
def shared() -> Iterator[IsolatedBuild]:
    """Yield three ranks, for ports that do not end their processes."""
    with started(f"{PORTS}:build", 3) as build:
        yield build


def checked(build: IsolatedBuild, name: str, **options: Any) -> Report:
    group = group_of(build)
    assert group is not None
    group.load(f"{PORTS}:{name}")
    return check(build, "notes-lm", logits_only=True, **options)


def children_of(groups_of: set[int]) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "pgid,args"], capture_output=True, text=True, check=True).stdout
    left = [line for line in listed.splitlines()[1:] if int(line.split()[0]) in groups_of]
    return [line for line in left if "defunct" not in line]  # a defunct process has ended


def test_a_rank_that_dies_is_named() -> None:
    with started(f"{PORTS}:dies", 3) as build, pytest.raises(PortProcessError) as raised:
        check(build, "notes-lm")
    said = "The process of rank 2 of 3 ended with the exit code 7 during forward; run the port without the checker"
    assert str(raised.value) == f"{said} to see why."


def test_a_rank_that_hangs_is_named_and_nothing_of_it_is_left() -> None:
    with started(f"{PORTS}:hangs", 3, timeout=3.0) as build:
        group = group_of(build)
        assert group is not None
        alone = [] if group.alone is None else group.alone.processes
        pids = {process.process.pid for process in (*group.processes, *alone)}
        with pytest.raises(PortProcessError) as raised:
            check(build, "notes-lm")
    said = "Rank 2 of 3 did not finish forward within 3 s (ranks 0 and 1 answered); all ranks were stopped: raise"
    assert str(raised.value).startswith(said)
    assert children_of(pids) == []


def test_a_rank_that_the_others_wait_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "WAITS", 0.5)
    began = time.monotonic()
    with started(f"{PORTS}:waits_for_it", 3) as build, pytest.raises(PortProcessError) as raised:
        check(build, "notes-lm")
    assert str(raised.value).startswith("Rank 2 of 3 raised ValueError: no peace on this rank")
    assert "ranks 0 and 1 waited; all ranks were stopped" in str(raised.value)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "raised on rank 2 of 3: ValueError: no peace on this rank"),
        ("narrow", "Ranks 0 and 2 return logits of the shapes"),
        ("padded", "logits from 3 ranks has 39 entries on axis -1; expected 31: if the last 8 are padding"),
        ("nonsense", "The placement of 'logits' is 'somewhere'; expected replicated"),
        ("by_rank", "Ranks 0 and 1 declare different placements"),
    ],
)
def test_an_answer_that_is_none_is_one_sentence(shared: IsolatedBuild, name: str, says: str) -> None:
    with pytest.raises(PortError) as raised:
        checked(shared, name)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_replica_that_is_off_on_one_rank_diverges_though_the_first_is_right(shared: IsolatedBuild) -> None:
    report = checked(shared, "off", quick=True)
    assert "RANK" not in os.environ, "the checker has no rank itself"
    assert report.verdict == "diverges"
    assert [cause.mistake for fault in report.faults for cause in fault.causes] == ["replicas-differ"]
    assert "ranks 0 and 2 have different values of the replicated logits" in report.faults[0].causes[0].says


def test_code_that_does_not_run_on_one_rank_is_compared_with_the_reference_alone(shared: IsolatedBuild) -> None:
    report = checked(shared, "one_refuses")
    assert report.verdict == "agrees"
    assert report.ranks is not None
    assert report.ranks.one_rank == "inconclusive"
    assert any("more than one rank" in line for line in report.not_compared)


PROGRAM = """
import os, sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from transparity_conformance.exchange.reading import read_bundle
from transparity_numpy.port import build

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
bundle = read_bundle(Path(sys.argv[1]))
written = {}
for key, probe in bundle.probes.items():
    parameters = dict(probe.parameters)
    if sys.argv[3:] == ["twice"]:
        parameters["head.bias"] = parameters["head.bias"] * np.float32(ranks)
    logits = build(probe.config, parameters, dtype="float32").logits(**probe.inputs)
    written[f"{key}/logits"] = np.asarray(logits, np.float32)
if rank == 0 or sys.argv[3:] != ["quiet"]:
    save_file(written, sys.argv[2])
"""


def ran(*arguments: str) -> tuple[int, dict[str, Any], str]:
    done = invoke("check", *arguments, "--json", "report.json")
    reports = json.loads(Path("report.json").read_text()) if Path("report.json").exists() else []
    return done.exit_code, reports[0] if reports else {}, done.output


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    return f"{sys.executable} program.py {{bundle}} {{actual}}"


@pytest.mark.parametrize(
    ("does", "verdict", "says"),
    [("quiet", "agrees", "not compared, because no file was written"), ("twice", "diverges", "bias-on-every-rank")],
)
def test_a_program_is_run_on_every_rank_and_on_one(does: str, verdict: str, says: str, program: str) -> None:
    code, report, _ = ran("--command", f"{program} {does}", "--ranks", "2", "--preset", "notes-lm")
    assert (code, report["ranks"]["one_rank"]) == (verdict == "diverges", verdict)
    assert says in "\n".join([*report["not_compared"], *(fault["causes"][0]["mistake"] for fault in report["faults"])])


def test_a_program_that_fails_on_a_rank_names_it(program: str) -> None:
    command = f'{sys.executable} -c \'import os, sys; sys.exit(3 * (os.environ["RANK"] == "1"))\''
    code, _, said = ran("--command", command, "--ranks", "2", "--preset", "notes-lm")
    assert code == 2
    assert "Rank 1 of the command" in said
    assert "ended with the exit code 3" in said


@pytest.mark.long
def test_a_loader_is_given_folders_on_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    port = f"{Path(__file__).with_name('sharded_llama.py')}:load"
    code, report, _ = ran(port, "--ranks", "2", "--family", "llama", "--no-audit")
    assert (code, report["ranks"]["one_rank"], report["ranks"]["placements"]) == (0, "agrees", {"logits": "sharded:-1"})
