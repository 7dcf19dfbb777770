"""The manifest of a bundle: what it says of the other files, held to the configuration and to itself."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.inputs import input_form
from transparity.taps import tap_shapes
from transparity_conformance.capabilities.table import CAPABILITIES
from transparity_conformance.checkpoints.files import LARGEST_JSON, BundleError, file_size, parse_json, read_bytes
from transparity_conformance.report.text import VALUE

FORMAT = 2
FILES = ("config.json", "parameters.safetensors", "inputs.safetensors", "expected.safetensors")
SECTIONS = tuple(CAPABILITIES)
"""The optional sections of a bundle; the format of the rest does not depend on them."""
MOST_PROBES = 16


def files_of(sections: Collection[str]) -> tuple[str, ...]:
    """The files of a bundle with these sections, except the manifest itself."""
    return (*FILES, *(CAPABILITIES[name].file for name in sections if CAPABILITIES[name].file))


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def own_digest(manifest: Mapping[str, Any]) -> str:
    """Of the manifest as plain JSON, without this digest itself."""
    files = {name: said for name, said in manifest["sha256"].items() if name != "manifest.json"}
    text = json.dumps({**manifest, "sha256": files}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    manifest = parse_json(path, read_bytes(path, LARGEST_JSON))
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise BundleError(f"{path} is not the manifest of a bundle.")
    if type(manifest["format"]) is not int or manifest["format"] != FORMAT:
        raise BundleError(f"{path} is of the format {shown(manifest['format'])}; expected {FORMAT}.")
    sections = [name for name in SECTIONS if name in manifest]
    kinds = {"format": int, "preset": str, "dtype": str, "probes": dict, "sha256": dict}
    check_fields(path, "it", manifest, kinds | dict.fromkeys(sections, dict))
    check_fields(path, "sha256", manifest["sha256"], dict.fromkeys((*files_of(sections), "manifest.json"), str))
    try:
        own = own_digest(manifest)
    except RecursionError:
        raise BundleError(f"{path} is not the manifest of a bundle.") from None
    if manifest["sha256"]["manifest.json"] != own:
        raise BundleError(f"{path} was changed: it does not have the sha256 that it says of itself.")
    check_probes(path, manifest["probes"])
    return manifest


def check_probes(path: Path, probes: Mapping[str, Any]) -> None:
    """Raise `BundleError` for probes that are too many, or not described as they should be."""
    if not 1 <= len(probes) <= MOST_PROBES:
        raise BundleError(f"{path} has {len(probes)} probes; expected 1 to {MOST_PROBES}.")
    for name, said in probes.items():
        if not (name.isascii() and name.isidentifier() and len(name) <= VALUE):
            raise BundleError(f"{path} has a probe {shown(name)}; a probe's name should be one word.")
        check_fields(path, f"the probe {name}", said, {"for": str, "inputs": dict, "taps": dict})
        if not said["for"].isprintable():
            raise BundleError(f"{path} is not right: what {name} is for is {shown(said['for'])}.")


def check_digests(folder: Path, manifest: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise `BundleError` for a file that does not have the sha256 that the manifest says."""
    for name in names:
        file_size(folder / name)  # refuses a pipe, which could be read without end
        try:
            found = digest(folder / name)
        except OSError as error:
            raise BundleError(f"{folder / name} cannot be read: {error.strerror or error}.") from None
        if manifest["sha256"].get(name) != found:
            raise BundleError(f"{folder / name} was changed: it does not have the sha256 that manifest.json says.")


def check_fields(path: Path, what: str, fields: Any, kinds: Mapping[str, Any]) -> None:
    if not isinstance(fields, dict) or set(fields) != set(kinds):
        raise BundleError(f"{path} is not right: {what} should have the fields {', '.join(kinds)} alone.")
    for name, kind in kinds.items():
        if not isinstance(fields[name], kind) or isinstance(fields[name], bool):
            raise BundleError(f"{path} is not right: {name} of {what} is {shown(fields[name])}.")


def promised_shapes(
    path: Path, config: TransformerConfig, listed: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The shapes of all inputs and of all taps, by the manifest and held to the configuration."""
    inputs, taps = promised_inputs(path, config, listed), dict[str, tuple[int, ...]]()
    for probe, said in listed.items():
        shapes = said["inputs"]
        lengths = {name: config.positions_of(name) or shapes[name][1] for name in config.input_names}
        expected = tap_shapes(config, shapes[config.input_names[0]][0], **lengths)
        _check_taps(path, probe, said["taps"], expected)
        taps |= {f"{probe}/{tap}": shape for tap, shape in expected.items()}
    return inputs, taps


def promised_inputs(path: Path, config: TransformerConfig, listed: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of all inputs, by the manifest and held to the configuration."""
    inputs: dict[str, tuple[int, ...]] = {}
    for probe, said in listed.items():
        shapes = said["inputs"]
        forms = {name: input_form(config, name) for name in (*config.input_names, *config.further_inputs)}
        if set(shapes) != set(forms) or not all(_is_shape(shapes[name], 1 + len(forms[name].axes)) for name in forms):
            raise BundleError(f"{path} is not right: the inputs of {probe} are {shown(shapes)}.")
        if len({shape[0] for shape in shapes.values()}) > 1:
            raise BundleError(f"{path} is not right: the inputs of {probe} have different numbers of rows.")
        for name, form in forms.items():
            if not form.has_shape(config, shapes[name]):
                raise BundleError(f"{path} is not right: {_mismatch(config, name, probe, shapes[name])}.")
        if any(shapes[name] != shapes[config.input_names[0]] for name in config.further_inputs):
            raise BundleError(f"{path} is not right: what is given beside the tokens of {probe} has another shape.")
        inputs |= {f"{probe}/{name}": tuple(shape) for name, shape in shapes.items()}
    return inputs


def _mismatch(config: TransformerConfig, name: str, probe: str, shape: list[int]) -> str:
    form = input_form(config, name)
    if not form.is_float:
        return f"an input of {probe} is longer than max_length"
    sizes = ", ".join(map(str, form.axes))
    what = "images" if name == "pixels" else "frames"
    return f"the {what} of {probe} are {shown(shape)}; expected (batch, {sizes})"


def whole_numbers(config: TransformerConfig, shapes: Mapping[str, Any]) -> set[str]:
    """The `{probe}/{input}` of whole numbers, which tensors of inputs are by the configuration."""
    return {name for name in shapes if not input_form(config, name.partition("/")[2]).is_float}


def _is_shape(shape: Any, axes: int) -> bool:
    return isinstance(shape, list) and len(shape) == axes and all(type(size) is int and size > 0 for size in shape)


def _check_taps(path: Path, probe: str, said: Any, expected: Mapping[str, tuple[int, ...]]) -> None:
    for tap in (*expected, *said):
        if tap not in expected or tap not in said:
            raise BundleError(f"{path} is not right: the tap {shown(tap)} of {probe} is missing or unknown.")
        check_fields(path, f"the tap {tap} of {probe}", said[tap], {"shape": list, "budget": int | float})
        if said[tap]["shape"] != list(expected[tap]):
            raise BundleError(f"{path} is not right: the tap {tap} of {probe} has another shape in the configuration.")
        if not 0 <= said[tap]["budget"] < math.inf:
            raise BundleError(f"{path} is not right: the budget of {tap} of {probe} is {shown(said[tap]['budget'])}.")
