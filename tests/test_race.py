"""Whoever races was held to the oracle, and everybody runs under the same conditions."""

from __future__ import annotations

import importlib
import io
import itertools
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.flops import forward_flops
from benchmarks.race.candidates import BASELINE, CANDIDATES, COMPILED, JAX, NUMPY, TORCH, Candidate
from benchmarks.race.oracles import conformity, losses, read_task, write_oracle
from benchmarks.race.race import Conditions, race, steps
from benchmarks.race.report import as_markdown, as_table
from benchmarks.race.rounds import Result, environment, heats, orders, overridden, run_heat
from benchmarks.race.standings import finals, standings
from benchmarks.race.task import WORK, Limit, Task
from benchmarks.race.workloads import DEFAULT, TRAINED, WORKLOADS, Workload, inputs_of, parameters_of
from rich.console import Console

from transparity.parameters import parameter_shapes
from transparity_conformance.oracle import oracle
from transparity_conformance.oracle.budgets import NEIGHBOURS

ROOT = Path(__file__).parents[1]

TINY = [workload for workload in WORKLOADS.values() if workload.name.startswith("tiny")]
FORWARD = WORKLOADS["tiny-decoder"]

STRANGERS = '''
"""Candidates as nobody wants them."""
import os
import signal

from benchmarks.peers import numpy_einsum


def wrong(task):
    task.parameters["decoder.layers.1.feed_forward.up.bias"][0] += 1e-2
    return numpy_einsum.build(task)


def raising(task):
    raise ValueError("no such layer\\nand more lines that nobody reads")


def dying(task):
    os.kill(os.getpid(), signal.SIGKILL)


def dying_later(task):
    run, calls = numpy_einsum.build(task), iter(range(3))

    def runs_three_times():
        if next(calls) == 2:
            os.write(2, b"out of luck\\n")
            os._exit(7)
        return run()

    return runs_three_times


def hanging(task):
    while True:
        pass


def noisy(task):
    print("a library that prints")
    return numpy_einsum.build(task)
'''
SAYS = {
    "wrong": "refused: it differs by ",
    "raising": "ValueError: no such layer",
    "dying": "its process ended by signal SIGKILL",
    "dying_later": "its process ended with 7 (out of luck)",
}
ALWAYS = ("pytorch eager", "flax jit", "numpy eager", BASELINE, "nn.Transformer", "NumPy, einsum", "numpy product")


def stranger(name: str) -> Candidate:
    return Candidate(name, (NUMPY,), ("numpy",), f"strangers:{name}")


ABSENT = Candidate("nobody's", (TORCH,), ("a_framework_that_nobody_installed",), "nowhere:build")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A race of our columns, two peers, a limit, strangers, and one who is absent: the folder of its reports."""
    pytest.importorskip("matplotlib")
    from benchmarks.race.__main__ import run

    folder = tmp_path_factory.mktemp("race")
    (folder / "strangers.py").write_text(STRANGERS)
    racing = [candidate for candidate in CANDIDATES if candidate.name in ALWAYS]
    racing += [stranger(name) for name in (*SAYS, "noisy")] + [ABSENT]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        run([FORWARD], racing, Conditions(rounds=3, threads=1, memory=1e12), folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def rows(report: Path) -> dict[str, dict[str, object]]:
    """The standings by name."""
    return {row["candidate"]: row for row in json.loads((report / "race.json").read_text())["standings"]}


def test_all_three_columns_and_their_peers_are_held_and_timed(rows: dict[str, dict[str, object]]) -> None:
    for name in set(ALWAYS) - {"numpy product"}:
        held = rows[name]["conformity"]
        assert isinstance(held, dict), rows[name]
        assert 0 < held["error"] <= held["budget"]
        assert rows[name]["rounds"] == 3
        assert rows[name]["import_seconds"] and rows[name]["first_seconds"] and rows[name]["peak_bytes"]


@pytest.mark.parametrize("name", SAYS)
def test_who_is_wrong_or_crashes_is_one_sentence_and_the_race_goes_on(
    name: str, rows: dict[str, dict[str, object]]
) -> None:
    failed = str(rows[name]["failed"])
    assert failed.startswith(SAYS[name])
    assert "\n" not in failed
    assert rows[name]["seconds"] is None


def test_who_prints_does_no_harm(rows: dict[str, dict[str, object]]) -> None:
    assert rows["noisy"]["rounds"] == 3


def test_who_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strangers.py").write_text(STRANGERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("benchmarks.race.rounds.LONGEST", 2.0)
    write_oracle(tmp_path, FORWARD, parameters_of(FORWARD), inputs_of(FORWARD))
    (result,) = run_heat(
        [stranger("hanging")], FORWARD, tmp_path, rounds=1, threads=1, device="cpu", heat=0, done=lambda step: None
    )
    assert result.failed == "it said nothing for 2 s"


def test_a_limit_is_the_fastest_of_its_runs_whatever_each_does() -> None:
    """Of two heats, one may find this one the fastest, the other that: what they say is of the same amount of work."""
    limit = Limit([(lambda: time.sleep(0.04), 4 * WORK), (lambda: time.sleep(0.02), WORK)])
    assert 0.01 <= limit() < 0.015


def test_the_share_is_of_the_limit_that_was_measured_beside(rows: dict[str, dict[str, object]]) -> None:
    limit, row = (rows[name] for name in ("numpy product", "numpy eager"))
    share = row["per_second"]["middle"] / limit["per_second"]["middle"]  # type: ignore[index]
    assert row["share"]["middle"] == pytest.approx(share, rel=1e-6)  # type: ignore[index]


def test_who_is_absent_is_listed(report: Path) -> None:
    absent = json.loads((report / "race.json").read_text())["absent"]
    assert absent == ["nobody's: a_framework_that_nobody_installed is not installed"]
    assert absent[0].replace("'", "&#39;") in (report / "race.html").read_text()


def test_the_page_needs_nothing_from_outside(report: Path) -> None:
    page = (report / "race.html").read_text()
    assert 'src="data:image/png;base64,' in page
    assert "http:" not in page
    assert "https:" not in page


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the oracle of every tiny workload in a folder of its name."""
    folder = tmp_path_factory.mktemp("tiny")
    for workload in TINY:
        write_oracle(folder / workload.name, workload, parameters_of(workload), inputs_of(workload))
    return folder


