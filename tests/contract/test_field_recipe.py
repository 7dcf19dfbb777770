"""Test that every field is documented, randomly drawn, read by every column, and has a fault. Each failure names the
file to change. CONTRIBUTING explains the steps."""

import ast
import dataclasses
import inspect
import re
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from tests.looping import for_each

from transparity.config import FIELD_TYPES, TransformerConfig
from transparity.config import transformer_config as config_file
from transparity.presets import PRESETS
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.strategies import NOT_DRAWN, configs
from transparity_conformance.report.causes import meanings
from transparity_conformance.suite.claims import all_claims

ROOT = Path(__file__).parents[2]
CONFIG = "reference/transparity/config/transformer_config.py"
STRATEGIES = "conformance/transparity_conformance/oracle/strategies.py"
CONTRACT = "reference/transparity"
COLUMNS = ("reference/transparity_numpy", "backends/transparity_pytorch", "backends/transparity_flax")
FAULTS = ("conformance/transparity_conformance/catalogue", "conformance/transparity_conformance/capabilities/faults")

PARTS = tuple(f"parts/{path.name}" for path in sorted((ROOT / CONTRACT / "parts").glob("*.py")))
"""Files of `reference/transparity` that define which parameters exist."""

READ_FOR_ALL = ("inputs.py", "training.py")
"""Files of `reference/transparity` that read a field for every column."""

READ_BY_A_ROW = {"num_frames"}
"""Fields that the columns do not read, because the row of an input in `parts/` reads them for every column."""

KNOWN_FILE = "tests/contract/fields.toml"
KNOWN = tomllib.loads((ROOT / KNOWN_FILE).read_text(encoding="utf-8"))
NO_FAULT, IN_NO_CASE = KNOWN["no_fault"], KNOWN["in_no_case"]

CASES_FILE = "conformance/transparity_conformance/oracle/cases.json"
CONFIGURATIONS = [*(preset.config for preset in PRESETS.values()), *CASES.values()]


each_field = for_each("field", FIELD_TYPES)


@cache
def class_body() -> list[ast.stmt]:
    tree = ast.parse(inspect.getsource(config_file))
    return next(node.body for node in tree.body if isinstance(node, ast.ClassDef))


@cache
def words_for(field: str) -> frozenset[str]:
    reads = {
        node.name: {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
        for node in class_body()
        if isinstance(node, ast.FunctionDef) and node.name not in ("resized", "as_dict", "from_dict")
    }
    words = {field}
    while more := {name for name, read in reads.items() if read & words} - words:
        words |= more
    return frozenset(words)


def text_of(folder: str, *names: str) -> str:
    every = [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".toml")]
    files = [ROOT / folder / name for name in names] or every
    assert files, f"{folder} has no Python files"
    return "\n".join(file.read_text() for file in files)


@cache
def mentioned(*places: tuple[str, ...]) -> frozenset[str]:
    """Return the attributes, quoted words and keywords in files; each of `places` has the arguments of `text_of`."""
    text = "\n".join(text_of(*place) for place in places)
    return frozenset(
        word for form in (r"\.(\w++)", r"[\"'](\w++)(?=[\"'])", r"\b(\w++)=") for word in re.findall(form, text)
    )


def mentions(field: str, *places: tuple[str, ...]) -> bool:
    return not mentioned(*places).isdisjoint(words_for(field))


@each_field
def test_a_field_is_documented(field: str) -> None:
    body = class_body()
    (place,) = (
        index
        for index, node in enumerate(body)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == field
    )
    below = body[place + 1]
    documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    assert documented, f"{CONFIG}: {field} has no docstring"


@pytest.fixture(scope="module")
def drawn() -> dict[str, set[object]]:
    values: defaultdict[str, set[object]] = defaultdict(set)

    @settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(configs())
    def draw(config: TransformerConfig) -> None:
        for field in FIELD_TYPES:
            values[field].add(getattr(config, field))

    draw()
    return values


@each_field
def test_a_field_is_drawn_or_held_by_a_claim(field: str, drawn: dict[str, set[object]]) -> None:
    if field in NOT_DRAWN:
        assert NOT_DRAWN[field] in all_claims(), f"{STRATEGIES}: there is no claim {NOT_DRAWN[field]} for {field}"
        assert len(drawn[field]) == 1, f"{STRATEGIES}: {field} is drawn, so remove it from NOT_DRAWN"
    else:
        forgotten = f"{CONFIG}: give {field} values to draw, or name a claim in NOT_DRAWN of {STRATEGIES}"
        assert len(drawn[field]) > 1, forgotten


@each_field
@for_each("column", COLUMNS)
def test_a_column_reads_every_field(column: str, field: str) -> None:
    # NumPy's functions depend on which parameters exist; the frameworks' modules create them
    with_parts = column.endswith("numpy") or field in READ_BY_A_ROW
    contract = (*READ_FOR_ALL, *PARTS) if with_parts else READ_FOR_ALL
    assert mentions(field, (column,), (CONTRACT, *contract)), f"{column}/SUBJECT.py: no file reads {field}"


@each_field
def test_a_field_has_another_value_in_a_preset_or_a_case(field: str) -> None:
    default = next(each.default for each in dataclasses.fields(TransformerConfig) if each.name == field)
    others = [config for config in CONFIGURATIONS if getattr(config, field) != default]
    if field in IN_NO_CASE:
        assert not others, f"{field} has another value in a case, so remove it from `in_no_case` of {KNOWN_FILE}"
    else:
        assert others, (
            f"{CASES_FILE}: give {field} another value than {default!r} in a case, so that its faults are tested"
        )


@each_field
def test_a_field_has_a_fault(field: str) -> None:
    rows = [row for meaning in meanings().values() for row in meaning.variants.values() if not isinstance(row, str)]
    changed = set(re.findall(r"\w+", str([{**row, "says": ""} for row in rows])))
    if mentions(field, *((folder,) for folder in FAULTS)) or not changed.isdisjoint(words_for(field)):
        assert field not in NO_FAULT, f"{field} has a fault, so remove it from `no_fault` of {KNOWN_FILE}"
    else:
        assert field in NO_FAULT, (
            f"{FAULTS[0]}: add a fault of {field}, or add to `no_fault` of {KNOWN_FILE} the reason why none is possible"
        )
