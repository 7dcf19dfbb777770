"""The faults of `faults.toml`: in the text of right loaders, one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from meta.edits import edited, rows

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
    """One fault: the loader, the family, the name that has to be told, and the text with what replaces it."""

    loader: str
    family: str
    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.family}, {self.name}: {self.new.strip().splitlines()[0] if self.new.strip() else 'removed'}"


FIELDS, LOADING = (
    tuple(Planted(**row) for row in rows(Path(__file__).with_name("faults.toml"), table))
    for table in ("field", "tensor")
)


def written(planted: Planted, folder: Path) -> Path:
    """Write the loader with the fault; raises `PoolError` unless its text is there once."""
    file = folder / f"{planted.loader}.py"
    text = (FOLDER / file.name).read_text(encoding="utf-8")
    file.write_text(edited(text, planted.old, planted.new, where=planted.loader), encoding="utf-8")
    return file
