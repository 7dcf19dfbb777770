"""A backend without a harness must fulfill all claims that need none; the others are reported as not checked."""

from __future__ import annotations

import pytest
from tests.looping import for_each

from transparity_conformance.oracle.backends import backend
from transparity_conformance.report.comparison import BackendSubject
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import Claim, all_claims, make, not_compared
from transparity_conformance.suite.plugin import Ledger
from transparity_conformance.suite.test_claims import test_claim as make_and_record

CLAIMS = [claim for claim in all_claims().values() if not claim.needs]


@pytest.fixture
def bench() -> Bench:
    """Return a third-party backend, which has a `build` but no harness."""
    return Bench(BackendSubject("pytorch", "float32"), build=backend("pytorch"))


def test_a_backend_without_a_harness_is_held_to_every_claim_about_models(bench: Bench) -> None:
    assert {claim.name for claim in CLAIMS if not_compared(claim, bench)} == {
        claim.name for claim in CLAIMS if claim.harness
    }
    claim = all_claims()["metamorphic.future_tokens_have_no_effect"]
    assert all(item.agrees for item in make(claim, bench))


def test_a_claim_that_needs_a_harness_is_listed_as_not_compared(bench: Bench) -> None:
    ledger, claim = Ledger(), all_claims()["masks.causal"]
    with pytest.raises(pytest.skip.Exception):
        make_and_record(claim, bench.subject, lambda subject: bench, ledger)
    reason = "pytorch has no harness (entry-point group transparity.harnesses)"
    assert ledger.not_compared == [("masks.causal", str(bench.subject), reason)]
    assert not ledger.evidence


@for_each("claim", [claim for claim in CLAIMS if claim.harness])
def test_a_claim_declared_to_need_a_harness_uses_it(claim: Claim, bench: Bench) -> None:
    with pytest.raises(AssertionError, match="harness=True"):
        list(claim.check(bench))


def test_a_claim_that_uses_the_harness_without_declaring_it_fails() -> None:
    bench, claim = Bench(BackendSubject("numpy", "float32")), all_claims()["masks.causal"]
    undeclared = Claim(**(vars(claim) | {"harness": False}))
    assert make(claim, bench)
    with pytest.raises(AssertionError, match="harness=True"):
        make(undeclared, bench)
