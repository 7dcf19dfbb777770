"""Entry points that read files: configurations, parameters, bundles, outputs of ports, and checkpoints."""

import dataclasses
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from safetensors.numpy import load, save, save_file

from meta.fuzz.outcome import ACCEPTED, WrongAnswerError
from meta.fuzz.strategies import NAMES, PRINTABLE, Draw, damaged, is_rare, json_values, names, objects, texts
from transparity import TransformerConfig, check_parameters, initialize_parameters, load_parameters, save_parameters
from transparity.presets import PRESETS, preset
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.checkpoints.importing import import_checkpoint, save_checkpoint
from transparity_conformance.exchange.bundle import ACTUAL, Bundle, bundle_probes
from transparity_conformance.exchange.judging import judge_bundle
from transparity_conformance.exchange.manifest import MANIFEST, SECTIONS, digest, own_digest
from transparity_conformance.exchange.reading import read_actual, read_bundle
from transparity_conformance.exchange.writing import export_bundle
from transparity_conformance.oracle.memory import check_memory

TINY = TransformerConfig(
    architecture="decoder",
    target_vocab_size=5,
    max_length=3,
    embed_dim=4,
    num_heads=1,
    num_decoder_layers=1,
    feed_forward_dim=2,
)
PARAMETERS = initialize_parameters(TINY)
FIELDS = st.sampled_from([field.name for field in dataclasses.fields(TransformerConfig)])
CHECKPOINTS = st.sampled_from(("llama", "bert", "t5"))
INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"

Content = dict[str, bytes]


def write(folder: Path, files: Content) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)


def drawn_text(draw: Draw, fields: Any) -> bytes:
    return draw(texts(fields)).encode("utf-8", "surrogatepass")


def configuration_text(draw: Draw, folder: Path) -> str:
    fields = preset(draw(st.sampled_from(list(PRESETS)))).resized().as_dict()
    fields |= draw(st.dictionaries(FIELDS | names, json_values, max_size=3))
    return _used(TransformerConfig.from_json(draw(texts(fields))))


def configuration_object(draw: Draw, folder: Path) -> str:
    changes: Any = {draw(FIELDS): draw(objects)}
    made: tuple[Any, ...] = (
        lambda: TINY.resized(**changes),
        lambda: TransformerConfig.from_dict({**TINY.as_dict(), **changes}),
        lambda: dataclasses.replace(TINY, **changes),
    )
    return _used(draw(st.sampled_from(made))())


def _used(config: TransformerConfig) -> str:
    assert TransformerConfig.from_json(config.to_json()) == config
    check_memory(config, 8, source=min(9, config.max_length), target=1, tokens=min(9, config.max_length))
    return ACCEPTED


def parameters_file(draw: Draw, folder: Path) -> str:
    path = folder / "parameters.safetensors"
    save_parameters(path, PARAMETERS)
    path.write_bytes(draw(damaged(path.read_bytes())))
    load_parameters(path, draw(st.sampled_from((TINY, None))))
    return ACCEPTED


