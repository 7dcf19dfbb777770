"""ONNX graphs: their inputs, their fixed sizes, and their nodes as operations with source lines."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from transparity.errors import shown
from transparity.text import listed, safe
from transparity_conformance.listening.operation import Source
from transparity_conformance.listening.record import Origins, Record
from transparity_conformance.running.artefacts import DECODER, ENCODER
from transparity_conformance.running.loading import LoadError

TOKENS, IMAGES, FRAMES = ("input_ids", "decoder_input_ids"), "pixel_values", "input_features"
READS = {IMAGES: "images", FRAMES: "frames of audio"}
"""The data in an input, by its name; other inputs contain token ids."""

OTHERS = ("attention_mask", "token_type_ids", "position_ids", "use_cache_branch")
"""The inputs that exported graphs may have in addition to token ids and a cache. A cache's inputs have names that start
with `past`; the names of the matching outputs start with `present`."""

PAST, PRESENT = "past", "present"


DTYPES = {"tensor(int32)": np.int32, "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(bool)": bool}
"""The dtype of an input, by its ONNX type; inputs of other types are int64."""

MEMORY = "encoder_hidden_states"
"""The decoder's input that receives the encoder's first output."""

TAKEN = {
    ENCODER: {"input_ids": "input_ids", FRAMES: FRAMES, "attention_mask": "attention_mask"},
    DECODER: {"input_ids": TOKENS[1], "encoder_attention_mask": "attention_mask", MEMORY: MEMORY},
}
"""For the encoder's file and the decoder's file, the allowed inputs; the values are the names of the same inputs in a
graph of the whole model."""


@dataclass(frozen=True)
class Graph:
    path: Path
    session: Any
    """The graph as an ONNX Runtime session."""
    inputs: dict[str, Any]
    """The inputs, by their names in a graph of the whole model. Token ids have the name `input_ids`."""
    renamed: dict[str, str]
    """For each renamed input, its name in the graph."""

    @property
    def outputs(self) -> list[str]:
        return [each.name for each in self.session.get_outputs()]

    @property
    def past(self) -> list[str]:
        return [name for name in self.inputs if name.startswith(PAST)]

    @property
    def present(self) -> list[str]:
        """Return the names of the outputs with the new cache, in the order of `past`."""
        ends = {name.lstrip("_.").removeprefix(PRESENT): name for name in self.outputs if name.startswith(PRESENT)}
        found = [next((full for end, full in ends.items() if name.endswith(end)), None) for name in self.past]
        return list(filter(None, found))

    @property
    def reads(self) -> str:
        return next((what for name, what in READS.items() if name in self.inputs), "token ids")

    def fixed(self, axis: int) -> int | None:
        """Return the number of rows (axis 0) or of tokens per row (axis 1) if the graph fixes this size, else None."""
        names = (*TOKENS, *READS) if axis == 0 else TOKENS
        sizes = [self.inputs[name].shape[axis] for name in names if name in self.inputs]
        return next((size for size in sizes if isinstance(size, int)), None)

    def dtype(self, name: str) -> Any:
        return DTYPES.get(self.inputs[name].type, np.int64)

    def given(self, every: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            self.renamed.get(name, name): np.ascontiguousarray(every[name], self.dtype(name)) for name in self.inputs
        }


def part_of_pair(path: Path, session: Any) -> Graph:
    """Return the graph of the encoder or the decoder; raise `LoadError` for unknown inputs and fixed shapes."""
    taken = TAKEN[path.name]
    for each in session.get_inputs():
        if each.name not in taken:
            raise LoadError(
                f"{path} takes {shown(each.name)}; expected only {listed(list(taken))}: export the graph without a "
                "cache."
            )
        if any(isinstance(size, int) for size in each.shape[: 1 if each.name == FRAMES else 2]):
            raise LoadError(f"{path} fixes the shape {each.shape} of {each.name}; export it with dynamic axes.")
    named = {taken[each.name]: each for each in session.get_inputs()}
    return Graph(path, session, named, {name: each.name for name, each in named.items()})


def graph_of(path: Path, session: Any) -> Graph:
    named = {each.name: each for each in session.get_inputs()}
    axes = {name: len(each.shape or ()) for name, each in named.items()}
    if axes in ({IMAGES: 4}, {FRAMES: 3, TOKENS[1]: 2}):
        return Graph(path, session, named, {})
    known = {name for name in named if name in (*TOKENS, *OTHERS) or name.startswith(PAST)}
    unknown = [name for name in named if name not in known]
    renamed = {}
    if len(unknown) == 1 and "input_ids" not in named and "int" in named[unknown[0]].type:
        renamed = {"input_ids": unknown.pop()}
        named = {"input_ids" if name in renamed.values() else name: each for name, each in named.items()}
    if unknown or "input_ids" not in named:
        raise LoadError(
            f"{path} takes {listed(list(map(shown, named)))}; expected input_ids, optionally with "
            f"{', '.join((TOKENS[1], *OTHERS))} and {PAST}…, or {IMAGES} with four axes, or {FRAMES} with three axes "
            f"and {TOKENS[1]}."
        )
    ranks = [len(named[name].shape or ()) for name in TOKENS if name in named]
    if wrong := [rank for rank in ranks if rank != 2]:
        raise LoadError(f"{path} takes token ids with {wrong[0]} axes; expected two, (batch, length).")
    return Graph(path, session, named, renamed)


STACK_TRACE = "pkg.torch.onnx.stack_trace"
"""The key under which PyTorch's exporter stores a stack trace in a node's metadata."""

FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*(?:\n\s+([^\n]+))?')

FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}

QUANTISED = re.compile("Dequantize|DynamicQuantize|QLinear|MatMulInteger|ConvInteger|NBits|QAttention|QGemm")


def weights_dtype(path: Path) -> str:
    """Return `int8` for a quantized graph, else the dtype of most floating-point weights, or "" without weights."""
    graph = onnx.load(path, load_external_data=False).graph
    if any(QUANTISED.search(node.op_type) for node in graph.node):
        return "int8"
    constants = (each.t for node in graph.node if node.op_type == "Constant" for each in node.attribute)
    sizes: dict[int, int] = {}
    for tensor in (*graph.initializer, *constants):
        if tensor.data_type in FLOATS:
            sizes[tensor.data_type] = sizes.get(tensor.data_type, 0) + math.prod(tensor.dims)
    return onnx.TensorProto.DataType.Name(max(sizes, key=sizes.__getitem__)).lower() if sizes else ""


class Nodes:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = onnx.load(path)
        self.nodes = list(self.model.graph.node)

    def opened(self) -> bytes:
        """Return the graph with the results of all nodes as outputs."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        known = {each.name for each in model.graph.output}
        names = dict.fromkeys(name for node in self.nodes for name in node.output if name and name not in known)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        return model.SerializeToString()

    def add_to(self, record: Record, values: Mapping[str, np.ndarray], given: str = "") -> None:
        """Record the operations whose results are floats; `values` contains the results of all nodes.

        A node whose results are not floats is not recorded, but connects the operations before and after the node. If
        the record already has operations, the input `given` is the result of the last operation.
        """
        comes_from: dict[str, Origins] = {given: (len(record.operations) - 1,)} if record.operations else {}
        for number, node in enumerate(self.nodes, 1):
            inputs = tuple(dict.fromkeys(index for name in node.input for index in comes_from.get(name, ())))
            for name in node.output:
                numbers = record.numbers(values[name]) if name in values else None
                comes_from[name] = record.add(node.op_type, numbers, inputs, self._stack(node, number))

    def _stack(self, node: Any, number: int) -> tuple[Source, ...]:
        """Return the stack trace of a node; for a node without a stack trace, return a line that shows the node."""
        noted = next((each.value for each in node.metadata_props if each.key == STACK_TRACE), "")
        frames = [Source(safe(file), int(line), safe(code)) for file, line, code in FRAME.findall(noted)]
        outputs, inputs = (", ".join(filter(None, names)) for names in (node.output, node.input))
        written = safe(f"{outputs} = {node.op_type}({inputs})")
        return tuple(reversed(frames)) or (Source(str(self.path), number, written),)
