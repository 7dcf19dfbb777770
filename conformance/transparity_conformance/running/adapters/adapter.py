"""An adapter: a TOML file that maps each parameter of the reference to the port's tensor with this parameter."""

import contextlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.limits.files import file_size
from transparity.parameters import parameter_shapes
from transparity.taps import in_every_layer
from transparity.text import listed, reason, safe
from transparity_conformance.checkpoints.files import LARGEST_JSON
from transparity_conformance.running.adapters import notation
from transparity_conformance.running.adapters.notation import AdapterError, Lines

ASKED = "?"
"""The text in place of a line if a parameter's tensor is unknown; the user must replace `?` with the tensor's name."""

KEYS = ("parameters", "zero", "unused")


@dataclass(frozen=True)
class Adapter:
    """A mapping from the reference's parameters to a port's tensors."""

    lines: Lines
    """For each parameter, the line that selects its elements in the port's tensors. In a parameter's name and in its
    line, `{i}` stands for a layer's number."""
    zero: Sequence[str] = ()
    """Lines that select elements of the port's tensors to set to 0, such as biases that the reference lacks."""
    unused: Sequence[str] = ()
    """Tensors of the port with elements that belong to no parameter; these elements stay unchanged."""
    asked: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The parameters whose tensor is unknown, each with all lines that fit its shape."""

    def tensors(
        self, config: TransformerConfig, parameters: Mapping[str, np.ndarray], tensors: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return `tensors`, filled with `parameters`. Raise `AdapterError` if a parameter or a tensor has no line."""
        filling, shapes = _Filling(tensors, config), parameter_shapes(config)
        known = {*shapes, *map(in_every_layer, shapes)}
        if unknown := [name for name in self.lines if name not in known]:
            raise AdapterError(
                f"The adapter has a line for {shown(unknown[0])}, which is no parameter of the model; remove the line."
            )
        for name, shape in shapes.items():
            filling.put(name, self._line(name), parameters[name], shape)
        for line in self.zero:
            for text in filling.every(line):
                filling.put("zero", text, None, None)
        filling.check_complete(self.unused)
        return filling.values

    def names(self, tensor: str) -> bool:
        numbers = notation.COUNTED.finditer(tensor)
        general = {tensor, *(f"{tensor[: each.start()]}{{i}}{tensor[each.end() :]}" for each in numbers)}
        return any(notation.parted(line, {tensor: ()})[0] in general for line in self.lines.values() if line)

    def _line(self, name: str) -> str:
        line = notation.line_of(name, self.lines)
        if line is None:
            raise AdapterError(f"The adapter has no line for {name}; add a line under [parameters].")
        if line == ASKED:
            asked = [ours for ours, text in self.lines.items() if text == ASKED]
            raise AdapterError(
                f"The adapter has {ASKED!r} instead of a tensor for {listed(asked)}; replace it with the name of a "
                "tensor."
            )
        return line


class _Filling:
    """A copy of the port's tensors, into which the parameters are written. Each element may be written only once."""

    def __init__(self, tensors: Mapping[str, np.ndarray], config: TransformerConfig) -> None:
        self.values = {name: np.array(value) for name, value in tensors.items()}
        self.shapes = {name: value.shape for name, value in tensors.items()}
        self.written = {name: np.zeros(value.size, bool) for name, value in tensors.items()}
        self.sizes = notation.sizes_of(config)

    def every(self, line: str) -> list[str]:
        """Return a copy of the line for each layer in which its tensors exist; the layer's number replaces `{i}`."""
        numbers = range(
            1 + max((int(each) for name in self.shapes for each in notation.COUNTED.findall(name)), default=0)
        )
        texts = dict.fromkeys(line.replace("{i}", str(number)) for number in numbers)
        if line in texts:
            return [line]
        found = []
        for text in texts:
            with contextlib.suppress(AdapterError):
                notation.select(text, self.shapes, self.sizes)
                found.append(text)
        return found

    def put(self, ours: str, text: str, value: np.ndarray | None, shape: tuple[int, ...] | None) -> None:
        """Write a parameter's `value` to the elements that the line `text` selects. Without a value, write 0."""
        if text == notation.ABSENT:
            if value is not None and np.any(value):
                raise AdapterError(
                    f"The adapter says that the port has no {ours}, but this parameter is not 0; name its tensor, or "
                    "use a configuration without this parameter."
                )
            return
        chosen = notation.select(text, self.shapes, self.sizes)
        size = sum(self.values[name].size for name in chosen.names) if chosen.index is None else chosen.index.size
        if shape is not None and size != math.prod(shape):
            raise AdapterError(
                f"{shown(text)}, the line of {ours}, has {size} elements; expected {math.prod(shape)}, for the shape "
                f"{shape}: correct the line, or the sizes of the port."
            )
        if chosen.read(self.written).any():
            raise AdapterError(
                f"{shown(text)}, the line of {ours}, selects elements that another line also selects; correct one "
                "of the lines."
            )
        chosen.write(self.values, 0.0 if value is None else np.ravel(value))
        chosen.write(self.written, True)

    def check_complete(self, unused: Sequence[str]) -> None:
        """Raise `AdapterError` if a tensor has elements that no line selects, unless the tensor is in `unused`."""
        left = [name for name, written in self.written.items() if not written.all() and name not in unused]
        if left:
            name = left[0]
            missing = int((~self.written[name]).sum())
            raise AdapterError(
                f"No line selects {missing:,} of {self.values[name].size:,} elements of the port's "
                f"{shown(name)}; add a line to [parameters] or to zero, or list the tensor in unused."
            )


def read_adapter(path: str | Path) -> Adapter:
    if (size := file_size(path, AdapterError)) > LARGEST_JSON:
        raise AdapterError(f"{path} has {size} bytes; an adapter may have at most {LARGEST_JSON}.")
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(f"{path} cannot be read as TOML: {reason(error)}.") from None
    for key in content:
        if key not in KEYS:
            raise AdapterError(f"{path} has the key {shown(key)}; expected {', '.join(KEYS)}.")
    lines, zero, unused = content.get("parameters"), content.get("zero", []), content.get("unused", [])
    if not (isinstance(lines, dict) and lines and all(isinstance(line, str) for line in lines.values())):
        raise AdapterError(f"{path} has no table [parameters] of strings; expected one line for each parameter.")
    for key, names in (("zero", zero), ("unused", unused)):
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise AdapterError(f"{key} in {path} is {shown(names)}; expected a list of tensors.")
    return Adapter(lines, zero, unused)


def written(adapter: Adapter, remarks: Sequence[str]) -> str:
    text = "".join(f"# {safe(line)}\n" for line in remarks)
    for key, names in (("zero", adapter.zero), ("unused", adapter.unused)):
        if names:
            text += f"\n{key} = [\n" + "".join(f"  {json.dumps(name)},\n" for name in names) + "]\n"
    text += "\n[parameters]\n"
    for ours, line in adapter.lines.items():
        fits = adapter.asked.get(ours, ())
        if line == ASKED:
            text += f"# tensor not known; candidates by shape: {safe(listed(fits)) if fits else 'none'}\n"
        if line == notation.ABSENT:
            text += "# the port has no such tensor\n"
        text += f"{json.dumps(ours)} = {json.dumps(line)}\n"
    return text
