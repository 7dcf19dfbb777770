"""Edits of a written Hugging Face folder for the audit of a loader: other fields, a missing tensor, or added ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from transparity_conformance.checkpoints.reading import CONFIG, WEIGHTS


@dataclass(frozen=True)
class Edit:
    """One change of a folder."""

    fields: Mapping[str, Any] | None = None
    """The content of config.json; None: unchanged."""
    without: str | None = None
    """The tensor left out of model.safetensors."""
    beside: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Tensors added to model.safetensors."""
    seed: int = 0
    """The seed of Python, NumPy and PyTorch while the folder is loaded."""


def edit_folder(folder: Path, edit: Edit) -> None:
    """Change a folder that `export_checkpoint` wrote."""
    if edit.fields is not None:
        (folder / CONFIG).write_text(json.dumps(dict(edit.fields), indent=2) + "\n", encoding="utf-8")
    if edit.without is not None or edit.beside:
        tensors = load_file(folder / WEIGHTS) | dict(edit.beside)
        tensors.pop(edit.without or "", None)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
