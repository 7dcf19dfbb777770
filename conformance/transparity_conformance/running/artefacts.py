"""The kinds of exported models that can be checked (ONNX, GGUF, Hugging Face folder), and the runtime of each kind."""

from dataclasses import dataclass
from pathlib import Path

from transparity_conformance.storage.paths import is_file, is_folder


@dataclass(frozen=True)
class Runtime:
    module: str
    """The module in `running` whose function `load(path)` returns a `build` with an attribute `limits` (`Limits`).
    Empty for GGUF files, because only their tensors are compared."""
    package: str


RUNTIMES = {".onnx": Runtime("onnx_model", "onnxruntime"), ".gguf": Runtime("", "gguf")}

HUB = Runtime("hub", "transformers")
"""The runtime for a Hugging Face folder, whose config.json contains the configuration."""

ENCODER, DECODER = "encoder_model.onnx", "decoder_model.onnx"


def runtime_of(port: str | None) -> Runtime | None:
    if port is None:
        return None
    path = Path(port)
    if path.suffix.lower() in RUNTIMES or not is_folder(path):
        return RUNTIMES.get(path.suffix.lower())
    return RUNTIMES[".onnx"] if is_file(path / ENCODER) and is_file(path / DECODER) else HUB
