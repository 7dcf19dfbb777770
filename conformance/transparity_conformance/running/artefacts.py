"""The kinds of artefacts, and the runtime for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transparity.limits.files import is_file, is_folder


@dataclass(frozen=True)
class Runtime:
    """One kind of artefact, and the runtime for it."""

    module: str
    """The module in `running` whose `load(path)` returns a `build` with `limits`.

    It is empty for a GGUF file, which is read and compared, but not run.
    """
    package: str


RUNTIMES = {
    ".onnx": Runtime("runtimes.onnx", "onnxruntime"),
    ".gguf": Runtime("", "gguf"),
}
"""The runtimes of files, by suffix."""

HUB = Runtime("hub", "transformers")
"""The runtime of a folder, which has its own configuration and needs no checkpoint."""

ENCODER, DECODER = "encoder_model.onnx", "decoder_model.onnx"
"""The two files of an encoder-decoder in one folder."""


def runtime_of(port: str | None) -> Runtime | None:
    """Return the runtime of the artefact that `port` names; None for a function, `file.py:build`, or nothing."""
    if port is None:
        return None
    path = Path(port)
    if path.suffix.lower() in RUNTIMES or not is_folder(path):
        return RUNTIMES.get(path.suffix.lower())
    return RUNTIMES[".onnx"] if is_file(path / ENCODER) and is_file(path / DECODER) else HUB
