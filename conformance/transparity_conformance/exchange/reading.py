"""Read bundles and results from untrusted sources.

The checker compares all sizes with the configuration and the files before it loads a tensor. The checker computes the
expected values anew, and refuses a bundle whose values differ from the computed values by more than rounding.
"""

import dataclasses
import math
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.inputs import check_inputs, input_form
from transparity.limits.lazy import Lazy
from transparity.parameters import check_parameters, parameter_shapes
from transparity_conformance.checkpoints.exporting import explicit
from transparity_conformance.checkpoints.files import BundleError, read_bytes
from transparity_conformance.checkpoints.importing import Checkpoint, import_checkpoint
from transparity_conformance.checkpoints.reading import hashes, headers, tensor_files
from transparity_conformance.diagnosis.judge import Actual, Progress, ignore_progress
from transparity_conformance.exchange.bundle import Bundle, Section, check_name, check_section, received, section_of
from transparity_conformance.exchange.manifest import (
    CHECKPOINT,
    LARGEST_CONFIG,
    MANIFEST,
    CheckpointFields,
    Manifest,
    SectionFields,
    read_manifest,
)
from transparity_conformance.exchange.tensors import FLOATS, read_tensors
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.storage.paths import is_folder


def read_bundle(folder: str | Path, checkpoint: Path | None = None, progress: Progress = ignore_progress) -> Bundle:
    """Read a bundle; raise `TransparityError` if it is invalid. `checkpoint` is the checkpoint to which the bundle
    refers. The default is the checkpoint inside the bundle, or the bundle's own weights."""
    folder = Path(folder)
    if not is_folder(folder):
        raise BundleError(f"{folder} is not a folder; expected a bundle, as `transparity export` writes it.")
    manifest = read_manifest(folder)
    if not isinstance(manifest, Manifest):
        raise BundleError(f"{folder} has several bundles; give one of its folders {', '.join(manifest.bundles)}.")
    config = read_config(folder / "config.json")
    parameters = _parameters(folder, manifest, config, checkpoint, progress)
    bundle = _with_probes(folder, manifest, config, parameters)
    if bundle.has_weights:
        _check_expected(folder, bundle)
    sections = {name: _read_section(folder, name, said, bundle) for name, said in manifest.capabilities.items()}
    return dataclasses.replace(bundle, capabilities=sections)


def read_config(path: Path) -> TransformerConfig:
    try:
        return TransformerConfig.from_json(read_bytes(path, LARGEST_CONFIG).decode("utf-8"))
    except UnicodeDecodeError:
        raise BundleError(f"{path} is not JSON: it is not UTF-8.") from None


def read_actual(path: str | Path, bundle: Bundle) -> Actual:
    """Read the tensors that a port wrote. For a bundle of a checkpoint, each tensor is loaded when it is used. Raise
    `BundleError` for an unreadable file, an unknown name, a wrong shape or a wrong dtype."""
    path, expected = Path(path), {**bundle.shapes, **bundle.asked}
    if is_folder(path):
        raise BundleError(f"{path} is a folder; expected one safetensors file with the results for all probes.")
    tokens = {name for name in bundle.asked if name.endswith("/tokens")}
    tensors = read_tensors(path, expected, FLOATS, optional=True, integers=tokens)
    groups: dict[str, list[str]] = {}
    for name in tensors:
        groups.setdefault(name.partition("/")[0], []).append(name.partition("/")[2])
    read = lambda group, name: tensors[f"{group}/{name}"]
    lazy = {group: Lazy(names, partial(read, group)) for group, names in groups.items()}
    return {group: dict(of) for group, of in lazy.items()} if bundle.has_weights else lazy


def _parameters(
    folder: Path, manifest: Manifest, config: TransformerConfig, checkpoint: Path | None, progress: Progress
) -> Arrays:
    if manifest.checkpoint is None:
        if checkpoint is not None:
            raise BundleError(f"{folder} contains its own weights; leave out --checkpoint.")
        check_name(manifest.name, config)
        shapes = parameter_shapes(config)
        stored = dict(read_tensors(folder / "parameters.safetensors", shapes, ["F32"]))
        check_parameters(config, stored)
        return {name: stored[name] for name in shapes}  # the file may have another order
    within = folder / CHECKPOINT
    if checkpoint is None and not is_folder(within):
        raise BundleError(f"{folder} contains no weights; give the checkpoint of this bundle with --checkpoint FOLDER.")
    return import_described(checkpoint or within, manifest.checkpoint, config, progress).parameters


