import dataclasses
import functools
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.helpers import exported, invoke, peak_of, run_python, table

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.exchange.judging import in_ranges, judge_bundle, not_brought
from transparity_conformance.exchange.reading import read_actual, read_bundle
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.storage import mapped
from transparity_numpy.port import build

PAGE = Path(__file__).parents[2] / "docs" / "bundles.md"

Parameters = dict[str, np.ndarray]
Answers = dict[str, np.ndarray]


def bundled(folder: Path, family: str = "llama", **sizes: Any) -> Path:
    exported(family, folder / "checkpoint", **sizes)
    ended = invoke("export", "--checkpoint", folder / "checkpoint", folder / "bundle")
    assert ended.exit_code == 0, ended.output
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundled(tmp_path_factory.mktemp("written"))


def answered(
    bundle: Path,
    checkpoint: Path,
    keep: Callable[[str], bool] = lambda tap: True,
    config: Callable[[TransformerConfig], TransformerConfig] = lambda config: config,
    parameters: Callable[[Parameters], Parameters] = lambda parameters: parameters,
) -> Answers:
    """Return the NumPy column's taps as a port on another machine writes them; `config` and `parameters` plant bugs."""
    imported = import_checkpoint(checkpoint)
    given = parameters({name: np.array(value) for name, value in imported.parameters.items()})
    forward, inputs, found = build(config(imported.config), given), load_file(bundle / "inputs.safetensors"), Answers()
    for probe in json.loads((bundle / "manifest.json").read_text())["probes"]:
        names = (*imported.config.input_names, *imported.config.further_inputs)
        read = {name: inputs[f"{probe}/{name}"] for name in names}
        taps = forward(
            **{name: value if value.dtype.kind == "f" else value.astype(np.int64) for name, value in read.items()}
        )
        found |= {f"{probe}/{tap}": as_numbers(value).astype(np.float32) for tap, value in taps.items() if keep(tap)}
    return found


def save(answers: Mapping[str, np.ndarray], file: Path) -> Path:
    save_file({name: np.ascontiguousarray(value) for name, value in answers.items()}, file)
    return file


def compared(written: Path, answers: Mapping[str, np.ndarray], file: Path) -> Any:
    places = (written / "bundle", save(answers, file))
    ended = invoke("compare", *places, "--checkpoint", written / "checkpoint", "--json", "-")
    (report,) = json.loads(ended.stdout)
    assert ended.exit_code == {"agrees": 0, "diverges": 1, "inconclusive": 3}[report["verdict"]]
    return report


def test_a_right_port_agrees_and_all_that_it_did_not_bring_back_is_listed(written: Path, tmp_path: Path) -> None:
    brought = {"logits", "decoder.layers.1.output"}
    answers = answered(written / "bundle", written / "checkpoint", brought.__contains__)
    report = compared(written, answers, tmp_path / "a")
    assert report["verdict"] == "agrees"
    assert {item["tap"] for item in report["taps"]} == brought
    bundle = bundle_of(written)
    listed = {line for line in report["not_compared"] if line.startswith("missing for")}
    assert listed == set(not_brought(bundle, {key: dict.fromkeys(brought, np.zeros(1)) for key in bundle.probes}))
    everything = {tap for probe in bundle.probes for tap in taps_in(listed, probe)}
    assert everything | brought == {name.partition("/")[2] for name in bundle.shapes}


def taps_in(lines: set[str], probe: str) -> list[str]:
    """Return the taps of `probe` that a report's lines name."""
    found: list[str] = []
    for line in lines:
        of, _, rest = line.removeprefix("missing for ").partition(": ")
        if probe in of.split(", "):
            match = re.match(r"(\w+\.layers\.)(\d+)(?: to (\d+))?: (.*)", rest)
            layers = range(int(match[2]), int(match[3] or match[2]) + 1) if match else ()
            names = match[4].split(", ") if match else rest.split(", ")
            found += [f"{match[1]}{i}.{name}" for i in layers for name in names] if match else names
    return found


def bundle_of(written: Path) -> Any:
    return read_bundle(written / "bundle", written / "checkpoint")


