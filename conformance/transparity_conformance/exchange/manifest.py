"""The manifest of a bundle, `manifest.json`, which describes all other files of the bundle.

A bundle contains weights in `parameters.safetensors`, or refers to the tensors of a checkpoint by their sha256. A
manifest with `bundles` describes a folder with several bundles.
"""

import hashlib
import json
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from transparity.errors import shown
from transparity.text import MESSAGE, VALUE, reason, safe
from transparity_conformance.capabilities.table import CAPABILITIES
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.checkpoints.files import LARGEST_JSON, BundleError, parse_json, read_bytes
from transparity_conformance.exchange.tensors import opened
from transparity_conformance.oracle.budgets import RULES

MANIFEST = "manifest.json"
CHECKPOINT = "checkpoint"
"""The name of the folder that contains the layer's checkpoint, in a bundle of a single layer."""

FILES = ("config.json", "parameters.safetensors", "inputs.safetensors", "expected.safetensors")
"""The files of a bundle with weights, except the files of capabilities."""

SECTIONS = tuple(CAPABILITIES)
MOST_PROBES = 16
LARGEST_CONFIG = 2**16

Size = Annotated[int, Meta(ge=0)]
Word = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=VALUE)]
Text = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$")]
StoredShapes = dict[str, list[Size]]


class Strict(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """An object in the manifest, in which unknown fields are an error."""


class ProbeFields(Strict):
    """A probe: its inputs, and the activations that a port may write. In names, `{i}` is a layer's number from 0."""

    purpose: Text = msgspec.field(name="for")
    inputs: StoredShapes
    taps: StoredShapes
    budgets: dict[str, Annotated[float, Meta(ge=0, le=sys.float_info.max)]] = {}
    """The tolerance of each activation, in bundles with weights."""


class SectionFields(Strict):
    """A capability: its requests, the tensors in its file, and the tensors that a port may write."""

    purpose: Text = msgspec.field(name="for")
    requests: dict[str, dict[str, Any]]
    inputs: StoredShapes
    actual: StoredShapes


class TensorFields(Strict):
    shape: list[Size]
    dtype: str
    sha256: str


class CheckpointFields(Strict):
    model_type: Literal[tuple(FAMILIES)]  # type: ignore[valid-type]
    head: Annotated[str, Meta(pattern="^(hidden|pooled|logits|classes)$")] | None
    tensors: dict[str, TensorFields]


class Manifest(Strict):
    name: Text
    dtype: Literal[tuple(RULES)]  # type: ignore[valid-type]
    probes: Annotated[dict[Word, ProbeFields], Meta(min_length=1, max_length=MOST_PROBES)]
    checkpoint: CheckpointFields | None = None
    capabilities: dict[Literal[SECTIONS], SectionFields] = {}  # type: ignore[valid-type]
    format: Literal[4] = 4
    sha256: dict[str, str] = {}

    @property
    def files(self) -> tuple[str, ...]:
        return ("config.json", "inputs.safetensors") if self.checkpoint else files_of(self.capabilities)


class Several(Strict):
    """The manifest of a folder with several bundles, as {folder of a bundle: name of the bundle}."""

    bundles: dict[Annotated[str, Meta(pattern=r"^(?!\.\.?$)[^/\\]+$")], Text]
    format: Literal[4] = 4
    sha256: dict[str, str] = {}
    files = ()


def files_of(sections: Collection[str]) -> tuple[str, ...]:
    return (*FILES, *(CAPABILITIES[name].file for name in sections if CAPABILITIES[name].file))


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def own_digest(manifest: Mapping[str, Any]) -> str:
    """Return the sha256 of a manifest, computed without the entry that holds this hash."""
    files = {name: said for name, said in manifest["sha256"].items() if name != MANIFEST}
    text = json.dumps({**manifest, "sha256": files}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest | Several:
    """Read the manifest of a folder; raise `BundleError` if it is invalid, or if a hash does not match."""
    path = folder / MANIFEST
    raw = parse_json(path, read_bytes(path, LARGEST_JSON))
    if not isinstance(raw, dict) or "format" not in raw:
        raise BundleError(f"{path} is not the manifest of a bundle; export the bundle again.")
    kind: type[Manifest | Several] = Several if "bundles" in raw else Manifest
    try:
        manifest = msgspec.convert(raw, kind)
        own = own_digest(raw)
    except msgspec.ValidationError as error:
        raise _refused(path, error) from None
    except (RecursionError, UnicodeEncodeError):  # UTF-8 cannot encode a lone surrogate
        raise BundleError(f"{path} is not the manifest of a bundle; export the bundle again.") from None
    if set(manifest.sha256) != {MANIFEST, *manifest.files}:
        raise BundleError(
            f"{path} is not valid: it lists hashes of the files {shown([*manifest.sha256])}; expected hashes of "
            f"{shown([MANIFEST, *manifest.files])}; export the bundle again."
        )
    if manifest.sha256[MANIFEST] != own:
        raise BundleError(
            f"{path} was changed: its content does not match the sha256 that it contains; export the bundle again."
        )
    _check_digests(folder, manifest)
    return manifest


def write_manifest(folder: Path, manifest: Manifest | Several) -> None:
    manifest.sha256 = {name: digest(folder / name) for name in manifest.files}
    fields = {"format": manifest.format} | msgspec.to_builtins(manifest)
    fields["sha256"] = fields.pop("sha256", {})
    fields["sha256"][MANIFEST] = own_digest(fields)
    (folder / MANIFEST).write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


def _refused(path: Path, error: msgspec.ValidationError) -> BundleError:
    what, _, where = str(error).partition(" - at ")
    place = where.replace("`", "").replace("$.", "").replace("$", "the whole")
    what = re.sub("`", "'", what[:1].lower() + what[1:])
    at = f" at {place}" if place else ""
    return BundleError(f"{path} is not valid{at}: {safe(what, MESSAGE)}; export the bundle again.")


def _check_digests(folder: Path, manifest: Manifest | Several) -> None:
    """Raise `BundleError` if the sha256 of a file differs from the manifest. Before hashing a file, check its size or
    its header, because the file could be a pipe or have any size."""
    for name in manifest.files:
        path = folder / name
        _ = read_bytes(path, LARGEST_CONFIG) if name == "config.json" else opened(path)
        try:
            found = digest(path)
        except OSError as error:
            raise BundleError(f"{path} cannot be read: {reason(error)}.") from None
        if manifest.sha256[name] != found:
            raise BundleError(
                f"{path} was changed: its sha256 differs from the sha256 in {MANIFEST}; export the bundle again."
            )
