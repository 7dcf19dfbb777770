import tomllib
from pathlib import Path
from typing import Any, NamedTuple


class Case(NamedTuple):
    model: str
    fields: dict[str, Any]
    expected: dict[str, Any]
    length: int = 11
    head: str | None = None


def _with_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_null(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_null(each) for each in value]
    return None if value == "null" else value


_TABLES: dict[str, dict[str, Any]] = _with_null(
    tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))
)


def _case(like: tuple[str, ...] = (), fields: dict[str, Any] | None = None, **rest: Any) -> Case:
    sizes = {name: value for table in like for name, value in _TABLES["sizes"][table].items()}
    return Case(fields=sizes | (fields or {}), **rest)


CASES = {name: _case(**row) for name, row in _TABLES["cases"].items()}
"""Models of the library transformers, by case; the name of a case is a family, or a family and a special feature."""

CHANGES: dict[str, dict[str, Any]] = _TABLES["changes"]
"""Further models of a family: the fields of our configuration that differ from the family's small model."""

REFUSED = {what: (row["case"], row["fields"], row["says"]) for what, row in _TABLES["refused"].items()}
"""A case, invalid values of its fields, and a part of the expected error message, by a description of the mistake."""

ONE_SENTENCE: dict[str, list[list[Any]]] = _TABLES["one_sentence"]
"""Inputs that the checker must refuse, each with a part of the expected message, by the name of a test."""
