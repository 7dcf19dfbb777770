"""Compare the tensors of a GGUF file with the checkpoint's tensors: names, shapes, and values up to rounding."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import UsageError, shown
from transparity.text import listed
from transparity_conformance.checking.gguf.metadata import GgufFile, GgufTensor, known_fault
from transparity_conformance.checking.gguf.rounding import disorder, is_within, step, worst_block
from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import count
from transparity_conformance.report.report import Cause, Divergence, Measured

SAYS = {
    "gguf-not-converted": "the tensor is stored as in the checkpoint; in llama.cpp's layout, {right}",
    "gguf-norm-offset": "1 is added to the weights, which llama.cpp expects only for Gemma",
    "gguf-rows-permuted": "{wrong}; in llama.cpp's layout, {right}",
    "gguf-transposed": "the matrix is transposed",
    "gguf-tensor-swapped": "the tensor has the values of {other}",
    "gguf-scaled": "the tensor is {factor:.4g} × the checkpoint's tensor",
    "gguf-disorder": "sorted by size, a block's numbers have another order than in the checkpoint: the file "
    "is damaged, or comes from other weights",
}


@dataclass(eq=False)
class Compared:
    """The tensors of a GGUF file, converted to the checkpoint's layout, and the faults in them."""

    as_they_are: dict[str, np.ndarray] = field(default_factory=dict)
    """The tensors as llama.cpp reads them."""
    as_converted_rightly: dict[str, np.ndarray] = field(default_factory=dict)
    """The tensors after all known conversion mistakes are undone, but with all quantization errors."""
    faults: list[Divergence] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    """The worst block of each tensor: its error, and the step of the tensor's type."""
    not_compared: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class HubTensors:
    family: str
    config: TransformerConfig
    tensors: Mapping[str, np.ndarray]
    names: Mapping[str, str]
    """The GGUF file's name for each tensor."""

    def layout(self, name: str) -> StoredLayout:
        return layout_of(self.family, self.names[name], self.config)

    def expected(self, name: str) -> np.ndarray:
        return self.layout(name).to_file(self.tensors[name])


def compare(hub: HubTensors, stored: Mapping[str, GgufTensor], names: Iterable[str]) -> Compared:
    """Compare the values of the file's tensors with the checkpoint's tensors `names`, which have the right shapes."""
    compared = Compared()
    for name in names:
        tensor, layout, expected = stored[hub.names[name]], hub.layout(name), hub.expected(name)
        found, steps = tensor.numbers(), step(expected, tensor.kind)
        # Do not convert equal tensors: if a layout adds 1, subtracting the 1 would round the numbers.
        theirs = hub.tensors[name] if np.array_equal(found, expected) else layout.to_hub(found)
        compared.as_they_are[name] = compared.as_converted_rightly[name] = theirs
        if steps is None:
            compared.not_compared.append(
                f"the values of {tensor.name}: the rounding of the type {tensor.kind.name} is unknown"
            )
            continue
        worst = worst_block(found, expected, steps, tensor.kind)
        compared.measured.append(Measured(tensor.name, tensor.kind.name, *worst, *worst))
        if share(*worst) > 1:
            cause, mended = mistake_of(hub, name, tensor, found)
            compared.as_converted_rightly[name] = mended
            compared.faults.append(Divergence(tensor.name, *worst, cause, probe=tensor.kind.name))
        elif wrong := disorder(found, expected, tensor.kind):
            cause = _cause("gguf-disorder")
            compared.faults.append(Divergence(tensor.name, wrong, 0.0, cause, probe=tensor.kind.name))
    return compared


def mistake_of(
    hub: HubTensors, name: str, tensor: GgufTensor, found: np.ndarray
) -> tuple[tuple[Cause, ...], np.ndarray]:
    """Return the first known mistake that reproduces the tensor up to rounding, and the tensor with the mistake undone.
    If the values belong to another tensor, or no known mistake fits, return the checkpoint's tensor."""
    right, layout = hub.tensors[name], hub.layout(name)
    for mistake, wrong in other_layouts(tensor.name, hub.config, right.shape).items():
        if is_within(found, wrong.to_file(right), tensor.kind):
            return _cause(mistake.partition(":")[0], right=layout.says, wrong=wrong.says), wrong.to_hub(found)
    for other in hub.names:
        if other != name and is_within(found, hub.expected(other), tensor.kind):
            return _cause("gguf-tensor-swapped", other=hub.names[other]), right
    expected = layout.to_file(right).astype(np.float64)
    factor = float(np.vdot(expected, found) / (np.vdot(expected, expected) or 1.0))
    if factor and is_within(found, (factor * expected).astype(np.float32), tensor.kind):
        return _cause("gguf-scaled", factor=factor), layout.to_hub(found / np.float32(factor))
    return (), right


def _cause(mistake: str, **words: Any) -> tuple[Cause, ...]:
    return (Cause(mistake, SAYS[mistake].format(**words), words.get("factor"), 0.0, 1.0),)


