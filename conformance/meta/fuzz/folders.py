"""Bundles, what ports write for them, and checkpoints of a hub, with something wrong in them."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from meta.fuzz.documents import TINY
from meta.fuzz.outcome import ACCEPTED, WrongAnswerError
from meta.fuzz.wild import NAMES, damaged, wild_json, wild_text
from transparity import initialize_parameters
from transparity_conformance.checkpoints.importing import FILES as FAMILIES
from transparity_conformance.checkpoints.importing import (
    configuration,
    family_of,
    import_checkpoint,
    save_checkpoint,
)
from transparity_conformance.checkpoints.naming import called
from transparity_conformance.exchange.bundle import ACTUAL, Bundle, bundle_probes
from transparity_conformance.exchange.judging import judge_bundle
from transparity_conformance.exchange.manifest import FILES, digest, own_digest
from transparity_conformance.exchange.reading import read_actual, read_bundle
from transparity_conformance.exchange.writing import export_bundle

PRINTABLE = [name for name in NAMES if name.isprintable()]
"""Names that a library writes into a file."""

Content = dict[str, bytes]
"""The files of a folder, by name."""


@functools.cache
def right_bundle() -> tuple[Bundle, Content]:
    """A small bundle, and its files."""
    probes = {name: probe for name, probe in bundle_probes("config", TINY).items() if name in ("one", "mixed")}
    with tempfile.TemporaryDirectory() as folder:
        bundle = export_bundle(TINY, folder, probes)
        return bundle, {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def write(folder: Path, files: Content) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)


def bundle_file(random: Random, folder: Path) -> str:
    """A bundle with one damaged file, whose digest may be corrected."""
    _, files = right_bundle()
    name = random.choice(FILES)
    write(folder, files | {name: damaged(random, files[name])})
    if random.random() < 0.8:
        manifest = json.loads(files["manifest.json"])
        manifest["sha256"][name] = digest(folder / name)
        _sign(folder, manifest)
    read_bundle(folder)
    return ACCEPTED


def bundle_manifest(random: Random, folder: Path) -> str:
    """A bundle whose manifest says something else, is signed anew, or is damaged."""
    _, files = right_bundle()
    write(folder, files)
    manifest = json.loads(files["manifest.json"])
    for _ in range(random.randrange(1, 3)):
        _change(random, manifest)
    if random.random() < 0.2:
        (folder / "manifest.json").write_text(wild_text(random, manifest), encoding="utf-8", errors="surrogatepass")
    else:
        _sign(folder, manifest)
    read_bundle(folder)
    return ACCEPTED


def _change(random: Random, value: Any) -> None:
    """Change one value, somewhere deep."""
    while isinstance(value, dict) and value:
        name = random.choice(list(value))
        if not isinstance(value[name], dict) or random.random() < 0.2:
            value[random.choice((name, name, name, random.choice(NAMES)))] = wild_json(random)
            return
        value = value[name]


def _sign(folder: Path, manifest: dict[str, Any]) -> None:
    if isinstance(manifest.get("sha256"), dict):
        manifest["sha256"]["manifest.json"] = own_digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def bundle_outputs(random: Random, folder: Path) -> str:
    """Actual of a port: damaged, of wrong shapes, dtypes and names, or of wild numbers; a few are judged."""
    bundle, files = right_bundle()
    path, right = folder / ACTUAL, files["expected.safetensors"]
    if random.random() < 0.6:
        path.write_bytes(damaged(random, right))
    else:
        path.write_bytes(save(_other_outputs(random, load(right))))
    outputs = read_actual(path, bundle, cut=random.random() < 0.3)
    if random.random() < 0.9:
        return ACCEPTED
    report = judge_bundle(bundle, outputs)
    near = all(
        np.array_equal(value, outputs.get(name.partition("/")[0], {}).get(name.partition("/")[2], np.nan))
        or np.allclose(value, outputs[name.partition("/")[0]][name.partition("/")[2]], rtol=1e-3, atol=1e-3)
        for name, value in load(right).items()
        if name.partition("/")[2] in outputs.get(name.partition("/")[0], {})
    )
    if report.verdict == "agrees" and not near:
        raise WrongAnswerError("outputs that differ by more than a thousandth agree")
    return report.verdict


def _other_outputs(random: Random, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for _ in range(random.randrange(1, 4)):
        name = random.choice(sorted(tensors))
        called = random.choice((name, name, random.choice(PRINTABLE)))
        tensors[called] = random.choice(_changes(random, tensors[name]))
    return tensors


def _changes(random: Random, value: np.ndarray) -> list[np.ndarray]:
    return [
        value.astype("float32"),
        value.astype("int32"),
        value[..., :1].copy(),
        np.full(value.shape, random.choice((np.nan, np.inf, 1e308, -1e30, 5e-324))),
        value + random.choice((1e-9, 1e-3, 1.0)),
        np.zeros(0),
    ]


HUB: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 7,
        "hidden_size": 4,
        "intermediate_size": 6,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "max_position_embeddings": 6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
    },
    "bert": {
        "vocab_size": 7,
        "hidden_size": 4,
        "intermediate_size": 6,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "max_position_embeddings": 6,
        "type_vocab_size": 2,
    },
    "t5": {"vocab_size": 7, "d_model": 4, "d_kv": 2, "d_ff": 6, "num_layers": 1, "num_heads": 2},
}


@functools.cache
def right_checkpoint(kind: str) -> Content:
    """A small checkpoint of a family whose tensors are each one parameter."""
    fields = {"model_type": kind, **HUB[kind]}
    family = family_of(Path(), fields)
    config = configuration(family, fields, {"pooler.dense.weight"})
    tensors = {called(name, family.names): value for name, value in initialize_parameters(config).items()}
    return {"config.json": json.dumps(fields).encode(), "model.safetensors": save(tensors)}


INDEX = "model.safetensors.index.json"


def checkpoint_fields(random: Random, folder: Path) -> str:
    """A checkpoint whose config.json has wild values."""
    files = right_checkpoint(random.choice(list(HUB)))
    fields = json.loads(files["config.json"])
    for _ in range(random.randrange(1, 4)):
        name = random.choice((*fields, "model_type", "rope_scaling", "layer_types", "hidden_act", *NAMES))
        fields[name] = random.choice([*FAMILIES]) if name == "model_type" else wild_json(random)
    text = wild_text(random, fields).encode("utf-8", "surrogatepass")
    write(folder, files | {"config.json": text})
    return _imported(folder)


def checkpoint_tensors(random: Random, folder: Path) -> str:
    """A checkpoint with a damaged file of weights, wrong tensors, or an index that lies."""
    files = dict(right_checkpoint(random.choice(list(HUB))))
    choice = random.random()
    if choice < 0.5:
        files["model.safetensors"] = damaged(random, files["model.safetensors"])
    elif choice < 0.8:
        tensors = load(files["model.safetensors"])
        name = random.choice([*sorted(tensors), *PRINTABLE])
        shape = random.choice(((), (0,), (4,), (7, 4), (1,) * 12))
        dtype = random.choice(("float32", "float16", "float64"))
        tensors[name] = np.full(shape, random.choice((0, np.nan, np.inf)), dtype)
        if random.random() < 0.3:
            tensors.pop(random.choice(sorted(tensors)))
        files["model.safetensors"] = save(tensors)
    else:
        weights = {name: random.choice(("model.safetensors", *NAMES)) for name in random.sample(NAMES, 3)}
        index = {"weight_map": random.choice((weights, {"a": "model.safetensors"}, wild_json(random)))}
        files[INDEX] = wild_text(random, index).encode("utf-8", "surrogatepass")
    write(folder, files)
    return _imported(folder)


def _imported(folder: Path) -> str:
    checkpoint = import_checkpoint(folder)
    for remark in checkpoint.remarks:
        assert remark.isprintable(), remark
    save_checkpoint(checkpoint, folder / "ours")
    return ACCEPTED
