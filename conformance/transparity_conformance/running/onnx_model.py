"""Run ONNX files with ONNX Runtime: a single graph, or an encoder and a decoder in two files of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.limits.files import file_size
from transparity.text import listed
from transparity_conformance.listening.operation import Operation
from transparity_conformance.listening.record import Record
from transparity_conformance.oracle.probes import as_given
from transparity_conformance.running.artefacts import DECODER, ENCODER
from transparity_conformance.running.inputs import NAMES, OUTPUTS, add_mask
from transparity_conformance.running.loading import Limits, Listened, LoadError, read_with
from transparity_conformance.running.onnx_graph import FRAMES, READS, Graph, Nodes, graph_of, weights_dtype
from transparity_conformance.storage.paths import is_folder

DTYPES = {"tensor(int32)": np.int32, "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(bool)": bool}
"""The dtype of an input, by its ONNX type; inputs of other types are int64."""

FATAL = 4
"""The log level at which ONNX Runtime prints nothing; errors still raise exceptions."""

Cache = tuple[dict[str, np.ndarray], np.ndarray]
"""The cached keys and values, by the name of the graph's input, and the attention mask of the cached tokens."""


class OnnxModel:
    def __init__(self, session: onnxruntime.InferenceSession, graph: Graph) -> None:
        self.session, self.graph = session, graph
        length = graph.fixed(1)
        self.limits = Limits(
            has_mask="attention_mask" in graph.inputs,
            has_token_types="token_type_ids" in graph.inputs,
            batch=graph.fixed(0),
            length=length,
            dtype=weights_dtype(graph.path),
        )
        self.has_cache = bool(graph.past) and len(graph.present) == len(graph.past)
        self.has_steps = self.has_cache and length is None and self.limits.batch is None

    def __call__(self, config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> OnnxForward:
        check_reads(self.graph.path, self.graph.reads, config)
        return OnnxForward(self, config)

    def at_once(self, inputs: Mapping[str, np.ndarray], answer: str) -> np.ndarray:
        """Run the graph on whole inputs, and return the output `answer`. Split a batch if the graph fixes its size."""
        length, found = None if self.limits.length is None else [*inputs.values()][-1].shape[1], []
        for part in _parts(inputs, self.limits.batch):
            padded = part
            if (most := self.limits.length) is not None:  # pad tokens and mask with zeros on the right
                widths = {name: ((0, 0), (0, most - value.shape[1])) for name, value in part.items() if value.ndim == 2}
                padded = part | {name: np.pad(part[name], width) for name, width in widths.items()}
            found.append(self.run(padded, self.empty(padded), answer)[0])
        joined = np.concatenate(found)[: _rows(inputs)]
        return joined[:, :length] if joined.ndim == 3 else joined

    def empty(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return an empty cache. The first axis without a fixed size is the batch; other axes without a fixed size have
        size 0."""
        made = {}
        for name in self.graph.past:
            sizes, batch = self.graph.inputs[name].shape, [_rows(inputs)]
            shape = [size if isinstance(size, int) else batch.pop() if batch else 0 for size in sizes]
            made[name] = np.zeros(shape, self._dtype(name))
        return made

    def run(
        self, inputs: Mapping[str, np.ndarray], past: Mapping[str, np.ndarray], answer: str
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Run the graph; return the output `answer`, and the cache for the next step."""
        logits, *present = self.session.run([answer, *self.graph.present], self.given(inputs, past))
        return logits, dict(zip(self.graph.past, present, strict=False))

    def given(self, inputs: Mapping[str, np.ndarray], past: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return all inputs by the graph's names. Add missing inputs, such as positions, with the values for unpadded
        text."""
        if self.graph.reads != "token ids":
            return {name: np.ascontiguousarray(inputs[name], self._dtype(name)) for name in self.graph.inputs}
        tokens = inputs["input_ids"]
        mask = inputs.get("attention_mask", np.ones_like(tokens))
        before = mask.shape[1] - tokens.shape[1]
        every = {
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(tokens),
            "position_ids": np.broadcast_to(before + np.arange(tokens.shape[1]), tokens.shape),
            "use_cache_branch": np.array([before > 0]),
            **inputs,
            **past,
        }
        return {
            self.graph.renamed.get(name, name): np.ascontiguousarray(every[name], self._dtype(name))
            for name in self.graph.inputs
        }

    def _dtype(self, name: str) -> Any:
        return DTYPES.get(self.graph.inputs[name].type, np.int64)


class OnnxForward(Listened):
    def __init__(self, model: OnnxModel, config: TransformerConfig) -> None:
        self.model, self.config = model, config
        outputs = model.graph.outputs
        self.answer = next((name for name in OUTPUTS[config.head] if name in outputs), outputs[0])
        if model.has_steps and config.architecture == "decoder":
            self.step = self._step

    def __call__(self, **inputs: np.ndarray) -> np.ndarray:
        return self.model.at_once(self._named(inputs), self.answer)

    def listened(self, largest: float, **inputs: np.ndarray) -> tuple[np.ndarray, list[Operation]]:
        """Return the output and the operations. Record nothing if the graph fixes the batch size or the length."""
        result, limits = self(**inputs), self.model.limits
        if limits.batch is not None or limits.length is not None:
            return result, []
        named, record = self._named(inputs), Record(largest)
        listen_to_nodes(record, self.model.graph.path, self.model.given(named, self.model.empty(named)))
        return result, record.operations

    def _step(self, tokens: np.ndarray, cache: Cache | None, **further: np.ndarray) -> tuple[np.ndarray, Cache]:
        """Return the logits of the next tokens, and the cache that includes these tokens."""
        inputs = self._named({"tokens": tokens, **further})
        past, seen = (self.model.empty(inputs), np.ones((len(tokens), 0), np.int64)) if cache is None else cache
        mask = np.concatenate([seen, inputs.get("attention_mask", np.ones_like(inputs["input_ids"]))], axis=1)
        logits, present = self.model.run(inputs | {"attention_mask": mask}, past, self.answer)
        return logits, (present, mask)

    def _named(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the inputs under the names of exported graphs; the main inputs come last."""
        every = add_mask(inputs, self.config)
        ordered = sorted(every, key=lambda ours: ours in self.config.input_names)
        names = {ours: names[0] for ours, names in NAMES.items()}
        names |= {"source": FRAMES} if self.config.reads_frames else {}
        return {names[ours]: as_given(every[ours]) for ours in ordered}


def load(path: Path) -> OnnxModel | OnnxPair:
    if is_folder(path):
        return OnnxPair(path)
    session = opened(path)
    return OnnxModel(session, graph_of(path, session.get_inputs(), session.get_outputs()))


def opened(path: Path) -> Any:
    file_size(path, LoadError)
    return read_with(session_of, f"{path} cannot be read by ONNX Runtime", str(path))


def session_of(model: str | bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Turn off the fallback, which prints a message and tries the same again.
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def listen_to_nodes(record: Record, path: Path, given: Mapping[str, np.ndarray], after: str = "") -> None:
    nodes = Nodes(path)
    session = session_of(nodes.opened())
    names = [each.name for each in session.get_outputs()]
    nodes.add_to(record, dict(zip(names, session.run(names, given), strict=True)), after)


def check_reads(path: Path, reads: str, config: TransformerConfig) -> None:
    """Raise `LoadError` unless a graph and the checkpoint's model read the same kind of input."""
    theirs = "images" if config.reads_pixels else "frames of audio" if config.reads_frames else "token ids"
    if reads != theirs:
        raise LoadError(
            f"{path} reads {reads}, but the checkpoint's model takes {theirs}; expected a graph exported from "
            "that checkpoint."
        )


def _parts(inputs: Mapping[str, np.ndarray], rows: int | None) -> Iterator[dict[str, np.ndarray]]:
    """Yield the inputs in parts of `rows` rows; fill up the last part with copies of its last row."""
    batch = _rows(inputs)
    for start in range(0, batch, rows or batch):
        chosen = np.minimum(np.arange(start, start + (rows or batch)), batch - 1)
        yield {name: value[chosen] for name, value in inputs.items()}


def _rows(inputs: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(inputs.values())))


MEMORY = "encoder_hidden_states"
"""The decoder's input that receives the encoder's first output."""

TAKEN = {
    ENCODER: {"input_ids": "source", FRAMES: "source", "attention_mask": "attention_mask"},
    DECODER: {"input_ids": "target", "encoder_attention_mask": "attention_mask", MEMORY: MEMORY},
}
"""For each of the two graphs, the name of the value that is passed to each input."""


class OnnxPair:
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
        if config.architecture != "encoder-decoder":
            raise LoadError(
                f"{self.paths[ENCODER].parent} has an encoder and a decoder, but the checkpoint is a "
                f"{config.architecture}; pass the checkpoint from which they were exported."
            )
        names = [each.name for each in self.sessions[ENCODER].get_inputs()]
        check_reads(self.paths[ENCODER], READS[FRAMES] if FRAMES in names else "token ids", config)
        return OnnxPairForward(self, config)

    def given(self, name: str, every: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            each.name: np.ascontiguousarray(every[TAKEN[name][each.name]], DTYPES.get(each.type, np.int64))
            for each in self.sessions[name].get_inputs()
        }


class OnnxPairForward(Listened):
    def __init__(self, model: OnnxPair, config: TransformerConfig) -> None:
        self.model, self.config = model, config
        names = [each.name for each in model.sessions[DECODER].get_outputs()]
        self.answer = "logits" if "logits" in names else names[0]

    def __call__(self, **inputs: np.ndarray) -> np.ndarray:
        every = self._every(inputs)
        logits: np.ndarray = self.model.sessions[DECODER].run([self.answer], self.model.given(DECODER, every))[0]
        return logits

    def listened(self, largest: float, **inputs: np.ndarray) -> tuple[np.ndarray, list[Operation]]:
        """Return the output and the operations: first of the encoder, then of the decoder."""
        result, every, record = self(**inputs), self._every(inputs), Record(largest)
        for name, path in self.model.paths.items():
            listen_to_nodes(record, path, self.model.given(name, every), MEMORY)
        return result, record.operations

    def _every(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        every = add_mask(inputs, self.config)
        every.setdefault("attention_mask", np.ones_like(every["source"], np.int64))
        return every | {MEMORY: self.model.sessions[ENCODER].run(None, self.model.given(ENCODER, every))[0]}


def _check_inputs(path: Path, session: Any, taken: Mapping[str, str]) -> None:
    for each in session.get_inputs():
        if each.name not in taken:
            raise LoadError(
                f"{path} takes {shown(each.name)}; expected only {listed(list(taken))}: export the graph without a "
                "cache."
            )
        if any(isinstance(size, int) for size in each.shape[: 1 if each.name == FRAMES else 2]):
            raise LoadError(f"{path} fixes the shape {each.shape} of {each.name}; export it with dynamic axes.")
