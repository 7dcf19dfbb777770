import ast
import functools
import re
from pathlib import Path

import pytest
from tests.helpers import table
from tests.looping import for_each

from transparity_conformance.oracle import backends

ROOT = Path(__file__).parents[2]
COLUMNS = {
    "numpy": ROOT / "reference/transparity_numpy",
    "pytorch": ROOT / "backends/transparity_pytorch",
    "flax": ROOT / "backends/transparity_flax",
}


def files_of(column: str) -> set[str]:
    paths = [file.relative_to(COLUMNS[column]).with_suffix("") for file in COLUMNS[column].rglob("*.py")]
    return {".".join(path.parts) for path in paths if path.name != "__init__"}


KNOWN = table(__file__, "columns.toml")
DIFFERENT: dict[str, list[str]] = KNOWN["different"]

MIRRORED = files_of("numpy") - {*KNOWN["own_contents"], *KNOWN["without_twin"]["numpy"]}


@functools.cache
def defined(column: str, file: str) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """Return a file's public functions and classes by NumPy's name: `self_attention` for the class `SelfAttention`."""
    tree = ast.parse(COLUMNS[column].joinpath(*file.split(".")).with_suffix(".py").read_text())
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    shown = {re.sub(r"(?<!^)(?=[A-Z])", "_", node.name).lower(): node for node in found}
    return {name: node for name, node in shown.items() if not name.startswith("_")}


def names(column: str, file: str) -> list[str]:
    return list(defined(column, file))


def call_of(node: ast.ClassDef) -> ast.FunctionDef | None:
    """Return the method that computes a module's result; None for a class without a call."""
    methods = (it for it in node.body if isinstance(it, ast.FunctionDef) and it.name in ("__call__", "forward"))
    return next(methods, None)


def arguments(node: ast.FunctionDef | ast.ClassDef) -> list[str] | None:
    """Return the argument names of a function or of a module's call, or None for a class without a call. The argument
    `training` is left out, because modules store this value."""
    if isinstance(node, ast.ClassDef):
        call = call_of(node)
        return arguments(call) if call else None
    given = node.args
    named = [*given.posonlyargs, *given.args, *([given.vararg] if given.vararg else []), *given.kwonlyargs]
    return [it.arg for it in named if it.arg != "training" or ast.unparse(it.annotation or it) != "bool"]


def defaults(node: ast.FunctionDef | ast.ClassDef) -> dict[str, str]:
    """Return the default of each argument that has one, or of each field of a class without a call."""
    if isinstance(node, ast.ClassDef):
        if call := call_of(node):
            return defaults(call)
        fields = [it for it in node.body if isinstance(it, ast.AnnAssign) and isinstance(it.target, ast.Name)]
        return {ast.unparse(it.target): ast.unparse(it.value) if it.value else "" for it in fields}
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    last = zip(reversed(positional), reversed(given.defaults), strict=False)
    named = [*last, *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return {it.arg: ast.unparse(default) for it, default in named if default is not None}


def replaced(specified: list[str], found: list[str]) -> list[str]:
    """Return a framework's arguments without `config`, `device`, and the module that replaces NumPy's `parameters`."""
    found = [name for name in found if name not in ("self", "config", "device")]
    begin = next((place for place, name in enumerate(specified) if name in ("config", "parameters")), None)
    rest = [name for name in specified if name not in ("config", "parameters")]
    if begin is None or len(found) == begin or found[begin] in rest[begin : begin + 1]:
        return found
    is_module = found[begin] in KNOWN["module_arguments"]
    return found[:begin] + found[begin + is_module :]


@for_each("file", sorted(MIRRORED))
@for_each("column", ["pytorch", "flax"])
def test_functions_of_a_file_have_the_same_arguments_and_defaults_in_the_same_order(column: str, file: str) -> None:
    found = defined(column, file)
    for name, node in defined("numpy", file).items():
        expected, others = defaults(node), defaults(found[name])
        shared = (
            expected.keys() & others.keys() if arguments(node) else (expected.keys() | others.keys()) - {"training"}
        )
        assert {it: expected.get(it) for it in shared} == {it: others.get(it) for it in shared}, name
        specified, given = arguments(node), arguments(found[name])
        if specified is None or given is None:
            continue  # a named tuple, or a module without its own call
        changed, _ = DIFFERENT.get(f"{column} {file}.{name}") or DIFFERENT.get(f"{file}.{name}") or ["", ""]
        changes = changed.split()
        rest = [it for it in specified if it not in ("config", "parameters") and f"-{it}" not in changes]
        assert [it for it in replaced(specified, given) if f"+{it}" not in changes] == rest, name
        assert all(change[1:] in (given if change[0] == "+" else specified) for change in changes), name


@for_each("file", sorted(MIRRORED))
@for_each("column", ["pytorch", "flax"])
def test_a_file_holds_the_same_names_in_the_same_order(column: str, file: str) -> None:
    specified = names("numpy", file)
    assert specified or file in KNOWN["only_assignments"], f"the reference's {file}.py defines nothing"
    found = [name for name in names(column, file) if not name.endswith("_parts")]
    assert [name for name in found if name not in KNOWN["only_in_frameworks"].get(file, ())] == specified


@for_each("column", ["pytorch", "flax"])
def test_a_column_holds_the_mirrored_files_and_no_others(column: str) -> None:
    assert files_of(column) == {*MIRRORED, *KNOWN["own_contents"], *KNOWN["without_twin"][column]}


def _missing(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Add a second backend whose import fails because `module` is missing."""

    def backend(name: str) -> object:
        if name == "theirs":
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return object()

    monkeypatch.setattr(
        backends, "named", lambda: {"numpy": "transparity_numpy.port:build", "theirs": "theirs.port:build"}
    )
    monkeypatch.setattr(backends, "backend", backend)
    monkeypatch.setattr(backends, "absent", backends.absent.__wrapped__)


def test_a_backend_without_its_framework_is_left_out_and_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    _missing(monkeypatch, "a_framework")
    assert backends.installed() == ["numpy"]
    assert backends.absent() == {"theirs": "its framework cannot be imported (No module named 'a_framework')"}


def test_a_backend_that_lacks_a_module_of_its_own_is_broken_not_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    _missing(monkeypatch, "theirs.attention")
    with pytest.raises(ModuleNotFoundError):
        backends.installed()


@for_each("column", list(COLUMNS))
def test_the_textbook_has_at_most_650_lines(column: str) -> None:
    files = [COLUMNS[column].joinpath(*name.split(".")).with_suffix(".py") for name in KNOWN["textbook"]]
    assert sum(len(file.read_text().splitlines()) for file in files) <= 650


def test_every_backend_of_this_project_is_installed_where_it_is_tested() -> None:
    assert {"numpy", "pytorch", "flax"} <= set(backends.installed())
