"""Writing a bundle that names the tensors of a checkpoint by their hashes, and carries none of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from transparity.limits.files import is_file
from transparity.limits.memory import in_bytes
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.checkpoints.hashing import Progress, headers
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.checkpoints.layers import open_for_pieces, pieces
from transparity_conformance.checkpoints.reading import tensor_files
from transparity_conformance.exchange.bundle.bundle import Bundle, check_dtype
from transparity_conformance.exchange.elsewhere.manifest import (
    FILES_OF_IT,
    FORMAT,
    MANIFEST,
    described_probe,
    described_tensors,
    write_manifest,
)
from transparity_conformance.oracle.probes import probes_with
from transparity_conformance.report.text import reason
from transparity_conformance.running.inputs import with_mask

CHECKPOINT = "checkpoint"
"""The folder of a piece within its bundle."""


@dataclass(frozen=True, eq=False)
class Written:
    """A bundle that was written."""

    folder: Path
    bundle: Bundle
    size: int
    """Bytes of the bundle, without a checkpoint in it."""
    tensors: int
    weights: int
    """The tensors that it names, and their bytes."""

    @property
    def says(self) -> str:
        """What is in it and how large, in one sentence."""
        probes = ", ".join(self.bundle.probes)
        return (
            f"{self.folder}: {in_bytes(self.size)}, {len(self.bundle.probes)} probes of {self.bundle.name} ({probes}); "
            f"{self.tensors} tensors of {in_bytes(self.weights)} are named by their sha256"
        )


def export_for(
    checkpoint: Path, folder: Path, *, head: str | None, dtype: str, progress: Progress, name: str | None = None
) -> Written:
    """Write a bundle for a checkpoint; raise `TransparityError` for one that cannot be imported, or a folder in use.

    Args:
        checkpoint: a hub's folder.
        folder: a new or an empty folder, or one with a bundle.
        head: as for `import_checkpoint`.
        dtype: the precision of the port, whose budgets apply.
        name: the name in reports; None: the family.
    """
    check_dtype(dtype)
    imported = import_checkpoint(checkpoint, head)
    name = name or imported.model_type
    bundle = Bundle(name, dtype, imported.config, probes_with(imported.config, imported.parameters, name))
    tensors = headers(tensor_files(checkpoint))
    named = described_tensors(tensors, progress)
    try:
        _write(_empty(folder), bundle, {"model_type": imported.model_type, "head": head, "tensors": named})
    except (OSError, SafetensorError) as error:
        raise BundleError(f"{folder} cannot be written: {reason(error)}.") from None
    size = sum((folder / file).stat().st_size for file in (*FILES_OF_IT, MANIFEST))
    return Written(folder, bundle, size, len(tensors), sum(tensor.size for tensor in tensors.values()))


def export_pieces(
    checkpoint: Path, folder: Path, layers: list[int] | None, *, head: str | None, dtype: str, progress: Progress
) -> Iterator[Written]:
    """Write a bundle for each part of a checkpoint, with that part as a model of its own in it; yield each.

    Args:
        layers: the layers, from 0; None: all of them. The embedding with the head is always written.

    The other arguments and the errors are those of `export_for`, and of `pieces`.
    """
    check_dtype(dtype)
    opened = open_for_pieces(checkpoint, head)
    names: dict[str, str] = {}
    _empty(folder)
    for piece in pieces(opened, layers):
        name = f"{opened.model_type}, {piece.name}"
        inside = folder / piece.name.replace(",", "").replace(" ", "-")
        export_checkpoint(opened.model_type, piece.config, piece.parameters, inside / CHECKPOINT)
        own_head = piece.config.head if opened.config.architecture == "encoder" else None
        yield export_for(inside / CHECKPOINT, inside, head=own_head, dtype=dtype, progress=progress, name=name)
        names[inside.name] = name
    write_manifest(folder, {"format": FORMAT, "bundles": names})


def _empty(folder: Path) -> Path:
    """Make a folder; raise `BundleError` for one with other things than a bundle in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = {path.name for path in folder.iterdir()} - {CHECKPOINT}
    except OSError as error:
        raise BundleError(f"{folder} cannot be written: {reason(error)}.") from None
    if others and not is_file(folder / MANIFEST):
        raise BundleError(f"{folder} has other files in it; expected an empty folder, or a new one.")
    return folder


def _write(folder: Path, bundle: Bundle, checkpoint: dict[str, Any]) -> None:
    (folder / "config.json").write_text(bundle.config.to_json(), encoding="utf-8")
    inputs = {
        f"{name}/{read}": np.ascontiguousarray(value, np.float32 if value.dtype.kind == "f" else np.int32)
        for name, probe in bundle.probes.items()
        for read, value in with_mask(probe.inputs, bundle.config).items()
    }
    save_file(inputs, folder / "inputs.safetensors")
    manifest = {
        "format": FORMAT,
        "name": bundle.name,
        "dtype": bundle.dtype,
        "checkpoint": checkpoint,
        "probes": {name: described_probe(probe) for name, probe in bundle.probes.items()},
    }
    write_manifest(folder, manifest, FILES_OF_IT)
