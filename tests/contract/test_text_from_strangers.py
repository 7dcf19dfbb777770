import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.looping import for_each

from transparity.errors import TransparityError
from transparity.text import SENTENCE, describe_error, listed, reason, safe, shown
from transparity_conformance.report.check.page import as_html
from transparity_conformance.report.check.terminal import as_text
from transparity_conformance.report.files import write_reports
from transparity_conformance.report.report import Report

DANGEROUS = {
    "a terminal's escape": "\x1b]0;title\x07\x1b[2J",
    "a reversed direction": "\u202egnp.exe",
    "an isolate": "\u2066\u2069",
    "an invisible space": "a\u200bb\ufeff",
    "lines": "one\ntwo\r\nthree\u2028four\x85five",
    "a backspace": "agrees\b\b\b\b\b\bdiverges",
    "a lone surrogate": "\ud800",
    "a null": "\0",
    "a private character": "\ue000",
    "a megabyte": "x" * 10**6,
    "marks on one letter": "e" + "\u0301" * 10**5,
    "spaces alone": " \t" * 10**6,
    "markup": "[bold red]no[/] [/] [link=file:///etc/passwd]",
    "a tag": "<script>alert(1)</script>",
}


@for_each("text", DANGEROUS.values())
def test_text_is_one_printable_line_and_an_error_is_one_printable_sentence(text: str) -> None:
    line, says = safe(text, 80), str(TransparityError(f"{text} is no file; expected another."))
    assert line.isprintable() and says.isprintable()
    assert len(line) <= 80 and len(says) <= SENTENCE
    assert safe(line, 80) == line, "`safe` must not change its own output"
    assert line.encode()
    assert says.endswith("; expected another.")


@for_each("text", DANGEROUS.values())
def test_a_report_is_printable_in_every_form(tmp_path: Path, text: str) -> None:
    report = Report(text, "inconclusive", None, not_compared=(text,), notes=(f"it said {text}",))
    printed = as_text([report])
    assert all(line.isprintable() for line in printed.splitlines())
    assert "[/]" in printed or "markup" not in text
    write_reports([report], tmp_path / "report.json", tmp_path / "report.html")
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert all(line.isprintable() for line in (*written[0]["notes"], *written[0]["not_compared"]))
    assert "<script>alert" not in as_html([report])


class Stranger:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        raise self.error

    __str__ = __repr__


class Boastful(str):
    def __str__(self) -> str:
        raise SystemExit(0)


@for_each("error", [ValueError("no"), RecursionError(), SystemExit(0), GeneratorExit()])
def test_a_repr_that_raises_is_the_name_of_its_class(error: BaseException) -> None:
    assert shown(Stranger(error)) == "<Stranger>"
    assert shown([Stranger(error)]) == "[<Stranger>]"
    assert describe_error(ValueError(Stranger(error))) == "ValueError: <ValueError>"


def test_the_users_own_interrupt_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        shown(Stranger(KeyboardInterrupt()))


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


HUGE: Sequence[Any] = (
    10**100_000,
    -(10**400),
    "x" * 10**7,
    b"x" * 10**7,
    list(range(10**6)),
    dict.fromkeys(range(10**6)),
    ["x" * 10**7] * 100,
    nested(10**5),
    np.zeros((1000, 1000)),
    Boastful("x" * 10**7),
)


@for_each("value", HUGE)
def test_a_huge_value_is_short_at_once(value: Any) -> None:
    began = time.perf_counter()
    assert 0 < len(shown(value)) <= 60
    assert time.perf_counter() - began < 0.5


@for_each("value", [3, -1.5, "a 'b'", b"c", [1, "2"], (1,), (), {}, {"a": [1]}, set(), {1}, None, True, 2**31])
def test_a_usual_value_is_its_repr(value: Any) -> None:
    assert shown(value) == repr(value)


def test_the_reason_of_an_error_is_one_clause_and_of_many_names_the_first_are_listed() -> None:
    assert reason(OSError(36, "File name too long", "x" * 1000)) == "File name too long"
    assert reason(ValueError("one. two. three.")) == "one"
    assert reason(ValueError()) == "ValueError"
    assert listed(["a", "b"]) == "a, b"
    assert listed([f"n{i}" for i in range(1000)]) == "n0, n1, n2, n3, n4, n5, … (994 more)"
