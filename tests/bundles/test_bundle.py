"""A bundle comes back as it was written, and what is not one is answered with one sentence."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import struct
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, InputError, ParameterError
from transparity.presets import PRESETS, preset
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.diagnosis.judge import judge
from transparity_conformance.exchange.bundle.bundle import Bundle, bundle_probes, judge_bundle
from transparity_conformance.exchange.bundle.manifest import digest, own_digest
from transparity_conformance.exchange.bundle.reading import read_actual, read_bundle
from transparity_conformance.exchange.bundle.writing import export_bundle
from transparity_conformance.oracle.cases import AUDIO, IMAGES
from transparity_conformance.oracle.probes import probes

Refused = Callable[..., AbstractContextManager[None]]

SMALL = preset("translation").resized(embed_dim=6, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "bundle"
    export_bundle(SMALL, folder, name="translation")
    return folder


@pytest.fixture
def folder(tmp_path: Path, written: Path) -> Path:
    """A bundle to do anything with."""
    return Path(shutil.copytree(written, tmp_path / "bundle"))


def sign(folder: Path, **changes: Any) -> None:
    """Make the manifest say what the files now are, as a forger would."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text()) | changes
    manifest["sha256"] |= {name: digest(folder / name) for name in manifest["sha256"] if name != "manifest.json"}
    manifest["sha256"]["manifest.json"] = own_digest(manifest)
    path.write_text(json.dumps(manifest))


def rewrite(path: Path, change: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]) -> None:
    save_file({name: np.ascontiguousarray(value) for name, value in change(load_file(path)).items()}, path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PRESETS)
def test_a_bundle_comes_back_as_it_was_written(tmp_path: Path, name: str) -> None:
    written = export_bundle(preset(name).resized(), tmp_path, name=name, dtype="bfloat16")
    read = read_bundle(tmp_path)
    assert (read.name, read.dtype, read.config) == (name, "bfloat16", written.config)
    assert list(read.probes) == list(written.probes) == ["mixed", "text", "one", "longest"]
    for key, probe in read.probes.items():
        assert probe.purpose == written.probes[key].purpose
        for mine, theirs in (
            (probe.parameters, written.probes[key].parameters),
            (probe.inputs, written.probes[key].inputs),
        ):
            assert list(mine) == list(theirs) or set(mine) == set(theirs)
            for item in theirs:
                np.testing.assert_array_equal(mine[item], theirs[item])


def test_the_manifest_says_what_each_probe_is_for_and_every_shape_and_budget(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["format"], manifest["preset"], manifest["dtype"]) == (2, "translation", "float32")
    expected = load_file(folder / "expected.safetensors")
    said = {
        f"{probe}/{tap}": tuple(of["shape"])
        for probe, it in manifest["probes"].items()
        for tap, of in it["taps"].items()
    }
    assert said == {name: value.shape for name, value in expected.items()}
    assert all(it["for"] for it in manifest["probes"].values())
    assert all(of["budget"] > 0 for it in manifest["probes"].values() for of in it["taps"].values())
    assert {value.dtype for value in expected.values()} == {np.dtype(np.float64)}
    assert {value.dtype for value in load_file(folder / "inputs.safetensors").values()} == {np.dtype(np.int32)}
    assert {value.dtype for value in load_file(folder / "parameters.safetensors").values()} == {np.dtype(np.float32)}


def test_what_is_expected_agrees(folder: Path) -> None:
    bundle = read_bundle(folder)
    report = judge(bundle.name, bundle.probes, read_actual(folder / "expected.safetensors", bundle))
    assert report.verdict == "agrees"
    assert report.measured


def test_any_other_configuration_has_a_bundle(tmp_path: Path) -> None:
    config = TransformerConfig(
        architecture="encoder", source_vocab_size=5, embed_dim=4, num_heads=1, num_encoder_layers=1
    )
    export_bundle(config, tmp_path)
    assert list(read_bundle(tmp_path).probes) == ["mixed", "one", "longest"]


