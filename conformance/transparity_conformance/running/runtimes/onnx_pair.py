"""An encoder and a decoder in two ONNX files of one folder, as exporters write encoder-decoders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity_conformance.listening.operation import Operation
from transparity_conformance.report.text import listed
from transparity_conformance.running.inputs import with_mask
from transparity_conformance.running.loading import LoadError
from transparity_conformance.running.runtimes.graph import FRAMES, READS, weights_dtype
from transparity_conformance.running.runtimes.onnx import DTYPES, check_reads, listened_nodes, opened
from transparity_conformance.running.runtimes.runtime import DECODER, ENCODER, Limits, Listened

MEMORY = "encoder_hidden_states"
"""The input of the decoder that the encoder's first output is."""

TAKEN = {
    ENCODER: {"input_ids": "source", FRAMES: "source", "attention_mask": "attention_mask"},
    DECODER: {"input_ids": "target", "encoder_attention_mask": "attention_mask", MEMORY: MEMORY},
}
"""The inputs of each graph by the names that exporters give, and what they are."""


class OnnxPair:
    """Both graphs with their weights."""

    def __init__(self, folder: Path) -> None:
        self.sessions = {name: opened(folder / name) for name in TAKEN}
        self.paths = {name: folder / name for name in TAKEN}
        for name, session in self.sessions.items():
            _check_inputs(self.paths[name], session, TAKEN[name])
        masked = all(any("mask" in each.name for each in session.get_inputs()) for session in self.sessions.values())
        dtypes = {weights_dtype(path) for path in self.paths.values()}
        narrow = dtypes & {"int8", "float16", "bfloat16"}
        self.limits = Limits(has_mask=masked, has_token_types=False, dtype=min(narrow or dtypes, key=len))

    def __call__(self, config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> OnnxPairForward:
        """The forward pass, `forward(source=…, target=…)`."""
        if config.architecture != "encoder-decoder":
            raise LoadError(
                f"{self.paths[ENCODER].parent} has an encoder and a decoder, and the checkpoint is a "
                f"{config.architecture}; give that which they were made of."
            )
        names = [each.name for each in self.sessions[ENCODER].get_inputs()]
        check_reads(self.paths[ENCODER], READS[FRAMES] if FRAMES in names else "token ids", config)
        return OnnxPairForward(self, config)

    def given(self, name: str, every: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs of a graph, by its own names."""
        return {
            each.name: np.ascontiguousarray(every[TAKEN[name][each.name]], DTYPES.get(each.type, np.int64))
            for each in self.sessions[name].get_inputs()
        }


class OnnxPairForward(Listened):
    """The encoder, then the decoder, at once."""

    def __init__(self, model: OnnxPair, config: TransformerConfig) -> None:
        self.model, self.config = model, config
        names = [each.name for each in model.sessions[DECODER].get_outputs()]
        self.answer = "logits" if "logits" in names else names[0]

    def __call__(self, **inputs: np.ndarray) -> np.ndarray:
        every = self._every(inputs)
        logits: np.ndarray = self.model.sessions[DECODER].run([self.answer], self.model.given(DECODER, every))[0]
        return logits

    def listened(self, largest: float, **inputs: np.ndarray) -> tuple[np.ndarray, list[Operation]]:
        """The answer, and the operations of both graphs in turn."""
        result, every, found = self(**inputs), self._every(inputs), list[Operation]()
        for name, path in self.model.paths.items():
            found += listened_nodes(path, self.model.given(name, every), largest / 2, found, MEMORY)
        return result, found

    def _every(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All that the graphs take: tokens, the mask of the source, and what the encoder makes of them."""
        every = with_mask(inputs, self.config)
        every.setdefault("attention_mask", np.ones_like(every["source"], np.int64))
        return every | {MEMORY: self.model.sessions[ENCODER].run(None, self.model.given(ENCODER, every))[0]}


def load(path: Path) -> OnnxPair:
    """Open a folder with both files."""
    return OnnxPair(path)


def _check_inputs(path: Path, session: Any, taken: Mapping[str, str]) -> None:
    """Raise `LoadError` for a graph with other inputs, or with sizes that it fixes."""
    for each in session.get_inputs():
        if each.name not in taken:
            raise LoadError(
                f"{path} takes {shown(each.name)}; expected {listed(list(taken))}: export it without a cache."
            )
        if any(isinstance(size, int) for size in each.shape[: 1 if each.name == FRAMES else 2]):
            raise LoadError(f"{path} fixes the shape {each.shape} of {each.name}; export it with free sizes.")
