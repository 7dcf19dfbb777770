"""Check the installed wheel outside of the repository: `python -I installed.py VERSION alone|extras`.

This file imports nothing from the repository. If a check fails, the program prints a sentence and exits with code 1.
"""

import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import transparity

PORT = """
from transparity_{column}.port import build as build_right


def build(config, parameters):
    if {wrong}:
        parameters = dict(parameters, **{{"head.bias": 0 * parameters["head.bias"]}})
    return build_right(config, parameters)
"""


def command(*arguments: str, folder: str | None = None) -> tuple[int, str]:
    program = Path(sys.executable).with_name("transparity")
    ended = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def expect(holds: bool, sentence: str) -> None:
    if not holds:
        sys.exit(sentence)


def the_numpy_column_runs() -> None:
    from transparity_numpy.port import build

    config = transparity.preset("notes-lm").resized()
    logits = build(config, transparity.initialize_parameters(config)).logits(tokens=np.array([[1, 2, 3]]))
    expect(logits.shape == (1, 3, config.target_vocab_size), f"logits have the shape {logits.shape}")


def a_bundle_is_compared() -> None:
    """Write a bundle and compare the NumPy column's answer, which agrees, and a wrong answer, which diverges."""
    from safetensors.numpy import load_file, save_file

    from transparity_numpy.port import build

    with tempfile.TemporaryDirectory() as folder:
        bundle, answers = Path(folder, "bundle"), Path(folder, "actual.safetensors")
        code, printed = command("export", "notes-lm", str(bundle))
        expect(code == 0, f"transparity export ended with {code}: {printed}")
        config = transparity.TransformerConfig.from_json((bundle / "config.json").read_text())
        forward = build(config, load_file(bundle / "parameters.safetensors"), dtype="float32")
        inputs = load_file(bundle / "inputs.safetensors")
        right = {f"{name.partition('/')[0]}/logits": forward.logits(tokens=tokens) for name, tokens in inputs.items()}
        for factor, expected in ((1.0, 0), (1.01, 1)):
            save_file({name: np.float32(factor) * value for name, value in right.items()}, answers)
            code, printed = command("compare", str(bundle), str(answers))
            expect(code == expected, f"answers × {factor}: transparity compare ended with {code}: {printed}")


def ports_are_checked(column: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for wrong in (False, True):
            path = Path(folder, f"port_{wrong}.py")
            path.write_text(PORT.format(column=column, wrong=wrong))
            code, printed = command("check", f"{path}:build", "--preset", "notes-lm")
            expect(code == int(wrong), f"transparity check of {column}, wrong: {wrong}, ended with {code}: {printed}")


def a_loader_is_checked() -> None:
    """Check a port from the gallery, which needs no framework, and expect its mistake in the report."""
    port = Path(__file__).parents[2] / "examples/gallery/inverse_rotation.py"
    code, printed = command("check", f"{port}:load", "--family", "llama")
    expect(code == 1 and "rotary-direction" in printed, f"transparity check of a loader ended with {code}: {printed}")


def a_missing_framework_is_one_sentence() -> None:
    """Check a port whose framework is missing; the message has the import's line and the command to install it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "mine").mkdir()
        Path(folder, "mine/port.py").write_text("import math\nfrom transparity_pytorch.port import build\n")
        code, printed = command("check", "mine/port.py:build", "--preset", "notes-lm", folder=folder)
    says = 'torch is not installed (mine/port.py, line 2): python -m pip install "transparity[pytorch]".\n'
    expect(code == 2 and printed == f"mine/port.py cannot be imported: {says}", f"exit code {code}: {printed}")


def main(expected: str, extras: str) -> None:
    found = (transparity.__version__, version("transparity"))
    expect(found == (expected, expected), f"the versions are {found}, not {expected}")
    expect("site-packages" in str(transparity.__file__), f"transparity is imported from {transparity.__file__}")
    the_numpy_column_runs()
    if extras == "alone":
        absent = [name for name in ("torch", "jax", "hypothesis", "pytest") if find_spec(name)]
        expect(not absent, f"the wheel without extras installs {absent}")
        a_missing_framework_is_one_sentence()
    expect(command("--version") == (0, f"{expected}\n"), "transparity --version prints another version")
    a_bundle_is_compared()
    a_loader_is_checked()
    for column, library in (("numpy", "numpy"), ("pytorch", "torch"), ("flax", "flax")):
        if find_spec(library):
            ports_are_checked(column)


if __name__ == "__main__":
    main(*sys.argv[1:])
