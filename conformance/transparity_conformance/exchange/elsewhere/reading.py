"""Reading a bundle that names a checkpoint, together with that checkpoint, and the answers that came back."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from transparity.config import TransformerConfig
from transparity.inputs import check_inputs
from transparity.limits.files import is_folder
from transparity.limits.stored import Lazy
from transparity_conformance.checkpoints.exporting import explicit
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.checkpoints.hashing import Progress
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.checkpoints.reading import tensor_files
from transparity_conformance.exchange.bundle.bundle import Bundle
from transparity_conformance.exchange.bundle.manifest import promised_inputs, whole_numbers
from transparity_conformance.exchange.bundle.reading import ACTUAL_DTYPES, read_config
from transparity_conformance.exchange.bundle.safetensors_reader import Entry, arrays_of, read_entries, read_tensors
from transparity_conformance.exchange.elsewhere.manifest import (
    MANIFEST,
    Fields,
    check_checkpoint,
    described_probe,
)
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.text import shown
from transparity_conformance.running.inputs import with_mask

MASK = "attention_mask"


def read_bundle(folder: Path, manifest: Fields, checkpoint: Path, progress: Progress) -> Bundle:
    """The bundle in `folder` with the parameters of the checkpoint, which stay in their files if they are large.

    Raises `TransparityError` for a bundle that is not right, and for another checkpoint, with what differs first.
    """
    described = manifest["checkpoint"]
    config = read_config(folder / "config.json")
    imported = import_checkpoint(checkpoint, described["head"])
    for name, value in explicit(config).items():
        if (found := explicit(imported.config)[name]) != value:
            raise BundleError(
                f"{checkpoint} is not the checkpoint that the bundle was written for: its {name} is {shown(found)}, "
                f"and was {shown(value)}; give the folder that was exported."
            )
    check_checkpoint(checkpoint, tensor_files(checkpoint), described, progress)
    probes = _probes(folder, manifest, config, imported.parameters)
    return Bundle(manifest["name"], manifest["dtype"], config, probes)


def _probes(folder: Path, manifest: Fields, config: TransformerConfig, parameters: Arrays) -> dict[str, Probe]:
    """The probes of a bundle, whose inputs may have a mask of their padding beside them."""
    read, first = (*config.input_names, *config.further_inputs), config.input_names[0]
    own, masks = {}, {}
    for key, said in manifest["probes"].items():
        own[key] = {"inputs": {name: shape for name, shape in said["inputs"].items() if name in read or name != MASK}}
        if MASK in said["inputs"] and MASK not in read:
            masks[f"{key}/{MASK}"] = f"{key}/{first}"
    shapes = promised_inputs(folder / MANIFEST, config, own)
    shapes |= {mask: shapes[tokens] for mask, tokens in masks.items()}
    inputs = read_tensors(folder / "inputs.safetensors", shapes, ["F32"], whole_numbers(config, shapes))
    probes = {}
    for key, said in manifest["probes"].items():
        tokens = check_inputs(config, {name: inputs[f"{key}/{name}"] for name in read})
        probes[key] = Probe(manifest["name"], key, said["for"], config, parameters, tokens)
        given = with_mask(tokens, config)
        if described_probe(probes[key]) != said or any(
            not np.array_equal(inputs[f"{key}/{name}"], value) for name, value in given.items()
        ):
            raise BundleError(f"{folder / MANIFEST} is not right: the probe {key} is another in the configuration.")
    return probes


def read_answers(path: Path, bundle: Bundle) -> dict[str, Lazy]:
    """The tensors that a port brought back, by probe and tap: each is read from the file when it is looked at.

    Raises `BundleError` for a name that the bundle does not have, another shape, or another dtype.
    """
    if is_folder(path):
        raise BundleError(f"{path} is a folder; expected one safetensors file, with the answers to all probes.")
    found: dict[str, dict[str, Entry]] = {}
    for entry in read_entries(path, bundle.shapes, ACTUAL_DTYPES, optional=True):
        probe, _, tap = entry.name.partition("/")
        found.setdefault(probe, {})[tap] = entry
    return {probe: _in_file(path, entries) for probe, entries in found.items()}


def _in_file(path: Path, entries: dict[str, Entry]) -> Lazy:
    def read(tap: str) -> np.ndarray:
        ((_, value),) = arrays_of(path, [entries[tap]])
        return value

    return Lazy(entries, read)
