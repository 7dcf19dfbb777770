import dataclasses
import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import invoke, plain
from tests.looping import for_each

from meta.pool.port import port_with
from transparity_conformance import check
from transparity_conformance.report.audit import Audit, AuditedField
from transparity_conformance.report.check.findings import findings, sentence, spread
from transparity_conformance.report.check.lines import PortLine
from transparity_conformance.report.check.page import as_html, as_markdown, digest, headline
from transparity_conformance.report.check.terminal import answers, as_text, bars, one_line
from transparity_conformance.report.check.view import one_line_a_reason
from transparity_conformance.report.files import write_reports
from transparity_conformance.report.report import Cause, ClaimResult, Divergence, Measured, Report, Verdict

SCORES = "decoder.layers.{}.self_attention.scores"
SAYS = "your scores are 0.5000 × the reference's: scaled by 1/√embed_dim (0.125) instead of 1/√head_dim (0.25)"
SCALE = Cause("attention-scale", SAYS, 0.125, 2e-7, 1.0)
BIAS = Cause("bias-dropped", "the value bias is missing", None, 3e-7, 0.9999)
PROFILE = {"row": [1.0, 1.0], "position": [0.0, 1e-8, 1.0, 0.1], "head": [0.0, 2.0, 0.0]}
MEASURED = tuple(
    Measured(SCORES.format(i), probe, 0.5e-6, 1e-6, 0.25e-6, 1e-6) for probe in ("mixed", "tiny") for i in range(2)
)


def fault(layer: int = 0, *causes: Cause, error: float = 1.0, **fields: Any) -> Divergence:
    return Divergence(SCORES.format(layer), error, 1e-6, causes, probe="mixed", **fields)


def report(*faults: Divergence, verdict: Verdict = "diverges", **fields: Any) -> Report:
    first = faults[0].where if faults else None
    given = {"preset": "notes-lm", "measured": MEASURED} | fields
    return Report(verdict=verdict, first_divergence=first, faults=faults, **given)


def flat(text: str) -> str:
    return " ".join(text.split())


HALF = Cause("attention-scale", SAYS, None, 0.6, 0.37)
COMPUTED = Cause("attention-scale", SAYS, None, 2e-16, 1.0)
STEPS = "step: not compared, because the forward pass diverges"
SMALL = (Measured("logits", "mixed", 1e-11, 1e-6, 0.0, 1e-6),)
SHAPES = tuple(f"logits has the shape ({rows}, 9, 30); expected ({rows}, 9, 31)" for rows in range(1, 8))
LEFT_OUT = "probe hot: no logits"
EMPTY = Report("notes-lm", "inconclusive", None, not_compared=("probe mixed: no logits",))
LOSS = ClaimResult("loss", "agrees", 0.59, 1.0, "mixed")
REACH = ClaimResult("forward.reach", "agrees", 0.59, 1.0, "logits (length 5, batch 2)")


@for_each(
    ("shown", "says"),
    [
        (report(fault(0, HALF)), "the known causes explain 37% of the error, and the rest is unexplained."),
        (report(fault(0, HALF, BIAS)), "With this fixed, the rest agrees (remaining error 3e-07)."),
        (report(fault(0, SCALE), not_compared=(STEPS,)), "With this fixed, the forward pass agrees (remaining error"),
        (report(fault(0, COMPUTED)), "With this fixed, the rest agrees."),
        (report(fault(0, COMPUTED), dtype="float64"), "With this fixed, the rest agrees (remaining error 2e-16)."),
        (report(fault(profile=PROFILE)), "tolerance in all 2 rows; positions 2–3 of 4; head 1 of 3, unexplained"),
        (report(verdict="inconclusive", not_compared=(f"{LEFT_OUT}.",)), f"too little was compared: {LEFT_OUT}."),
        (report(verdict="inconclusive", not_compared=(LEFT_OUT,)), f"too little was compared: {LEFT_OUT}."),
    ],
)
def test_the_sentence_has_the_place_the_causes_and_what_remains(shown: Report, says: str) -> None:
    assert says in sentence(shown)
    if shown.faults and shown.faults[0].causes:
        assert sentence(shown).startswith(f"{SCORES.format(0)}: {SAYS}")


