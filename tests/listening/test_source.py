import functools
import runpy
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

import transparity_conformance
import transparity_numpy
from transparity_conformance.listening.listen import listen
from transparity_conformance.listening.operation import home, statement_at


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/home/me/model.py", ""),
        (__file__, ""),
        ("/home/me/venv/lib/python3.11/site-packages/torch/nn/functional.py", "torch"),
        ("/usr/lib/python3/dist-packages/einops.py", "einops.py"),
        (f"{sysconfig.get_path('stdlib')}/functools.py", None),
        (str(Path(transparity_conformance.__file__).parent / "capabilities/port_calls.py"), None),
        ("<frozen importlib._bootstrap>", None),
        ("<ipython-input-1>", ""),
    ],
)
def test_files_are_the_port_s_unless_they_are_installed_python_s_or_ours(file: str, expected: str | None) -> None:
    assert home(file) == expected


def test_a_column_of_ours_is_a_port_like_any_other() -> None:
    assert home(str(transparity_numpy.__file__)) in ("", "transparity_numpy")


def installed(folder: Path, package: str, text: str) -> Any:
    file = folder / "site-packages" / package / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    namespace: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), namespace)
    return namespace["forward"]


def test_an_installed_port_has_its_own_lines(tmp_path: Path) -> None:
    layer = torch.nn.Module()
    layer.forward = installed(tmp_path, "a_model", "def forward(x):\n    return x * 2\n")
    _, (operation,) = listen(functools.partial(torch.nn.Sequential(layer), torch.ones(2)))
    assert operation.source is not None
    assert operation.source.code == "return x * 2"
    assert operation.source.columns == (11, 16), "columns must count characters"


@pytest.mark.parametrize(
    ("line", "marked"),
    [
        ("y = x.abs()", "x.abs()"),
        ("y = [torch.nn.functional.relu(x), 1][0]", "torch.nn.functional.relu(x)"),
        ("y = x[1:].abs()", "x[1:].abs()"),
        ("y = dict(k=torch.abs(-x.detach()))['k']", "torch.abs(-x.detach())"),
    ],
)
def test_a_call_of_a_method_is_marked_with_what_it_is_called_on(line: str, marked: str, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(f"import torch\ndef forward(x):\n    {line}\n    return y\n")
    _, operations = listen(functools.partial(runpy.run_path(str(file))["forward"], torch.ones(2)))
    source = operations[-1].source
    assert source is not None and source.columns is not None
    assert f"    {line}"[slice(*source.columns)] == marked


def test_a_library_that_the_port_calls_has_no_lines(tmp_path: Path) -> None:
    library = installed(tmp_path, "a_library", "def forward(x):\n    return x * 2\n")

    def port(x: torch.Tensor) -> torch.Tensor:
        return library(x)

    _, (operation,) = listen(functools.partial(port, torch.ones(2)))
    assert operation.source is not None
    assert (operation.source.file, operation.source.code) == (__file__, "return library(x)")


def test_a_model_that_one_line_of_the_port_calls_has_its_own_lines(tmp_path: Path) -> None:
    text = "def forward(x):\n    y = x * 2\n    z = y + 1\n    return z - 3\n"
    model = installed(tmp_path, "a_model", text)

    def port(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        return y / 4

    _, operations = listen(functools.partial(port, torch.ones(2)))
    lines = [[line.code for line in each.stack] for each in operations]
    assert lines == [[code, "y = model(x)"] for code in ("y = x * 2", "z = y + 1", "return z - 3")] + [["return y / 4"]]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (1, "x = f( 1, 2 )"),
        (3, "x = f( 1, 2 )"),
        (5, "for y in x:"),
        (6, "a = 1"),
        (7, "print(\\x1b)"),
        (0, ""),
        (99, ""),
    ],
)
def test_the_code_is_the_statement_on_one_line(line: int, expected: str) -> None:
    lines = ("x = f(\n", "    1,\n", "    2\n", ")\n", "for y in x:\n", "    a = 1  # one\n", "    print(\x1b)\n")
    if line == 7:  # not valid Python
        assert statement_at(lines, line) == expected
    else:
        assert statement_at(lines[:6], line) == expected
