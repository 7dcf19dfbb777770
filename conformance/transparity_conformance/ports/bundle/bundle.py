"""Bundles: a check as a folder of files, for a port in any language.

`manifest.json` says what the others hold; `config.json`, `parameters.safetensors` and `inputs.safetensors` are what a
port reads, `expected.safetensors` is what it should say; `targets.safetensors` comes with the section of gradients.
Reading trusts nothing: sizes are held to the configuration and to the files before anything is loaded, and what is
expected is computed anew.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.inputs import check_inputs
from transparity.parameters import check_parameters, parameter_shapes
from transparity.presets import preset
from transparity.taps import tap_shapes
from transparity_conformance.checkpoints.files import BundleError, file_size, read_bytes
from transparity_conformance.diagnosis.judge import Progress, judge
from transparity_conformance.oracle.budgets import RULES
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.ports.bundle.judge import judge_sections
from transparity_conformance.ports.bundle.manifest import (
    FORMAT,
    SECTIONS,
    TARGETS,
    digest,
    files_of,
    own_digest,
    promised_shapes,
    read_manifest,
)
from transparity_conformance.ports.bundle.safetensors_reader import load_entries, read_entries
from transparity_conformance.ports.bundle.sections import (
    asked,
    check_section,
    check_targets,
    described,
    in_order,
    targets,
)
from transparity_conformance.report.capability_result import with_capabilities
from transparity_conformance.report.report import Report

ACTUAL = "actual.safetensors"
ACTUAL_DTYPES = ("F64", "F32", "F16", "BF16")

SMALLEST_VOCABULARY = 3
LONGEST = 256
"""Longer than this, no probe is of the full `max_length`: scores grow with its square."""
LARGEST_CONFIG = 2**16
BYTES_OF_A_LAYER = 500
"""Fewer than the names of a layer's parameters take."""

SIZES = (
    "source_vocab_size",
    "target_vocab_size",
    "max_length",
    "embed_dim",
    "num_heads",
    "num_key_value_heads",
    "attention_head_dim",
    "num_encoder_layers",
    "num_decoder_layers",
    "feed_forward_dim",
    "sliding_window",
    "full_attention_every",
    "rotary_dim",
    "rotary_original_length",
    "relative_buckets",
    "relative_max_distance",
)
"""What may differ between two sizes of one system."""

Outputs = dict[str, dict[str, np.ndarray]]
"""What a port said: by probe, by tap or by what else it was asked for."""


@dataclass(frozen=True, eq=False)
class Bundle:
    """One configuration, one set of parameters, and probes that share them."""

    name: str
    """The preset's, or `config`."""
    dtype: str
    config: TransformerConfig
    probes: dict[str, Probe]
    sections: tuple[str, ...] = ()
    """What a port may write beside its taps: of `SECTIONS`."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every `{probe}/{tap}` with its shape."""
        return {
            f"{name}/{tap}": shape
            for name, probe in self.probes.items()
            for tap, shape in _tap_shapes(self.config, probe.inputs).items()
        }

    @functools.cached_property
    def asked(self) -> dict[str, tuple[int, ...]]:
        """Every `{probe}/{name}` of the sections with its shape."""
        shapes = [asked(section, self.probes, self.dtype) for section in self.sections]
        return {name: shape for section in shapes for name, shape in section.items()}


def bundle_probes(name: str, config: TransformerConfig) -> dict[str, Probe]:
    """The probes of `config` that share its ordinary parameters."""
    if min(config.stack_vocab_size(config.input_stack(read)) for read in config.input_names) < SMALLEST_VOCABULARY:
        raise BundleError(f"A bundle needs vocabularies of at least {SMALLEST_VOCABULARY} tokens, for rows to differ.")
    made = probes_of(config, name)
    ordinary = made["mixed"].parameters
    return {
        key: probe
        for key, probe in made.items()
        if probe.parameters is ordinary and (key != "longest" or config.max_length <= LONGEST)
    }


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
    _check_name(name, config)
    _check_dtype(dtype)
    chosen = dict(bundle_probes(name, config) if probes is None else probes)
    bundle = Bundle(name, dtype, config, chosen, in_order(sections))
    _check_shared(bundle)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / "manifest.json").is_file():
            raise BundleError(f"{folder} has other files in it; expected an empty folder, or a new one.")
        _write(bundle, folder)
    except (OSError, SafetensorError) as error:
        raise BundleError(f"{folder} cannot be written: {getattr(error, 'strerror', None) or error}.") from None
    return bundle


