"""Select the tests of a session by their durations. Benchmarks and tests with real weights run only on request.

| session | option | runs |
|---|---|---|
| `nox -s quick` | `--quick` | the first case of each test whose cases take at most `QUICK` seconds |
| `nox -s tests` | | cases for `MOST` seconds of each test, at least one case; no long or deferred test |
| `nox -s nightly` | `--every-case` | everything |

A test is long with the mark `long`, or if a case takes more than `LONGEST` seconds and its file has a shorter test.
`tests/durations.json` has the seconds that one case of each test takes, as `--record-durations` measured them. A test
that is not in this file counts as 0 seconds. `tests/deferred.json` lists the deferred tests, as `python -m
tests.choosing` chose them: other tests run the same lines. `pytest FILE::TEST` runs all cases of the test.
"""

import gc
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent / "benchmarks"
CHECKPOINTS = Path(__file__).parent / "tests/checkpoints"
DURATIONS = Path(__file__).parent / "tests/durations.json"
DEFERRED = Path(__file__).parent / "tests/deferred.json"

RARELY = (50_000, 20, 100)
"""The thresholds of the garbage collector in tests. With these thresholds, a sample of golden reports takes 3 % less
processor time than with Python's own thresholds."""

QUICK, MOST, LONGEST = 0.5, 0.5, 4.0
"""Seconds of processor time. `nox -s quick` runs tests whose cases take at most `QUICK`. `nox -s tests` runs cases of a
test for up to `MOST` seconds, and leaves out tests whose cases take more than `LONGEST`."""