def peers() -> Iterator[Candidate]:
    """Who is installed and compiles nothing: the race itself holds everybody."""
    for candidate in CANDIDATES:
        compiles = {COMPILED, JAX} & set(candidate.kinds)
        if not (candidate.is_limit or compiles or candidate.ours or candidate.why_missing()):
            yield candidate


@pytest.fixture
def fast_path() -> Iterator[None]:
    """What a peer sets for its process is set back."""
    yield
    if "torch" in importlib.sys.modules:  # type: ignore[attr-defined]
        importlib.import_module("torch").backends.mha.set_fastpath_enabled(True)


@pytest.mark.usefixtures("fast_path")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("candidate", "workload"),
    [(peer, workload) for peer in peers() for workload in TINY if peer.why_not(workload) is None],
    ids=lambda what: what.name,
)
def test_every_peer_that_is_installed_agrees_with_the_oracle_and_not_with_a_wrong_weight(
    candidate: Candidate, workload: Workload, oracles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = oracles / workload.name
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    module, _, name = candidate.build.partition(":")
    build = getattr(importlib.import_module(module), name)
    _, parameters, inputs = read_task(folder)
    result = build(Task(workload, parameters, inputs, str(folder)), **candidate.choices)()
    if candidate.own_weights:
        assert np.isfinite(np.asarray(result.detach())).all()
        return
    assert conformity(folder, workload, result)["share"] <= 1
    if "onnxscript" in candidate.also:  # the file that it runs has the right weights in it
        return
    parameters["decoder.layers.0.feed_forward.up.weight"][:3] *= -1
    wrong = build(Task(workload, parameters, inputs, str(folder)), **candidate.choices)()
    assert conformity(folder, workload, wrong)["share"] > 1


def test_orders_are_shuffled_anew_in_each_round_and_the_same_for_a_seed() -> None:
    drawn = list(orders(8, 20, seed=1))
    assert all(sorted(order) == list(range(8)) for order in drawn)
    assert len(set(map(tuple, drawn))) == len(drawn)
    assert drawn == list(orders(8, 20, seed=1)) != list(orders(8, 20, seed=2))


def test_whoever_does_not_fit_into_memory_runs_in_a_heat_with_the_baseline_and_the_limits() -> None:
    workload = WORKLOADS["encoder-decoder"]
    able = [candidate for candidate in CANDIDATES if candidate.why_not(workload) is None]
    always = {candidate.name for candidate in able if candidate.is_limit} | {BASELINE}
    groups = heats(able, workload, memory=7 * workload.memory)
    assert len(groups) > 1
    assert all(always <= {candidate.name for candidate in group} for group in groups)
    others = [candidate.name for group in groups for candidate in group if candidate.name not in always]
    assert sorted(others) == sorted({candidate.name for candidate in able} - always)
    assert len(heats(able, workload, memory=1e15)) == 1


def result(name: str, kind: str, seconds: float, *, ours: bool = False, heat: int = 0) -> Result:
    """Three rounds of one candidate, noise included: the second round is twice as slow for all."""
    candidate = Candidate(name, (kind,), ("numpy",), "", ours=ours)
    rounds = {(heat, turn): seconds * (2 if turn == 1 else 1) for turn in range(3)}
    told = {"first_seconds": 12.345, "import_seconds": 12.345, "peak_bytes": 2e9}
    ready = told | {"work": None, "conformity": {"error": 0.0, "budget": 1.0, "share": 0.0}}
    return Result(candidate, FORWARD, heat, ready, rounds)


def test_ratios_are_to_the_best_peer_of_the_kind() -> None:
    raced = [
        result("ours", TORCH, 2.0, ours=True),
        result("ours too", TORCH, 0.5, ours=True),
        result(BASELINE, TORCH, 4.0),
        result("best", TORCH, 3.0),
        result("faster, of another kind", JAX, 1.0),
    ]
    found = {row.candidate.name: row for row in standings(raced)}
    ratios = {name: row.ratio.middle for name, row in found.items() if row.ratio}
    assert ratios == pytest.approx(
        {"ours": 1.5, "ours too": 6, BASELINE: 0.75, "best": 1, "faster, of another kind": 1}
    )
    assert found["ours"].rival == "best"
    low, high = (found["ours"].ratio.low, found["ours"].ratio.high) if found["ours"].ratio else (0, 0)
    assert low == high == pytest.approx(1.5), "noise that hits all alike is no noise in a ratio"


def test_those_of_two_heats_are_compared_through_the_baseline() -> None:
    """The second heat is half as fast, for all."""
    raced = [
        result(BASELINE, TORCH, 4.0),
        result("best", TORCH, 2.0),
        result(BASELINE, TORCH, 8.0, heat=1),
        result("ours", TORCH, 2.0, ours=True, heat=1),
    ]
    ratios = {row.candidate.name: row.ratio.middle for row in standings(raced) if row.ratio}
    assert ratios == pytest.approx({BASELINE: 0.5, "best": 1, "ours": 2})


def test_ours_and_the_best_peers_of_its_kind_meet_in_a_final() -> None:
    raced = [
        result(BASELINE, TORCH, 4.0),
        result("ours", TORCH, 2.0, ours=True),
        result("slow", TORCH, 3.0),
        result(BASELINE, TORCH, 4.0, heat=1),
        result("good", TORCH, 2.1, heat=1),
        result("seemingly best", TORCH, 1.0, heat=1),
        result("ours in JAX", JAX, 1.0, ours=True, heat=1),
        result("JAX", JAX, 1.0, heat=1),
    ]
    first, second = finals(raced, memory=1e15)
    assert [each.name for each in first] == [BASELINE, "ours", "seemingly best", "good"]
    assert [each.name for each in second] == [BASELINE, "ours in JAX", "JAX"]
    told = raced[0].ready or {}
    assert [each.name for each in finals(raced, memory=3 * told["peak_bytes"])[0]] == [
        BASELINE,
        "ours",
        "seemingly best",
    ]


def test_a_ratio_to_a_peer_of_another_heat_is_of_the_final_alone() -> None:
    """The baseline was unlucky in the second heat, so that whoever ran beside it seems faster than it is."""
    raced = [
        result(BASELINE, TORCH, 4.0),
        result("ours", TORCH, 2.0, ours=True),
        result(BASELINE, TORCH, 8.0, heat=1),
        result("good", TORCH, 2.2, heat=1),
        result("left out", TORCH, 2.3, heat=1),
        result(BASELINE, TORCH, 4.0, heat=-1),
        result("ours", TORCH, 2.0, ours=True, heat=-1),
        result("good", TORCH, 2.4, heat=-1),
    ]
    found = {row.candidate.name: row for row in standings(raced)}
    assert found["ours"].rival == "good"
    assert found["ours"].ratio
    assert found["ours"].ratio.middle == pytest.approx(1.2)
    assert found["ours"].heats == (-1, 0)


def test_a_race_of_several_heats_counts_its_steps_and_ends_in_finals() -> None:
    """Without memory each candidate has a heat of its own. Ours that cannot run have no final."""
    racing = [each for each in CANDIDATES if each.name in ("numpy eager", "NumPy, einsum", BASELINE, "numpy product")]
    racing.append(Candidate("absent", (JAX,), ("no_such_package",), "nowhere:build", ours=True))
    conditions = Conditions(rounds=1, threads=1, memory=0)
    told: list[str] = []
    found = {row.candidate.name: row for row in standings(race([FORWARD], racing, conditions, told.append))}
    assert found["numpy eager"].heats == (-1, 0)
    assert found["NumPy, einsum"].heats == (-1, 1)
    assert found["numpy product"].heats == found[BASELINE].heats == (-1, 0, 1)
    assert found["numpy eager"].rival == "NumPy, einsum"
    # Two finalists would be counted; there is one.
    assert len(told) + 1 + conditions.rounds == steps([FORWARD], racing, conditions)


def test_who_failed_is_nobodys_rival() -> None:
    broken = replace(result("broken", TORCH, 1.0), failed="refused", seconds={})
    found = {row.candidate.name: row for row in standings([result(BASELINE, TORCH, 4.0), broken])}
    assert found[BASELINE].rival == BASELINE
    assert found["broken"].ratio is None


def test_a_training_step_counts_three_forward_passes_and_decoding_reads_every_matrix_for_each_token() -> None:
    train, decode = WORKLOADS["train"], WORKLOADS["decode-8"]
    assert train.flops == 3 * TRAINED * forward_flops(train.config, train.batch, **train.lengths)
    assert train.tokens == TRAINED * 8 * 127
    shapes = parameter_shapes(decode.config)
    tables = sum(np.prod(shape) for name, shape in shapes.items() if "embedding" in name)
    assert decode.bytes_read == 64 * 4 * (decode.weights - tables)
    assert decode.tokens == 8 * 64


def test_a_candidate_is_not_held_to_another_processors_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert overridden()["OPENBLAS_CORETYPE"] == "Haswell"
    assert "OPENBLAS_CORETYPE" not in environment(CANDIDATES[0], 1, "cpu")


@pytest.mark.parametrize(("width", "quartiles"), [(80, False), (150, True)])
def test_a_table_has_every_name_and_figure_whole(width: int, quartiles: bool) -> None:
    results = [result(each.name, each.kinds[0], 0.3123, ours=each.ours) for each in CANDIDATES if not each.is_limit]
    printed = io.StringIO()
    Console(file=printed, width=width).print(as_table(FORWARD, standings(results), quartiles=quartiles))
    text = printed.getvalue()
    assert "…" not in text
    assert all(each.name in text for each in CANDIDATES if not each.is_limit)
    assert max(map(len, text.splitlines())) <= width


def test_a_workload_is_what_its_json_says() -> None:
    for workload in WORKLOADS.values():
        assert Workload.from_dict(json.loads(json.dumps(workload.as_dict()))) == workload


def test_every_workload_has_our_columns_and_a_peer_of_each_kind() -> None:
    for workload in map(WORKLOADS.__getitem__, DEFAULT):
        able = [candidate for candidate in CANDIDATES if candidate.why_not(workload) is None]
        ours = {candidate.kinds[0] for candidate in able if candidate.ours}
        peers = set(itertools.chain(*(c.kinds for c in able if not c.ours and not c.is_limit)))
        assert {TORCH, JAX} <= ours
        assert ours - peers <= ({NUMPY} if workload.kind == "decode" else set())
        assert any(candidate.is_limit for candidate in able)


@pytest.mark.parametrize("file", ["race", "race-train", "race-zen4"])
def test_the_figures_of_the_performance_page_are_those_of_the_race_that_is_kept(file: str) -> None:
    kept = json.loads((ROOT / f"benchmarks/results/{file}.json").read_text())
    page = (ROOT / "docs/performance.md").read_text()
    assert as_markdown(kept["standings"]) in page
    pictures = re.findall(r"\]\(\.\./(benchmarks/results/[^)]+\.png)\)", page)
    assert pictures
    assert all((ROOT / picture).stat().st_size > 10_000 for picture in pictures)


def test_the_error_of_so_few_losses_is_measured_at_neighbouring_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """At one alone it was a twentieth of what it was at the next, and right candidates were refused."""
    asked = []

    def neighbour(arrays: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
        asked.append(index)
        return oracle.neighbour(arrays, index)

    monkeypatch.setattr("benchmarks.race.oracles.neighbour", neighbour)
    workload = WORKLOADS["tiny-train"]
    expected, budget = losses(workload, parameters_of(workload), inputs_of(workload))
    assert expected.shape == (workload.steps,)
    assert budget > 0
    assert asked == 2 * list(range(NEIGHBOURS))