@pytest.mark.parametrize("config", [IMAGES, AUDIO], ids=["images", "audio"])
def test_floats_come_back_as_they_were_written_and_are_judged(config: TransformerConfig, tmp_path: Path) -> None:
    written = export_bundle(config, tmp_path)
    bundle = read_bundle(tmp_path)
    for name, probe in written.probes.items():
        for read, value in probe.inputs.items():
            np.testing.assert_array_equal(bundle.probes[name].inputs[read], value)
    actual = read_actual(tmp_path / "expected.safetensors", bundle)
    assert judge_bundle(bundle, actual).verdict == "agrees"
    actual["mixed"]["logits"] = actual["mixed"]["logits"][..., ::-1]
    assert judge_bundle(bundle, actual).verdict == "diverges"


def test_no_probe_of_a_model_for_books_is_as_long_as_a_book(tmp_path: Path) -> None:
    config = dataclasses.replace(preset("pre-norm").resized(), max_length=100_000)
    assert "longest" not in bundle_probes("config", config)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_an_actual_may_be_of_any_float(folder: Path, kind: Any) -> None:
    bundle = read_bundle(folder)
    rewrite(folder / "expected.safetensors", lambda all_: {name: value.astype(kind) for name, value in all_.items()})
    said = read_actual(folder / "expected.safetensors", bundle)
    for key, probe in bundle.probes.items():
        for tap, value in probe.oracle.expected.items():
            np.testing.assert_array_equal(said[key][tap], value.astype(kind).astype(np.float64))


def test_a_probe_without_logits_is_not_compared(folder: Path) -> None:
    bundle = read_bundle(folder)
    actual = folder / "expected.safetensors"
    rewrite(actual, lambda all_: {name: value for name, value in all_.items() if name != "mixed/logits"})
    said = read_actual(actual, bundle)
    assert "mixed" not in said
    report = judge(bundle.name, bundle.probes, said)
    assert report.verdict == "inconclusive"
    assert any("mixed" in line for line in report.not_compared)


def test_what_is_not_a_number_is_judged(folder: Path) -> None:
    bundle = read_bundle(folder)
    rewrite(folder / "expected.safetensors", lambda all_: all_ | {"one/logits": all_["one/logits"] * np.nan})
    assert judge(bundle.name, bundle.probes, read_actual(folder / "expected.safetensors", bundle)).verdict == "diverges"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"one/logit": np.zeros((8, 1, 31))},
            "has a tensor 'one/logit', which does not belong there; the nearest name",
        ),
        ({"one/logits": np.zeros((8, 31))}, "has the shape [8, 31]; expected [8, 1, 31]"),
        ({"one/logits": np.zeros((8, 31, 1))}, "has the shape [8, 31, 1]; expected [8, 1, 31]"),
        ({"one/logits": np.zeros((8, 1, 31), np.int32)}, "has the dtype 'I32'; expected F64 or F32 or F16 or BF16"),
    ],
)
def test_what_does_not_fit_is_named(folder: Path, change: dict[str, np.ndarray], says: str) -> None:
    bundle = read_bundle(folder)
    rewrite(folder / "expected.safetensors", lambda all_: all_ | change)
    with pytest.raises(BundleError) as caught:
        read_actual(folder / "expected.safetensors", bundle)
    assert says in str(caught.value)


def test_a_cut_actual_is_refused_and_what_is_whole_in_it_may_be_taken(folder: Path, refused: Refused) -> None:
    bundle = read_bundle(folder)
    path = folder / "expected.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with refused(BundleError, f"{path} cannot be read as a safetensors file: its header speaks of"):
        read_actual(path, bundle)
    whole = sum(len(taps) for taps in read_actual(path, bundle, cut=True).values())
    assert 0 < whole < len(bundle.shapes)


def test_a_bundle_needs_a_folder_of_its_own(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "config.json").write_text("{}")
    with refused(BundleError, f"{tmp_path} has other files in it"):
        export_bundle(SMALL, tmp_path)
    with refused(BundleError, f"{tmp_path / 'config.json'} cannot be written"):
        export_bundle(SMALL, tmp_path / "config.json")


def test_a_bundle_may_be_written_again(folder: Path) -> None:
    export_bundle(SMALL, folder)
    assert read_bundle(folder).name == "config"