OUTPUT, EMBEDDING = "output.weight", "token_embd.weight"
COMPUTED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that exist only in GGUF files."""


def name_faults(file: GgufFile, hub: HubTensors) -> Iterator[Divergence]:
    """Yield a fault for each tensor that is missing or has a wrong shape, and one fault for all unknown tensors."""
    for name, theirs in hub.names.items():
        expected = hub.expected(name).shape
        if theirs not in file.tensors:
            also = ", so llama.cpp uses the embeddings instead" if theirs == OUTPUT else ""
            yield known_fault(
                theirs, f"the tensor is missing{also}; the checkpoint has it as {name}", "gguf-tensor-missing"
            )
        elif file.tensors[theirs].shape != expected:
            found = shown(file.tensors[theirs].shape)
            yield known_fault(theirs, f"the shape is {found}; expected {expected}, as in the checkpoint", "gguf-shape")
    others = [name for name in file.tensors if name not in {*hub.names.values(), *COMPUTED, OUTPUT}]
    if others:
        yield known_fault(
            others[0], f"no tensor of the checkpoint corresponds to {listed(others)}", "gguf-tensor-unknown"
        )


def head_faults(file: GgufFile, hub: HubTensors) -> Iterator[Divergence]:
    """Yield a fault if the checkpoint ties the head to the embeddings, but the file stores a different head."""
    if not hub.config.tied_head or OUTPUT not in file.tensors:
        return
    embedding = next(name for name, theirs in hub.names.items() if theirs == EMBEDDING)
    if file.tensors[OUTPUT].shape != hub.tensors[embedding].shape:
        yield known_fault(
            OUTPUT,
            "the shape differs from the shape of the embeddings, although the head is tied to them",
            "gguf-shape",
        )
        return
    says = "the head differs from the embeddings, although the checkpoint ties them"
    for fault in compare(dataclasses.replace(hub, names={embedding: OUTPUT}), file.tensors, [embedding]).faults:
        yield dataclasses.replace(fault, causes=(Cause("head-tied", says),))


Change = Callable[[np.ndarray], np.ndarray]

ARCHITECTURES = {
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}

QUERY_OR_KEY = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")


@dataclass(frozen=True)
class StoredLayout:
    """A layout of a tensor in a GGUF file, with conversions from and to the checkpoint's layout."""

    to_file: Change
    to_hub: Change
    says: str
    """A clause about how the file's values differ from the checkpoint's values."""


SAME = StoredLayout(np.asarray, np.asarray, "the rows have the checkpoint's order")
TRANSPOSED = StoredLayout(np.transpose, np.transpose, "the matrix is transposed")
PLUS_ONE = StoredLayout(lambda value: value + 1, lambda value: value - 1, "1 is added to the weights")


def permuted(heads: int) -> StoredLayout:
    """Return llama.cpp's layout for rotations of neighboring features: the halves of each head are interleaved."""

    def to_file(value: np.ndarray) -> np.ndarray:
        return value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)

    def to_hub(value: np.ndarray) -> np.ndarray:
        return value.reshape(heads, -1, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)

    return StoredLayout(to_file, to_hub, f"the two halves of each head's rows are interleaved ({count(heads, 'head')})")


def names_in_file(family: str, names: Iterable[str], layers: int, prefixes: Iterable[str]) -> dict[str, str]:
    """Map the checkpoint's tensor names to names in GGUF files; leave out tensors that GGUF files do not contain."""
    table = gguf.get_tensor_name_map(ARCHITECTURES[family], layers)
    found = {}
    for name in names:
        for full in (name, *(f"{prefix}{name}" for prefix in prefixes)):
            if (theirs := table.get_name(full, try_suffixes=(".weight", ".bias"))) is not None:
                found[name] = theirs
                break
    return found


def layout_of(family: str, name: str, config: TransformerConfig) -> StoredLayout:
    """Return the layout that llama.cpp expects for a tensor, given the tensor's name in the GGUF file."""
    if ARCHITECTURES[family] is gguf.MODEL_ARCH.LLAMA and (match := QUERY_OR_KEY.fullmatch(name)):
        return permuted(config.num_heads if match[1] == "q" else config.key_value_heads)
    if family.startswith("gemma") and name.endswith("norm.weight"):
        return PLUS_ONE
    if family == "gpt2" and re.fullmatch(r"blk\.\d+\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight", name):
        return TRANSPOSED
    return SAME


def other_layouts(name: str, config: TransformerConfig, shape: tuple[int, ...]) -> Mapping[str, StoredLayout]:
    """Return the layouts that conversion mistakes may produce; a key is the cause's id, or `id:heads`."""
    found = {"gguf-not-converted": SAME}
    if match := QUERY_OR_KEY.fullmatch(name):
        right = config.num_heads if match[1] == "q" else config.key_value_heads
        found["gguf-rows-permuted"] = permuted(right)
        others = {config.num_heads, config.key_value_heads, 1} - {right}
        widths = [heads for heads in others if shape[0] % (2 * heads) == 0]
        found |= {f"gguf-rows-permuted:{heads}": permuted(heads) for heads in widths}
    if name.endswith("norm.weight"):
        found["gguf-norm-offset"] = PLUS_ONE
    if len(shape) == 2 and shape[0] == shape[1]:
        found["gguf-transposed"] = TRANSPOSED
    return found


def check_family(family: str, architecture: str, path: object) -> None:
    if family not in ARCHITECTURES:
        raise UsageError(
            f"GGUF files of the family {family} cannot be checked; expected one of {', '.join(ARCHITECTURES)}."
        )
    expected = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[family]]
    if architecture != expected:
        raise UsageError(
            f"{path} has the architecture {architecture!r}; expected {expected!r}, as the checkpoint is a {family}: "
            "give the checkpoint from which the file was made."
        )