ABSENT = 'the project is not installed: python -m pip install ".[hub,benchmark]"; for tests, see CONTRIBUTING.md'


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of a session. If the project is not installed, raise an error before test files import it."""
    if find_spec("transparity") is None:
        raise pytest.UsageError(ABSENT)
    parser.addoption("--every-case", action="store_true", help="Run long tests, and all cases of every test.")
    parser.addoption("--deferred", action="store_true", help="Also run deferred tests and claims.")
    parser.addoption("--quick", action="store_true", help="Run one case of each test that takes little time.")
    parser.addoption("--record-durations", action="store_true", help="Write tests/durations.json.")
    parser.addoption("--benchmark", action="store_true", help="Run the benchmarks, and no tests unless they are named.")
    group = parser.getgroup("options for the benchmarks of this project (--benchmark)")
    group.addoption("--rounds", type=int, default=5, help="Rounds of each candidate (default: %(default)s).")
    group.addoption(
        "--device", choices=("cpu", "cuda"), default="cpu", help="Device of the benchmarks (default: %(default)s)."
    )
    group.addoption(
        "--against",
        metavar="PATH",
        help="Also time the columns of another checkout. Write --against=PATH.",
    )
    group.addoption(
        "--output",
        metavar="PATH",
        default="reports/race.json",
        help="The file of the results (default: %(default)s). Write --output=PATH.",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--benchmark") and not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError('--benchmark needs pytest-benchmark: python -m pip install ".[benchmark]"')


def is_named(folder: Path, config: pytest.Config) -> bool:
    named = (config.invocation_params.dir / argument.partition("::")[0] for argument in config.args)
    return any(path.resolve().is_relative_to(folder.resolve()) for path in named)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore benchmarks without the option `--benchmark`. With this option, ignore all tests that the command line does
    not name. Always ignore tests with real weights, unless the command line names these tests."""
    if collection_path == CHECKPOINTS and not is_named(CHECKPOINTS, config):
        return True
    is_benchmark = collection_path.is_relative_to(BENCHMARKS)
    if not config.getoption("--benchmark"):
        return True if is_benchmark else None
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    leads_to_benchmarks = is_benchmark or BENCHMARKS.is_relative_to(collection_path)
    return None if named or leads_to_benchmarks else True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exempt all imported modules from garbage collection, which would visit the objects of three frameworks in each
    run. Collect objects that tests create rarely."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    gc.set_threshold(*RARELY)
    return collected


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Exempt all objects from the garbage collection at exit; collecting compiled code would take seconds."""
    gc.freeze()
    if session.config.getoption("--record-durations") and not hasattr(session.config, "workerinput"):
        record_durations()


EXPECTED_SLOWLY = ("optimization", "differentiation", "dropout")
"""Topics whose expected values take long to compute, because they are derivatives by the complex step."""

LONG_CLAIMS = (
    *("-in-full-", "-float32-compile]", "-flax-float32-eager]"),
    *(f"families.taps_and_logits-flax-{dtype}-" for dtype in ("float64", "bfloat16", "float16")),
    *("decoding.every_chunking-flax-", "sharding.ten_steps-", "sharding.greedy_generation-"),
)
"""Parts of the names of claims that are long tests. For most long claims, a shorter claim makes some of the
comparisons. Claims about `torch.compile` and about JAX without compilation have no shorter claim."""

PARTS = ("layers.decoder_layer", "layers.encoder_layer", "feed_forward.module", "attention.function")
MODELS = ("forward.fast_logits", "generation.greedy")
IN_FLOAT32 = {
    "float64": (*PARTS, *MODELS, "decoding.ragged_rows", "normalization.model_in_training"),
    "bfloat16": (*PARTS, "decoding.chunks"),
    "float16": (*PARTS, *MODELS, "attention.long_sequences"),
}
"""Claims about Flax that `nox -s tests` defers, by precision. The session still checks the claims about precision, and
shorter claims about the same functions."""

BY_OTHERS = (
    *("documents.printed_shapes", "generation.crops_context", "generation.sampling_options"),
    *("metamorphic.no_padding_without_pad_id", "metamorphic.padding_length_has_no_effect"),
    "metamorphic.rows_are_independent",
)
"""Claims about Flax that `nox -s tests` defers, because XLA compiles several programs for each. For every fault that
`conformance/meta/planting/plants.toml` plants for one of these claims, a shorter claim fails."""

LATE = (
    *(f"{claim}-flax-{dtype}-jit" for dtype, claims in IN_FLOAT32.items() for claim in claims),
    *(f"[{claim}-flax-" for claim in BY_OTHERS),
)

ALWAYS = "decoding.single_row-flax-float32-eager"
"""The only claim about JAX without compilation that `nox -s tests` checks."""

MANY = 8
"""With more processes than this number, some would be idle if one process ran all claims about a subject."""


def measured() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    return found


def deferred() -> set[str]:
    found: dict[str, dict[str, float]] = json.loads(DEFERRED.read_text()) if DEFERRED.exists() else {}
    return {f"{file}::{test}" for file, tests in found.items() for test in tests}


def write_seconds(path: Path, seconds: Mapping[str, Mapping[str, float]]) -> None:
    rows = [
        f" {json.dumps(file)}: {json.dumps(dict(sorted(tests.items())))}" for file, tests in sorted(seconds.items())
    ]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


ROWS = (
    "test_a_mistake_is_told_with_both_lines_and_an_edit_that_gives_the_ports_answer",
    "test_a_model_is_found_as_it_stands",
    "test_a_module_is_judged",
    "test_a_port_has_its_golden_report",
    "test_what_no_configuration_says_is_refused",
)
"""Tests with a separate duration for each case. Claims also have separate durations; for all other tests, the mean of
the cases is recorded."""


def name_of(nodeid: str) -> tuple[str, str]:
    file, _, test = nodeid.partition("::")
    name, _, case = test.partition("[")
    if name == "test_claim":
        return file, case.rstrip("]")
    return file, test if name in ROWS else name


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remove the tests that the session does not run, unless tests are named, and start with the files that take
    longest."""
    known = measured()
    seconds = {item: known.get(name_of(item.nodeid)[0], {}).get(name_of(item.nodeid)[1], 0.0) for item in items}
    if not config.getoption("--every-case") and not any("::" in argument for argument in config.args):
        kept = set(_of_session(items, seconds, quick=config.getoption("--quick")))
        if not config.getoption("--deferred"):
            late = deferred()
            kept = {item for item in kept if item.nodeid not in late and not any(map(item.nodeid.count, LATE))}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    together: defaultdict[str, float] = defaultdict(float)
    for item in items:
        together[_scope(item.nodeid, few=True)] += seconds[item]
    items.sort(key=lambda item: -together[_scope(item.nodeid, few=True)])


