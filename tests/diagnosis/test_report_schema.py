import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meta.audits.measure import changed
from meta.pool.port import port_with
from transparity.config import TransformerConfig
from transparity_conformance.checking.check import check
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import probes
from transparity_conformance.report.check.terminal import as_text
from transparity_conformance.report.report import Impact
from transparity_numpy.transformer import transformer

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text(encoding="utf-8"))
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "null": type(None),
}
KEYWORDS = {"type", "enum", "$ref", "anyOf", "properties", "required", "additionalProperties", "items", "pattern"}
REMARKS = {"$schema", "$defs", "title", "description"}


def wrong(schema: dict[str, Any], value: Any, where: str = "report") -> Iterator[str]:
    """Yield each path at which `value` violates `schema`; only the keywords in our schema are supported."""
    assert set(schema) <= KEYWORDS | REMARKS, set(schema) - KEYWORDS - REMARKS
    if "$ref" in schema:
        yield from wrong(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], value, where)
    if "anyOf" in schema and all(any(wrong(option, value)) for option in schema["anyOf"]):
        yield f"{where}: none of the forms"
    kinds = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    if kinds and not any(_is_a(kind, value) for kind in kinds):
        yield f"{where}: {type(value).__name__}, not {kinds}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{where}: {value!r} does not match"
    if isinstance(value, dict):
        yield from _wrong_members(schema, value, where)
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from wrong(schema["items"], item, f"{where}[{index}]")


def _is_a(kind: str, value: Any) -> bool:
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _wrong_members(schema: dict[str, Any], value: dict[str, Any], where: str) -> Iterator[str]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    yield from (f"{where}: no {name}" for name in schema.get("required", ()) if name not in value)
    for name, member in value.items():
        if name in known:
            yield from wrong(known[name], member, f"{where}.{name}")
        elif others is False:
            yield f"{where}: {name}"
        elif isinstance(others, dict):
            yield from wrong(others, member, f"{where}.{name}")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    ignoring = changed(
        'rope.get("rope_theta", c.get("rope_theta", 10000.0))', "10000.0", tmp_path_factory.mktemp("loader")
    )
    made = [
        check(port_with(), "notes-lm"),
        check(port_with("attention-scale-none"), "notes-lm"),
        check(port_with("mean-over-positions-added"), "notes-lm", logits_only=True, budget=0),
        check(lambda config, parameters: lambda **tokens: np.full((8, 7, 3), np.nan), "translation"),
        check(ignoring, family="llama", logits_only=True),
    ]
    return [json.loads(json.dumps(report.as_dict())) for report in made]


def test_every_report_has_the_promised_form(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert list(wrong(SCHEMA, report)) == []
    assert {report["verdict"] for report in reports} == {"agrees", "diverges"}
    assert reports[0]["audit"] is None
    assert {each["outcome"] for each in reports[4]["audit"]["fields"]} >= {"followed", "ignored", "refused"}


Change = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps the logits and the target's tokens to the port's logits."""


def port(change: Change) -> Callable[..., Any]:
    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., np.ndarray]:
        return lambda **tokens: change(transformer(config, parameters, **tokens), tokens["target"])

    return build


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ("logits", "Effect: the logits of 2 of 8 tokens change, but no predicted token does."),
        ("hidden", "Effect: the hidden states of 2 of 8 positions change."),
        ("pooled", "Effect: the pooled states of 2 of 8 rows change."),
        ("classes", "Effect: the logits of 2 of 8 rows change, but no predicted class does."),
    ],
)
def test_the_effect_names_the_output_that_the_model_has(head: str, says: str) -> None:
    assert Impact({"changed": 2, "of": 8}, 0, at_padding_only=False, head=head).sentence == says


def of_one_token(logits: np.ndarray, target: np.ndarray) -> np.ndarray:
    logits = logits.copy()
    logits[0, 0] = -logits[0, 0]
    return logits


@pytest.mark.parametrize(
    ("change", "of_each", "says"),
    [
        (of_one_token, 1, "Effect: the logits of {n} of {of} tokens change, the predicted token of {n}."),
        (lambda logits, target: logits + (target == 0)[..., None], 0, "Effect: logits change only at padding."),
    ],
)
def test_only_changes_at_real_tokens_are_counted(change: Callable[..., np.ndarray], of_each: int, says: str) -> None:
    report = check(port(change), "translation", logits_only=True, budget=0)
    impact, tried = report.faults[0].impact, probes("translation")
    real = sum(int((probe.inputs["target"] != 0).sum()) for probe in tried.values())
    assert impact is not None and impact.at_padding_only == (of_each == 0)
    assert impact.positions["changed"] == impact.argmax_changes == of_each * len(tried)
    assert says.format(n=len(tried), of=real) in as_text([report])
