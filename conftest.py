"""Options and collection: benchmarks run with `--benchmark` alone, tests of real weights where they are named."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent / "benchmarks"
CHECKPOINTS = Path(__file__).parent / "tests/checkpoints"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-case", action="store_true", help="Run long tests, and all cases of sampled ones.")
    parser.addoption("--benchmark", action="store_true", help="Run the benchmarks, and no tests unless they are named.")
    group = parser.getgroup("benchmarks of this project, with --benchmark")
    group.addoption("--all-modes", action="store_true", help="Time every mode of each backend, not the first alone.")
    group.addoption(
        "--device", metavar="NAME", help="Time on this device alone (cpu, cuda), not on every device at hand."
    )
    group.addoption(
        "--race",
        type=int,
        metavar="ROUNDS",
        help="Run the race (`python -m benchmarks.race`) instead, so that pytest-benchmark can save and compare its "
        "figures.",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--benchmark") and not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("--benchmark needs pytest-benchmark: python -m pip install pytest-benchmark")


def is_named(folder: Path, config: pytest.Config) -> bool:
    """Return whether the command line names the folder, or something in it."""
    named = (config.invocation_params.dir / argument.partition("::")[0] for argument in config.args)
    return any(path.resolve().is_relative_to(folder.resolve()) for path in named)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out benchmarks without `--benchmark`, with it all else that the command line does not name, and tests of
    real weights unless they are named."""
    if collection_path == CHECKPOINTS and not is_named(CHECKPOINTS, config):
        return True
    is_benchmark = collection_path.is_relative_to(BENCHMARKS)
    if not config.getoption("--benchmark"):
        return True if is_benchmark else None
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    leads_to_benchmarks = is_benchmark or BENCHMARKS.is_relative_to(collection_path)
    return None if named or leads_to_benchmarks else True


def pytest_collection_finish() -> None:
    """Exempt imported modules from garbage collection, which would walk three frameworks again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Leave compiled code to the end of the process; collecting it piece by piece takes seconds."""
    gc.freeze()


EXPECTED_SLOWLY = ("optimization", "differentiation", "dropout")
"""Topics whose expected values take long to compute: derivatives by the complex step."""

LONG_CLAIMS = (
    *("-in-full-", "-float32-compile]", "-flax-float32-eager]"),
    *(f"families.taps_and_logits-flax-{dtype}-" for dtype in ("float64", "bfloat16", "float16")),
    *("decoding.every_chunking-flax-", "sharding.ten_steps-", "sharding.greedy_generation-"),
)
"""Claims over their full range, which are made over a part of it, too; claims about `torch.compile`, and about JAX
without compilation; and claims of which a shorter one says most: of families in float32, of chunks, of gradients and
decoding over ranks. They are long,"""

SHORT_CLAIMS = ("decoding.single_row-",)
"""but these, which are run as small cases of the others."""

MANY = 8
"""The number of processes that the subjects keep busy."""

SLOWEST_FIRST = (
    "test_power.py",
    "test_plants.py",
    "test_drawn.py",
    "-flax",
    *(f"{topic}." for topic in EXPECTED_SLOWLY),
    "test_offers.py",
    "test_shapes_are_true.py",
    "test_checking.py",
    "test_trainings.py",
    "test_race.py",
)
"""Tests that start first, because they take longest."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long tests and cases of sampled ones, unless they are named or all are asked for; begin with what takes
    longest."""
    if not config.getoption("--every-case") and not any("::" in argument for argument in config.args):
        left_out = {item.nodeid for item in _left_out(items)}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]
    last = len(SLOWEST_FIRST)
    items.sort(key=lambda item: next((i for i, part in enumerate(SLOWEST_FIRST) if part in item.nodeid), last))


def _left_out(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Tests marked `long`; all cases of each test marked `sampled(n)` but every n-th, beginning with the first."""
    seen: Counter[str] = Counter()
    for item in items:
        if _is_long(item):
            yield item
        elif (mark := item.get_closest_marker("sampled")) is not None:
            test = item.nodeid.partition("[")[0]
            if seen[test] % mark.args[0]:
                yield item
            seen[test] += 1


def _is_long(item: pytest.Item) -> bool:
    is_long_claim = any(part in item.nodeid for part in LONG_CLAIMS)
    is_short_claim = any(part in item.nodeid for part in SHORT_CLAIMS)
    return (is_long_claim and not is_short_claim) or item.get_closest_marker("long") is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Send all claims about one subject to one process, to share models and compiled code; where expected values take
    long to compute, send all subjects of a topic, and all over the ranks of one column, to launch them once. More
    processes than `MANY` get the topics of a subject one by one."""
    from xdist.scheduler import LoadScopeScheduling

    class BySubject(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            if "transparity_conformance" not in file:
                return file
            claim, _, subject = test.partition("[")[2].partition("-")
            topic = claim.partition(".")[0]
            if self.numnodes > MANY:
                return f"{topic} {subject}"
            if topic == "sharding":
                return f"{topic} {subject.partition('-')[0]}"
            return topic if topic in EXPECTED_SLOWLY else subject

    config.option.loadscopereorder = False
    return BySubject(config, log)
