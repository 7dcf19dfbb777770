"""Run ONNX files with ONNX Runtime: a single graph, or an encoder and a decoder in two files of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from transparity.config import TransformerConfig
from transparity.limits.files import file_size
from transparity_conformance.listening.operation import Operation
from transparity_conformance.listening.record import Record
from transparity_conformance.oracle.probes import as_given
from transparity_conformance.running.inputs import NAMES, OUTPUTS, add_mask
from transparity_conformance.running.loading import Limits, Listened, LoadError, read_with
from transparity_conformance.running.onnx_graph import (
    FRAMES,
    MEMORY,
    TAKEN,
    Graph,
    Nodes,
    graph_of,
    part_of_pair,
    weights_dtype,
)
from transparity_conformance.storage.paths import is_folder

FATAL = 4
"""The log level at which ONNX Runtime prints nothing; errors still raise exceptions."""

Arrays = Mapping[str, np.ndarray]

Cache = tuple[dict[str, np.ndarray], np.ndarray]
"""A dict with the cached keys and values by the name of the graph's input, and the attention mask of the cached
tokens."""


class OnnxModel:
    """One graph, or an encoder and a decoder, which run one after the other."""

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self.graphs, first, dtypes = graphs, graphs[0], {weights_dtype(graph.path) for graph in graphs}
        narrow = dtypes & {"int8", "float16", "bfloat16"}
        self.limits = Limits(
            has_mask=all("attention_mask" in graph.inputs for graph in graphs),
            has_token_types="token_type_ids" in first.inputs,
            batch=first.fixed(0),
            length=first.fixed(1),
            dtype=min(narrow or dtypes, key=len),
        )

    def __call__(self, config: TransformerConfig, parameters: Arrays) -> OnnxForward:
        """Return the forward pass. Raise `LoadError` if the checkpoint has another architecture or reads other data."""
        first = self.graphs[0]
        if len(self.graphs) > 1 and config.architecture != "encoder-decoder":
            raise LoadError(
                f"{first.path.parent} has an encoder and a decoder, but the checkpoint is a "
                f"{config.architecture}; pass the checkpoint from which they were exported."
            )
        theirs = "images" if config.reads_pixels else "frames of audio" if config.reads_frames else "token ids"
        if first.reads != theirs:
            raise LoadError(
                f"{first.path} reads {first.reads}, but the checkpoint's model takes {theirs}; expected a graph "
                "exported from that checkpoint."
            )
        return OnnxForward(self, config)


class OnnxForward(Listened):
    def __init__(self, model: OnnxModel, config: TransformerConfig) -> None:
        self.graphs, self.limits, self.config = model.graphs, model.limits, config
        self.last = last = self.graphs[-1]
        self.answer = next((name for name in OUTPUTS[config.head] if name in last.outputs), last.outputs[0])
        has_cache = bool(last.past) and len(last.present) == len(last.past)
        if has_cache and self.limits.length is None and self.limits.batch is None and config.architecture == "decoder":
            self.step = self._step

    def __call__(self, **inputs: np.ndarray) -> np.ndarray:
        """Return the output. If the graph fixes the batch size or the length, split the batch or pad the inputs."""
        named, found = self._named(inputs), []
        length = None if self.limits.length is None else [*named.values()][-1].shape[1]
        for part in _parts(named, self.limits.batch):
            padded = part
            if (most := self.limits.length) is not None:  # pad tokens and mask with zeros on the right
                widths = {name: ((0, 0), (0, most - value.shape[1])) for name, value in part.items() if value.ndim == 2}
                padded = part | {name: np.pad(part[name], width) for name, width in widths.items()}
            found.append(self._run(self._every(padded))[0])
        joined = np.concatenate(found)[: _rows(named)]
        return joined[:, :length] if joined.ndim == 3 else joined

    def listened(self, largest: float, **inputs: np.ndarray) -> tuple[np.ndarray, list[Operation]]:
        """Return the output and the operations. Record nothing if the graph fixes the batch size or the length."""
        result, record = self(**inputs), Record(largest)
        if self.limits.batch is not None or self.limits.length is not None:
            return result, []
        every = self._every(self._named(inputs))
        for graph in self.graphs:
            nodes = Nodes(graph.path)
            session = session_of(nodes.opened())
            names = [each.name for each in session.get_outputs()]
            nodes.add_to(record, dict(zip(names, session.run(names, graph.given(every)), strict=True)), MEMORY)
        return result, record.operations

    def _step(self, tokens: np.ndarray, cache: Cache | None, **further: np.ndarray) -> tuple[np.ndarray, Cache]:
        inputs = self._named({"tokens": tokens, **further})
        past, seen = (self._empty(inputs), np.ones((len(tokens), 0), np.int64)) if cache is None else cache
        mask = np.concatenate([seen, inputs.get("attention_mask", np.ones_like(inputs["input_ids"]))], axis=1)
        logits, *present = self._run(self._every(inputs | {"attention_mask": mask}, past))
        return logits, (dict(zip(self.last.past, present, strict=True)), mask)

    def _run(self, every: Arrays) -> list[np.ndarray]:
        found: list[np.ndarray] = self.last.session.run([self.answer, *self.last.present], self.last.given(every))
        return found

    def _named(self, inputs: Arrays) -> dict[str, np.ndarray]:
        every = add_mask(inputs, self.config)
        ordered = sorted(every, key=lambda ours: ours in self.config.input_names)
        names = {ours: names[0] for ours, names in NAMES.items()}
        names |= {"source": FRAMES} if self.config.reads_frames else {}
        return {names[ours]: as_given(every[ours]) for ours in ordered}

    def _every(self, inputs: Arrays, past: Arrays | None = None) -> dict[str, np.ndarray]:
        shape = inputs.get("input_ids", next(iter(inputs.values()))).shape[:2]
        mask = inputs.get("attention_mask", np.ones(shape, np.int64))
        before = mask.shape[1] - shape[1]
        every = {
            "attention_mask": mask,
            "token_type_ids": np.zeros(shape, np.int64),
            "position_ids": np.broadcast_to(before + np.arange(shape[1]), shape),
            "use_cache_branch": np.array([before > 0]),
            **inputs,
            **(self._empty(inputs) if past is None else past),
        }
        for graph in self.graphs[:-1]:
            every[MEMORY] = graph.session.run(None, graph.given(every))[0]
        return every

    def _empty(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Return an empty cache. The first axis without a fixed size is the batch; other axes without a fixed size have
        size 0."""
        made = {}
        for name in self.last.past:
            sizes, batch = self.last.inputs[name].shape, [_rows(inputs)]
            shape = [size if isinstance(size, int) else batch.pop() if batch else 0 for size in sizes]
            made[name] = np.zeros(shape, self.last.dtype(name))
        return made


def load(path: Path) -> OnnxModel:
    if is_folder(path):
        return OnnxModel([part_of_pair(path / name, opened(path / name)) for name in TAKEN])
    return OnnxModel([graph_of(path, opened(path))])


def opened(path: Path) -> Any:
    file_size(path, LoadError)
    return read_with(session_of, f"{path} cannot be read by ONNX Runtime", str(path))


def session_of(model: str | bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Turn off the fallback, which prints a message and repeats the failed attempt.
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def _parts(inputs: Arrays, rows: int | None) -> Iterator[dict[str, np.ndarray]]:
    """Yield the inputs in parts of `rows` rows; fill up the last part with copies of its last row."""
    batch = _rows(inputs)
    for start in range(0, batch, rows or batch):
        chosen = np.minimum(np.arange(start, start + (rows or batch)), batch - 1)
        yield {name: value[chosen] for name, value in inputs.items()}


def _rows(inputs: Arrays) -> int:
    return len(next(iter(inputs.values())))
