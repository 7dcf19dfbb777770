"""Run the commands that the pages show, but with small models and small numbers."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from transparity.presets import preset
from transparity_conformance.cli import app

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(sys.path)

SMALLER = {"32768": "28", "4096": "20", "0,7,31": "0,1", "0,7": "0,1"}
"""Lengths and layers in the pages' commands, and their replacements for a small model."""

SYSTEM = ("--preset", "--config", "--family", "--checkpoint")
"""Options that choose a system; without any of these, a check would run every preset."""

ENDS = {"check": (0, 1), "compare": (0, 1), "fit": (0, 1)}
"""The permitted exit codes of commands with a verdict; all other commands must exit with 0."""

PORT = """
from transparity_pytorch.port import build
"""

LOADER = """
from transformers import AutoModelForCausalLM


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder)
"""

PROGRAM = f"""#!{sys.executable}
import runpy
import sys

sys.path[:0] = {sys.path!r}
if len(sys.argv) == 4:
    runpy.run_path("answer.py", run_name="__main__")
    sys.exit()
from pathlib import Path

from safetensors.numpy import load_file, save_file
from transparity import TransformerConfig
from transparity_numpy.port import build

bundle = Path(sys.argv[1])
config = TransformerConfig.from_json((bundle / "config.json").read_text())
forward = build(config, load_file(bundle / "parameters.safetensors"), dtype="float32")
probes = {{}}
for name, tokens in load_file(bundle / "inputs.safetensors").items():
    probe, _, given = name.partition("/")
    probes.setdefault(probe, {{}})[given] = tokens
save_file({{f"{{probe}}/logits": forward.logits(**given) for probe, given in probes.items()}}, sys.argv[2])
"""


def transparity(*arguments: str) -> None:
    """Run `transparity` with arguments; assert that `ENDS` permits the exit code."""
    ended = CliRunner(env={"COLUMNS": "80", "PYTHONPATH": PATHS}).invoke(app, arguments)
    assert ended.exit_code in ENDS.get(arguments[0], (0,)), f"{shlex.join(arguments)}: {ended.output}"


def run_here(command: list[str]) -> None:
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": PATHS}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{shlex.join(command)}: {ended.stderr}"


def _program(path: Path) -> None:
    path.write_text(PROGRAM, encoding="utf-8")
    path.chmod(0o755)


def _answers(path: Path) -> None:
    path.mkdir()
    for part in sorted(path.parent for path in Path("parts").glob("*/manifest.json")):
        run_here(
            [sys.executable, "answer.py", str(part), str(part / "checkpoint"), str(path / f"{part.name}.safetensors")]
        )


def _folder(path: Path) -> None:
    transparity("export", "--family", "llama", "--as-hub", str(path))


STAND_INS: dict[str, Callable[[Path], object]] = {
    "port.py": lambda path: path.write_text(PORT, encoding="utf-8"),
    "my.py": lambda path: path.write_text(LOADER, encoding="utf-8"),
    "inverse_rotation.py": lambda path: shutil.copyfile(ROOT / "examples/gallery/inverse_rotation.py", path),
    "config.json": lambda path: path.write_text(preset("notes-lm").resized().to_json(), encoding="utf-8"),
    "folder": _folder,
    "made": _folder,
    "answers": _answers,
    "port": _program,
}
"""Functions that create the files that pages name without showing them."""


def run_transparity(arguments: list[str]) -> None:
    """Run a page's `transparity` command with small files; a check uses one preset and does not search for causes."""
    words = [SMALLER.get(word, word) for word in arguments]
    if words[0] == "check":
        words += [] if set(SYSTEM) & set(words) or words[1] == "folder/" else ["--preset", "translation"]
        words += [] if "--budget" in words else ["--budget", "0"]
    prepare(words)
    transparity(*words)


def run_cc(arguments: list[str]) -> None:
    prepare(arguments)
    run_here(["cc", *arguments])


def run_program(arguments: list[str]) -> None:
    prepare(["./port", *arguments])
    run_here(["./port", *arguments])


def prepare(words: list[str]) -> None:
    """Create the files that a command names and the page does not show."""
    for word in re.findall(r"[\w./-]+", " ".join(words)):
        if word.startswith("examples/"):
            Path(word).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / word, word)
        name = word.strip("./")
        if name in STAND_INS and not Path(name).exists():
            STAND_INS[name](Path(name))