def _with_wrong_tensors(draw: Draw, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for name in draw(st.lists(st.sampled_from([*sorted(tensors), *PRINTABLE]), min_size=1, max_size=2)):
        shape = draw(st.sampled_from(((), (0,), (4,), (5, 4), (4, 5), (1,) * 12, (0, 2**20))))
        dtype = draw(st.sampled_from(("float32", "float64", "float16", "int32", "bool")))
        tensors[name] = np.full(shape, draw(st.sampled_from((0, np.nan, np.inf))) if dtype[0] == "f" else 0, dtype)
    if draw(is_rare):
        tensors.pop(draw(st.sampled_from(sorted(tensors))))
    return tensors


def parameters_named(draw: Draw, folder: Path) -> str:
    path = folder / "parameters.safetensors"
    save_file(_with_wrong_tensors(draw, dict(PARAMETERS)), path)
    load_parameters(path, TINY)
    return ACCEPTED


def parameters_object(draw: Draw, folder: Path) -> str:
    called = st.sampled_from([*PARAMETERS, *NAMES, 3, None])
    given: Any = draw(objects) if draw(is_rare) else PARAMETERS | {draw(called): draw(objects)}
    if draw(is_rare) and isinstance(given, dict) and all(isinstance(name, str) for name in given):
        save_parameters(folder / "parameters.safetensors", given)
    check_parameters(draw(objects) if draw(is_rare) else TINY, given)
    return ACCEPTED


@functools.cache
def right_bundle() -> tuple[Bundle, Content]:
    probes = {name: probe for name, probe in bundle_probes("config", TINY).items() if name in ("one", "mixed")}
    with tempfile.TemporaryDirectory() as folder:
        bundle = export_bundle(TINY, folder, probes, sections=SECTIONS)
        return bundle, {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def bundle_file(draw: Draw, folder: Path) -> str:
    """Read a bundle with one damaged file; the manifest's digest may be updated."""
    bundle, files = right_bundle()
    name = draw(st.sampled_from(sorted(files)))
    damage = draw(damaged(files[name]))
    write(folder, files | {name: damage})
    is_signed = name != MANIFEST and not draw(is_rare)
    if is_signed:
        manifest = json.loads(files[MANIFEST])
        manifest["sha256"][name] = digest(folder / name)
        _sign(folder, manifest)
    read = read_bundle(folder)
    if is_signed:
        _check_forged(read, bundle)
    else:
        assert name == MANIFEST or damage == files[name], "only the manifest can change without a wrong digest"
        assert _means_the_same(read, bundle) and read.asked == bundle.asked
    return ACCEPTED


def _check_forged(read: Bundle, bundle: Bundle) -> None:
    """Assert that a changed bundle has finite expected values, no new requests, and unchanged inputs of requests."""
    for key, probe in read.probes.items():
        assert all(np.isfinite(value).all() for value in probe.oracle.expected.values()), key
        assert all(np.isfinite(probe.oracle.budget(tap, read.dtype)) for tap in probe.oracle.expected), key
    if list(read.probes) == list(bundle.probes) and read.config == bundle.config:
        assert {item: shape for item, shape in bundle.asked.items() if item in read.asked} == read.asked
    for section, mine in read.capabilities.items():
        for key, value in bundle.capabilities[section].tensors().items() if read.config == bundle.config else ():
            other = mine.tensors()[key]
            assert np.isfinite(other).all() if "parameters/" in key else np.array_equal(value, other), key


def _means_the_same(one: Bundle, other: Bundle) -> bool:
    facts = [(each.name, each.dtype, each.config, list(each.capabilities), list(each.probes)) for each in (one, other)]
    return facts[0] == facts[1] and all(
        np.array_equal(mine[name], theirs[name])
        for probe in one.probes
        for mine, theirs in (
            (one.probes[probe].parameters, other.probes[probe].parameters),
            (one.probes[probe].inputs, other.probes[probe].inputs),
        )
        for name in theirs
    )


def bundle_manifest(draw: Draw, folder: Path) -> str:
    bundle, files = right_bundle()
    write(folder, files)
    manifest = json.loads(files[MANIFEST])
    for _ in range(draw(st.integers(1, 2))):
        _change(draw, manifest)
    if draw(is_rare):
        (folder / MANIFEST).write_bytes(drawn_text(draw, manifest))
    else:
        _sign(folder, manifest)
    _check_forged(read_bundle(folder), bundle)
    return ACCEPTED


def _change(draw: Draw, value: Any) -> None:
    while isinstance(value, dict) and value:
        name = draw(st.sampled_from(sorted(value)))
        if not isinstance(value[name], dict) or draw(is_rare):
            value[draw(names) if draw(is_rare) else name] = draw(json_values)
            return
        value = value[name]


def _sign(folder: Path, manifest: dict[str, Any]) -> None:
    if isinstance(manifest.get("sha256"), dict):
        manifest["sha256"][MANIFEST] = own_digest(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def bundle_outputs(draw: Draw, folder: Path) -> str:
    bundle, files = right_bundle()
    path, right = folder / ACTUAL, files["expected.safetensors"]
    path.write_bytes(draw(damaged(right)) if draw(st.booleans()) else save(_other_outputs(draw, load(right))))
    outputs = read_actual(path, bundle)
    if not draw(is_rare):
        return ACCEPTED
    report = judge_bundle(bundle, outputs)
    flat = {f"{probe}/{tap}": value for probe, taps in outputs.items() for tap, value in taps.items()}
    near = all(
        np.array_equal(value, flat[name]) or np.allclose(value, flat[name], rtol=1e-3, atol=1e-3)
        for name, value in load(right).items()
        if name in flat
    )
    if report.verdict == "agrees" and not near:
        raise WrongAnswerError("the checker agrees with outputs that are wrong by more than 1e-3")
    return report.verdict


def _other_outputs(draw: Draw, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for name in draw(st.lists(st.sampled_from(sorted(tensors)), min_size=1, max_size=3)):
        value = tensors[name]
        numbers = draw(st.sampled_from((np.nan, np.inf, 1e308, -1e30, 5e-324)))
        changes = [value.astype("float32"), value.astype("int32"), value[..., :1].copy(), np.zeros(0)]
        changes += [np.full(value.shape, numbers), *(value + more for more in (1e-9, 1e-3, 1.0))]
        called = draw(st.sampled_from(PRINTABLE)) if draw(is_rare) else name
        tensors[called] = changes[draw(st.integers(0, len(changes) - 1))]
    return tensors


@functools.cache
def right_checkpoint(family: str) -> Content:
    config = example_config(family)
    with tempfile.TemporaryDirectory() as folder:
        export_checkpoint(family, config, initialize_parameters(config), folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def checkpoint_fields(draw: Draw, folder: Path) -> str:
    files = right_checkpoint(draw(CHECKPOINTS))
    fields = json.loads(files["config.json"])
    known = st.sampled_from((*fields, "rope_scaling", "layer_types", "hidden_act", *NAMES))
    fields |= draw(st.dictionaries(known, json_values, min_size=1, max_size=3))
    if draw(is_rare):
        fields["model_type"] = draw(st.sampled_from([*FAMILIES]) | json_values)
    write(folder, files | {"config.json": drawn_text(draw, fields)})
    return _imported(folder)


def checkpoint_tensors(draw: Draw, folder: Path) -> str:
    files = dict(right_checkpoint(draw(CHECKPOINTS)))
    kind = draw(st.sampled_from(("damaged", "damaged", "wrong", "index")))
    if kind == "damaged":
        files[WEIGHTS] = draw(damaged(files[WEIGHTS]))
    elif kind == "wrong":
        files[WEIGHTS] = save(_with_wrong_tensors(draw, load(files[WEIGHTS])))
    else:
        weights = st.dictionaries(names, st.just(WEIGHTS) | names, max_size=3) | json_values
        files[INDEX] = drawn_text(draw, {"weight_map": draw(weights)})
    write(folder, files)
    return _imported(folder)


def _imported(folder: Path) -> str:
    checkpoint = import_checkpoint(folder)
    for remark in checkpoint.remarks:
        assert remark.isprintable(), remark
    save_checkpoint(checkpoint, folder / "ours")
    return ACCEPTED
