"""The names and the layout of a hub's tensors in a GGUF file, by architecture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import gguf
import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.running.loading import UsageError

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
"""The architecture of llama.cpp that runs a family."""

QUERY_OR_KEY = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")


@dataclass(frozen=True)
class Layout:
    """A change between the hub's layout and that of the file, both ways."""

    to_file: Change
    to_hub: Change
    says: str
    """What the numbers of the file are beside the hub's."""


SAME = Layout(np.asarray, np.asarray, "it is as in the hub's file")
TRANSPOSED = Layout(np.transpose, np.transpose, "it is transposed")
PLUS_ONE = Layout(lambda value: value + 1, lambda value: value - 1, "1 is added")


def permuted(heads: int) -> Layout:
    """Rows for rotations of neighbours: the halves of each head are interleaved."""

    def to_file(value: np.ndarray) -> np.ndarray:
        return value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)

    def to_hub(value: np.ndarray) -> np.ndarray:
        return value.reshape(heads, -1, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)

    return Layout(to_file, to_hub, f"the rows of each of {heads} heads are interleaved, for rotations of neighbours")


def names_in_file(family: str, names: Iterable[str], layers: int, prefixes: Iterable[str]) -> dict[str, str]:
    """The file's name of each of the hub's tensors; those that a file has no name for are left out."""
    table = gguf.get_tensor_name_map(ARCHITECTURES[family], layers)
    found = {}
    for name in names:
        for full in (name, *(f"{prefix}{name}" for prefix in prefixes)):
            if (theirs := table.get_name(full, try_suffixes=(".weight", ".bias"))) is not None:
                found[name] = theirs
                break
    return found


def layout_of(family: str, name: str, config: TransformerConfig) -> Layout:
    """The layout that llama.cpp expects of the tensor `name` of its own."""
    if ARCHITECTURES[family] is gguf.MODEL_ARCH.LLAMA and (match := QUERY_OR_KEY.fullmatch(name)):
        return permuted(config.num_heads if match[1] == "q" else config.key_value_heads)
    if family.startswith("gemma") and name.endswith("norm.weight"):
        return PLUS_ONE
    if family == "gpt2" and re.fullmatch(r"blk\.\d+\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight", name):
        return TRANSPOSED
    return SAME


def other_layouts(name: str, config: TransformerConfig, shape: tuple[int, ...]) -> Mapping[str, Layout]:
    """Layouts that a conversion may have given a tensor by mistake, by the id of the mistake."""
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
    """Raise `UsageError` if a file is of another architecture than llama.cpp has for a family."""
    if family not in ARCHITECTURES:
        raise UsageError(
            f"A {family} cannot be checked as a GGUF file; expected a checkpoint of {', '.join(ARCHITECTURES)}."
        )
    expected = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[family]]
    if architecture != expected:
        raise UsageError(
            f"{path} has the architecture {architecture!r}; expected {expected!r}, which runs a {family}: give the "
            "checkpoint that it was made of."
        )
