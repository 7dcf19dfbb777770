"""Faults in the text of right loaders, one at a time: fields that are ignored, and tensors that are not missed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "loaders"

RIGHT = {
    "llama_module": ("llama", "mistral", "qwen2", "qwen3"),
    "llama_numpy": ("llama",),
    "gpt2_numpy": ("gpt2",),
    "gpt2_jax": ("gpt2",),
    "gemma_functional": ("gemma", "gemma2"),
    "bert_module": ("bert", "roberta"),
    "t5_functional": ("t5",),
    "opt_module": ("opt",),
}
"""The families that each loader reads."""


class Planted(NamedTuple):
    """One fault: the loader, the family, its text and what replaces it, and the name that has to be told."""

    loader: str
    family: str
    right: str
    wrong: str
    name: str

    def __str__(self) -> str:
        return f"{self.family}, {self.name}: {self.wrong.strip().splitlines()[0] if self.wrong.strip() else 'removed'}"


def written(planted: Planted, folder: Path) -> Path:
    """Write the loader with the fault; raises `ValueError` unless its text is there once."""
    text = (FOLDER / f"{planted.loader}.py").read_text(encoding="utf-8")
    if text.count(planted.right) != 1:
        raise ValueError(
            f"{planted.loader} has {text.count(planted.right)} places with {planted.right!r}; expected one."
        )
    file = folder / f"{planted.loader}.py"
    file.write_text(text.replace(planted.right, planted.wrong), encoding="utf-8")
    return file


LLAMA, NUMPY, GPT2, GEMMA = "llama_module", "llama_numpy", "gpt2_numpy", "gemma_functional"
BERT, T5, OPT = "bert_module", "t5_functional", "opt_module"
