"""The tensors of a checkpoint in a manifest, identified by their sha256."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity_conformance.checkpoints.exporting import explicit
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.checkpoints.hashing import Progress, TensorBytes, hashes, headers
from transparity_conformance.checkpoints.importing import Checkpoint, import_checkpoint
from transparity_conformance.checkpoints.reading import tensor_files
from transparity_conformance.exchange.manifest import CheckpointFields, TensorFields


def described_tensors(tensors: Mapping[str, TensorBytes], progress: Progress) -> dict[str, TensorFields]:
    """Return the manifest entries of a checkpoint's tensors."""
    return {
        name: TensorFields(shape=tensors[name].shape, dtype=tensors[name].dtype, sha256=found)
        for name, found in hashes(tensors, progress)
    }


def import_described(
    folder: Path, described: CheckpointFields, config: TransformerConfig, progress: Progress
) -> Checkpoint:
    """Import a checkpoint; raise `BundleError` with the first difference if a bundle describes another checkpoint."""
    imported = import_checkpoint(folder, described.head)
    for name, value in explicit(config).items():
        if (found := explicit(imported.config)[name]) != value:
            raise _other(folder, f"its {name} is {shown(found)}, expected {shown(value)}")
    tensors, wanted = headers(tensor_files(folder)), described.tensors
    for name, fields in wanted.items():
        if name not in tensors:
            raise _other(folder, f"it has no tensor {shown(name)}")
        for field in ("shape", "dtype"):
            value, was = getattr(tensors[name], field), getattr(fields, field)
            if value != was:
                raise _other(folder, f"the {field} of {shown(name)} is {shown(value)}, expected {shown(was)}")
    if more := [name for name in tensors if name not in wanted]:
        raise _other(folder, f"it has an additional tensor {shown(more[0])}")
    for name, found_hash in hashes(tensors, progress):
        if (was := wanted[name].sha256) != found_hash:
            shas = f"sha256 {found_hash[:12]}…, expected {shown(was[:12])}…"
            raise _other(folder, f"the numbers of {shown(name)} differ ({shas})")
    return imported


def _other(folder: Path, what: str) -> BundleError:
    return BundleError(f"{folder} is not the checkpoint of this bundle: {what}; pass the folder that was exported.")