def read_bundle(folder: str | Path) -> Bundle:
    """The bundle in `folder`; raises `TransparityError`, in one sentence, for anything that is not as it should be."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BundleError(f"{folder} is not a folder; expected a bundle, as `transparity export` writes it.")
    manifest = read_manifest(folder)
    name, dtype, listed = manifest["preset"], manifest["dtype"], manifest["probes"]
    config = read_config(folder / "config.json")
    _check_layers(folder, config)
    _check_name(name, config)
    _check_dtype(dtype)
    parameters, inputs, expected, aims = _read_arrays(folder, config, manifest)
    check_parameters(config, parameters)
    parameters = {name: parameters[name] for name in parameter_shapes(config)}  # a file may be in another order
    probes = {}
    for probe, said in listed.items():
        read = (*config.input_names, *config.further_inputs)
        tokens = check_inputs(config, {name: inputs[f"{probe}/{name}"] for name in read})
        probes[probe] = Probe(name, probe, said["for"], config, parameters, tokens)
    bundle = Bundle(name, dtype, config, probes, tuple(section for section in SECTIONS if section in manifest))
    for section in bundle.sections:
        check_section(folder / "manifest.json", section, manifest[section], probes, dtype)
    check_targets(folder / TARGETS, aims, probes)
    _check_expected(folder, bundle, expected)
    return bundle


def read_config(path: Path) -> TransformerConfig:
    """The configuration in a file; raises `BundleError` or `ConfigError`."""
    try:
        return TransformerConfig.from_json(read_bytes(path, LARGEST_CONFIG).decode("utf-8"))
    except UnicodeDecodeError:
        raise BundleError(f"{path} is not JSON: it is not UTF-8.") from None


def read_actual(path: str | Path, bundle: Bundle, *, cut: bool = False) -> Outputs:
    """What a port wrote: by probe, by name; a probe without logits is left out, for it is not compared.

    Raises `BundleError` for a name that the bundle does not have, another shape, or another dtype. With `cut`, for a
    port that was stopped, what a file that ends early holds whole is taken.
    """
    path = Path(path)
    outputs: Outputs = {}
    entries = read_entries(path, bundle.shapes | bundle.asked, ACTUAL_DTYPES, optional=True, cut=cut)
    for name, value in load_entries(path, entries).items():
        probe, _, said = name.partition("/")
        outputs.setdefault(probe, {})[said] = value
    return {probe: taps for probe, taps in outputs.items() if "logits" in taps}


def judge_bundle(
    bundle: Bundle,
    said: Outputs,
    *,
    logits_only: bool = False,
    progress: Progress | None = None,
    stopped: bool = False,
) -> Report:
    """The verdict on what a port said of a bundle; what one that was `stopped` did not write is no fault."""
    taps = {
        probe: {tap: value for tap, value in of.items() if f"{probe}/{tap}" not in bundle.asked}
        for probe, of in said.items()
    }
    name, dtype = bundle.name, bundle.dtype
    with np.errstate(all="ignore"):  # what a stranger wrote may be of any size
        report = judge(name, bundle.probes, taps, dtype=dtype, logits_only=logits_only, progress=progress)
        found = judge_sections(bundle.sections, bundle.probes, said, dtype, report.verdict, stopped=stopped)
    return with_capabilities(report, found)


def _tap_shapes(config: TransformerConfig, inputs: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    lengths = {name: inputs[name].shape[1] for name in config.input_names}
    return tap_shapes(config, len(inputs[config.input_names[0]]), **lengths)


# Writing


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
    _save(folder / "inputs.safetensors", inputs, np.int32)
    expected = {f"{name}/{tap}": value for name, probe in probes for tap, value in probe.oracle.expected.items()}
    _save(folder / "expected.safetensors", expected, np.float64)
    if "gradients" in bundle.sections:
        _save(folder / TARGETS, targets(bundle.probes), np.int32)
    else:
        (folder / TARGETS).unlink(missing_ok=True)  # of a bundle that was here before
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "preset": bundle.name,
        "dtype": bundle.dtype,
        "probes": {name: _described(probe, bundle.dtype) for name, probe in probes},
        **{section: described(section, bundle.probes, bundle.dtype) for section in bundle.sections},
        "sha256": {name: digest(folder / name) for name in files_of(bundle.sections)},
    }
    manifest["sha256"]["manifest.json"] = own_digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _save(path: Path, arrays: Mapping[str, np.ndarray], dtype: type[np.generic]) -> None:
    save_file({name: np.ascontiguousarray(value, dtype) for name, value in arrays.items()}, path)


def _described(probe: Probe, dtype: str) -> dict[str, Any]:
    return {
        "for": probe.purpose,
        "inputs": {name: list(value.shape) for name, value in probe.inputs.items()},
        "taps": {
            tap: {"shape": list(value.shape), "budget": probe.oracle.budget(tap, dtype)}
            for tap, value in probe.oracle.expected.items()
        },
    }


# Reading


def _check_name(name: str, config: TransformerConfig) -> None:
    """A bundle may bear a preset's name if it is that system, at whatever size."""
    if name == "config":
        return
    sizes = {field: getattr(config, field) for field in SIZES}
    if preset(name).architecture != config.architecture or preset(name).resized(**sizes) != config:
        raise BundleError(f"The bundle is said to be of {name!r}, but its configuration is of another system.")


