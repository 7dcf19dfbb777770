import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import refused, tiny

from transparity.config import TransformerConfig
from transparity.errors import ConfigError
from transparity.presets import PRESETS, preset
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.diagnosis.judge import Actual
from transparity_conformance.exchange.judging import judge_bundle
from transparity_conformance.exchange.reading import read_actual, read_bundle
from transparity_conformance.exchange.writing import export_bundle
from transparity_conformance.oracle.cases import AUDIO, IMAGES
from transparity_conformance.report.fields import parameters_table
from transparity_conformance.running.process.child import run_together

SMALL = preset("translation").resized(embed_dim=6, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "bundle"
    export_bundle(SMALL, folder, name="translation")
    return folder


@pytest.fixture
def folder(tmp_path: Path, written: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "bundle"))


def test_layers_of_different_widths_are_exported_and_described(tmp_path: Path) -> None:
    kinds: Any = {"layer_types": ("wide", "narrow", "wide"), "layer_overrides": {"narrow": {"feed_forward_dim": 7}}}
    config = dataclasses.replace(preset("notes-lm").resized(num_decoder_layers=3), feed_forward_dim=13, **kinds)
    export_bundle(config, tmp_path)
    taps = json.loads((tmp_path / "manifest.json").read_text())["probes"]["mixed"]["taps"]
    widths = {name: shape[-1] for name, shape in taps.items() if name.endswith("feed_forward.hidden")}
    assert widths == {f"decoder.layers.{i}.feed_forward.hidden": (13, 7, 13)[i] for i in range(3)}
    assert "decoder.layers.{i}.feed_forward.output" in taps
    names, shapes, numbers = (list(column.cells) for column in parameters_table(config).columns)
    rows = dict(zip(names, zip(shapes, numbers, strict=True), strict=True))
    assert rows["decoder.layers.0,2.feed_forward.up.weight"] == ("(13, 24)", "624")
    assert rows["decoder.layers.1.feed_forward.up.weight"] == ("(7, 24)", "168")
    assert rows["decoder.layers.0…2.feed_forward.down.bias"] == ("(24)", "72")


@pytest.mark.parametrize("config", [IMAGES, AUDIO], ids=["images", "audio"])
def test_floats_come_back_as_they_were_written_and_are_judged(config: TransformerConfig, tmp_path: Path) -> None:
    written = export_bundle(config, tmp_path)
    bundle = read_bundle(tmp_path)
    for name, probe in written.probes.items():
        for read, value in probe.inputs.items():
            np.testing.assert_array_equal(bundle.probes[name].inputs[read], value)
    actual = read_actual(tmp_path / "expected.safetensors", bundle)
    assert judge_bundle(bundle, actual).verdict == "agrees"
    wrong = {**actual["mixed"], "logits": actual["mixed"]["logits"][..., ::-1]}
    assert judge_bundle(bundle, {**actual, "mixed": wrong}).verdict == "diverges"


def test_a_cut_actual_is_refused(folder: Path) -> None:
    bundle = read_bundle(folder)
    path = folder / "expected.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with refused(BundleError, f"{path} cannot be read as a safetensors file: "):
        read_actual(path, bundle)


def test_a_bundle_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with refused(BundleError, f"{tmp_path} has other files in it"):
        export_bundle(SMALL, tmp_path)
    with refused(BundleError, f"{tmp_path / 'config.json'} cannot be written"):
        export_bundle(SMALL, tmp_path / "config.json")


def test_probes_of_other_models_do_not_fit(tmp_path: Path) -> None:
    with refused(BundleError, "A vocabulary is too small for a bundle; expected at least 3 tokens"):
        export_bundle(dataclasses.replace(SMALL, source_vocab_size=2), tmp_path)
    with refused(BundleError, "The bundle is named 'walkthrough', but"):
        export_bundle(SMALL, tmp_path, name="walkthrough")
    with refused(ConfigError, "There is no preset 'gpt'"):
        export_bundle(SMALL, tmp_path, name="gpt")
    with refused(BundleError, "The dtype is 'int8'"):
        export_bundle(SMALL, tmp_path, dtype="int8")


NODE = shutil.which("node")
PORT = Path(__file__).parent / "port.mjs"

needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed")

ENCODER: dict[str, Any] = {"architecture": "encoder", "source_vocab_size": 7, "num_encoder_layers": 1, "pad_id": None}
CONFIGS = {name: preset(name).resized() for name in PRESETS}
CONFIGS["batch norm"] = tiny(**ENCODER, max_length=5, embed_dim=6, num_heads=2, feed_forward_dim=5, norm="batch")


def ran(folder: Path, name: str, port: Path = PORT, sections: Sequence[str] = ()) -> Actual:
    known = name if name in PRESETS else "config"
    export_bundle(CONFIGS[name], folder / "bundle", name=known, sections=sections)
    failure = run_together(f"node '{port}'", folder / "bundle", [(folder / "actual.safetensors", {})], timeout=60)
    assert not failure
    return read_actual(folder / "actual.safetensors", read_bundle(folder / "bundle"))


@needs_node
@pytest.mark.parametrize("name", CONFIGS)
def test_it_agrees_on_every_probe_within_the_budgets_of_the_manifest(tmp_path: Path, name: str) -> None:
    said = ran(tmp_path, name)
    bundle = read_bundle(tmp_path / "bundle")
    report = judge_bundle(bundle, said)
    assert report.verdict == "agrees"
    assert (report.faults, report.not_compared) == ((), ())
    assert {f"{item.probe}/{item.tap}" for item in report.measured} == set(bundle.shapes)
    for probe, of in json.loads((tmp_path / "bundle/manifest.json").read_text())["probes"].items():
        for tap, budget in of["budgets"].items():
            error = np.abs(said[probe][tap] - bundle.probes[probe].oracle.expected[tap]).max()
            assert error <= budget, f"{probe}/{tap}"
