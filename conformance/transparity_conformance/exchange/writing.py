"""Write bundles, which contain weights or refer to the tensors of a checkpoint."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from transparity.config import TransformerConfig
from transparity.limits.memory import in_bytes
from transparity.text import reason
from transparity_conformance.capabilities.table import CAPABILITIES
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.checkpoints.layers import open_for_pieces, pieces
from transparity_conformance.checkpoints.reading import Progress, hashes, headers, tensor_files
from transparity_conformance.exchange.bundle import Bundle, bundle_probes, check_dtype, check_name, in_order, section_of
from transparity_conformance.exchange.manifest import (
    CHECKPOINT,
    MANIFEST,
    CheckpointFields,
    Manifest,
    ProbeFields,
    Several,
    TensorFields,
    write_manifest,
)
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, probes_with
from transparity_conformance.report.formatting import count
from transparity_conformance.storage.paths import is_file


def export_bundle(
    config: TransformerConfig,
    folder: str | Path,
    probes: Mapping[str, Probe] | None = None,
    *,
    name: str = "config",
    dtype: str = "float32",
    sections: Collection[str] = (),
) -> Bundle:
    """Write a bundle that contains the model's weights; raise `BundleError` if the folder contains other files."""
    check_name(name, config)
    check_dtype(dtype)
    probes = dict(bundle_probes(name, config) if probes is None else probes)
    if not probes:
        raise BundleError("A bundle needs at least one probe; none was given.")
    first = next(iter(probes.values())).parameters
    if other := [key for key, probe in probes.items() if probe.config != config or probe.parameters is not first]:
        raise BundleError(
            f"The probe {other[0]!r} has a different model from the first probe; expected one model for all probes."
        )
    of_capabilities = {section: section_of(section, probes, dtype) for section in in_order(sections)}
    bundle = Bundle(name, dtype, config, probes, of_capabilities)
    _write(bundle, Path(folder))
    return bundle


def export_for(
    checkpoint: Path, folder: Path, *, head: str | None, dtype: str, progress: Progress, name: str | None = None
) -> str:
    """Write a bundle that refers to the Hugging Face folder `checkpoint`; return a sentence about its contents and its
    size. The tolerances depend on `dtype`, the precision of the port. `name` is the name in reports, by default the
    family. Raise `TransparityError` if the checkpoint cannot be imported, or if `folder` contains other files."""
    check_dtype(dtype)
    imported = import_checkpoint(checkpoint, head)
    name = name or imported.model_type
    probes = probes_with(imported.config, imported.parameters, name)
    bundle = Bundle(name, dtype, imported.config, probes, has_weights=False)
    tensors = headers(tensor_files(checkpoint))
    named = {
        key: TensorFields(shape=tensors[key].shape, dtype=tensors[key].dtype, sha256=found)
        for key, found in hashes(tensors, progress)
    }
    manifest = _write(bundle, folder, CheckpointFields(model_type=imported.model_type, head=head, tensors=named))
    size = sum((folder / file).stat().st_size for file in (*manifest.files, MANIFEST))
    weights = in_bytes(sum(tensor.size for tensor in tensors.values()))
    return (
        f"{folder}: {in_bytes(size)}, {count(len(probes), 'probe')} of {name} ({', '.join(probes)}); "
        f"the checkpoint of {len(tensors)} tensors ({weights}) is identified by their sha256"
    )


def export_pieces(
    checkpoint: Path, folder: Path, layers: list[int] | None, *, head: str | None, dtype: str, progress: Progress
) -> Iterator[str]:
    """Write a bundle for each layer of a checkpoint, and for the embedding with the head. Each bundle contains its own
    weights. Yield a sentence about each bundle.

    `layers` contains numbers from 0; None means all layers. The embedding and the head are always written.
    `export_for` and `pieces` document the other arguments and the exceptions.
    """
    check_dtype(dtype)
    opened = open_for_pieces(checkpoint, head)
    names: dict[str, str] = {}
    _make(folder)
    for piece in pieces(opened, layers):
        name = f"{opened.model_type}, {piece.name}"
        inside = folder / piece.name.replace(",", "").replace(" ", "-")
        export_checkpoint(opened.model_type, piece.config, piece.parameters, inside / CHECKPOINT)
        own_head = piece.config.head if opened.config.architecture == "encoder" else None
        yield export_for(inside / CHECKPOINT, inside, head=own_head, dtype=dtype, progress=progress, name=name)
        names[inside.name] = name
    write_manifest(folder, Several(bundles=names))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = {path.name for path in folder.iterdir()} - {CHECKPOINT}
    except OSError as error:
        raise BundleError(f"{folder} cannot be written: {reason(error)}.") from None
    if others and not is_file(folder / MANIFEST):
        raise BundleError(f"{folder} has other files in it; expected an empty folder, or a new one.")


def _write(bundle: Bundle, folder: Path, checkpoint: CheckpointFields | None = None) -> Manifest:
    _make(folder)
    manifest = Manifest(
        name=bundle.name,
        dtype=bundle.dtype,
        checkpoint=checkpoint,
        probes={key: _described(bundle, probe) for key, probe in bundle.probes.items()},
        capabilities={name: section.described() for name, section in bundle.capabilities.items()},
    )
    try:
        (folder / "config.json").write_text(bundle.config.to_json(), encoding="utf-8")
        files = _tensors(bundle)
        for name in {row.file for row in CAPABILITIES.values()} - {""} - files.keys():
            (folder / name).unlink(missing_ok=True)  # from an earlier bundle
        for name, arrays in files.items():
            save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, folder / name)
        write_manifest(folder, manifest)
    except (OSError, SafetensorError) as error:
        raise BundleError(f"{folder} cannot be written: {reason(error)}.") from None
    return manifest


def _tensors(bundle: Bundle) -> dict[str, Arrays]:
    probes = bundle.probes.items()
    files = {
        "inputs.safetensors": _as_stored(
            {f"{key}/{name}": x for key, probe in probes for name, x in bundle.inputs(probe).items()}
        )
    }
    if bundle.has_weights:
        files["parameters.safetensors"] = _as_stored(next(iter(bundle.probes.values())).parameters)
        expected = {f"{key}/{tap}": value for key, probe in probes for tap, value in probe.oracle.expected.items()}
        files["expected.safetensors"] = {name: value.astype(np.float64) for name, value in expected.items()}
    return files | {s.row.file: _as_stored(s.tensors()) for s in bundle.capabilities.values() if s.row.file}


def _as_stored(arrays: Arrays) -> Arrays:
    return {name: value.astype(np.float32 if value.dtype.kind == "f" else np.int32) for name, value in arrays.items()}


def _described(bundle: Bundle, probe: Probe) -> ProbeFields:
    fields = bundle.described(probe)
    if not bundle.has_weights:
        return fields
    budgets = {tap: probe.oracle.budget(tap, bundle.dtype) for tap in probe.oracle.expected}
    return msgspec.structs.replace(fields, budgets=budgets)
