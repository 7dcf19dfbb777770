"""The protocol of a runtime, and the runtimes by the kind of file.

An artefact is opened in the process of the port. It is a `build(config, parameters)` like any port, but its weights are
its own, and it tells what it fixes of its calls.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from transparity.config import TransformerConfig
from transparity.limits.files import is_file, is_folder
from transparity_conformance.listening.operation import Operation
from transparity_conformance.running.loading import LoadError


@dataclass(frozen=True)
class Limits:
    """The calls that an artefact takes."""

    has_mask: bool = True
    """Whether an attention mask is among its inputs."""
    has_token_types: bool = True
    batch: int | None = None
    """The rows of every call, where it fixes them; other batches are run in such parts."""
    length: int | None = None
    """The tokens of every row, where it fixes them; shorter rows are padded on the right."""
    dtype: str = ""
    """The dtype of its weights; `int8` for those of a few bits, empty if its files do not tell."""


class Listened:
    """A forward pass that tells its operations itself."""

    def listened(self, largest: float, **inputs: np.ndarray) -> tuple[Any, list[Operation]]:
        """The result and the operations, whose values have at most `largest` bytes."""
        raise NotImplementedError


class Artefact(Protocol):
    """A model in a file or a folder, with its own weights."""

    limits: Limits

    def __call__(self, config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Callable[..., Any]:
        """The forward pass; it has a method `step` if it can go on from the keys and values of earlier tokens."""


@dataclass(frozen=True)
class Runtime:
    """One kind of artefact, and what runs it."""

    name: str
    module: str
    """The module in this package whose `load(path)` returns an `Artefact`."""
    package: str
    extra: str
    """The extra of this project that installs `package`."""
    is_process: bool = True
    """Whether it runs the artefact, in the process of a port; a GGUF file is read and compared."""
    needs_checkpoint: bool = True
    """Whether it has no configuration of its own, so that the folder it was made from has to be given."""


RUNTIMES = {
    ".onnx": Runtime("ONNX Runtime", "onnx", "onnxruntime", "onnx"),
    ".gguf": Runtime("gguf", "", "gguf", "gguf", is_process=False),
}
"""The runtimes of files, by suffix."""

HUB = Runtime("transformers", "hub", "transformers", "hub", needs_checkpoint=False)
"""The runtime of a folder."""

ENCODER, DECODER = "encoder_model.onnx", "decoder_model.onnx"
PAIR = Runtime("ONNX Runtime", "onnx", "onnxruntime", "onnx")
"""The runtime of a folder with these two files."""


def runtime_of(port: str | None) -> Runtime | None:
    """The runtime of the artefact that `port` names; None if it is a function, `file.py:build`, or nothing."""
    if port is None:
        return None
    path = Path(port)
    if path.suffix.lower() in RUNTIMES or not is_folder(path):
        return RUNTIMES.get(path.suffix.lower())
    return PAIR if is_file(path / ENCODER) and is_file(path / DECODER) else HUB


def load_artefact(port: str, runtime: Runtime) -> Artefact:
    """Open an artefact; raises `LoadError` if its runtime is not installed, or cannot read it."""
    require(port, runtime)
    module = importlib.import_module(f"{__package__}.{runtime.module}")
    artefact: Artefact = module.load(Path(port))
    return artefact


def require(port: str, runtime: Runtime) -> None:
    """Raise `LoadError` if the package that runs an artefact is not installed."""
    if importlib.util.find_spec(runtime.package) is None:
        raise LoadError(
            f"{port} needs {runtime.package}, which is not installed: python -m pip install "
            f'"transparity[{runtime.extra}]".'
        )