def test_probes_of_other_models_do_not_fit(tmp_path: Path, refused: Refused) -> None:
    with refused(BundleError, "The probe 'tiny' has a model of its own"):
        export_bundle(preset("translation").resized(), tmp_path, probes("translation"))
    with refused(BundleError, "A bundle needs at least one probe"):
        export_bundle(SMALL, tmp_path, {})
    with refused(BundleError, "A bundle needs vocabularies of at least 3 tokens"):
        export_bundle(dataclasses.replace(SMALL, source_vocab_size=2), tmp_path)
    with refused(BundleError, "The bundle is said to be of 'walkthrough', but"):
        export_bundle(SMALL, tmp_path, name="walkthrough")
    with refused(ConfigError, "There is no preset 'gpt'"):
        export_bundle(SMALL, tmp_path, name="gpt")
    with refused(BundleError, "The dtype is 'int8'"):
        export_bundle(SMALL, tmp_path, dtype="int8")


@pytest.mark.parametrize("name", ["manifest.json", "config.json", "parameters.safetensors", "expected.safetensors"])
def test_a_missing_file_is_named(folder: Path, refused: Refused, name: str) -> None:
    (folder / name).unlink()
    with refused(BundleError, f"There is no file {folder / name}."):
        read_bundle(folder)


def test_there_is_no_bundle(tmp_path: Path, refused: Refused) -> None:
    with refused(BundleError, f"{tmp_path / 'none'} is not a folder"):
        read_bundle(tmp_path / "none")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes in a folder are POSIX's")
