import importlib
import itertools
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.environment import overridden_kernels
from benchmarks.oracles import conformity, losses, oracle_of, read_oracle, read_task, write_oracle
from benchmarks.race.candidates import CANDIDATES, COMPILED, JAX, NUMPY, TORCH, Candidate, against
from benchmarks.race.limits import Limit
from benchmarks.race.process import Place, environment
from benchmarks.race.race import LIMIT_MEMORY, Result, fitting, refusal, run_rounds
from benchmarks.race.results import PAGES, keep, kept_rows, machines, tabulated, why_not_kept
from benchmarks.race.rows import Row, rows_of
from benchmarks.race.timing import WARM, WORK, seconds
from benchmarks.workloads import WORKLOADS, Workload, inputs_of, parameters_of
from tests.looping import for_each

from transparity_conformance.oracle import oracle
from transparity_conformance.oracle.budgets import NEIGHBOURS

ROOT = Path(__file__).parents[2]

TINY = [workload for workload in WORKLOADS.values() if workload.name.startswith("tiny")]
FORWARD = WORKLOADS["tiny-decoder"]

STRANGERS = """
import os
import signal

from benchmarks.peers import numpy_einsum


def right(task):
    return numpy_einsum.build(task)


def wrong(task):
    task.parameters["decoder.layers.1.feed_forward.up.bias"][0] += 1e-2
    return numpy_einsum.build(task)


def dying(task):
    os.kill(os.getpid(), signal.SIGKILL)


def hanging(task):
    while True:
        pass
"""


def test_a_gpu_is_timed_once_it_is_warm_over_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # with torch, the timer would use events, which need a GPU
    begin, calls = time.perf_counter(), list[float]()

    def run() -> None:
        time.sleep(1e-3)
        calls.append(time.perf_counter() - begin)

    assert 1e-3 < seconds(run, "cuda") < 1e-2
    assert len([each for each in calls if each > WARM]) >= 10
    once = len(calls)
    seconds(run, "cpu")
    assert len(calls) == once + 1


@for_each(
    ("held", "says"),
    [
        (None, "refused: the result was not compared"),
        ({"error": 2.0, "budget": 1.0, "share": 2.0}, "refused: the result differs by 2"),
        ({"error": float("nan"), "budget": 1.0, "share": float("nan")}, "refused: the result differs by nan"),
        ({"error": float("inf"), "budget": 1.0, "share": float("inf")}, "refused: the result does not have"),
        ({"error": 1.0, "budget": 1.0, "share": 1.0}, ""),
    ],
)
def test_only_what_was_compared_and_is_within_its_budget_is_timed(held: dict[str, float] | None, says: str) -> None:
    assert refusal(held).startswith(says)
    assert bool(refusal(held)) == bool(says)


def test_a_hanging_candidate_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strangers.py").write_text(STRANGERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("benchmarks.race.process.SILENCE_LIMIT", 2.0)
    write_oracle(tmp_path, FORWARD)
    place = Place(tmp_path, threads=1, device="cpu")
    hanging = Candidate("hanging", (NUMPY,), ("numpy",), "strangers:hanging")
    (result,) = run_rounds([hanging], FORWARD, {None: place}, 1, told=lambda result: None)
    assert result.failed == "the process printed nothing for 2 s"


def test_a_limit_is_the_fastest_of_its_runs_for_the_same_work() -> None:
    limit = Limit([(lambda: time.sleep(0.04), 4 * WORK), (lambda: time.sleep(0.02), WORK)])
    assert 0.01 <= limit() < 0.015


def test_a_race_replaces_the_workloads_that_it_ran_in_the_file_of_its_machine(tmp_path: Path) -> None:
    path, here = tmp_path / "machine.json", {"processor": "abacus"}
    older = [Row("tiny-decode", "numpy eager", NUMPY, ours=True), Row("tiny-train", "older", JAX, ours=True)]
    newer = [Row("tiny-train", "newer", JAX, ours=False, conformity={"share": 0.25}, peak_bytes=1.0)]
    keep(path, older, here, [])
    keep(path, newer, here, ["another's: it is missing"])
    assert kept_rows(path) == [older[0], *newer]
    assert why_not_kept(path, here) is None
    says = f"{path} has results of abacus, and this machine is slide rule; name another file"
    assert why_not_kept(path, {"processor": "abacus", "device name": "slide rule"}) == says


