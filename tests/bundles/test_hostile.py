import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.bundles.test_bundle import SMALL
from tests.contract.test_hostile_files import LIES, entry, header
from tests.helpers import table

from transparity.errors import TransparityError
from transparity_conformance.exchange import manifest as manifests
from transparity_conformance.exchange.bundle import ACTUAL
from transparity_conformance.exchange.manifest import MANIFEST, SECTIONS, digest, files_of, own_digest
from transparity_conformance.exchange.reading import read_actual, read_bundle
from transparity_conformance.exchange.writing import export_bundle

MEGABYTES = 300
"""The largest permitted growth of memory."""

Change = Callable[[Path], object]
Row = tuple[Change, str]
"""A change to a folder, and a part of the error message that the change must cause."""


@pytest.fixture(autouse=True)
def _memory_does_not_grow() -> Iterator[None]:
    resource = pytest.importorskip("resource")
    scale = 2**20 if sys.platform == "darwin" else 2**10
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / scale < MEGABYTES


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "bundle"
    export_bundle(SMALL, folder, name="translation")
    return folder


@pytest.fixture(scope="module")
def sectioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sectioned") / "bundle"
    export_bundle(SMALL, folder, name="translation", sections=SECTIONS)
    return folder


def sentence(call: Callable[[], object]) -> str:
    """Return the message of a call's error, which must be one sentence; without an error, return an empty string."""
    try:
        call()
    except TransparityError as error:
        text = str(error)
        assert text.endswith(".") and "\n" not in text and text.isprintable(), text
        return text
    return ""


def not_refused(rows: dict[str, Row], original: Path, tmp_path: Path, read: Callable[[Path], object]) -> list[str]:
    wrong = []
    for number, (name, (change, says)) in enumerate(rows.items()):
        folder = Path(shutil.copytree(original, tmp_path / str(number)))
        change(folder)
        said = sentence(lambda folder=folder: read(folder))  # type: ignore[misc]
        wrong += [] if said and says in said else [f"{name}: {said or 'not refused'}"]
    return wrong


def sign(folder: Path, manifest: dict[str, Any]) -> None:
    if isinstance(manifest.get("sha256"), dict):
        manifest["sha256"] |= {name: digest(folder / name) for name in manifest["sha256"] if name in files_of(SECTIONS)}
        manifest["sha256"][MANIFEST] = own_digest(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def put(place: str, value: Any) -> Change:
    """Change one entry of the manifest, and update the digests."""

    def change(folder: Path) -> None:
        manifest = fields = json.loads((folder / MANIFEST).read_text())
        *outer, last = place.split(" ")
        for name in outer:
            fields = fields[name]
        fields[last] = value
        sign(folder, manifest)

    return change


def tensors(
    file: str, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], *, signed: bool = True
) -> Change:
    def changed(folder: Path) -> None:
        found = {name: np.ascontiguousarray(value) for name, value in change(load_file(folder / file)).items()}
        save_file(found, folder / file)
        if signed:
            sign(folder, json.loads((folder / MANIFEST).read_text()))

    return changed


def one(file: str, name: str, change: Callable[[np.ndarray], np.ndarray], *, signed: bool = True) -> Change:
    return tensors(f"{file}.safetensors", lambda found: found | {name: change(found[name])}, signed=signed)


