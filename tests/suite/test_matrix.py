import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers import plain
from tests.looping import for_each

from transparity_conformance.oracle.backends import backend
from transparity_conformance.report.agreement.matrix import Matrix, NotCompared, fold
from transparity_conformance.report.agreement.terminal import Printout, as_table
from transparity_conformance.report.agreement.view import as_html, as_json, write_html, write_json
from transparity_conformance.report.comparison import BackendSubject, ClaimEvidence, Expectation
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import Claim, all_claims, make, not_compared
from transparity_conformance.suite.plugin import Ledger
from transparity_conformance.suite.test_claims import test_claim as make_and_record

FLAX = BackendSubject("flax", "float32")
NOTE = "masked scores become −1e-20, which hides nothing"


def evidence(
    share: float = 0.5,
    claim: str = "attention.scores",
    subject: BackendSubject = FLAX,
    case: str = "translation",
    *,
    expectation: Expectation = "holds",
    note: str = "",
    where: str = "logits",
) -> ClaimEvidence:
    return ClaimEvidence(claim, subject, case, where, share * 1e-6, 1e-6, expectation, note)


def exact(error: float = 0.0, claim: str = "masks.causal") -> ClaimEvidence:
    return ClaimEvidence(claim, FLAX, "translation", "mask", error, 0.0)


def broken(share: float = 1e5, note: str = NOTE) -> ClaimEvidence:
    claim = "metamorphic.future_tokens_have_no_effect"
    return evidence(share, claim, case="walkthrough", expectation="breaks", note=note)


def printed(matrix: Matrix, width: int = 110, not_compared: list[NotCompared] | None = None) -> str:
    return plain(Printout(replace(matrix, not_compared=not_compared or [])), width)


def cell(matrix: Matrix) -> str:
    return plain(as_table(matrix), 110).splitlines()[-1].split(maxsplit=1)[1].strip()


SHARES = {0.0: "0 %", 1e-6: "<0.1 %", 0.004: "0.40 %", 0.0996: "10 %", 0.43: "43 %", 1.0: "100 %", 1.001: "FAILS >1×"}
SHARES |= {3.2: "FAILS 3.2×", 1.2e7: "FAILS 1e7×", math.inf: "FAILS ∞", math.nan: "FAILS ∞"}


@for_each(
    ("found", "words"),
    [
        *(([evidence(share)], words) for share, words in SHARES.items()),
        ([exact()], "exact"),
        ([exact(), exact(2.0)], "FAILS"),
        ([exact(), evidence(0.2, "masks.causal")], "20 %"),
        ([broken()], "breaks¹"),
        ([broken(), broken(note="another")], "breaks¹,²"),
    ],
)
def test_a_cell_shows_the_share_of_the_budget_that_was_used(found: list[ClaimEvidence], words: str) -> None:
    assert cell(fold(found)) == words


def test_nothing_compared_is_not_agreement() -> None:
    matrix = fold([])
    assert matrix.verdict == "inconclusive"
    assert "nothing was compared" in printed(matrix)
    assert '<p class="verdict inconclusive">nothing was compared</p>' in as_html(matrix)


def test_an_omitted_comparison_is_blank_and_listed() -> None:
    matrix = fold([evidence(), exact(), evidence(subject=BackendSubject("theirs", "float32"))])
    left_out: list[NotCompared] = [("masks.causal", BackendSubject("theirs", "float32"), "it offers no masks")]
    text = printed(matrix, not_compared=left_out)
    assert re.search(r"^ causal +exact +·$", text, re.MULTILINE)
    assert "masks.causal (theirs float32 eager): it offers no masks" in text
    assert "1 not compared" in text
    assert "theirs float32 eager: it offers no masks" in as_html(replace(matrix, not_compared=left_out))
    assert printed(matrix, not_compared=[("masks.causal", "theirs float32 eager", "it offers no masks")]) == text


def test_a_claim_that_breaks_as_printed_is_named() -> None:
    matrix = fold([broken(), broken(2e5), evidence(0.1, broken().claim)])
    sentence = f"a mistake in document 000 breaks the claim for walkthrough: {NOTE}"
    assert matrix.verdict == "agrees"
    assert cell(matrix) == "10 %¹"
    assert printed(matrix).count(f"¹ {sentence}") == 1
    assert sentence in as_html(matrix)
    assert as_json(matrix)["document_breaks"][0]["says"] == sentence


def test_a_claim_that_should_break_and_does_not_fails() -> None:
    matrix = fold([broken(), broken(0.5), evidence(0.1, broken().claim)])
    assert matrix.verdict == "diverges"
    assert cell(matrix) == "FAILS¹"
    assert "these claims did not break: metamorphic.future_tokens_have_no_effect (flax float32 eager)" in " ".join(
        printed(matrix).split()
    )


def test_claims_are_ordered_by_topic_and_first_appearance() -> None:
    matrix = fold(evidence(claim=claim) for claim in ("masks.causal", "loss.sum", "masks.padding", "loss.sum"))
    assert matrix.claims == ("masks.causal", "masks.padding", "loss.sum")


def test_an_infinite_share_is_written_as_json(tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    skipped = ["test_cuda: needs a GPU"]
    left_out: list[NotCompared] = [("loss.sum", FLAX, "not offered")]
    written = {"wall": math.inf, "torch": None}
    write_json(path, fold([evidence(math.nan), exact(1.0)], written, skipped, left_out))

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert [item["share"] for item in content["evidence"]] == ["inf", "inf"]
    assert content["evidence"][0]["error"] == "inf"
    assert content["claims"][0]["cells"][0]["share"] == "inf"
    assert content["skipped"] == skipped
    assert content["not_compared"][0]["reason"] == "not offered"
    assert content["verdict"] == "diverges"


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "matrix.html"
    environment = {"versions": {"numpy": "2"}, "devices": ["cpu"]}
    write_html(path, fold([evidence(), broken(), exact()], environment))
    page = path.read_text(encoding="utf-8")
    outside = re.findall(r"""(?:src|href|action)\s*=\s*["']?(?!["']|#|data:)[^\s>]+|url\(|@import|https?://""", page)
    assert not outside


def test_names_are_escaped_and_are_not_markup() -> None:
    name = "<script>alert(1)</script>"
    nasty = evidence(2.0, f"topic.{name}", BackendSubject(name, name), name, note=name, where=name)
    left_out: list[NotCompared] = [(nasty.claim, nasty.subject, name)]
    page = as_html(fold([nasty, broken(note=name)], {name: name}, [name], left_out))
    assert name not in page
    assert page.count("<script") == 2
    assert name in printed(fold([nasty]), width=200)
    assert "[red]case" in printed(fold([evidence(2.0, case="[red]case")]))


def test_a_cell_with_fewer_cases_than_another_column_is_marked() -> None:
    half = BackendSubject("flax", "float16")
    all_cases = [evidence(0.2, case=case) for case in ("translation", "pre-norm", "notes-lm")]
    matrix = fold([*all_cases, evidence(0.4, subject=half), evidence(0.3, "loss.sum", half)])
    text = " ".join(printed(matrix).split())
    assert "scores 20 % 40 %*" in text and "sum · 30 %" in text
    assert "* Fewer cases than in another column: 1 attention.scores (flax float16): 1 of 3" in text
    assert "attention.scores (flax float16): 1 of 3" in as_html(matrix)
    row = as_json(matrix)["claims"][0]
    assert (row["cases"], [cell["cases"] for cell in row["cells"]]) == (3, [3, 1])


CLAIMS = [claim for claim in all_claims().values() if not claim.needs]


@pytest.fixture
def bench() -> Bench:
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