def test_an_oracle_is_kept_until_its_code_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.oracles.ORACLES", tmp_path / "oracles")
    folder = oracle_of(FORWARD)
    written = (folder / "expected.npy").stat().st_mtime_ns
    assert oracle_of(FORWARD) == folder
    assert (folder / "expected.npy").stat().st_mtime_ns == written
    monkeypatch.setattr("benchmarks.oracles.SOURCES", ("benchmarks/oracles.py",))
    assert oracle_of(FORWARD) != folder
    assert not folder.exists()


def test_columns_race_with_their_twins_in_another_checkout() -> None:
    racing = against(ROOT / "elsewhere")
    ours, theirs = racing[: len(racing) // 2], racing[len(racing) // 2 :]
    assert [each.kinds for each in ours] == [each.kinds for each in theirs] == [(each.name,) for each in ours]
    assert {each.root for each in theirs} == {ROOT / "elsewhere"}
    path = environment(theirs[0], 1, "cpu")["PYTHONPATH"].split(os.pathsep)
    assert path[1] == str(ROOT / "elsewhere/reference")
    assert str(ROOT / "reference") not in path


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    for workload in TINY:
        write_oracle(folder / workload.name, workload)
    return folder


def peers() -> Iterator[Candidate]:
    for candidate in CANDIDATES:
        compiles = {COMPILED, JAX} & set(candidate.kinds)
        if not (candidate.is_limit or compiles or candidate.ours or candidate.why_missing()):
            yield candidate


@pytest.fixture
def fast_path() -> Iterator[None]:
    """Enable PyTorch's fast path again, which a peer disables for the whole process."""
    yield
    if "torch" in importlib.sys.modules:  # type: ignore[attr-defined]
        importlib.import_module("torch").backends.mha.set_fastpath_enabled(True)


@pytest.mark.usefixtures("fast_path")
@pytest.mark.filterwarnings("ignore")
@for_each(
    ("candidate", "workload"),
    [(peer, workload) for peer in peers() for workload in TINY if peer.why_not(workload) is None],
)
def test_every_peer_that_is_installed_agrees_with_the_oracle_and_not_with_a_wrong_weight(
    candidate: Candidate, workload: Workload, oracles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = oracles / workload.name
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    module, _, name = candidate.build.partition(":")
    build = getattr(importlib.import_module(module), name)
    task = read_task(folder)
    assert conformity(read_oracle(folder), build(task, **candidate.choices)())["share"] <= 1
    if "onnxscript" in candidate.also:  # the exported file contains the correct weights
        return
    task.parameters["decoder.layers.0.feed_forward.up.weight"][:3] *= -1
    assert conformity(read_oracle(folder), build(task, **candidate.choices)())["share"] > 1


def test_candidates_that_do_not_fit_into_memory_are_listed_with_what_they_need() -> None:
    workload = WORKLOADS["encoder-decoder"]
    able = [candidate for candidate in CANDIDATES if candidate.why_not(workload) is None]
    limits = sum(candidate.is_limit for candidate in able)
    ours = [candidate.name for candidate in able if candidate.ours]
    memory = limits * LIMIT_MEMORY + (len(ours) + 4.5) * workload.memory
    fits, too_large = fitting(able, workload, memory)
    names = [candidate.name for candidate in fits]
    assert names[limits : limits + len(ours)] == ours
    assert names[limits + len(ours) :] == ["blog-style", "blog-style, compiled", "hand-written JAX", "NumPy, einsum"]
    assert {candidate.name for candidate in able} == {*names, *(result.candidate.name for result in too_large)}
    needed, left = f"{workload.memory / 1e9:.3g}", f"{0.5 * workload.memory / 1e9:.3g}"
    says = f"does not fit into memory: {needed} GB are needed, and {left} of {memory / 1e9:.3g} GB are left"
    assert all(result.failed.startswith(says) for result in too_large)
    assert fitting(able, workload, 1e15)[1] == []


def result(name: str, kind: str, seconds: float, *, ours: bool = False) -> Result:
    """Return three rounds of one candidate; the second round takes twice as long, as if other programs slowed all
    candidates."""
    candidate = Candidate(name, (kind,), ("numpy",), "", ours=ours)
    rounds = {turn: seconds * (2 if turn == 1 else 1) for turn in range(3)}
    ready: dict[str, Any] = {"first_seconds": 12.345, "import_seconds": 12.345, "peak_bytes": 2e9}
    ready |= {"conformity": {"error": 0.0, "budget": 1.0, "share": 0.0}}
    return Result(candidate, FORWARD, ready, rounds)


def test_ratios_are_to_the_best_peer_of_the_kind() -> None:
    raced = [
        result("ours", TORCH, 2.0, ours=True),
        result("ours too", TORCH, 0.5, ours=True),
        result("blog-style", TORCH, 4.0),
        result("best", TORCH, 3.0),
        result("faster, of another kind", JAX, 1.0),
    ]
    found = {row.candidate: row for row in rows_of(raced)}
    ratios = {name: row.ratio.middle for name, row in found.items() if row.ratio}
    assert ratios == pytest.approx(
        {"ours": 1.5, "ours too": 6, "blog-style": 0.75, "best": 1, "faster, of another kind": 1}
    )
    assert found["ours"].best_peer == "best"
    low, high = (found["ours"].ratio.low, found["ours"].ratio.high) if found["ours"].ratio else (0, 0)
    assert low == high == pytest.approx(1.5), "equal noise for all candidates must not change a ratio"


def test_a_failed_candidate_is_not_the_best_peer() -> None:
    broken = replace(result("broken", TORCH, 1.0), failed="refused", seconds={})
    found = {row.candidate: row for row in rows_of([result("blog-style", TORCH, 4.0), broken])}
    assert found["blog-style"].best_peer == "blog-style"
    assert found["broken"].ratio is None


def test_a_candidate_is_not_held_to_another_processors_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert overridden_kernels()["OPENBLAS_CORETYPE"] == "Haswell"
    assert "OPENBLAS_CORETYPE" not in environment(CANDIDATES[0], 1, "cpu")


def test_every_workload_has_our_columns_and_a_peer_of_each_kind() -> None:
    """The NumPy column needs no peer for decoding, because no other library decodes in NumPy."""
    for workload in (
        each for each in WORKLOADS.values() if each.peers and each.device == "" and not each.name.startswith("tiny")
    ):
        able = [candidate for candidate in CANDIDATES if candidate.why_not(workload) is None]
        ours = {candidate.kinds[0] for candidate in able if candidate.ours}
        peers = set(itertools.chain(*(c.kinds for c in able if not c.ours and not c.is_limit)))
        assert {TORCH, JAX} <= ours
        assert ours - peers <= ({NUMPY} if workload.kind == "decode" else set())
        assert any(candidate.is_limit for candidate in able)


def test_the_published_tables_are_those_of_the_results() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert tabulated(text) == text
    assert all(f"<!-- race {path.stem}: " in text for path in machines() if path.stem != "zen5")


def test_the_error_of_so_few_losses_is_measured_at_neighbouring_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the error of a few losses at several points, because one point underestimates it by up to 20 ×."""
    asked = []

    def neighbour(arrays: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
        asked.append(index)
        return oracle.neighbour(arrays, index)

    monkeypatch.setattr("benchmarks.oracles.neighbour", neighbour)
    workload = WORKLOADS["tiny-train"]
    expected, budget = losses(workload, parameters_of(workload), inputs_of(workload))
    assert expected.shape == (workload.steps,)
    assert budget > 0
    assert asked == 2 * list(range(NEIGHBOURS))


def test_a_wrong_candidate_is_not_timed_and_one_that_dies_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strangers.py").write_text(STRANGERS)
    monkeypatch.syspath_prepend(tmp_path)
    write_oracle(tmp_path, FORWARD)
    place = Place(tmp_path, threads=1, device="cpu")
    racing = [Candidate(name, (NUMPY,), ("numpy",), f"strangers:{name}") for name in ("wrong", "dying", "right")]
    wrong, dying, right = run_rounds(racing, FORWARD, {None: place}, 1, told=lambda result: None)
    assert wrong.failed.startswith("refused: the result differs by ") and not wrong.seconds
    assert dying.failed == "its process ended by signal SIGKILL" and not dying.seconds
    assert right.seconds and not right.failed