def config(**fields: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        sign(folder, json.loads((folder / MANIFEST).read_text()))

    return change


def both(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


def file(name: str, content: bytes | None) -> Change:
    return lambda folder: (folder / name).unlink() if content is None else (folder / name).write_bytes(content)


def flipped(name: str) -> Change:
    def change(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[data.index(b'"max_length": 11') + 15 if name == "config.json" else len(data) - 1] ^= 1
        (folder / name).write_bytes(data)

    return change


NONE = [b"[" * 200_000, b'{"a":' * 200_000, b"9" * 10_000, b"\xff", b'{"a": NaN}', b'{"a": 1, "a": 1}', b"null", b"{}"]
OFF, TYPE = "differs from the reference", "is not valid at "
PROBE = {"for": "", "inputs": {"source": [8, 1], "target": [8, 1]}, "taps": {}}

FILES: dict[str, Row] = {
    **{f"no {name}": (file(name, None), "There is no file") for name in (MANIFEST, *manifests.FILES)},
    **{f"a bit of {name}": (flipped(name), "was changed") for name in manifests.FILES},
    **{f"{name} is {text[:20]!r}": (file(name, text), "") for text in NONE for name in (MANIFEST, "config.json")},
    "a pipe": (both(file("config.json", None), lambda folder: os.mkfifo(folder / "config.json")), "is not a file"),
    "several": (lambda folder: sign(folder, {"format": 4, "bundles": {"a": "b"}, "sha256": {}}), "has several bundles"),
    "expected": (one("expected", "one/logits", lambda x: x * (1 + 1e-9)), f"{OFF}: one/logits has the error"),
    "expected NaN": (one("expected", "one/logits", lambda x: x * np.nan), f"{OFF}: one/logits has the error nan"),
    "parameters": (one("parameters", "head.bias", lambda x: x + 1), OFF),
    "inputs": (one("inputs", "one/target", lambda x: x ^ 1), OFF),
    "another system": (config(attention_scale="head_dim"), "is named 'translation', but its configuration"),
    "a system": (both(config(attention_scale="head_dim"), put("name", "config")), OFF),
    "overflow": (
        tensors("parameters.safetensors", lambda all_: {name: all_[name] * 0 + 1e38 for name in all_}),
        "too large",
    ),
    "infinite": (one("parameters", "head.bias", lambda x: x * np.inf), "Parameter 'head.bias' is"),
    "a token": (one("inputs", "one/target", lambda x: x + 999), "outside the vocabulary"),
    **{
        f"{name} of {size}": (config(**{name: size}), "")
        for name, size in {
            "max_length": 2**31 - 1,
            "source_vocab_size": 2**31 - 1,
            "num_decoder_layers": 1_000,
            "feed_forward_dim": 2**31 - 1,
            "embed_dim": 2**30,
        }.items()
    },
    "inputs larger than their file": (
        both(
            config(positions="sinusoidal", max_length=2**31 - 1),
            put("name", "config"),
            put("probes one inputs", {"source": [8, 2**30], "target": [8, 2**30]}),
        ),
        "",
    ),
}

TABLE = table(__file__, "refused.toml")

PLACES: list[tuple[str, Any, str]] = [(place, json.loads(value), says) for place, value, says in TABLE["manifest"]]
PLACES += [
    ("probes", dict.fromkeys(map("p{}".format, range(17)), PROBE), f"{TYPE}probes: "),
    ("probes", {"../x": PROBE}, f"{TYPE}key in probes: "),
]

MANIFESTS: dict[str, Row] = {f"{place} = {str(value)[:40]}": (put(place, value), says) for place, value, says in PLACES}

ANOTHER = "does not fit the configuration and probes"
NOT_ASKED = ("packed", "resized")
"""Sections without requests: this model packs no documents and reads no images."""

SECTIONED: dict[str, Row] = {
    f"{place} = {value}": (put(f"capabilities {place}", value), says)
    for place, value, says in [
        ("loss for", 5, f"{TYPE}capabilities[...].for: "),
        ("loss for", "\x1b[2J", f"{TYPE}capabilities[...].for: "),
        ("loss more", 1, "unknown field 'more'"),
        ("loss inputs", {"one/targets": [True, 1]}, f"{TYPE}capabilities[...].inputs[...][0]: "),
        *((f"{section} actual", {}, ANOTHER) for section in SECTIONS if section not in NOT_ASKED),
        ("training actual", {"mixed/loss": [2**40]}, ANOTHER),
        ("steps requests", {"mixed/step.one_by_one": {"sizes": [2**40]}}, ANOTHER),
        ("loss inputs", {}, ANOTHER),
    ]
} | {
    "targets": (one("targets", "one/targets", lambda x: x ^ 1, signed=False), "was changed"),
    "signed targets": (one("targets", "one/targets", lambda x: x ^ 1), f"one/targets {ANOTHER}"),
    "no targets": (file("targets.safetensors", None), "There is no file"),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_bundle_that_is_none_is_refused_in_one_sentence(plain: Path, sectioned: Path, tmp_path: Path) -> None:
    assert not not_refused(FILES | MANIFESTS, plain, tmp_path / "plain", read_bundle)
    assert not not_refused(SECTIONED, sectioned, tmp_path / "sectioned", read_bundle)
    assert "is not a folder" in sentence(lambda: read_bundle(tmp_path / "none"))


def writes(name: str, value: np.ndarray) -> Change:
    return lambda folder: save_file({name: value}, folder / ACTUAL)


ANSWERS: dict[str, Row] = {
    "a large header": (file(ACTUAL, LIES["large header"]), "its header has 33554432 bytes"),
    "a larger header": (file(ACTUAL, LIES["a larger header"]), "its header is not JSON"),
    "an unknown field": (
        file(ACTUAL, header({"one/logits": entry([8, 1, 31], 0, 992) | {"note": "x"}}, bytes(992))),
        "unknown field `note`",
    ),
    "a folder": (lambda folder: (folder / ACTUAL).mkdir(), "is a folder; expected one safetensors file"),
    "nothing": (lambda folder: None, "There is no file"),
    **{
        f"{name} {shape} {dtype}": (writes(name, np.zeros(shape, dtype)), says)
        for name, shape, dtype, says in TABLE["answers"]
    },
}


def test_answers_that_are_none_are_refused_in_one_sentence(sectioned: Path, tmp_path: Path) -> None:
    bundle = read_bundle(sectioned)
    assert not not_refused(ANSWERS, sectioned, tmp_path, lambda folder: read_actual(folder / ACTUAL, bundle))
