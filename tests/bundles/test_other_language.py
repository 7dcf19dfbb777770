"""A port in JavaScript on Node reads a bundle, and agrees at every tap of every probe."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity_conformance.checking.command import check_command
from transparity_conformance.diagnosis.judge import Actual
from transparity_conformance.exchange.judging import judge_bundle
from transparity_conformance.exchange.reading import read_actual, read_bundle
from transparity_conformance.exchange.writing import export_bundle
from transparity_conformance.running.process.child import run_command

NODE = shutil.which("node")
PORT = Path(__file__).parent / "port.mjs"

pytestmark = pytest.mark.skipif(NODE is None, reason="Node is not installed")

CONFIGS = {name: preset(name).resized() for name in PRESETS} | {
    "batch norm": TransformerConfig(
        architecture="encoder",
        source_vocab_size=7,
        max_length=5,
        embed_dim=6,
        num_heads=2,
        num_encoder_layers=1,
        feed_forward_dim=5,
        norm="batch",
        pad_id=None,
    )
}


@pytest.fixture(params=CONFIGS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ran(folder: Path, name: str, port: Path = PORT, sections: Sequence[str] = ()) -> Actual:
    known = name if name in PRESETS else "config"
    export_bundle(CONFIGS[name], folder / "bundle", name=known, sections=sections)
    run = run_command(f"node '{port}'", folder / "bundle", folder / "actual.safetensors", timeout=60)
    assert run.failure is None
    return read_actual(run.actual, read_bundle(folder / "bundle"))


def test_it_agrees_on_every_probe_within_the_budgets_of_the_manifest(tmp_path: Path, name: str) -> None:
    said = ran(tmp_path, name)
    bundle = read_bundle(tmp_path / "bundle")
    report = judge_bundle(bundle, said)
    assert report.verdict == "agrees"
    assert (report.faults, report.not_compared) == ((), ())
    assert {f"{item.probe}/{item.tap}" for item in report.measured} == set(bundle.shapes)
    manifest = json.loads((tmp_path / "bundle/manifest.json").read_text())
    for probe, of in manifest["probes"].items():
        for tap, budget in of["budgets"].items():
            error = np.abs(said[probe][tap] - bundle.probes[probe].oracle.expected[tap]).max()
            assert error <= budget, f"{probe}/{tap}"


def test_a_mistake_in_it_is_found_and_named(tmp_path: Path) -> None:
    """Check a port that scales scores by the wrong width, the most common mistake."""
    wrong = PORT.read_text().replace('config.attention_scale === "head_dim"', 'config.attention_scale !== "head_dim"')
    assert wrong != PORT.read_text()
    (tmp_path / "wrong.mjs").write_text(wrong)
    config = CONFIGS["notes-attention"]
    report = check_command(f"node '{tmp_path / 'wrong.mjs'}'", "notes-attention", config)
    assert (report.verdict, report.first_divergence) == ("diverges", "decoder.layers.0.self_attention.scores")
    assert report.faults[0].causes[0].mistake == "attention-scale"


def test_it_generates_as_the_reference_does(tmp_path: Path) -> None:
    said = ran(tmp_path, "translation", sections=["generation"])
    report = judge_bundle(read_bundle(tmp_path / "bundle"), said)
    assert report.verdict == "agrees"
    held = {claim.id: claim.verdict for claim in report.claims if claim.id.startswith("generate")}
    assert held == {"generate": "agrees"}
    assert set(report.not_compared) == {
        f"generate.{way}: the port did not write the tensor" for way in ("uniforms", "sampling", "lengths")
    }


def test_a_fault_in_its_generation_is_named(tmp_path: Path) -> None:
    wrong = PORT.read_text().replace("row.slice(-config.max_length)", "row.slice(0, config.max_length)")
    assert wrong != PORT.read_text()
    (tmp_path / "wrong.mjs").write_text(wrong)
    said = ran(tmp_path, "notes-lm", tmp_path / "wrong.mjs", ["generation"])
    report = judge_bundle(read_bundle(tmp_path / "bundle"), said)
    assert (report.verdict, report.first_divergence) == ("diverges", "generate")
    (fault,) = report.faults
    assert [cause.says for cause in fault.causes] == [
        "a long context is cropped to its first max_length tokens, not to its last"
    ]
