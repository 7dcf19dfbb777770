"""Reading bundles and answers from strangers.

Nothing is trusted: sizes are compared with the configuration and the files before anything is loaded, and the right
answers are computed anew.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.inputs import check_inputs
from transparity.limits.files import is_folder
from transparity.parameters import check_parameters, parameter_shapes
from transparity_conformance.checkpoints.files import BundleError, file_size, read_bytes
from transparity_conformance.exchange.bundle.bundle import Bundle, Outputs, check_dtype, check_name
from transparity_conformance.exchange.bundle.manifest import (
    SECTIONS,
    check_digests,
    files_of,
    promised_shapes,
    read_manifest,
    whole_numbers,
)
from transparity_conformance.exchange.bundle.safetensors_reader import load_entries, read_entries
from transparity_conformance.exchange.bundle.sections import Section, check_section, received, section_of
from transparity_conformance.oracle.probes import Probe

ACTUAL_DTYPES = ("F64", "F32", "F16", "BF16")

LARGEST_CONFIG = 2**16
BYTES_OF_A_LAYER = 500
"""Fewer than the names of a layer's parameters take."""


def read_bundle(folder: str | Path) -> Bundle:
    """The bundle in `folder`; raises `TransparityError`, in one sentence, for anything that is not as it should be."""
    folder = Path(folder)
    if not is_folder(folder):
        raise BundleError(f"{folder} is not a folder; expected a bundle, as `transparity export` writes it.")
    manifest = read_manifest(folder)
    name, dtype, listed = manifest["preset"], manifest["dtype"], manifest["probes"]
    config = read_config(folder / "config.json")
    _check_layers(folder, config)
    check_name(name, config)
    check_dtype(dtype)
    names = files_of([section for section in SECTIONS if section in manifest])
    parameters, inputs, expected = _read_arrays(folder, config, manifest, names)
    check_parameters(config, parameters)
    parameters = {name: parameters[name] for name in parameter_shapes(config)}  # a file may be in another order
    probes = {}
    for probe, described in listed.items():
        read = (*config.input_names, *config.further_inputs)
        tokens = check_inputs(config, {name: inputs[f"{probe}/{name}"] for name in read})
        probes[probe] = Probe(name, probe, described["for"], config, parameters, tokens)
    _check_expected(folder, Bundle(name, dtype, config, probes), expected)
    sections = {
        name: _read_section(folder, name, manifest[name], probes, dtype) for name in SECTIONS if name in manifest
    }
    return Bundle(name, dtype, config, probes, sections)


def read_config(path: Path) -> TransformerConfig:
    """The configuration in a file; raises `BundleError` or `ConfigError`."""
    try:
        return TransformerConfig.from_json(read_bytes(path, LARGEST_CONFIG).decode("utf-8"))
    except UnicodeDecodeError:
        raise BundleError(f"{path} is not JSON: it is not UTF-8.") from None


def read_actual(path: str | Path, bundle: Bundle, *, cut: bool = False) -> Outputs:
    """Read the tensors that a port wrote. A probe without logits is left out: it is not compared.

    Raises `BundleError` for a name that the bundle does not have, another shape, or another dtype. With `cut`, for a
    port that was stopped, the file may end early, and whole tensors are taken.
    """
    path = Path(path)
    outputs: Outputs = {}
    tokens = {name for name in bundle.asked if name.endswith("/tokens")}
    entries = read_entries(path, bundle.shapes | bundle.asked, ACTUAL_DTYPES, optional=True, cut=cut, integers=tokens)
    for name, value in load_entries(path, entries).items():
        group, _, rest = name.partition("/")
        outputs.setdefault(group, {})[rest] = value
    return {group: of for group, of in outputs.items() if "logits" in of or group not in bundle.probes}


def _check_layers(folder: Path, config: TransformerConfig) -> None:
    """Names are listed for every layer, so there should be no more than a file can hold."""
    layers = config.num_encoder_layers * config.has_encoder + config.num_decoder_layers * config.has_decoder
    path, size = folder / "parameters.safetensors", file_size(folder / "parameters.safetensors")
    if layers * BYTES_OF_A_LAYER > size:
        raise BundleError(f"config.json speaks of {layers} layers, more than {path} can hold in {size} bytes.")


def _read_arrays(
    folder: Path, config: TransformerConfig, manifest: Mapping[str, Any], names: Collection[str]
) -> list[dict[str, np.ndarray]]:
    """The parameters, inputs and expected taps: every header first, then the digests of all `names`, then the data."""
    inputs, taps = promised_shapes(folder / "manifest.json", config, manifest["probes"])
    entries = {
        "parameters.safetensors": read_entries(folder / "parameters.safetensors", parameter_shapes(config), ["F32"]),
        "inputs.safetensors": read_entries(
            folder / "inputs.safetensors", inputs, ["F32"], integers=whole_numbers(config, inputs)
        ),
        "expected.safetensors": read_entries(folder / "expected.safetensors", taps, ["F64"]),
    }
    check_digests(folder, manifest, names)
    return [load_entries(folder / name, of) for name, of in entries.items()]


def _read_section(
    folder: Path, name: str, described: Mapping[str, Any], probes: Mapping[str, Probe], dtype: str
) -> Section:
    section = section_of(name, probes, dtype)
    check_section(folder / "manifest.json", section, described)
    if not section.row.file:
        return section
    path, expected = folder / section.row.file, section.tensors()
    integers = {name for name, value in expected.items() if value.dtype.kind != "f"}
    shapes = {name: value.shape for name, value in expected.items()}
    tensors = load_entries(path, read_entries(path, shapes, ["F32"], integers=integers))
    return received(path, section, described, tensors)


def _check_expected(folder: Path, bundle: Bundle, expected: Mapping[str, np.ndarray]) -> None:
    """Hold what a bundle says is right to what the reference says now; budgets are taken from the latter alone."""
    path = folder / "expected.safetensors"
    for name, probe in bundle.probes.items():
        with np.errstate(all="ignore"):
            right = probe.oracle.expected
            budgets = {tap: probe.oracle.budget(tap, bundle.dtype) for tap in right}
            strict = {tap: probe.oracle.budget(tap, "float64") for tap in right}
            errors = {tap: np.abs(expected[f"{name}/{tap}"] - right[tap]).max(initial=0.0) for tap in right}
        for tap, value in right.items():
            if not (np.isfinite(value).all() and math.isfinite(budgets[tap])):
                raise BundleError(f"The parameters in {folder} are too large: {tap} of {name} is not finite.")
        for tap, error in errors.items():
            if not error <= strict[tap]:
                raise BundleError(
                    f"{path} is not what the reference says: {name}/{tap} is off by {error:.3g}, "
                    f"and rounding explains {strict[tap]:.3g}."
                )
