import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers  # noqa: F401
from safetensors.numpy import load_file, save_file
from tests.helpers import exported
from tests.runtimes.conftest import Check, Hub

from transparity_conformance.checking.check import check as check_port
from transparity_conformance.checking.systems import artefact_system
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.report.report import Report
from transparity_conformance.running.artefacts import HUB
from transparity_conformance.running.loading import load_artefact

Change = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


def judged(folder: Path, checkpoint: Path) -> Report:
    model = load_artefact(str(folder), HUB)
    system = artefact_system(import_checkpoint(checkpoint), model.limits)
    return check_port(model, system.name, config=system.config, parameters=system.parameters)


@pytest.mark.parametrize(
    "family", ["bert", "gemma2", "gpt2", "opt", "qwen3", "roberta", "t5", "whisper", "vit", "mamba2", "qwen3_next"]
)
def test_a_folder_agrees_with_its_own_checkpoint(family: str, hub: Hub) -> None:
    assert judged(hub(family), hub(family)).verdict == "agrees"


@pytest.mark.parametrize("family", ["vit", "clip_text_model", "clip_vision_model"])
def test_a_folder_of_classes_or_a_projection_is_run_by_the_class_that_it_names(family: str, tmp_path: Path) -> None:
    own = {"vit": {"pooler": "none"}}.get(family, {"head_bias": False})
    exported(family, tmp_path / family, head="classes", num_classes=5, **own)
    assert judged(tmp_path / family, tmp_path / family).verdict == "agrees"


def swapped(one: str, other: str) -> Change:
    return lambda tensors: tensors | {one: tensors[other], other: tensors[one]}


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    return lambda tensors: tensors | {name: np.ascontiguousarray(change(tensors[name]))}


MLP, ATTENTION = "model.layers.0.mlp", "model.layers.0.self_attn"
WRONG: list[tuple[str, dict[str, Any], Change, str]] = [
    ("llama", {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}, dict, "rotary-base"),
    ("llama", {"rms_norm_eps": 1e-3}, dict, "norm-eps"),
    ("llama", {"hidden_act": "gelu"}, dict, "activation"),
    ("llama", {}, swapped(f"{MLP}.gate_proj.weight", f"{MLP}.up_proj.weight"), "gate-swapped"),
    ("llama", {}, changed(f"{ATTENTION}.q_proj.weight", np.transpose), "weight-transpose"),
    ("gpt2", {"activation_function": "gelu"}, dict, "activation"),
    ("gpt2", {"layer_norm_epsilon": 1e-3}, dict, "norm-eps"),
    ("gpt2", {"scale_attn_weights": False}, dict, "attention-scale"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, dict, "attention-scale"),
    ("gpt2", {}, changed("transformer.h.0.ln_1.bias", np.zeros_like), "norm-kind"),
]


@pytest.mark.parametrize(("family", "fields", "change", "cause"), WRONG)
def test_a_folder_that_differs_from_its_checkpoint_diverges_by_its_cause(
    family: str, fields: dict[str, Any], change: Change, cause: str, hub: Hub, tmp_path: Path
) -> None:
    folder = tmp_path / "made"
    shutil.copytree(hub(family), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    report = judged(folder, hub(family))
    assert report.verdict == "diverges"
    assert {found.mistake for fault in report.faults for found in fault.causes} == {cause}


@pytest.mark.parametrize("weights", [b"", b"\x10\0\0\0\0\0\0\0no json at all..", b"\xff" * 64])
def test_corrupt_weights_are_one_sentence(weights: bytes, hub: Hub, check: Check, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    shutil.copytree(hub("llama"), folder)
    (folder / "model.safetensors").write_bytes(weights)
    checked = check(folder, "--checkpoint", hub("llama"))
    assert checked.exit_code == 2
    assert f"{folder} cannot be read by transformers: " in checked.errors.strip().splitlines()[-1]


def test_on_the_command_line_a_folder_needs_no_checkpoint(hub: Hub, check: Check) -> None:
    checked = check(hub("llama"))
    assert checked.exit_code == 0, checked.errors
    assert checked.report["port"] == str(hub("llama"))
