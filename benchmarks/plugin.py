"""`pytest --benchmark` runs the race: a test for each implementation (candidate) on each workload, and a final table.

pytest-benchmark times one function after another, so a disturbance may slow down only one candidate. The race
interleaves the rounds of all candidates. The times are passed to pytest-benchmark, which can save and compare them.
"""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.environment import cores
from benchmarks.race.candidates import CANDIDATES, Candidate, against
from benchmarks.race.race import Conditions, Result, able_to, race
from benchmarks.race.results import keep, surroundings, why_not_kept
from benchmarks.race.rows import rows_of
from benchmarks.race.table import as_text
from benchmarks.workloads import WORKLOADS, default
from rich.console import Console

Measure = Callable[[str, str], None]

RESULTS = pytest.StashKey[dict[str, list[Result]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = {}
    config._benchmarksession.quiet = True  # type: ignore[attr-defined]
    if reason := why_not_kept(Path(config.getoption("--output")), surroundings(conditions_of(config))):
        raise pytest.UsageError(f"--output: {reason}")


def candidates_of(config: pytest.Config) -> list[Candidate]:
    """Return the project's implementations and their peers; with `--against`, the implementations of two checkouts."""
    root = config.getoption("--against")
    if root is None:
        return list(CANDIDATES)
    if not (Path(root) / "benchmarks/race/worker.py").exists():
        raise pytest.UsageError(f"--against {root} is not a checkout of the project; give the folder of a checkout")
    return against(Path(root).resolve())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create a test for every workload and every candidate that can run the workload.

    Without a selection (-k or a test id), only the workloads that `default` returns have tests.
    """
    config = metafunc.config
    device, asked = config.getoption("--device"), config.option.keyword or any("::" in each for each in config.args)
    entries = [
        pytest.param(name, candidate.name, id=f"{name}-{candidate.name}")
        for name in (WORKLOADS if asked else default(device))
        for candidate in able_to(WORKLOADS[name], candidates_of(config), device)
    ]
    if not entries:
        raise pytest.UsageError(f"no installed candidate runs on {device}")
    metafunc.parametrize(("workload", "candidate"), entries)


def missing(config: pytest.Config) -> list[str]:
    return [f"{each.name}: {reason}" for each in candidates_of(config) if (reason := each.why_missing())]


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Print the number of benchmarks and the missing libraries, because the first result appears only after minutes."""
    absent = [f"missing: {line}" for line in missing(config)]
    return [f"{len(items)} benchmarks; each is compared with the reference, then timed", *absent]


def conditions_of(config: pytest.Config) -> Conditions:
    return Conditions(config.getoption("--rounds"), cores(), config.getoption("--device"))


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Measure:
    """Return a function that passes times to pytest-benchmark; the first call for a workload runs the race."""
    if hasattr(request.config, "workerinput"):
        pytest.skip("benchmarks do not run under xdist, whose processes share the cores; run them without -n")
    raced = request.config.stash[RESULTS]

    def measured(workload: str, candidate: str) -> None:
        if workload not in raced:
            raced[workload] = _race(workload, request)
        (result,) = (each for each in raced[workload] if each.candidate.name == candidate)
        if result.failed:
            pytest.fail(f"Not timed: {candidate}, {workload}: {result.failed}", pytrace=False)
        # The "clock" returns 0 at the start of a round, and the measured seconds at its end.
        readings = itertools.chain.from_iterable((0.0, seconds) for seconds in result.seconds.values())
        request.applymarker(pytest.mark.benchmark(timer=lambda: next(readings), group=workload))
        benchmark = request.getfixturevalue("benchmark")
        benchmark.extra_info |= {"conformity": result.ready["conformity"]}
        benchmark.pedantic(lambda: None, rounds=len(result.seconds))

    return measured


def _race(workload: str, request: pytest.FixtureRequest) -> list[Result]:
    params = [item.callspec.params for item in request.session.items if isinstance(item, pytest.Function)]
    names = {each["candidate"] for each in params if each["workload"] == workload}
    candidates = [each for each in candidates_of(request.config) if each.name in names]
    plugins = request.config.pluginmanager
    terminal, capturing = plugins.getplugin("terminalreporter"), plugins.getplugin("capturemanager")

    def told(result: Result) -> None:
        agrees = "is ready" if result.candidate.is_limit else "agrees with the reference"
        with capturing.global_and_fixture_disabled():
            terminal.write_line(f"\n{workload}: {result.candidate.name}: {result.failed or agrees}")

    return race(WORKLOADS[workload], candidates, conditions_of(request.config), told)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table. Write the results to the file `--output`, unless `--against` is given."""
    rows = rows_of(list(itertools.chain.from_iterable(config.stash[RESULTS].values())))
    if not rows:
        return
    terminalreporter.section("the race")
    width = int(os.environ.get("COLUMNS", "0")) or max(100, terminalreporter._tw.fullwidth)
    console = Console(width=width, force_terminal=terminalreporter._tw.hasmarkup, highlight=False)
    with console.capture() as captured:
        console.print(as_text(rows, width))
    terminalreporter.write(captured.get())
    if config.getoption("--against") is None:
        keep(Path(config.getoption("--output")), rows, surroundings(conditions_of(config)), missing(config))
        terminalreporter.write_line(f"Written: {config.getoption('--output')}")
