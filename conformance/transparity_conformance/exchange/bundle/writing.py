"""Writing a bundle."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from transparity.config import TransformerConfig
from transparity.limits.files import is_file
from transparity_conformance.capabilities.table import CAPABILITIES
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.exchange.bundle.bundle import Bundle, bundle_probes, check_dtype, check_name
from transparity_conformance.exchange.bundle.manifest import FORMAT, digest, files_of, own_digest
from transparity_conformance.exchange.bundle.sections import in_order, section_of
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe


def export_bundle(
    config: TransformerConfig,
    folder: str | Path,
    probes: Mapping[str, Probe] | None = None,
    *,
    name: str = "config",
    dtype: str = "float32",
    sections: Collection[str] = (),
) -> Bundle:
    """Write a bundle; raises `BundleError` for a folder with other things in it, which would be overwritten."""
    folder = Path(folder)
    check_name(name, config)
    check_dtype(dtype)
    chosen = dict(bundle_probes(name, config) if probes is None else probes)
    of_capabilities = {section: section_of(section, chosen, dtype) for section in in_order(sections)} if chosen else {}
    bundle = Bundle(name, dtype, config, chosen, of_capabilities)
    _check_shared(bundle)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not is_file(folder / "manifest.json"):
            raise BundleError(f"{folder} has other files in it; expected an empty folder, or a new one.")
        _write(bundle, folder)
    except (OSError, SafetensorError) as error:
        raise BundleError(f"{folder} cannot be written: {getattr(error, 'strerror', None) or error}.") from None
    return bundle


def _check_shared(bundle: Bundle) -> None:
    if not bundle.probes:
        raise BundleError("A bundle needs at least one probe.")
    first = next(iter(bundle.probes.values())).parameters
    for name, probe in bundle.probes.items():
        if probe.config != bundle.config or probe.parameters is not first:
            raise BundleError(f"The probe {name!r} has a model of its own; a bundle holds one for all of its probes.")


def _write(bundle: Bundle, folder: Path) -> None:
    parameters = next(iter(bundle.probes.values())).parameters
    probes = bundle.probes.items()
    (folder / "config.json").write_text(bundle.config.to_json(), encoding="utf-8")
    _save(folder / "parameters.safetensors", parameters, np.float32)
    inputs = {f"{name}/{read}": value for name, probe in probes for read, value in probe.inputs.items()}
    _save_mixed(folder / "inputs.safetensors", inputs)
    expected = {f"{name}/{tap}": value for name, probe in probes for tap, value in probe.oracle.expected.items()}
    _save(folder / "expected.safetensors", expected, np.float64)
    for row in CAPABILITIES.values():
        if row.name in bundle.capabilities and row.file:
            _save_mixed(folder / row.file, bundle.capabilities[row.name].tensors())
        elif row.file:
            (folder / row.file).unlink(missing_ok=True)  # of an earlier bundle
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "preset": bundle.name,
        "dtype": bundle.dtype,
        "probes": {name: _described(probe, bundle.dtype) for name, probe in probes},
        **{name: section.described() for name, section in bundle.capabilities.items()},
        "sha256": {name: digest(folder / name) for name in files_of(bundle.sections)},
    }
    manifest["sha256"]["manifest.json"] = own_digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _save(path: Path, arrays: Mapping[str, np.ndarray], dtype: type[np.generic]) -> None:
    save_file({name: np.ascontiguousarray(value, dtype) for name, value in arrays.items()}, path)


def _save_mixed(path: Path, arrays: Arrays) -> None:
    """Save floats as float32, and anything else as int32."""
    kinds = {name: np.float32 if value.dtype.kind == "f" else np.int32 for name, value in arrays.items()}
    save_file({name: np.ascontiguousarray(value, kinds[name]) for name, value in arrays.items()}, path)


def _described(probe: Probe, dtype: str) -> dict[str, Any]:
    return {
        "for": probe.purpose,
        "inputs": {name: list(value.shape) for name, value in probe.inputs.items()},
        "taps": {
            tap: {"shape": list(value.shape), "budget": probe.oracle.budget(tap, dtype)}
            for tap, value in probe.oracle.expected.items()
        },
    }