@for_each(
    ("shown", "says"),
    [
        (report(fault(0, HALF)), "the known causes explain 37% of the error, and the rest is unexplained"),
        (report(verdict="agrees"), "at most 50 % of the tolerance is used"),
        (report(verdict="inconclusive"), "at most 50 % of the tolerance is used"),
        (report(verdict="inconclusive", claims=(LOSS,)), "at most 59 % of the tolerance is used (loss: mixed)"),
        (report(verdict="agrees", claims=(LOSS,)), "at most 59 % of the tolerance is used (loss: mixed)"),
        (report(verdict="agrees", claims=(REACH,)), "of the tolerance is used (logits, length 5, batch 2)"),
        (report(verdict="agrees", measured=SMALL), "Tolerance less than 0.1 % of the tolerance is used"),
        (EMPTY, "Nothing was compared."),
        (EMPTY, "probe mixed: no logits"),
        (report(fault(0, SCALE), fault(1)), "Fix the first fault first"),
        (report(fault(), notes=SHAPES), f"{SHAPES[0]} (and 6 notes like it)"),
    ],
)
def test_the_text_has_the_share_of_the_tolerance_and_what_to_do_first(shown: Report, says: str) -> None:
    assert says in flat(as_text([shown], verbose=bool(shown.claims)))


def test_faults_that_explain_everything_do_not_wait_for_each_other() -> None:
    assert "Fix the first fault first" not in as_text([report(fault(0, SCALE), fault(1, BIAS))])


def test_one_fault_in_every_layer_is_one_finding() -> None:
    found = findings(report(fault(0, SCALE), fault(1, SCALE), fault(2, BIAS)))
    assert [finding.places for finding in found] == [[SCORES.format("0–1")], [SCORES.format(2)]]


def test_a_finding_has_every_place_of_its_cause_and_no_alternative_that_another_place_denies() -> None:
    line = {"file": "my.py", "line": 3, "code": "x", "columns": None}
    outputs = [f"decoder.layers.{layer}.feed_forward.output" for layer in range(2)]
    missing = [Cause("residual-source", f"the residual is missing, at {at}", at=at) for at in outputs]
    turned = [Cause("rotary-direction", f"keys are turned{other}") for other in (" (or queries are turned)", "")]
    for told, says in (
        (missing, "the residual is missing, at decoder.layers.0–1.feed_forward.output"),
        (turned, "keys are turned"),
        (turned[:1] * 2, turned[0].says),
    ):
        (found,) = findings(report(*(fault(layer, cause, source=line) for layer, cause in enumerate(told))))
        assert [cause.says for cause in found.causes] == [says]


def test_all_views_have_one_block_for_each_line_and_cause_with_the_same_places() -> None:
    line = {"file": "my.py", "line": 3, "code": "x", "columns": None}
    causes = [Cause("head-order", "heads are reversed", at=f"decoder.layers.{layer}.output") for layer in range(2)]
    shown = report(*(fault(layer, cause, source=line) for layer, cause in enumerate(causes)))
    where = "decoder.layers.0–1.output"
    (finding,) = shown.as_dict()["findings"]
    assert finding["causes"] == [{"mistake": "head-order", "says": "heads are reversed", "at": where}]
    assert (finding["faults"], finding["lines"]) == ([0, 1], [line])
    for text in (as_text([shown]), as_markdown([shown]), re.sub(r"<[^>]+>", "", as_html([shown]))):
        assert text.count("heads are reversed") == text.count(f"at {where}") == 1


def test_an_unexplained_divergence_is_shown_with_its_spread() -> None:
    assert "the rest agrees" not in sentence(report(fault(0, SCALE), fault(1)))
    text = as_text([report(fault(profile=PROFILE))], 80)
    assert "··█▇" in text
    assert "·█·" in text


def test_what_is_not_compared_for_one_reason_is_one_line_for_people_and_an_item_each_for_machines() -> None:
    reasons = ("loss: the port has no such method", "probe hot: no logits", "step: the port has no such method", "all")
    left_out = report(verdict="agrees", not_compared=reasons)
    for shown in (flat(as_text([left_out])), flat(as_html([left_out]))):
        assert "loss, step: the port has no such method" in shown
        assert shown.count("no such method") == 1
        assert "probe hot: no logits" in shown
    assert left_out.as_dict()["not_compared"] == list(reasons)


