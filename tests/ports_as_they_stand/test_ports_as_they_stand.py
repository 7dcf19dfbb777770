"""Ports as strangers write them, in the manner of published code: taken as they stand, right, and with planted faults.

None returns an activation, and none is adapted: what is found is found by listening.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from transparity.config import TransformerConfig
from transparity_conformance.checking.audit.audit import audited
from transparity_conformance.checking.audit.fields import audited_of
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.diagnosis.judge import ignore_progress
from transparity_conformance.report.report import Report
from transparity_conformance.running.hub import HubBuild
from transparity_conformance.running.loading import load_port

FOLDER = Path(__file__).parent

ENCODER_DECODER = TransformerConfig(
    architecture="encoder-decoder",
    source_vocab_size=37,
    target_vocab_size=31,
    max_length=16,
    embed_dim=24,
    num_heads=3,
    num_encoder_layers=2,
    num_decoder_layers=2,
    feed_forward_dim=40,
    norm="layer-unbiased",
    norm_eps=1e-6,
    norm_position="pre",
    final_norm=True,
    mask_value=-1e9,
    target_mask="causal-and-padding",
    positions="sinusoidal",
    embedding_scale="embed_dim",
)


class Planted(NamedTuple):
    """A fault in a port: a text and what stands in its place; the line that is wrong, and the id of the cause."""

    port: str
    right: str
    wrong: str
    line: str
    cause: str


FAULTS = (
    Planted("nano_gpt", "is_causal=True", "is_causal=False", "F.scaled_dot_product_attention", "causal-missing"),
    Planted("nano_gpt", '"attn.c_proj.weight", ', "", "return self.c_proj(y)", "weight-transpose"),
    Planted("nano_gpt", "self.c_fc(x), app", "F.dropout(self.c_fc(x)), app", "F.gelu(F.dropout", "dropout-active"),
    Planted("pico_gpt", " / np.sqrt(q.shape[-1])", "", "return softmax(q @ k.T", "attention-scale"),
    Planted("pico_gpt", "np.tri(len(x), dtype", "np.tri(len(x), k=-1, dtype", "mask = (1 - np.tri", "causal-diagonal"),
    Planted("pico_gpt", "range(len(ids))", "range(1, len(ids) + 1)", "x = wte[ids] + wpe", "position-offset"),
    Planted("step_llama", "F.silu", "F.gelu", "gate = F.gelu", "activation"),
    Planted("step_llama", "/ 10000.0 **", "/ 500.0 **", "return torch.view_as_real(pairs * turns", "rotary-base"),
    Planted("scratch_qwen", "self.head_dim**0.5", "x.shape[-1] ** 0.5", "torch.softmax(scores", "attention-scale"),
    Planted(
        "scratch_qwen", "keys = self.k_norm(keys)", "keys = self.q_norm(keys)", "self.q_norm(keys)", "norm-duplicated"
    ),
    Planted("scratch_qwen", "self.W_value(x)", "self.W_key(x)", "values = self.W_key(x)", "weight-duplicated"),
    Planted("scratch_qwen", "diagonal=1", "diagonal=0", "masked_fill(mask", "causal-diagonal"),
    Planted("in_place_gemma", "query_width = self.head_dim", "query_width = 6", "q.mul_(", "attention-scale"),
    Planted("in_place_gemma", "(1 + self.weight)", "self.weight", "return normed * self.weight", "norm-gain"),
    Planted(
        "annotated",
        "(x, self.feed_forward, 2)",
        "(x, self.feed_forward, 1)",
        "self.feed_forward, 1)",
        "norm-duplicated",
    ),
    Planted("annotated", "x.std(-1, keepdim=True)", "x.std(-1, False, keepdim=True)", "std = x.std", "norm-variance"),
)
FAMILIES = {
    "nano_gpt": "gpt2",
    "pico_gpt": "gpt2",
    "step_llama": "llama",
    "scratch_qwen": "qwen3",
    "in_place_gemma": "gemma",
}


IGNORED = {
    "nano_gpt": {"activation_function", "layer_norm_epsilon", "scale_attn_weights"},
    "pico_gpt": {"activation_function", "layer_norm_epsilon", "scale_attn_weights"},
    "step_llama": {"attention_bias", "mlp_bias", "hidden_act", "rope_theta", "rope_scaling", "rope_parameters"},
    "scratch_qwen": {"hidden_act", "rms_norm_eps", "sliding_window", "layer_types", "rope_scaling", "rope_parameters"},
    "in_place_gemma": {"hidden_act", "rope_theta", "rope_scaling", "rope_parameters"},
}
"""Fields of config.json that code like the published one has built in, though its forward pass agrees."""


def checked(name: str, file: Path) -> Report:
    """Check the forward pass of a port by its family, with its own loader, or by a configuration."""
    if name in FAMILIES:
        return check(load_port(f"{file}:load"), family=FAMILIES[name], audit=False)
    return check(load_port(f"{file}:build"), config=ENCODER_DECODER)


@pytest.mark.parametrize("name", [*FAMILIES, "annotated"])
def test_a_right_port_agrees(name: str) -> None:
    report = checked(name, FOLDER / f"{name}.py")
    assert report.verdict == "agrees", report
    assert not report.coverage.untested


@pytest.mark.parametrize("name", IGNORED)
def test_the_fields_that_a_published_port_has_built_in_are_told(name: str, tmp_path: Path) -> None:
    loader = audited_of(HubBuild(load_port(f"{FOLDER / name}.py:load"), FAMILIES[name], str(tmp_path)))
    audit = audited(loader, example_config(FAMILIES[name]), "float32", ignore_progress, with_fields=True)
    assert {*audit.fields_with("ignored"), *audit.fields_with("wrong")} == IGNORED[name]
    of_every_folder = [each for each in audit.tensors if "(with " not in each.name]  # others come with an ignored field
    assert {each.outcome for each in of_every_folder} == {"read"}  # and refused if missing


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: f"{planted.port}: {planted.cause}")
def test_a_fault_has_its_line_and_its_cause(planted: Planted, tmp_path: Path) -> None:
    text = (FOLDER / f"{planted.port}.py").read_text(encoding="utf-8")
    assert text.count(planted.right) == 1
    wrong = tmp_path / f"{planted.port}.py"
    wrong.write_text(text.replace(planted.right, planted.wrong), encoding="utf-8")
    report = checked(planted.port, wrong)
    assert report.verdict == "diverges"
    first = report.faults[0]
    assert first.causes[0].mistake == planted.cause
    assert first.source is not None
    lines = wrong.read_text(encoding="utf-8").splitlines()
    assert planted.line in lines[first.source["line"] - 1]


@pytest.mark.long
def test_two_causes_at_one_tap_have_each_its_own_line(tmp_path: Path) -> None:
    text = (FOLDER / "scratch_qwen.py").read_text(encoding="utf-8")
    for right, wrong in (
        (
            "keys = keys.repeat_interleave(self.heads // self.groups, dim=1)",
            "keys = keys.repeat(1, self.heads // self.groups, 1, 1)",
        ),
        ("self.head_dim**0.5", "x.shape[-1] ** 0.5"),
    ):
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    file = tmp_path / "scratch_qwen.py"
    file.write_text(text, encoding="utf-8")
    first = checked("scratch_qwen", file).faults[0]
    codes = {cause.mistake: cause.source["code"] for cause in first.causes if cause.source is not None}
    assert codes.keys() == {"attention-scale", "head-grouping"}
    assert codes["attention-scale"].startswith("weights = torch.softmax(scores")
    assert codes["head-grouping"].startswith("keys = keys.repeat(")
    assert "keys are assigned" in " ".join(cause.says for cause in first.causes)
