"""Test each claim for each subject (backend, dtype, device, mode). The results form the agreement matrix."""

from collections.abc import Callable

import pytest

from transparity_conformance.oracle.backends import REFERENCE, absent, backend, installed, named
from transparity_conformance.report.comparison import BackendSubject
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import Claim, all_claims, cases, make, not_compared
from transparity_conformance.suite.plugin import Ledger


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if {"claim", "subject"} <= set(metafunc.fixturenames):
        params = [
            pytest.param(claim, subject, id=name_of(claim, subject), marks=[pytest.mark.slow] * (not quick))
            for name in installed()
            for claim, subject, quick in cases(name)
        ]
        metafunc.parametrize(("claim", "subject"), params)


def name_of(claim: Claim, subject: BackendSubject) -> str:
    """Return a test id: `masks.causal-pytorch-float32-eager`, or with all cases, `generation.greedy-in-full-…`."""
    in_full = claim != all_claims()[claim.name]
    return f"{claim.name}{'-in-full' * in_full}-{subject}".replace(" ", "-")


def test_claim(
    claim: Claim, subject: BackendSubject, benches: Callable[[BackendSubject], Bench], ledger: Ledger
) -> None:
    bench = benches(subject)
    if reason := not_compared(claim, bench):
        ledger.not_compared.append((claim.name, str(subject), reason))
        pytest.skip(reason)
    evidence = make(claim, bench)
    ledger.evidence += evidence
    wrong = [str(item) for item in evidence if not item.agrees]
    assert not wrong, f"{claim.says}\n" + "\n".join(wrong[:8]) + (f"\n… and {len(wrong) - 8} more" if wrong[8:] else "")


@pytest.mark.parametrize("name", [name for name in named() if name != REFERENCE])
def test_a_gpu_is_at_hand(name: str, ledger: Ledger) -> None:
    why = f"{name}: {absent()[name]}" if name in absent() else f"{name} on a GPU: no GPU is available"
    if name in absent() or len(backend(name).devices()) == 1:
        ledger.skipped.append(why)
        pytest.skip(why)