def test_a_name_with_a_colon_in_it_is_not_cut() -> None:
    values = [f'config.json rope_scaling {{"type": "{name}", "sizes": {{"a": 1}}}}' for name in ("linear", "yarn")]
    lines = one_line_a_reason([f"{value}: load(folder) raised KeyError: {{}}" for value in (*values, *values)])
    assert lines == [f"{', '.join(values)}: load(folder) raised KeyError: {{}}"]


def test_values_that_a_loader_refuses_are_counted_and_verbose_lists_them() -> None:
    fields = [AuditedField("act", f'"{name}"', "refused", "load(folder) raised NotImplementedError") for name in "abc"]
    fields.append(AuditedField("eos", "3", "not exercised"))
    lines = [f"config.json act {each.value}: {each.says}" for each in fields[:3]]
    lines += ["config.json eos: no call shows it", "loss: the port has no such method"]
    right = report(verdict="agrees", audit=Audit(tuple(fields)), not_compared=tuple(lines))
    assert "config.json: the port refuses 3 changed values" in flat(as_text([right]))
    assert "NotImplementedError" not in as_text([right]) and "no call shows it" not in as_text([right])
    assert 'config.json act "a", config.json act "b"' in flat(as_text([right], verbose=True))
    fields.append(AuditedField("theta", "1.0", "refused", "load(folder) raised KeyError: 'theta'"))
    broken = report(verdict="agrees", audit=Audit(tuple(fields)))
    assert "– with theta 1.0, load(folder) raised KeyError: 'theta'" in flat(as_text([broken]))


def test_a_wall_of_findings_that_may_follow_from_the_first_is_cut() -> None:
    lines = [{"file": "/home/my.py", "line": line, "code": f"f({line})"} for line in range(1, 8)]
    many = report(*(fault(0, source=line) for line in lines))
    assert as_text([many]).count("unexplained") == 4
    assert "and 3 more (--verbose)" in as_text([many])
    assert as_text([many], verbose=True).count("unexplained") == 7


def test_no_activation_before_a_cause_that_explains_everything_is_called_the_first_wrong_one() -> None:
    known, unknown = (
        dataclasses.replace(report(each), first_divergence="decoder.x") for each in (fault(0, SCALE), fault())
    )
    assert "decoder.x" not in as_text([known]) + as_html([known])
    assert "beyond its tolerance is decoder.x" in flat(as_text([unknown]))


def test_an_unexplained_line_says_which_part_it_changes_and_a_wrong_shape_is_given_once() -> None:
    line = {"file": "/home/my.py", "line": 7, "code": "where(a, b, c)"}
    shape = f"{SCORES.format(0)} has the shape (2, 3) on the probe mixed; expected (2, 4)"
    notes = ("my.py:7 changes only every 3rd feature from 0 (of 16)", "another note")
    text = flat(as_text([report(fault(source=line), notes=notes)], 80))
    assert f"unexplained {notes[0]} wrong by" in text
    assert text.count(notes[0]) == 1 and "Note another note" in text
    misshapen = report(fault(error=math.inf, is_misshapen=True), notes=(shape,))
    assert flat(as_text([misshapen], 80)).count("shape (2, 3)") == 1
    assert "wrong shape" in as_text([misshapen]) and "unexplained" not in as_text([misshapen])
    assert shape in flat(as_html([misshapen]).partition("Notes</h2>")[0])


def test_the_lines_around_one_do_not_end_with_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "my.py"
    path.write_text("\n\ny = x\n\nz = y\n\n\n")
    assert PortLine(str(path), 5, "z = y").around == [(3, "y = x"), (4, ""), (5, "z = y")]


def test_each_cause_links_to_its_page_on_the_site() -> None:
    site = tomllib.loads(Path("docs/site/zensical.toml").read_text())["project"]["site_url"]
    assert f'<a href="{site}causes/attention-scale/">attention-scale</a>' in as_html([report(fault(0, SCALE))])
    assert Path("docs/causes/attention-scale.md").exists()