def _with_probes(folder: Path, manifest: Manifest, config: TransformerConfig, parameters: Arrays) -> Bundle:
    path, read = folder / MANIFEST, (*config.input_names, *config.further_inputs)
    forms = {name: input_form(config, name) for name in read}
    shapes = {
        f"{key}/{name}": tuple(shape) for key, said in manifest.probes.items() for name, shape in said.inputs.items()
    }
    integers = {name for name in shapes if not (form := forms.get(name.partition("/")[2])) or not form.is_float}
    inputs = read_tensors(folder / "inputs.safetensors", shapes, ["F32"], integers=integers)
    bundle = Bundle(manifest.name, manifest.dtype, config, {}, has_weights=manifest.checkpoint is None)
    for key, said in manifest.probes.items():
        for name, form in forms.items():
            if not form.has_shape(config, shape := said.inputs.get(name, [0])):
                raise BundleError(
                    f"{path} is not valid: {name} of {key} has the shape {shown(shape)}; export the bundle again."
                )
        tokens = check_inputs(config, {name: inputs[f"{key}/{name}"] for name in read})
        probe = Probe(manifest.name, key, said.purpose, config, parameters, tokens)
        if bundle.described(probe) != msgspec.structs.replace(said, budgets={}) or not all(
            np.array_equal(inputs[f"{key}/{name}"], value) for name, value in bundle.inputs(probe).items()
        ):
            raise BundleError(
                f"{path} is not valid: the probe {key} does not fit the configuration; export the bundle again."
            )
        bundle.probes[key] = probe
    return bundle


def _read_section(folder: Path, name: str, described: SectionFields, bundle: Bundle) -> Section:
    section = section_of(name, bundle.probes, bundle.dtype)
    check_section(folder / MANIFEST, section, described)
    if not section.row.file:
        return section
    path, expected = folder / section.row.file, section.tensors()
    integers = {name for name, value in expected.items() if value.dtype.kind != "f"}
    shapes = {name: value.shape for name, value in expected.items()}
    return received(path, section, described, dict(read_tensors(path, shapes, ["F32"], integers=integers)))


def _check_expected(folder: Path, bundle: Bundle) -> None:
    path = folder / "expected.safetensors"
    expected = dict(read_tensors(path, bundle.shapes, ["F64"]))
    for name, probe in bundle.probes.items():
        with np.errstate(all="ignore"):
            right = probe.oracle.expected
            budgets = {tap: probe.oracle.budget(tap, bundle.dtype) for tap in right}
            strict = {tap: probe.oracle.budget(tap, "float64") for tap in right}
            errors = {tap: np.abs(expected[f"{name}/{tap}"] - right[tap]).max(initial=0.0) for tap in right}
        for tap, value in right.items():
            if not (np.isfinite(value).all() and math.isfinite(budgets[tap])):
                raise BundleError(
                    f"The parameters in {folder} are too large: in the reference, {tap} of {name} is not finite."
                )
        for tap, error in errors.items():
            if not error <= strict[tap]:
                raise BundleError(
                    f"{path} differs from the reference: {name}/{tap} has the error {error:.3g}, "
                    f"and rounding explains at most {strict[tap]:.3g}; export the bundle again."
                )


def import_described(
    folder: Path, described: CheckpointFields, config: TransformerConfig, progress: Progress
) -> Checkpoint:
    imported = import_checkpoint(folder, described.head)
    for name, value in explicit(config).items():
        if (found := explicit(imported.config)[name]) != value:
            raise _other(folder, f"its {name} is {shown(found)} instead of {shown(value)}")
    tensors, wanted = headers(tensor_files(folder)), described.tensors
    for name, fields in wanted.items():
        if name not in tensors:
            raise _other(folder, f"it has no tensor {shown(name)}")
        for field in ("shape", "dtype"):
            value, was = getattr(tensors[name], field), getattr(fields, field)
            if value != was:
                raise _other(folder, f"the {field} of {shown(name)} is {shown(value)} instead of {shown(was)}")
    if more := [name for name in tensors if name not in wanted]:
        raise _other(folder, f"it has an additional tensor {shown(more[0])}")
    for name, found_hash in hashes(tensors, progress):
        if (was := wanted[name].sha256) != found_hash:
            shas = f"sha256 {found_hash[:12]}… instead of {shown(was[:12])}…"
            raise _other(folder, f"the values of {shown(name)} differ ({shas})")
    return imported


def _other(folder: Path, what: str) -> BundleError:
    return BundleError(
        f"{folder} is not the checkpoint of this bundle: {what}; give the folder for which the bundle was written."
    )
