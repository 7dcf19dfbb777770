"""The manifest of a bundle that names the tensors of a checkpoint, and the checkpoint held to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.taps import tap_shapes
from transparity_conformance.checkpoints.files import LARGEST_JSON, BundleError, parse_json, read_bytes
from transparity_conformance.checkpoints.hashing import Progress, Tensor, hashes, headers
from transparity_conformance.checkpoints.importing import FILES
from transparity_conformance.exchange.bundle.bundle import check_dtype
from transparity_conformance.exchange.bundle.manifest import (
    check_digests,
    check_fields,
    check_probes,
    digest,
    own_digest,
)
from transparity_conformance.exchange.elsewhere.names import collapsed
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.running.inputs import with_mask

FORMAT = 3
MANIFEST = "manifest.json"
FILES_OF_IT = ("config.json", "inputs.safetensors")

Fields = dict[str, Any]
KINDS: Mapping[str, Any] = {
    "format": int,
    "name": str,
    "dtype": str,
    "checkpoint": dict,
    "probes": dict,
    "sha256": dict,
}
KINDS_OF_SEVERAL: Mapping[str, Any] = {"format": int, "bundles": dict, "sha256": dict}
HEADS = (None, "hidden", "pooled", "logits", "classes")


def is_elsewhere(folder: Path) -> bool:
    """Return whether a folder is a bundle that names a checkpoint, or several of them."""
    try:
        manifest = parse_json(folder / MANIFEST, read_bytes(folder / MANIFEST, LARGEST_JSON))
    except BundleError:  # then it is no bundle at all, which whoever reads it as one will say
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def read_manifest(folder: Path) -> Fields:
    """The manifest of one bundle, or with `bundles` that of several; raise `BundleError` for a wrong one."""
    path = folder / MANIFEST
    manifest = parse_json(path, read_bytes(path, LARGEST_JSON))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"{path} is not the manifest of a bundle that names a checkpoint.")
    check_fields(path, "it", manifest, KINDS_OF_SEVERAL if "bundles" in manifest else KINDS)
    try:
        own = own_digest(manifest)
    except RecursionError:
        raise BundleError(f"{path} is not the manifest of a bundle.") from None
    if manifest["sha256"].get(MANIFEST) != own:
        raise BundleError(f"{path} was changed: it does not have the sha256 that it says of itself.")
    if "bundles" in manifest:
        _check_several(path, manifest["bundles"])
        return manifest
    check_dtype(manifest["dtype"])
    check_probes(path, manifest["probes"])
    _check_checkpoint(path, manifest["checkpoint"])
    check_digests(folder, manifest, FILES_OF_IT)
    return manifest


def write_manifest(folder: Path, manifest: Fields, files: tuple[str, ...] = ()) -> None:
    """Write a manifest with the sha256 of the `files` beside it and of itself."""
    manifest["sha256"] = {name: digest(folder / name) for name in files}
    manifest["sha256"][MANIFEST] = own_digest(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def described_probe(probe: Probe) -> Fields:
    """A probe in the manifest: what it is for, and the shapes of its inputs and of every tap that may come back."""
    return {
        "for": probe.purpose,
        "inputs": {name: list(value.shape) for name, value in with_mask(probe.inputs, probe.config).items()},
        "taps": collapsed(taps_of(probe.config, {name: value.shape for name, value in probe.inputs.items()})),
    }


def taps_of(config: TransformerConfig, inputs: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of all taps of inputs of these shapes."""
    lengths = {name: config.positions_of(name) or inputs[name][1] for name in config.input_names}
    return tap_shapes(config, inputs[config.input_names[0]][0], **lengths)


def described_tensors(tensors: Mapping[str, Tensor], progress: Progress) -> Fields:
    """The tensors of a checkpoint in the manifest."""
    return {
        name: {"shape": tensors[name].shape, "dtype": tensors[name].dtype, "sha256": found}
        for name, found in hashes(tensors, progress)
    }


def check_checkpoint(folder: Path, where: Mapping[str, Path], described: Fields, progress: Progress) -> None:
    """Raise `BundleError` with the first tensor in which a checkpoint differs from the one that a bundle names."""
    tensors, wanted = headers(where), described["tensors"]
    other = f"{folder} is not the checkpoint that the bundle was written for:"
    for name, said in wanted.items():
        if name not in tensors:
            raise BundleError(f"{other} it has no tensor {shown(name)}; give the folder that was exported.")
        found = {"shape": tensors[name].shape, "dtype": tensors[name].dtype}
        for field, value in found.items():
            if said[field] != value:
                raise BundleError(
                    f"{other} the {field} of {shown(name)} is {shown(value)}, and was {shown(said[field])}; give the "
                    "folder that was exported."
                )
    if more := [name for name in tensors if name not in wanted]:
        raise BundleError(f"{other} the tensor {shown(more[0])} was not there; give the folder that was exported.")
    for name, found_hash in hashes(tensors, progress):
        if wanted[name]["sha256"] != found_hash:
            raise BundleError(
                f"{other} the numbers of {shown(name)} are others (sha256 {found_hash[:12]}…, and was "
                f"{shown(wanted[name]['sha256'][:12])}…); give the folder that was exported."
            )


def _check_checkpoint(path: Path, described: Fields) -> None:
    check_fields(path, "checkpoint", described, {"model_type": str, "head": str | None, "tensors": dict})
    if described["model_type"] not in FILES or described["head"] not in HEADS:
        raise BundleError(
            f"{path} is not right: its checkpoint is {shown(described['model_type'])}, with the head "
            f"{shown(described['head'])}."
        )
    for name, fields in described["tensors"].items():
        check_fields(path, f"the tensor {shown(name)}", fields, {"shape": list, "dtype": str, "sha256": str})


def _check_several(path: Path, bundles: Fields) -> None:
    for folder, name in bundles.items():
        if not (isinstance(name, str) and name.isprintable() and Path(folder).name == folder and folder != ".."):
            raise BundleError(f"{path} is not right: it names the bundle {shown(folder)}, {shown(name)}.")