def _check_dtype(dtype: str) -> None:
    if dtype not in RULES:
        raise BundleError(f"The dtype is {shown(dtype)}; it should be one of {', '.join(RULES)}.")


def _check_layers(folder: Path, config: TransformerConfig) -> None:
    """Names are listed for every layer, so there should be no more than a file can hold."""
    layers = config.num_encoder_layers * config.has_encoder + config.num_decoder_layers * config.has_decoder
    path, size = folder / "parameters.safetensors", file_size(folder / "parameters.safetensors")
    if layers * BYTES_OF_A_LAYER > size:
        raise BundleError(f"config.json speaks of {layers} layers, more than {path} can hold in {size} bytes.")


def _read_arrays(folder: Path, config: TransformerConfig, manifest: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    """The files of tensors: every header first, then the digests, and only then the data."""
    names = files_of([section for section in SECTIONS if section in manifest])
    parameters = read_entries(folder / names[1], parameter_shapes(config), ["F32"])
    inputs, taps = promised_shapes(folder / "manifest.json", config, manifest["probes"])
    aims = {f"{probe}/targets": inputs[f"{probe}/{config.input_names[-1]}"] for probe in manifest["probes"]}
    promised = (
        parameters,
        read_entries(folder / names[2], inputs, ["I32"]),
        read_entries(folder / names[3], taps, ["F64"]),
        *(read_entries(folder / name, aims, ["I32"]) for name in names[4:]),
    )
    for name in names:
        try:
            found = digest(folder / name)
        except OSError as error:
            raise BundleError(f"{folder / name} cannot be read: {error.strerror or error}.") from None
        if manifest["sha256"][name] != found:
            raise BundleError(f"{folder / name} was changed: it does not have the sha256 that manifest.json says.")
    first, second, third, *rest = (
        load_entries(folder / name, of) for name, of in zip(names[1:], promised, strict=True)
    )
    return first, second, third, rest[0] if rest else {}


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