def test_layers_are_named_in_ranges_and_none_is_left_out() -> None:
    names = [f"decoder.layers.{i}.{tap}" for i in (0, 1, 2, 4) for tap in ("a", "b.c")] + [
        "decoder.layers.5.a",
        "logits",
    ]
    assert list(in_ranges(names)) == ["decoder.layers.0 to 2, 4: a, b.c", "decoder.layers.5: a", "logits"]


def test_taps_without_logits_are_judged_and_do_not_agree(written: Path, tmp_path: Path) -> None:
    brought = "decoder.layers.1.output".__eq__
    right = answered(written / "bundle", written / "checkpoint", brought)
    report = compared(written, right, tmp_path / "right")
    assert (report["verdict"], report["faults"]) == ("inconclusive", [])
    assert {item["tap"] for item in report["taps"]} == {"decoder.layers.1.output"}
    wrong = answered(written / "bundle", written / "checkpoint", brought, parameters=exchange)
    report = compared(written, wrong, tmp_path / "wrong")
    assert (report["verdict"], report["first_divergence"]) == ("diverges", "decoder.layers.1.output")
    assert not any("the logits agree" in note for note in report["notes"])


def test_what_nothing_explains_is_told_without_logits_too(written: Path, tmp_path: Path) -> None:
    bundle = bundle_of(written)
    right = answered(written / "bundle", written / "checkpoint", "decoder.layers.1.output".__eq__)
    file = save({name: value * np.float32(1.001) for name, value in right.items()}, tmp_path / "a")
    report = judge_bundle(bundle, read_actual(file, bundle), budget=0)
    assert (report.verdict, report.first_divergence) == ("diverges", "decoder.layers.1.output")
    assert report.faults[0].causes == ()


def test_a_probe_that_did_not_come_back_leaves_the_verdict_open(written: Path, tmp_path: Path) -> None:
    answers = answered(written / "bundle", written / "checkpoint", "logits".__eq__)
    del answers["one/logits"]
    report = compared(written, answers, tmp_path / "a")
    assert report["verdict"] == "inconclusive"
    assert "probe one: the port returned no logits" in report["not_compared"]


def exchange(parameters: Parameters) -> Parameters:
    gate, up = (f"decoder.layers.1.feed_forward.{name}.weight" for name in ("gate", "up"))
    return parameters | {gate: parameters[up], up: parameters[gate]}


def with_rows_of_other_heads(parameters: Parameters) -> Parameters:
    """Permute the query rows of the second layer, as for interleaved rotation."""
    name = "decoder.layers.1.self_attention.query.weight"
    weight = parameters[name]
    heads = weight.reshape(example_config("llama").num_heads, 2, -1, weight.shape[1])
    return parameters | {name: heads.swapaxes(1, 2).reshape(weight.shape)}


