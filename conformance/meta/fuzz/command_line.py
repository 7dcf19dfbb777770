"""The command line as users start it: a process of its own, an exit code, and one sentence on standard error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

from meta.fuzz.documents import TINY
from meta.fuzz.folders import right_bundle, right_checkpoint, write
from meta.fuzz.outcome import SECONDS, WrongAnswerError, unreadable
from meta.fuzz.wild import ERRORS, EXITS, NAMES, damaged, wild_json, wild_text
from transparity.text import SENTENCE

VERDICTS = {0: "agrees", 1: "diverges", 2: "bad input", 3: "inconclusive"}

PORTS = (
    "def build(config, parameters): raise {error}({text!a})",
    "def build(config, parameters): return lambda **tokens: {text!a}",
    "import os\ndef build(config, parameters): os._exit({number})",
    "import os\ndef build(config, parameters): return lambda **tokens: os.kill(os.getpid(), {number})",
    "import sys\ndef build(config, parameters): return lambda **tokens: sys.exit({number})",
    "import os, sys\nos.close(1); sys.stdout = None\nraise {error}",
    "def build(",
    "import numpy as np\ndef build(config, parameters): return lambda tokens: np.zeros((*tokens.shape, {number} or 5))",
    "import numpy as np\ndef build(config, parameters): return lambda tokens: np.ones((*tokens.shape, 5)) * {number}",
)


def command_line(random: Random, folder: Path) -> str:
    """One run of `transparity`, which never agrees with any of these ports."""
    _, files = right_bundle()
    write(folder, files | {"actual.safetensors": damaged(random, files["expected.safetensors"])})
    config, ours = folder / "a.json", folder / "b.json"
    config.write_text(wild_text(random, TINY.as_dict() | {random.choice(NAMES): wild_json(random)}), "utf-8", "replace")
    ours.write_text(TINY.to_json())
    hub = folder / "hub"
    hub.mkdir()
    checkpoint = right_checkpoint("llama")
    write(hub, checkpoint | {"model.safetensors": damaged(random, checkpoint["model.safetensors"])})
    port = folder / "port.py"
    error, number = random.choice((*ERRORS, *EXITS)).__name__, random.choice((0, 1, 2, 3, 9, 11))
    port.write_text(random.choice(PORTS).format(error=error, text=random.choice(NAMES), number=number))
    name = random.choice([name for name in NAMES if "\0" not in name and "\ud800" not in name])
    arguments: tuple[list[str], ...] = (
        ["check", f"{port}:build", "--config", str(ours)],
        ["check", f"{port}:build", "--config", str(ours), "--json", str(folder / name)],
        ["check", f"{port}:{name}", "--config", str(config)],
        ["check", name, "--preset", name],
        ["check", "--command", name, "--config", str(ours)],
        ["compare", str(folder), str(folder / "actual.safetensors")],
        ["compare", name, name],
        ["import", str(hub), str(folder / "into")],
        ["import", name, name],
        ["describe", str(config)],
        ["export", str(config), str(folder / "bundle")],
        ["export", name, name],
        [name, name],
    )
    return _run(random.choice(arguments), folder)


def _run(arguments: list[str], folder: Path) -> str:
    program = [sys.executable, "-P", "-m", "transparity_conformance", *arguments]
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "400"}
    ended = subprocess.run(program, cwd=folder, env=environment, capture_output=True, timeout=SECONDS * 3, check=False)
    said = ended.stderr.decode("utf-8", "replace").strip()
    if ended.returncode not in VERDICTS:
        raise WrongAnswerError(f"the exit code {ended.returncode} of {arguments}: {said[-200:]!a}")
    if "Traceback" in said:
        raise WrongAnswerError(f"a traceback of {arguments}: {said[-300:]!a}")
    is_usage = said.startswith("Usage:")
    is_cut = any(len(argument) >= SENTENCE for argument in arguments)  # and with it the sentence that quotes it
    last = said.splitlines()[-1] if said else ""
    if ended.returncode == 2 and not (is_usage or is_cut) and (problem := unreadable(last)):
        raise WrongAnswerError(f"{arguments}: {problem}")
    if ended.returncode == 0 and arguments[0] == "check":
        raise WrongAnswerError(f"{arguments} agrees")
    return VERDICTS[ended.returncode]
