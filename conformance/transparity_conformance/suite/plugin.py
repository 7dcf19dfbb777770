"""A pytest plugin: collect the evidence of all claims, and print the agreement matrix at the end of the session."""

from __future__ import annotations

import functools
import os
import pickle
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from transparity_conformance.report.comparison import BackendSubject, ClaimEvidence

if TYPE_CHECKING:
    from transparity_conformance.suite.bench import Bench


@dataclass
class Ledger:
    evidence: list[ClaimEvidence] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    not_compared: list[tuple[str, str, str]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)

    def add(self, other: Ledger) -> None:
        self.evidence += other.evidence
        self.skipped += other.skipped
        self.not_compared += other.not_compared
        self.environment |= other.environment


LEDGER = pytest.StashKey[Ledger]()


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "folder for agreement.json and agreement.html (default: reports)"
    parser.getgroup("transparity").addoption("--agreement", default="reports", metavar="DIR", help=told)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEDGER] = Ledger()
    config.addinivalue_line("markers", "slow: not in the quick suite, which `nox -s conformance` runs")
    config.addinivalue_line("markers", "long: not in `nox -s tests`; run by `nox -s nightly`")


@pytest.fixture(scope="session")
def ledger(pytestconfig: pytest.Config) -> Ledger:
    return pytestconfig.stash[LEDGER]


@pytest.fixture(scope="session")
def benches() -> Callable[[BackendSubject], Bench]:
    from transparity_conformance.suite.bench import Bench

    return functools.cache(Bench)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Add the environment to the ledger with the evidence. An xdist worker then sends the ledger to the controller."""
    ledger = session.config.stash[LEDGER]
    if ledger.evidence:
        ledger.environment |= environment(ledger)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["transparity"] = pickle.dumps(ledger)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if sent := getattr(node, "workeroutput", {}).get("transparity"):
        node.config.stash[LEDGER].add(pickle.loads(sent))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the agreement matrix, and write it as JSON and as an HTML page."""
    ledger = config.stash[LEDGER]
    if not ledger.evidence:
        return
    from rich.console import Console

    from transparity_conformance.oracle.backends import REFERENCE, named
    from transparity_conformance.report.agreement.matrix import fold
    from transparity_conformance.report.agreement.terminal import Printout
    from transparity_conformance.report.agreement.view import write_html, write_json
    from transparity_conformance.suite.claims import all_claims

    # Evidence from xdist has no fixed order, so sort rows by claim and columns by backend, with the reference last.
    claims = {name: place for place, name in enumerate(all_claims())}
    order = [*(name for name in named() if name != REFERENCE), REFERENCE]
    backends = {name: place for place, name in enumerate(order)}

    def place(item: ClaimEvidence) -> tuple[int, int]:
        return claims.get(item.claim, len(claims)), backends.get(item.subject.backend, -1)

    described = dict(sorted(ledger.environment.items()))
    matrix = fold(sorted(ledger.evidence, key=place), described, ledger.skipped, ledger.not_compared)
    folder = Path(config.rootpath, config.getoption("--agreement"))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "agreement.json", matrix)
    write_html(folder / "agreement.html", matrix)

    terminalreporter.section("agreement matrix: the worst error as a share of its budget")
    width = int(os.environ.get("COLUMNS", "0")) or max(110, terminalreporter._tw.fullwidth)
    console = Console(width=width, force_terminal=terminalreporter._tw.hasmarkup, highlight=False)
    with console.capture() as captured:
        console.print(Printout(matrix))
    terminalreporter.write(captured.get())
    for name in ("agreement.json", "agreement.html"):
        terminalreporter.write_line(f"written: {os.path.relpath(folder / name)}")


def environment(ledger: Ledger) -> dict[str, Any]:
    from transparity_conformance.oracle.backends import harness, pinned

    described: dict[str, Any] = {"python": platform.python_version()}
    for name, device in dict.fromkeys((item.subject.backend, item.subject.device) for item in ledger.evidence):
        parts = harness(name)
        with pinned(name):
            said = parts.describe(device) if parts else {}
        described[name if device == "cpu" else f"{name} on {device}"] = {key: str(text) for key, text in said.items()}
    return described
