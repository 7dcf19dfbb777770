import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from tests.project.commands import PATHS, prepare, run_cc, run_here, run_program, run_transparity
from tests.release import documented
from typer.testing import CliRunner

from transparity_conformance.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs/documents").glob("*.md"))
WITH_CODE = [page for page in PAGES if "```" in page.read_text(encoding="utf-8")]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SESSIONS = set(re.findall(r"(?m)^@nox\.session.*\ndef (\w+)", (ROOT / "noxfile.py").read_text()))


READS_ALONE = ("docs/release_notes.py",)
"""Quick scripts of the repository that write no files."""


@dataclass(frozen=True)
class Block:
    kind: str
    text: str


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, without their indentation."""
    for match in re.finditer(r"(?ms)^( *)```(\w*)\n(.*?)^\1```$", page.read_text(encoding="utf-8")):
        yield Block(match[2], re.sub(f"(?m)^{match[1]}", "", match[3]))


def hold(printed: str, expected: str) -> None:
    """Assert that `printed` equals `expected`; a last line that starts with `…` permits more output."""
    begin, more, _ = without_figures(expected).partition("\n…")
    printed = without_figures(printed)
    assert (printed[: len(begin)] if more else printed) == begin


def without_figures(text: str) -> str:
    """Replace numbers and the name of the worst probe, which depend on the processor."""
    lines = (line.rstrip() for line in re.sub(r"probe\s+\w+\)", "probe #)", text.strip()).splitlines())
    return re.sub(r"\d+(\.\d+)?(e-?\d+| %)", "#", "\n".join(lines))


def run_python(block: Block, namespace: dict[str, Any]) -> str:
    """Run a block and return its output; if the block's first line names a file, also write the block to it."""
    if file := re.match(r"# (\w+\.py)\n", block.text):
        Path(file[1]).write_text(block.text, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(block.text, "<block>", "exec"), namespace)
    return printed.getvalue()


def run_console(text: str) -> None:
    """Run each `$ transparity …` of a block, and compare its output with the lines below it. For `$ echo TEXT > FILE`,
    write the file."""
    for session in re.split(r"(?m)^\$ ", text)[1:]:
        command, _, expected = session.partition("\n")
        program, *arguments = shlex.split(command)
        if program == "echo":
            Path(arguments[-1]).write_text(arguments[0], encoding="utf-8")
            continue
        assert program == "transparity", f"{program!r} cannot be run here; use a sh block"
        prepare(arguments)
        hold(CliRunner(env={"COLUMNS": "80"}).invoke(app, arguments).output, expected)


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # files of a page may import each other
    monkeypatch.setitem(sys.modules, "page", ModuleType("page"))
    namespace: dict[str, Any] = {"__name__": "page"}
    printed: str | None = None
    found = list(blocks(page))
    # run commands last, because they use files that later blocks create
    for block in sorted(found, key=lambda block: block.kind == "sh"):
        if block.kind == "text":
            assert printed is not None, "a text block needs a python block before it"
            hold(printed, block.text)
        elif block.kind != "python":
            CHECKS[block.kind](block.text)
        printed = run_python(block, namespace) if block.kind == "python" else None


def run_shell(text: str) -> None:
    """Run a `sh` block; for commands that need a network or hours, check only the arguments."""
    for line in text.splitlines():
        if words := shlex.split(line.partition(" 2>")[0], comments=True):
            program, *arguments = words
            SHELL[Path(program).name](arguments)


def check_nox(arguments: list[str]) -> None:
    option, *asked = arguments[: arguments.index("--")] if "--" in arguments else arguments
    assert option in ("-s", "-l")
    assert set(asked) <= SESSIONS


def check_python(arguments: list[str]) -> None:
    option, *rest = arguments
    if option == "-c":
        compile(rest[0], "<block>", "exec")
    elif Path(option).is_file():  # a file that a block of the page wrote
        run_here([sys.executable, option])
    elif option != "-m":
        assert (ROOT / option).exists(), f"there is no {option}"
        if option in READS_ALONE:
            run_here([sys.executable, str(ROOT / option), *rest])
    elif rest[0] == "pip":
        extras = {extra for word in rest for group in re.findall(r"\[([\w,]+)\]", word) for extra in group.split(",")}
        assert extras <= PYPROJECT["project"]["optional-dependencies"].keys()
        assert set(re.findall(r"--group (\S+)", " ".join(rest))) <= PYPROJECT["dependency-groups"].keys()
    elif rest[-1] == "--help" or rest[0] == "pytest":
        run_here([sys.executable, *arguments])
    elif rest[0] not in ("venv", "build", "twine"):
        assert importlib.util.find_spec(rest[0]), f"there is no module {rest[0]}"