def test_the_page_shows_the_line_of_every_cause() -> None:
    lines = [{"file": "my.py", "line": line, "code": f"x = {line}"} for line in (45, 46)]
    causes = [dataclasses.replace(SCALE, source=line) for line in lines]
    page = as_html([report(fault(0, *causes, source=lines[0]))])
    assert [f'<b title="my.py">my.py:{line["line"]}</b>' in page for line in lines] == [True, True]
    assert "fix my.py:45" in page.partition("What to do next")[2].partition("</p>")[0]
    assert "my.py:46" in page.partition("What to do next")[2].partition("</p>")[0]


def test_the_name_of_the_port_is_in_every_headline() -> None:
    named = report(fault(0, SCALE), port="my.py:load")
    assert re.match("✗ my.py:load differs from the reference +notes-lm, float32\n", as_text([named]))
    assert "<title>Port check: my.py:load differs from the reference</title>" in as_html([named])
    assert headline([named, named])["text"] == "my.py:load: both differ"
    assert named.as_dict()["port"] == "my.py:load"


@pytest.mark.parametrize(
    ("line", "columns", "carets"),
    [
        ("    att = (q @ k) / math.sqrt(C)", (10, 32), "~~~~~~~~^~~~~~~~~~~~~~"),
        ("    return x * cos - turned(x) * sin", (11, 36), "~~~~~~~~^~~~~~~~~~~~~~~~~"),
        ("y = softmax(x, -1)", (4, 18), "^^^^^^^^^^^^^^"),
        ("y = f(x,", (4, 8), "^^^^"),
    ],
)
def test_the_carets_are_below_the_operation(line: str, columns: tuple[int, int], carets: str, tmp_path: Path) -> None:
    path = tmp_path / "my.py"
    path.write_text(f"{line}\n")
    text, below = PortLine(str(path), 1, "code", columns).marked
    assert text == line.strip()
    assert below == " " * text.index(line[slice(*columns)]) + carets
    assert PortLine(str(path), 1, "code").marked == ("code", "")
    assert PortLine(str(tmp_path / "none.py"), 1, "code", columns).marked == ("code", "")


def test_markdown_has_all_that_runs_the_check_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    port = Path("my.py")
    port.write_text("def load(folder): ...\n")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    files = ["--markdown", "-", "--html=check.html", "--json", "check.json"]
    monkeypatch.setattr("sys.argv", ["transparity", "check", *files, "my.py:load", "--family", "a|b"])
    text = as_markdown([report(fault(0, SCALE), port=f"{port}:load")], weights=tmp_path)
    assert text.startswith(f"### ✗ {port}:load differs from the reference (notes-lm, float32)\n")
    assert SCORES.format(0) in text and "With this fixed, the rest agrees" in text
    assert "| command | `transparity check my.py:load --family 'a\\|b'` |" in text
    assert f"| port | `my.py` {digest([port])} |" in text
    assert f"| weights | {digest([tmp_path / 'model.safetensors'])} |" in text
    port.write_text("def load(folder): return 1\n")
    assert digest([port]) not in text, "the hash must change with the file's content"


def test_several_systems_have_a_line_each_and_alike_answers_once() -> None:
    wrong = [report(fault(0, SCALE), preset=name) for name in ("one", "two")]
    lines = [as_plain(one_line(each)) for each in (*wrong, report(verdict="agrees", preset="three"))]
    assert lines[0].split() == ["✗", "one", "diverges", "attention-scale"]
    assert lines[2].startswith("✓ three              agrees        50 % of the tolerance")
    assert len(as_plain(one_line(report(verdict="inconclusive"))).splitlines()) == 1
    assert as_plain(answers(wrong, 2, failed=3)).endswith("5 configurations: 2 differ, 3 not checked; exit code 2")
    text = as_plain(answers([*wrong, report(verdict="agrees")], 1))
    assert text.count(SAYS[:20]) == 1
    assert "  one (also two), float32\n" in text
    wrong = [report(fault(0, SCALE), preset=f"a-configuration-with-a-long-name-{number}") for number in range(3)]
    assert max(map(len, as_plain(answers(wrong, 1)).splitlines())) <= 80
    assert text.endswith("3 configurations: 1 agrees, 2 differ; exit code 1")
    warned = report(verdict="agrees", audit=Audit((AuditedField("act", "1", "ignored"),)))
    assert as_plain(answers([warned, warned], 0)).endswith("2 configurations: 2 agree (2 with a warning); exit code 0")


