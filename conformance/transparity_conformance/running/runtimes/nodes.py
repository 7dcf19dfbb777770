"""Listening to a graph: the values of all its nodes, as operations with the line that the exporter noted."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from transparity_conformance.listening.operation import Operation, Source
from transparity_conformance.report.text import safe

STACK_TRACE = "pkg.torch.onnx.stack_trace"
"""The metadata in which PyTorch's exporter keeps the stack of a node."""

FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*(?:\n\s+([^\n]+))?')


FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
"""The types of weights that are not quantised."""

QUANTISED = re.compile("Dequantize|DynamicQuantize|QLinear|MatMulInteger|ConvInteger|NBits|QAttention|QGemm")
"""Parts of the names of operations on numbers of a few bits."""


def weights_dtype(path: Path) -> str:
    """The dtype of most of the real numbers among the weights; `int8` if there are operations on quantised ones.

    It is empty if there are none, or not in the file itself.
    """
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
    """The nodes of a graph, in the order in which they run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = onnx.load(path)
        self.nodes = list(self.model.graph.node)

    def opened(self) -> bytes:
        """The same graph with the outputs of all nodes among its own."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        known = {each.name for each in model.graph.output}
        names = dict.fromkeys(name for node in self.nodes for name in node.output if name and name not in known)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        return model.SerializeToString()

    def operations(
        self, values: Mapping[str, np.ndarray], largest: float, before: Sequence[Operation] = (), given: str = ""
    ) -> list[Operation]:
        """The operations on real numbers; those that compute something else pass on where their numbers come from.

        Args:
            values: of all nodes, by name.
            largest: bytes of all values that are kept.
            before: the operations of a graph that ran before, the last of which computed the input `given`.
        """
        found: list[Operation] = []
        comes_from: dict[str, tuple[int, ...]] = {given: (len(before) - 1,)} if before else {}
        size = 0
        for number, node in enumerate(self.nodes, 1):
            inputs = tuple(dict.fromkeys(index for name in node.input for index in comes_from.get(name, ())))
            for name in node.output:
                value = values.get(name)
                comes_from[name] = inputs
                if value is None or value.dtype.kind != "f" or not value.size or size + 8 * value.size > largest:
                    continue
                size += 8 * value.size
                comes_from[name] = (len(before) + len(found),)
                found.append(Operation(node.op_type, value.astype(np.float64), inputs, self._stack(node, number)))
        return found

    def _stack(self, node: Any, number: int) -> tuple[Source, ...]:
        """The lines of the exported code, or the node itself with its number for a line."""
        noted = next((each.value for each in node.metadata_props if each.key == STACK_TRACE), "")
        frames = [Source(safe(file), int(line), safe(code)) for file, line, code in FRAME.findall(noted)]
        return tuple(reversed(frames)) or (Source(str(self.path), number, safe(_written(node))),)


def _written(node: Any) -> str:
    return f"{_named(node.output)} = {node.op_type}({_named(node.input)})"


def _named(names: Sequence[str]) -> str:
    return ", ".join(name for name in names if name)
