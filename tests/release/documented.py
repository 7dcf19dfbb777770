"""Try the install lines of the pages, each in an empty environment with the examples below it.

`python documented.py WHEEL CLONE [WORD …]` tries all lines, or the lines that contain a word. This script imports only
the standard library.
"""

import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
INSTALLS = re.compile(r'python -m pip install (?:nox )?"?((?:\./)?(transparity|\.)(?:\[[\w,]+\])?)(?![\w:])"?')
"""Matches a line that installs the project from an index or from a clone."""
ALTERNATIVES = re.compile(r'# or "((?:transparity|\.)\[[\w,]+\])"')
"""Matches the comment of an install line that names other extras; no example on the page needs them."""
IMPORTS = """
import importlib
import sys
from transparity_conformance.capabilities.port_calls import EXTRAS

for package, extra in EXTRAS.items():
    if extra in sys.argv[1:]:
        importlib.import_module(package)
"""
"""A program that imports the packages of the extras that its arguments name."""
FENCED = re.compile(r"(?ms)^( *)```(\w*)\n(.*?)^\1```$")
RUNS = re.compile(r"(?:[A-Z_]+=\w+ )?(?:transparity|pytest --benchmark|python -m (?:pip install )?pytest)\b")
FILES = r"[\w./]+\.(?:py|json|onnx|gguf|toml)\b|\./port\b"
SYSTEMS = ("--preset", "--config", "--family", "--checkpoint")


def lines() -> Iterator[tuple[Path, int, str]]:
    """Yield each install line: its page, its position in the text, and what it installs."""
    for page in PAGES:
        for found in INSTALLS.finditer(page.read_text(encoding="utf-8")):
            yield page, found.start(), found[1]


def alternatives() -> Iterator[tuple[Path, str]]:
    """Yield the other extras that the comments of install lines name, and the page."""
    for page in PAGES:
        for found in ALTERNATIVES.finditer(page.read_text(encoding="utf-8")):
            yield page, found[1]


def try_line(asked: str, places: list[tuple[Path, int]], wheel: Path, clone: Path) -> None:
    """Run one install line in an empty environment, import its extras, and run the examples below the line."""
    source = wheel if asked.startswith("transparity") else clone
    with tempfile.TemporaryDirectory() as folder:
        began, program = os.times(), Path(folder, "empty/bin/python")
        venv.create(program.parents[1], with_pip=True)
        extras = asked.partition("[")[2].rstrip("]")
        package = f"{source}[{extras}]" if extras else f"{source}"
        subprocess.run([program, "-m", "pip", "install", "--quiet", package], check=True, cwd=folder)
        keras = os.environ | {"KERAS_BACKEND": "torch"}
        subprocess.run([program, "-c", IMPORTS, *extras.split(",")], check=True, cwd=folder, env=keras)
        sys.stdout.write(f"pip install {asked!r}: {since(began)}\n")
        for page, start in places:
            began = os.times()
            work = Path(tempfile.mkdtemp(dir=folder))
            command: list[str | Path] = [program, Path(__file__).resolve(), "--examples", page, str(start), clone]
            if subprocess.run(command, cwd=work, check=False).returncode:
                sys.exit(f"{page.relative_to(ROOT)}: an example below pip install {asked!r} fails")
            sys.stdout.write(f"    {page.relative_to(ROOT)}: {since(began)}\n")
            sys.stdout.flush()


def since(began: os.times_result) -> str:
    """Return the elapsed time, and the processor time, which depends less on other processes."""
    now = os.times()
    spent = now.children_user + now.children_system - began.children_user - began.children_system
    return f"{now.elapsed - began.elapsed:.0f} s ({spent:.0f} s of a processor)"


def run_examples(page: Path, start: int, clone: Path) -> None:
    """Run a page's blocks after an install line, up to the next section with an install line. Earlier Python blocks run
    only if they are in the same section. Write every Python block that names a file."""
    text, ran = page.read_text(encoding="utf-8"), 0
    namespace: dict[str, Any] = {"__name__": "page"}
    sys.path.insert(0, str(Path.cwd()))
    section = text.rfind("\n## ", 0, start)
    following = [at for where, at, _ in lines() if where == page and at > start]
    ends = [heading if (heading := text.rfind("\n## ", 0, at)) > start else at for at in following]
    for block in FENCED.finditer(text):
        kind, body = block[2], re.sub(f"(?m)^{block[1]}", "", block[3])
        is_after = block.end() > start
        if ran and any(at < block.end() for at in ends):
            break
        if kind == "python":
            if named := re.match(r"# (\w+\.py)\n", body):
                Path(named[1]).write_text(body, encoding="utf-8")
            if is_after or (block.start() > section and not named):
                exec(compile(body, "<block>", "exec"), namespace)
                ran += is_after and not named
        elif kind == "console" and is_after:
            ran += run_console(body)
        elif kind == "sh" and is_after:
            ran += sum(run_command(line, clone) for line in body[max(0, start - block.start(3)) :].splitlines())
    if not ran:
        sys.exit(f"{page}: no example below the install line")


def run_console(body: str) -> int:
    """Run each command of a block, and compare the first line of its output with the page."""
    for session in re.split(r"(?m)^\$ ", body)[1:]:
        command, _, expected = session.partition("\n")
        printed = executed(command)
        if printed.split("\n")[0].split() != expected.split("\n")[0].split():
            sys.exit(f"{command} prints {printed}")
    return 1


def run_command(line: str, clone: Path) -> int:
    """Run a command of the project, if the files that the command names exist; limit the search for causes."""
    command = line.partition(" #")[0].strip()
    if "&& pytest" in command:
        command = command.partition("&& ")[2]
    if not RUNS.match(command):
        return 0
    named = [name for name in re.findall(FILES, command) if f"--out {name}" not in command]
    here = all(map(is_there, named)) and not command.startswith("pytest")
    if not here and not all((clone / name).exists() for name in named):
        return 0
    if " check " in command and "--budget" not in command:
        command += " --budget 5" + " --preset translation" * (not any(option in command for option in SYSTEMS))
    executed(command, None if here else clone)
    return 1


def is_there(name: str) -> bool:
    return Path(name).exists() or name.startswith(("check.", "report."))


def executed(command: str, folder: Path | None = None) -> str:
    """Run a command with the programs of this environment; a check may end with 0 or 1."""
    path = f"PATH={Path(sys.executable).parent}:$PATH"
    ended = subprocess.run(
        ["bash", "-c", f"{path}; export COLUMNS=80; {command}"], cwd=folder, capture_output=True, text=True, check=False
    )
    if ended.returncode not in ((0, 1) if " check " in command else (0,)):
        sys.exit(f"{command} ends with {ended.returncode}: {ended.stdout}{ended.stderr}")
    sys.stdout.write(f"        {command}: {ended.stdout.strip().partition(chr(10))[0]}\n")
    return ended.stdout


def main(wheel: str, clone: str, *words: str) -> None:
    """Try every install line, or the lines that contain a word; equal lines share one environment."""
    places: dict[str, list[tuple[Path, int]]] = {}
    for page, start, asked in lines():
        if not words or any(word in f"{page.name}: {asked}" for word in words):
            places.setdefault(asked, []).append((page, start))
    for page, asked in alternatives():
        if not words or any(word in f"{page.name}: {asked}" for word in words):
            places.setdefault(asked, [])
    for asked, found in places.items():
        try_line(asked, found, Path(wheel).resolve(), Path(clone).resolve())
    if not places:
        sys.exit("no install line contains these words")


if __name__ == "__main__":
    if sys.argv[1] == "--examples":
        run_examples(Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        main(*sys.argv[1:])