def as_plain(shown: Any) -> str:
    return "\n".join(line.rstrip() for line in plain(shown, 80, crop=False).splitlines()).strip()


def test_it_is_readable_at_80_columns() -> None:
    text = as_text([report(fault(0, SCALE), fault(1, SCALE), fault(2, profile=PROFILE))], 80)
    assert max(map(len, text.splitlines())) <= 80
    assert SCORES.format("0–1") in text, "a line break splits a name"


def test_numbers_that_are_not_finite_are_described() -> None:
    lost = report(fault(error=math.inf), measured=(Measured("logits", "mixed", math.nan, 1e-6, math.inf, 1e-6),))
    assert "has values that are not finite" in as_text([lost])
    assert "∞" in as_html([lost])
    assert bars([math.inf, 1.0, 0.0, math.nan], 1e-6) == "█▁·█"
    assert bars([math.nan, 1.0], 1e-6) == "█▁"


def test_a_long_spread_is_a_pattern_or_is_counted() -> None:
    assert spread({"feature": [0.0, 1.0, 0.0] * 8}, 1e-6) == ["every 3rd feature from 1 (of 24)"]
    assert spread({"position": [1.0, 0.0, 1.0, 1.0, 0.0] * 8}, 1e-6) == ["24 of 40 positions"]
    assert spread({"position": [1.0]}, 1e-6) == []


def test_the_headline_is_the_worst_verdict() -> None:
    good, bad = report(verdict="agrees"), report(fault())
    assert headline([good, good])["text"] == "Both agree"
    assert headline([good, bad]) == {"verdict": "diverges", "text": "1 of 2 differs"}
    assert headline([bad])["text"] == "The port differs from the reference"
    assert headline([])["verdict"] == "inconclusive"


def test_the_page_needs_nothing_from_outside_and_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "check.html"
    write_reports([report(fault(profile=PROFILE)), report(verdict="agrees")], None, path)
    page = path.read_text(encoding="utf-8")
    loaded = re.sub(r'<a href="https://[^"]+">', "", page)  # a link is loaded only if it is clicked
    assert not re.findall(r"""(?:src|href|action)\s*=\s*["']?(?!["']|#|data:)[^\s>]+|url\(|@import|https?://""", loaded)
    assert "<script" not in page


def test_names_are_escaped_and_are_not_markup() -> None:
    name = "<b>[red]x"
    nasty = Report(
        name,
        "diverges",
        name,
        (Divergence(name, 1.0, 1e-6, (Cause(name, name, None, 0.0, 1.0),), (name,), name), Divergence(name, 1.0, 1e-6)),
        (ClaimResult(name, "diverges", 1.0, 1.0, name),),
        (Measured(name, name, 1.0, 1.0, 1.0, 1.0, {"row": [1.0, 2.0]}),),
        (name,),
        (name,),
        name,
    )
    assert name not in as_html([nasty, nasty])
    assert as_text([nasty], 200, verbose=True).count(name) >= 10


PORT = """
from transparity_numpy.port import build as of_reference

def build(config, parameters):
    forward = of_reference(config, parameters)
    return lambda **tokens: forward(**tokens)["logits"]
"""


@pytest.fixture(scope="module")
def scaled() -> Report:
    return check(port_with("attention-scale-twice"), "notes-lm", budget=0, quick=True)


def test_the_command_writes_and_shows_the_time_since_its_start(tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(PORT)
    target = tmp_path / "report.json"
    line = ["check", f"{tmp_path}/port.py:build", "--preset", "notes-lm", "--preset", "pre-norm", "--quick"]
    result = invoke(*line, "--verbose", "--json", target)
    first, second = (report["timing"] for report in json.loads(target.read_text()))
    assert result.exit_code == 3 and next(iter(first)) == "start" and "start" not in second
    assert sum(each["processor"] for each in first.values()) > 0
    if Path("/proc/self/stat").exists():
        assert sum(each["port"] for each in first.values()) > 0


def test_the_answer_shows_a_table_if_asked(scaled: Report) -> None:
    assert "processor" not in as_text([scaled])
    rows = [line.split() for line in as_text([scaled], verbose=True).splitlines()]
    (whole,) = (row for row in rows if row[:1] == ["all"])
    assert whole[1] == f"{sum(time.seconds for time in scaled.timing.values()):.1f}"