def _of_session(
    items: Iterable[pytest.Item], seconds: dict[pytest.Item, float], *, quick: bool
) -> Iterator[pytest.Item]:
    """Yield the tests of `nox -s tests`, or of `nox -s quick`."""
    cases: defaultdict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    shortest: defaultdict[str, float] = defaultdict(lambda: math.inf)
    for item in items:
        if not _is_long(item):
            cases[name_of(item.nodeid)].append(item)
            file = name_of(item.nodeid)[0]
            shortest[file] = min(shortest[file], seconds[item])
    for (file, _), every in cases.items():
        each = seconds[every[0]]
        if quick:
            yield from every[: each <= QUICK]
        elif each <= max(LONGEST, shortest[file]) or _is_quick_claim(every[0]):
            yield from every[:: math.ceil(len(every) / max(1.0, MOST // each)) if each else 1]


def _is_quick_claim(item: pytest.Item) -> bool:
    """Return whether `item` tests the claim `ALWAYS`, or a claim that `nox -s conformance` also tests."""
    return "::test_claim[" in item.nodeid and (ALWAYS in item.nodeid or item.get_closest_marker("slow") is None)


def _is_long(item: pytest.Item) -> bool:
    is_long_claim = any(part in item.nodeid for part in LONG_CLAIMS) and ALWAYS not in item.nodeid
    return is_long_claim or item.get_closest_marker("long") is not None


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> str:
    """Print how long the measured tests take in total, and how many tests were not measured."""
    known = measured()
    found = [known.get(file, {}).get(name) for file, name in (name_of(item.nodeid) for item in items)]
    taken = f"{len(items)} tests, which take about {sum(filter(None, found)):,.0f} s of processor time"
    return f"{taken}; {found.count(None)} have no recorded duration"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    SECONDS[report.nodeid] += report.duration


SECONDS: defaultdict[str, float] = defaultdict(float)
"""The durations of this session's tests, including set-up and teardown."""


def record_durations() -> None:
    """Write the mean duration of the cases of each test that has run; durations of other tests are kept."""
    of_tests: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for nodeid, taken in SECONDS.items():
        of_tests[name_of(nodeid)].append(taken)
    found = measured()
    for (file, name), taken_by in of_tests.items():
        found.setdefault(file, {})[name] = round(sum(taken_by) / len(taken_by), 2)
    write_seconds(DURATIONS, found)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Send all claims about a subject to the same process, where they share models and compiled code.

    All claims of a topic in `EXPECTED_SLOWLY` also go to one process, and so do all claims about ranks of a column.
    With more than `MANY` processes, the topics of a subject are distributed separately."""
    from xdist.scheduler import LoadScopeScheduling

    class BySubject(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid, few=self.numnodes <= MANY)

    config.option.loadscopereorder = False
    return BySubject(config, log)


def _scope(nodeid: str, *, few: bool) -> str:
    """Return the name of the group of tests that run in one process."""
    file, _, test = nodeid.partition("::")
    if "transparity_conformance" not in file:
        return file
    claim, _, subject = test.partition("[")[2].partition("-")
    topic = claim.partition(".")[0]
    if not few:
        return f"{topic} {subject}"
    if topic == "sharding":
        return f"{topic} {subject.partition('-')[0]}"
    return topic if topic in EXPECTED_SLOWLY else subject