BUGS: dict[str, tuple[dict[str, Any], str]] = {
    "rope": ({"config": lambda config: dataclasses.replace(config, rope_theta=5 * config.rope_theta)}, "layers.0"),
    "gate and up": ({"parameters": exchange}, "layers.1"),
    "rows": ({"parameters": with_rows_of_other_heads}, "layers.1"),
}


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_fault_is_found_in_its_layer_and_has_its_cause(
    bug: str, size: str, written: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if size == "large":
        request.getfixturevalue("all_are_large")
    change, layer = BUGS[bug]
    report = compared(written, answered(written / "bundle", written / "checkpoint", **change), tmp_path / "a")
    assert report["verdict"] == "diverges" and layer in report["first_divergence"]
    assert report["faults"][0]["causes"], report["faults"]


def test_a_mistake_is_one_sentence(written: Path, tmp_path: Path) -> None:
    places = {"bundle": written / "bundle", "checkpoint": written / "checkpoint", "plain": tmp_path / "plain"}
    places["answers"] = save({"mixed/logit": np.zeros(1, np.float32)}, tmp_path / "a")
    places["damaged"] = Path(shutil.copytree(written / "bundle", tmp_path / "damaged"))
    places["other"] = Path(shutil.copytree(written / "checkpoint", tmp_path / "other"))
    assert invoke("export", "notes-lm", places["plain"]).exit_code == 0
    inputs, weights = places["damaged"] / "inputs.safetensors", places["other"] / "model.safetensors"
    save({name: value[::-1] for name, value in load_file(inputs).items()}, inputs)
    tensors = load_file(weights)
    tensors["model.layers.1.mlp.up_proj.weight"].flat[-1] += 1
    save(tensors, weights)
    for command, says in table(__file__, "refused.toml")["commands"].items():
        ended = invoke(*[word.format(**places) for word in command.split()])
        assert ended.exit_code == 2 and says in ended.stderr, (command, ended.stderr)
        assert len(ended.stderr.strip().splitlines()) == 1


def test_parts_of_a_checkpoint_are_bundles_with_their_weights(written: Path, tmp_path: Path) -> None:
    parts, brought = tmp_path / "parts", tmp_path / "brought"
    ended = invoke("export", "--checkpoint", written / "checkpoint", parts, "--layers", "1")
    assert ended.exit_code == 0, ended.output
    names = json.loads((parts / "manifest.json").read_text())["bundles"]
    assert names == {"embedding-and-head": "llama, embedding and head", "layer-1": "llama, layer 1"}
    brought.mkdir()
    wrong = lambda given: given | {name: given[name][::-1] for name in given if "value.weight" in name}
    save(answered(parts / "layer-1", parts / "layer-1/checkpoint", parameters=wrong), brought / "layer-1.safetensors")
    ended = invoke("compare", parts, brought, "--json", "-")
    reports = {report["preset"]: report for report in json.loads(ended.stdout)}
    assert ended.exit_code == 1
    assert reports["llama, layer 1"]["first_divergence"] == "decoder.layers.0.self_attention.value"
    head = reports["llama, embedding and head"]
    assert head["verdict"] == "inconclusive" and "is missing" in head["not_compared"][0]
    save(answered(parts / "layer-1", parts / "layer-1/checkpoint"), brought / "layer-1.safetensors")
    inside = parts / "embedding-and-head"
    save(answered(inside, inside / "checkpoint"), brought / "embedding-and-head.safetensors")
    assert invoke("compare", parts, brought).exit_code == 0


@pytest.mark.parametrize("family", ["bert", "gemma2", "t5", "vit", "whisper"])
def test_other_families_images_and_audio_come_back_too(family: str, tmp_path: Path) -> None:
    written = bundled(tmp_path, family)
    answers = answered(written / "bundle", written / "checkpoint", lambda tap: tap == "logits" or family != "whisper")
    assert compared(written, answers, tmp_path / "a")["verdict"] == "agrees"


def test_the_script_of_the_page_answers_for_transformers(written: Path, tmp_path: Path) -> None:
    (script,) = re.findall(r"(?ms)^```python\n(# answer\.py\n.*?)^```$", PAGE.read_text(encoding="utf-8"))
    (tmp_path / "answer.py").write_text(script, encoding="utf-8")
    answers = tmp_path / "answers.safetensors"
    places = [written / "bundle", written / "checkpoint", answers]
    ended = run_python(tmp_path / "answer.py", *places)
    assert ended.returncode == 0, ended.stderr
    report = compared(written, load_file(answers), tmp_path / "a")
    assert report["verdict"] == "agrees"
    assert {item["tap"] for item in report["taps"]} == {"logits", "decoder.layers.0.output"}


@pytest.mark.long
@pytest.mark.usefixtures("all_are_large")
def test_memory_does_not_grow_with_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "BLOCK", 2**12)
    sizes: dict[str, Any] = {"embed_dim": 96, "feed_forward_dim": 192, "num_heads": 4, "num_key_value_heads": 2}
    peaks = []
    for layers in (2, 8):
        written = bundled(tmp_path / str(layers), num_decoder_layers=layers, **sizes)
        file = save(answered(written / "bundle", written / "checkpoint"), written / "a")
        bundle = bundle_of(written)
        peaks.append(peak_of(functools.partial(agrees, bundle, file)))
    of_a_layer = 8 * sum(math.prod(shape) for name, shape in bundle.shapes.items() if ".layers.0." in name)
    assert peaks[1] - peaks[0] < of_a_layer  # six more layers, and not even one layer is kept in memory


def agrees(bundle: Any, file: Path) -> None:
    assert judge_bundle(bundle, read_actual(file, bundle)).verdict == "agrees"