def test_a_pipe_is_not_waited_for(folder: Path, refused: Refused) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with refused(BundleError, f"{folder / 'config.json'} is not a file"):
        read_bundle(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "parameters.safetensors", "inputs.safetensors", "expected.safetensors"]
)
def test_a_changed_byte_is_seen(folder: Path, refused: Refused, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    place = data.index(b'"max_length": 11') + 15 if name == "config.json" else len(data) - 1
    data[place] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(BundleError):
        read_bundle(folder)


class TestForged:
    """With every digest put right, what is expected is still what the reference says."""

    def test_expected(self, folder: Path) -> None:
        rewrite(folder / "expected.safetensors", lambda all_: all_ | {"one/logits": all_["one/logits"] * (1 + 1e-9)})
        self.is_refused(folder, "expected.safetensors is not what the reference says: one/logits is off by")

    def test_expected_is_not_a_number(self, folder: Path) -> None:
        rewrite(folder / "expected.safetensors", lambda all_: all_ | {"one/logits": all_["one/logits"] * np.nan})
        self.is_refused(folder, "expected.safetensors is not what the reference says: one/logits is off by nan")

    def test_parameters(self, folder: Path) -> None:
        rewrite(folder / "parameters.safetensors", lambda all_: all_ | {"head.bias": all_["head.bias"] + 1})
        self.is_refused(folder, "expected.safetensors is not what the reference says")

    def test_inputs(self, folder: Path) -> None:
        rewrite(folder / "inputs.safetensors", lambda all_: all_ | {"one/target": all_["one/target"] ^ 1})
        self.is_refused(folder, "expected.safetensors is not what the reference says")

    def test_config(self, folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(path.read_text().replace('"attention_scale": "embed_dim"', '"attention_scale": "head_dim"'))
        self.is_refused(folder, "is said to be of 'translation', but its configuration is of another system")
        self.is_refused(folder, "expected.safetensors is not what the reference says", preset="config")

    def test_parameters_that_overflow(self, folder: Path) -> None:
        rewrite(
            folder / "parameters.safetensors", lambda all_: {name: value * 0 + 1e38 for name, value in all_.items()}
        )
        self.is_refused(folder, "are too large")

    def test_parameters_that_are_not_finite(self, folder: Path) -> None:
        rewrite(folder / "parameters.safetensors", lambda all_: all_ | {"head.bias": all_["head.bias"] * np.inf})
        self.is_refused(folder, "Parameter 'head.bias' is", ParameterError)

    def test_a_token_outside_the_vocabulary(self, folder: Path) -> None:
        rewrite(folder / "inputs.safetensors", lambda all_: all_ | {"one/target": all_["one/target"] + 999})
        self.is_refused(folder, "outside the vocabulary", InputError)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("max_length", 2**31 - 1),
            ("source_vocab_size", 2**31 - 1),
            ("num_decoder_layers", 10_000),
            ("feed_forward_dim", 2**31 - 1),
            ("embed_dim", 2**30),
        ],
    )
    def test_a_configuration_that_is_too_large_for_its_files(self, folder: Path, field: str, value: int) -> None:
        path = folder / "config.json"
        fields = json.loads(path.read_text())
        path.write_text(json.dumps(fields | {field: value}))
        self.is_refused(folder, "")

    def test_inputs_that_are_too_large_for_their_file(self, folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"positions": "sinusoidal", "max_length": 2**31 - 1}))
        said = json.loads((folder / "manifest.json").read_text())["probes"]
        said["one"]["inputs"] = {"source": [8, 2**30], "target": [8, 2**30]}
        self.is_refused(folder, "", preset="config", probes=said)

    @pytest.mark.parametrize(
        "changes",
        [
            {"format": 1},
            {"format": 3},
            {"format": True},
            {"preset": 5},
            {"preset": "gpt"},
            {"dtype": "int8"},
            {"probes": {}},
            {"probes": {"../x": {"for": "", "inputs": {}, "taps": {}}}},
            {"probes": {"one": {"for": "", "inputs": {}, "taps": {}}}},
            {"probes": {"one": {"for": "", "inputs": {"source": [8, 1], "target": [7, 1]}, "taps": {}}}},
            {"probes": {"one": {"for": "", "inputs": {"source": [8, -1], "target": [8, 1]}, "taps": {}}}},
            {"probes": {"one": {"for": "", "inputs": {"source": [8, 1], "target": [8, 1]}, "taps": {}}}},
            {"probes": {"one": {"for": "\x1b[2J", "inputs": {}, "taps": {}}}},
            {"extra": 1},
        ],
        ids=str,
    )
    def test_a_manifest(self, folder: Path, changes: dict[str, Any]) -> None:
        self.is_refused(folder, "", (BundleError, ConfigError), **changes)

    @pytest.mark.parametrize("budget", [-1, True, "1", None, 1e400])
    def test_a_budget(self, folder: Path, budget: Any) -> None:
        said = json.loads((folder / "manifest.json").read_text())["probes"]
        said["one"]["taps"]["logits"]["budget"] = budget
        self.is_refused(folder, "", probes=said)

    @staticmethod
    def is_refused(folder: Path, says: str, error: Any = BundleError, **changes: Any) -> None:
        sign(folder, **changes)
        with pytest.raises(error) as caught:
            read_bundle(folder)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "header",
    [
        {"one/logits": {"dtype": "F32", "shape": [8, 1, 31], "data_offsets": [0, 8]}},
        {"one/logits": {"dtype": "F32", "shape": [8, 1, 31], "data_offsets": [8, 1000]}},
        {"one/logits": {"dtype": "F32", "shape": [8, 1, 31], "data_offsets": [-1, 991]}},
        {"one/logits": {"dtype": "F32", "shape": [8, 1, 31], "data_offsets": [0, 992.0]}},
        {"one/logits": {"dtype": "F32", "shape": [8, 1, 31.0], "data_offsets": [0, 992]}},
        {"one/logits": {"dtype": ["F32"], "shape": [8, 1, 31], "data_offsets": [0, 992]}},
        {"one/logits": {"dtype": "F32", "shape": [8, 1, 31], "data_offsets": [0, 992], "more": 1}},
        {"one/logits": [0, 992]},
        {"one/logits": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 992]}},
        {"one/logits": {"dtype": "F32", "shape": [8, 1, 31], "data_offsets": [0, 2**70]}},
        [],
        5,
    ],
    ids=str,
)
def test_a_header_that_lies(folder: Path, header: Any) -> None:
    bundle, path = read_bundle(folder), folder / "lies.safetensors"
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(992))
    with pytest.raises(BundleError):
        read_actual(path, bundle)


@pytest.mark.parametrize(
    "text",
    [b"[" * 200_000, b'{"a":' * 200_000, b"9" * 10_000, b"\xff", b'{"a": NaN}', b'{"a": 1, "a": 1}', b"null", b"{}"],
    ids=["deep", "deep objects", "long", "not UTF-8", "NaN", "twice", "null", "empty"],
)
@pytest.mark.parametrize("name", ["manifest.json", "config.json"])
def test_json_that_is_none(folder: Path, name: str, text: bytes) -> None:
    (folder / name).write_bytes(text)
    with pytest.raises((BundleError, ConfigError)):
        read_bundle(folder)


def test_a_bundle_is_data(folder: Path) -> None:
    bundle: Bundle = read_bundle(folder)
    assert bundle.shapes["one/logits"] == (8, 1, 31)
