"""Write docs/family-fields.md: the fields of each family's config.json, and the models with which tests compare the
family.

`python docs/families.py` writes the page. tests/project/test_pages.py compares the page with the families' tables and
tests.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.checkpoints.importing import family_called
from transparity_conformance.checkpoints.reading import as_json
from transparity_conformance.checkpoints.tables.codecs import ONLY, Family
from transparity_conformance.checkpoints.tables.rows import ACTIVATIONS

PAGE = Path(__file__).with_name("family-fields.md")
OVERVIEW = Path(__file__).with_name("families.md")
CASES = Path(__file__).parents[1] / "tests" / "families" / "cases.toml"

INTRODUCTION = """# Families, field by field

For every family that is [imported and exported](families.md), this page lists:

- the class of `transformers` with which the tests compare it, in NumPy, PyTorch and JAX, in float32 and float64, with
  random weights and with padding;
- the fields of config.json that are copied (our field in parentheses) or converted;
- our fields that always have the same value;
- fields that support only some values; an import refuses any other value, and names the field.

An import reports fields that are not listed here, and says whether a forward pass depends on them.

`python docs/families.py` writes this page from the tables of the families and from their tests.
"""


def compared() -> dict[str, dict[str, str]]:
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, case in tomllib.loads(CASES.read_text(encoding="utf-8"))["cases"].items():
        family, _, variant = name.partition(", ")
        found[family][variant or "usual"] = case["model"]
    return found


def page() -> str:
    cases = compared()
    of_all = [f"`{name}`: {_values(values)}" for name, values in sorted(ONLY.items())]
    activations = f"Activations: {', '.join(f'`{name}`' for name in ACTIVATIONS)}"
    parts = [
        INTRODUCTION,
        "## Every family",
        _bullets([f"Only supported: {'; '.join(of_all)}"]),
        _bullets([activations]),
    ]
    for model_type in sorted(FAMILIES):
        family = family_called(model_type)
        if not (compared_with := cases[NAMES.get(model_type, model_type)]):
            raise LookupError(f"{CASES} has no row for {model_type}; add one under [cases].")
        parts.append(f"## `{model_type}`\n\n{_bullets(_lines(family, compared_with))}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


NAMES: Mapping[str, str] = {"gemma3_text": "gemma3"}
"""Families whose cases in the tests have another name, with this name."""


def _lines(family: Family, cases: Mapping[str, str]) -> Iterator[str]:
    classes = ", ".join(f"`{name}`" for name in dict.fromkeys(cases.values()))
    yield f"Compared with {classes}, in the configurations: {'; '.join(cases)}"
    unchanged = [f"`{row.name}` ({', '.join(f'`{name}`' for name in row.ours)})" for row in family.rows if row.ours]
    yield f"Copied from config.json (our fields in parentheses): {', '.join(unchanged)}"
    yield f"Converted: {', '.join(f'`{name}`' for row in family.rows if not row.ours for name in row.reads)}"
    always = [f"`{name}` {as_json(value)}" for name, value in family.always.items()]
    yield f"Always: {', '.join(always)}"
    if family.only:
        only = [f"`{name}`: {_values(values)}" for name, values in family.only.items()]
        yield f"Only supported: {'; '.join(only)}"


def _values(values: tuple[Any, ...]) -> str:
    return " or ".join(as_json(value) for value in values) or "none"


def _bullets(lines: Any) -> str:
    return "\n".join(f"- {line}." for line in lines)


def overview() -> str:
    names = [f"`{model_type}`" for model_type in sorted(FAMILIES)]
    listed = f"The checker reads these families: {', '.join(names[:-1])} and {names[-1]}."
    pattern = r"(?s)The checker reads these families: .+?\.(?= )"
    return re.sub(pattern, lambda _: listed, OVERVIEW.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    OVERVIEW.write_text(overview(), encoding="utf-8")
