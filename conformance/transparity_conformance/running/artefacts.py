"""The kinds of exported models that a port may be (ONNX, GGUF, Hugging Face folder), and the runtime for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transparity.limits.files import is_file, is_folder


@dataclass(frozen=True)
class Runtime:
    module: str
    """The module in `running` with a function `load(path)`, which returns a `build` with `limits`. Empty for GGUF
    files: their tensors are compared, but no runtime runs them."""
    package: str


RUNTIMES = {
    ".onnx": Runtime("onnx_model", "onnxruntime"),
    ".gguf": Runtime("", "gguf"),
}

HUB = Runtime("hub", "transformers")
"""The runtime for a Hugging Face folder, which contains its own configuration."""

ENCODER, DECODER = "encoder_model.onnx", "decoder_model.onnx"
"""The file names of an encoder-decoder in one folder."""


def runtime_of(port: str | None) -> Runtime | None:
    """Return the runtime for the file or folder that `port` names; None for a function or for None."""
    if port is None:
        return None
    path = Path(port)
    if path.suffix.lower() in RUNTIMES or not is_folder(path):
        return RUNTIMES.get(path.suffix.lower())
    return RUNTIMES[".onnx"] if is_file(path / ENCODER) and is_file(path / DECODER) else HUB
