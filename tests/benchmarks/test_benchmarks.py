import cProfile
import json
import shutil
import statistics
import subprocess
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.oracles import expected_of
from benchmarks.race.timing import seconds
from benchmarks.workloads import WORKLOADS, Workload, inputs_of, parameters_of

from transparity.presets import PRESETS, preset
from transparity.taps import identity, scoped
from transparity_conformance.oracle.backends import backend, installed
from transparity_conformance.oracle.oracle import forward_oracle

ROOT = Path(__file__).parents[2]


def test_every_preset_is_a_workload_and_its_lengths_end_where_the_presets_do() -> None:
    assert {workload.config for workload in WORKLOADS.values() if not workload.peers} == set(map(preset, PRESETS))
    assert set(WORKLOADS["walkthrough-8x64"].lengths.values()) == {10}
    assert set(WORKLOADS["translation-8x64"].lengths.values()) == {64}


@pytest.mark.parametrize("name", ["walkthrough-1x32", "tiny-decoder", "tiny-bfloat16"])
def test_the_gate_is_the_oracle_of_the_conformance_suite(name: str) -> None:
    workload = WORKLOADS[name]
    parameters, inputs = dict(parameters_of(workload)), inputs_of(workload)
    expected = expected_of(workload, parameters, inputs)
    oracle = forward_oracle(workload.config, parameters, inputs, neighbours=1)
    assert np.array_equal(expected.values, oracle.expected["logits"])
    assert expected.budget == pytest.approx(oracle.budget("logits", workload.dtype), rel=1e-12)


CHECKPOINTS = "tests/checkpoints"
FOLDERS = ("benchmarks", "conformance", "tests", CHECKPOINTS)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Write a project with this project's conftest and settings, and with one test in each of `FOLDERS`."""
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks/conftest.py", tmp_path / "benchmarks")
    (tmp_path / "benchmarks/plugin.py").write_text("import pytest_benchmark\n")
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"test_in_{Path(folder).name}.py").write_text("def test_it() -> None:\n    pass\n")
    return tmp_path


RUNS = """
import json, os, sys, pytest
for where, arguments in json.loads(sys.argv.pop()):
    os.chdir(where)
    print("RUN", flush=True)
    ended = pytest.main([*sys.argv[1:], *arguments])
sys.exit(ended)
"""


def run(project: Path, *asked: tuple[str, list[str]], program: str = RUNS) -> list[tuple[set[str], str]]:
    """Run pytest once for each pair in `asked`, all in one process; return the folders of the tests, and the output."""
    unused = [f"-pno:{plugin}" for plugin in ("cacheprovider", "transparity", "hypothesispytest", "jaxtyping", "anyio")]
    command = [sys.executable, "-c", program, "-rA", *unused, json.dumps(asked)]
    process = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    outputs = [output + process.stderr for output in process.stdout.split("RUN\n")[1:]]
    named = [{folder for folder in FOLDERS if f"test_in_{Path(folder).name}.py::test_it" in each} for each in outputs]
    return list(zip(named, outputs, strict=True))


COLLECTED: list[tuple[str, list[str], set[str]]] = [
    (".", [], {"conformance", "tests"}),
    (".", ["--benchmark"], {"benchmarks"}),
    (".", ["conformance", "tests"], {"conformance", "tests"}),
    (".", [CHECKPOINTS], {CHECKPOINTS}),
    (".", [f"{CHECKPOINTS}/test_in_checkpoints.py::test_it"], {CHECKPOINTS}),
    (".", [CHECKPOINTS, "-n", "1"], {CHECKPOINTS}),
    (CHECKPOINTS, ["test_in_checkpoints.py"], {CHECKPOINTS}),
]
"""The folder in which pytest runs, its arguments, and the folders whose tests it runs."""


def test_benchmarks_and_real_weights_are_collected_only_on_request(project: Path) -> None:
    ran = run(project, *((where, arguments) for where, arguments, _ in COLLECTED))
    assert [folders for folders, _ in ran] == [folders for *_, folders in COLLECTED], ran


def test_without_pytest_benchmark_one_sentence_says_what_to_install(project: Path) -> None:
    (project / "benchmarks/plugin.py").write_text("raise ModuleNotFoundError('pytest_benchmark')\n")
    ((passed, said),) = run(project, (".", ["--benchmark", "-p", "no:benchmark"]))
    assert passed == set()
    assert said.strip() == 'ERROR: --benchmark needs pytest-benchmark: python -m pip install ".[benchmark]"'


WITHOUT = f"import sys; sys.modules['transparity'] = None\n{RUNS}"


def test_without_the_project_one_sentence_says_what_to_install(project: Path) -> None:
    (project / "tests/conftest.py").write_text("import transparity\n")
    ((passed, said),) = run(project, (".", ["--benchmark"]), program=WITHOUT)
    assert passed == set()
    install = 'python -m pip install ".[hub,benchmark]"'
    assert said.strip() == f"ERROR: the project is not installed: {install}; for tests, see CONTRIBUTING.md"


SMALL = WORKLOADS["length-128"]
ROUNDS, CALLS = 5, 100_000


def counted(run: Callable[[], Any]) -> dict[str, int]:
    """Count the calls in `run` of `identity` (once per tap) and of `scoped` (once per layer and sublayer)."""
    profile = cProfile.Profile()
    profile.runcall(run)
    calls = {entry.code: entry.callcount for entry in profile.getstats()}
    return {function.__name__: calls.get(function.__code__, 0) for function in (identity, scoped)}


def fast_path(name: str, workload: Workload) -> Callable[[], Any]:
    """Return a function that runs a column's forward pass in the default mode, and has already run once."""
    forward, inputs = backend(name)(workload.config, parameters_of(workload), dtype="float32"), inputs_of(workload)

    def run() -> None:
        forward.ready(forward.logits(**inputs))

    run()
    return run


@pytest.mark.parametrize("name", installed())
def test_taps_without_a_listener_take_less_than_a_thousandth(name: str) -> None:
    run = fast_path(name, SMALL)
    calls = {"identity": lambda: identity("scores", None), "scoped": lambda: scoped(identity, "self_attention")}
    each = {name: timeit.timeit(call, number=CALLS) / CALLS for name, call in calls.items()}
    taken = sum(count * each[name] for name, count in counted(run).items())
    assert taken < 1e-3 * statistics.median(seconds(run, "cpu") for _ in range(ROUNDS))
