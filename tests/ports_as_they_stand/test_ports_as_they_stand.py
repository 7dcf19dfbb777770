"""Ports in the style of published code, checked unchanged; the exam plants bugs in the published code itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from transparity_conformance.checking.audit.audit import audited
from transparity_conformance.checking.audit.fields import audited_of
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.diagnosis.judge import ignore_progress
from transparity_conformance.running.hub import HubBuild
from transparity_conformance.running.loading import load_port

FOLDER = Path(__file__).parent

FAMILIES = {
    "nano_gpt": "gpt2",
    "pico_gpt": "gpt2",
    "step_llama": "llama",
    "in_place_gemma": "gemma",
}


IGNORED = {
    "nano_gpt": {"activation_function", "layer_norm_epsilon", "scale_attn_weights"},
    "pico_gpt": {"activation_function", "layer_norm_epsilon", "scale_attn_weights"},
    "step_llama": {"attention_bias", "mlp_bias", "hidden_act", "rope_theta", "rope_scaling", "rope_parameters"},
    "in_place_gemma": {"hidden_act", "rope_theta", "rope_scaling", "rope_parameters"},
}
"""Fields of config.json that these ports ignore, like the published code; their forward passes agree."""


@pytest.mark.parametrize("name", FAMILIES)
def test_a_right_port_agrees(name: str) -> None:
    report = check(load_port(f"{FOLDER / name}.py:load"), family=FAMILIES[name], audit=False)
    assert report.verdict == "agrees", report
    assert not report.coverage.untested


@pytest.mark.parametrize("name", IGNORED)
def test_the_fields_that_a_published_port_has_built_in_are_told(name: str, tmp_path: Path) -> None:
    loader = audited_of(HubBuild(load_port(f"{FOLDER / name}.py:load"), FAMILIES[name], str(tmp_path)))
    audit = audited(loader, example_config(FAMILIES[name]), "float32", ignore_progress, with_fields=True)
    assert {*audit.fields_with("ignored"), *audit.fields_with("wrong")} == IGNORED[name]
    of_every_folder = [each for each in audit.tensors if "(with " not in each.name]  # the others need an ignored field
    assert {each.outcome for each in of_every_folder} == {"read"}  # a folder without them is refused