def check_pytest(arguments: list[str]) -> None:
    paths = [word for word in arguments if "/" in word and not word.startswith("-")]
    assert [path for path in paths if not (ROOT / path.partition("::")[0]).exists()] == []


SHELL: dict[str, Callable[[list[str]], None]] = {
    "nox": check_nox,
    "python": check_python,
    "transparity": run_transparity,
    "pytest": check_pytest,
    "torchrun": lambda words: run_here([sys.executable, "-m", "torch.distributed.run", "--standalone", *words]),
    "port": run_program,
    "cc": run_cc,
    **dict.fromkeys(("cat", "cd", "gh", "git", "lint-imports", "mypy", "pre-commit", "ruff"), lambda words: None),
}


ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}


def run_yaml(text: str) -> None:
    """Run the hooks of a pre-commit file or the steps of a workflow; check the versions of third-party actions."""
    page = yaml.safe_load(text)
    for hook in (hook for repository in page.get("repos", ()) for hook in repository["hooks"]):
        run_shell(shlex.join([HOOKS[hook["id"]]["entry"], *hook["args"]]).replace("'", ""))
    for step in (step for job in page.get("jobs", {}).values() for step in job["steps"]):
        if step["uses"].startswith("transparity/transparity@"):
            run_action(step["with"])
        else:
            assert step["uses"] in (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")


def run_action(given: dict[str, str], code: int = 0) -> str:
    """Run the steps of our action except the installation; return the summary that the action writes."""
    inputs = {name: given.get(name, each.get("default")) for name, each in ACTION["inputs"].items()}
    assert given.keys() <= inputs.keys()
    prepare([inputs["port"]])
    (install, check, keep) = ACTION["runs"]["steps"]
    assert "pip install" in install["run"] and keep["uses"] in (ROOT / ".github/workflows/ci.yml").read_text()
    paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": PATHS}
    runner = {"RUNNER_TEMP": ".", "GITHUB_STEP_SUMMARY": "summary.md"}
    named = {name: inputs[re.sub(r"\W|inputs", "", value)] for name, value in check["env"].items()}
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", check["run"]]
    ended = subprocess.run(bash, env=os.environ | paths | runner | named, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert all(Path("transparity", name).exists() for name in ("check.html", "check.json"))
    return Path("summary.md").read_text(encoding="utf-8")


def test_the_action_fails_for_a_wrong_port_and_its_summary_has_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = run_action({"port": "inverse_rotation.py:load", "options": "--family llama --budget 0"}, code=1)
    assert "inverse_rotation.py:load differs from the reference" in written


CHECKS: dict[str, Callable[[str], Any]] = {
    "console": run_console,
    "sh": run_shell,
    "toml": tomllib.loads,
    "yaml": run_yaml,
    "json": json.loads,
}


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_no_block_of_a_page_is_overlooked(page: Path) -> None:
    fences = re.findall(r"(?m)^ *(?:```|~~~+\w*$)", page.read_text(encoding="utf-8"))  # `~~~^~~~` is a caret
    assert len(fences) == 2 * len(list(blocks(page)))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_inside_sentences_exist(page: Path) -> None:
    for command in re.findall(r"`((?:nox|pytest|python -m pip) [^`]+)`", page.read_text(encoding="utf-8")):
        run_shell(" ".join(command.split()))


def test_every_install_line_is_tried_in_an_empty_environment() -> None:
    for page in documented.PAGES:
        installs = re.findall(r"pip install .*(?:transparity|\.[\"\[]).*", page.read_text(encoding="utf-8"))
        tried = [asked for where, _, asked in documented.lines() if where == page]
        assert len(tried) == len(installs), f"{page.name}: {installs}, of which nox -s installed tries {tried}"


def test_an_output_is_held_to_the_page_but_for_measured_figures() -> None:
    hold("agrees to 6e-07\nand more\n", "agrees to 7e-08\n…")
    with pytest.raises(AssertionError):
        hold("agrees to 6e-07\nand more\n", "agrees to 6e-07\n")
    with pytest.raises(AssertionError):
        hold("diverges", "agrees")


@pytest.mark.parametrize(
    "command",
    [
        "nox -s no_session",
        "python no/file.py",
        'python -m pip install ".[no_extra]"',
        "python -m pip install --group no_group",
        "python -m no_module",
        "transparity check port.py:build --no-option",
        "pytest tests/no_test.py",
    ],
)
def test_a_command_that_does_not_exist_is_found(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError):
        run_shell(command)
