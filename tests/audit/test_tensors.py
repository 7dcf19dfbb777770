import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from meta.audits.measure import FOLDER, audit_of, changed
from transparity_conformance.checking.audit.tensors import kind_of, tensor_file
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.report.audit import AuditedTensor
from transparity_conformance.running.hub import _without_braces, recorded_messages, seeded
from transparity_conformance.running.loading import load_port

TIE = "    if settings.tied:"


def faults(load: Callable[..., Any], family: str, folder: Path) -> dict[str, AuditedTensor]:
    tensors = audit_of(load, family, folder, with_fields=False).tensors
    return {each.name: each for each in tensors if each.outcome in ("never read", "may be missing")}


def test_every_tensor_of_a_right_loader_is_read_and_refused_if_missing(tmp_path: Path) -> None:
    tensors = audit_of(load_port(f"{FOLDER / 'gpt2_numpy.py'}:load"), "gpt2", tmp_path, with_fields=False).tensors
    assert {each.outcome for each in tensors} == {"read"}
    assert len(tensors) == 28


def test_a_loader_that_names_all_missing_tensors_is_called_less_often_than_there_are_tensors(tmp_path: Path) -> None:
    folders = []

    def load(folder: str) -> Any:
        folders.append(folder)
        return AutoModelForCausalLM.from_pretrained(folder)

    tensors = audit_of(load, "gpt2", tmp_path, with_fields=False).tensors
    assert {each.outcome for each in tensors} == {"read"}
    assert len(folders) < len(tensors) / 2


def test_a_loader_that_lists_tensors_that_may_be_missing_is_tried_without_each_of_them(tmp_path: Path) -> None:
    known: set[str] = set()

    def load(folder: str) -> Any:
        path = Path(folder, "model.safetensors")
        tensors = load_file(path)
        known.update(name for name in tensors if name.startswith("transformer."))
        missing = [name for name in known if name not in tensors]
        if not all("ln_" in name for name in missing):
            raise ValueError(f"Missing: {missing}")
        size = tensors["transformer.wte.weight"].shape[1]
        save_file(tensors | {name: np.ones(size, np.float32) for name in missing}, path, metadata={"format": "pt"})
        return AutoModelForCausalLM.from_pretrained(folder)

    assert faults(load, "gpt2", tmp_path).keys() == {name for name in known if "ln_" in name}


def test_a_message_may_list_the_numbers_of_layers_in_braces() -> None:
    assert [*_without_braces(f"{{{'9' * 5000}}}")] == [f"{{{'9' * 5000}}}"]
    assert [*_without_braces("h.{0, 2}.w and {x}")] == ["h.0.w and {x}", "h.2.w and {x}"]
    assert [*_without_braces("h.{1...3}.w")] == ["h.1.w", "h.2.w", "h.3.w"]


MISSING, UNREAD = "missing from the file: the port uses {} instead", "never read: the port uses {} instead"
NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("wrong", "name", "told", "says"),
    [
        ('setdefault("norm.weight", torch.ones(settings.width))', NORM, MISSING, "ones"),
        ('setdefault("norm.weight", torch.zeros(settings.width))', NORM, MISSING, "zeros"),
        ('setdefault("norm.weight", torch.randn(settings.width))', NORM, MISSING, "random values"),
        (
            'setdefault("norm.weight", state["blocks.1.norm2.weight"])',
            *(NORM, MISSING, "decoder.layers.1.feed_forward_norm.weight (read twice)"),
        ),
        ('setdefault("norm.weight", torch.linspace(1, 2, settings.width))', NORM, MISSING, "other values"),
        ('update({"norm.weight": torch.ones(settings.width)})', NORM, UNREAD, "ones"),
        (
            'update({"blocks.1.norm2.weight": state["blocks.1.norm1.weight"]})',
            "model.layers.1.post_attention_layernorm.weight",
            *(UNREAD, "decoder.layers.1.self_attention_norm.weight (read twice)"),
        ),
        (
            'update({"head.weight": torch.randn(settings.vocab, settings.width)})',
            *("lm_head.weight", UNREAD, "random values"),
        ),
    ],
)
def test_what_stands_in_the_place_of_a_tensor_is_told(
    wrong: str, name: str, told: str, says: str, tmp_path: Path
) -> None:
    (found,) = faults(changed(TIE, f"    state.{wrong}\n{TIE}", tmp_path), "llama", tmp_path).values()
    assert (found.name, found.outcome) == (name, "may be missing" if told is MISSING else "never read")
    assert found.says == told.format(says)


@pytest.mark.parametrize(
    ("asked", "does"),
    [
        ('"mtp." in "".join(state)', 'state["norm.weight"] += 1'),
        ('"inv_freq" in "".join(state)', 'state["norm.weight"] *= 2'),
        ('any("inv_freq" in name for name in state)', 'state["norm.weight"].zero_()'),
    ],
)
def test_a_tensor_that_no_model_reads_changes_nothing(asked: str, does: str, tmp_path: Path) -> None:
    kept = '    state = {name: value for name, value in state.items() if "mtp." not in name and "inv_freq" not in name}'
    loader = changed(TIE, f"    if {asked}:\n        {does}\n{kept}\n{TIE}", tmp_path)
    (found,) = [each for each in audit_of(loader, "llama", tmp_path, with_fields=False).tensors if each.error]
    assert (found.outcome, found.name.split(".")[0]) == ("not ignored", "mtp" if "mtp" in asked else "model")


@pytest.mark.parametrize(
    ("says", "is_named"),
    [
        ('print("missing: model.norm.weight")', True),
        ('__import__("warnings").warn("norm.weight is drawn")', True),
        ('__import__("logging").getLogger("a").warning("no %s", "model.norm.weight")', True),
        ('print("some weights are missing")', False),
    ],
)
def test_a_loader_may_go_on_if_it_names_what_is_missing(says: str, is_named: bool, tmp_path: Path) -> None:
    go_on = f"    if 'norm.weight' not in state:\n        {says}\n"
    go_on += "        state['norm.weight'] = torch.ones(settings.width)\n"
    found = faults(changed(TIE, go_on + TIE, tmp_path), "llama", tmp_path)
    assert list(found) == ([] if is_named else ["model.norm.weight"])


def test_a_layer_that_has_the_weights_of_another_is_told_as_one(tmp_path: Path) -> None:
    wrong = 'state |= {n.replace("blocks.0.", "blocks.1."): p for n, p in state.items() if n.startswith("blocks.0.")}'
    found = faults(changed(TIE, f"    {wrong}\n{TIE}", tmp_path), "llama", tmp_path)
    assert len(found) == 9
    assert {each.says for each in found.values()} == {"never read: the port uses the tensors of layers.0 instead"}


def test_a_tensor_that_the_family_does_not_need_is_not_left_out() -> None:
    file = tensor_file("bert", example_config("bert"), "float32")
    assert "pooler.dense.weight" in file.parameters and "pooler.dense.weight" not in file.needed
    assert "pooler.dense.bias" in file.needed


def test_the_bias_of_keys_counts_for_nothing_without_rotations() -> None:
    file = tensor_file("bert", example_config("bert"), "float32")
    left = set(file.parameters) - file.exercised
    assert {kind_of(name) for name in left} == {"encoder.layer.{i}.attention.self.key.bias"}
    assert tensor_file("qwen2", example_config("qwen2"), "float32").exercised >= {
        "model.layers.0.self_attn.k_proj.bias"
    }


def test_a_tensor_of_a_field_that_is_ignored_is_not_said_to_be_missing_too(tmp_path: Path) -> None:
    load = changed(' if c["tie_word_embeddings"] else p["lm_head.weight"]', "", tmp_path, "gpt2_numpy")
    audit = audit_of(load, "gpt2", tmp_path, with_fields=True)
    assert audit.fields_with("ignored") == ["tie_word_embeddings"]
    assert audit.tensors_with("may be missing") == []


def test_a_loader_may_call_what_is_missing_by_the_name_it_has_in_the_model() -> None:
    with recorded_messages() as said:
        print("model.layers.1.mlp.gate.weight is missing, model.layers.1.mlp.up.weight is there")  # noqa: T201
    assert said.line_about("model.layers.1.block_sparse_moe.gate.weight")
    for other in ("model.layers.11.block_sparse_moe.gate.weight", "model.layers.1.block_sparse_moe.gate.bias"):
        assert not said.line_about(other)
    assert not said.line_about("embed_out.weight")
    with recorded_messages() as said:
        print("lm_head.weight | MISSING")  # noqa: T201
    assert said.line_about("embed_out.weight") and not said.line_about("embed_out.weight", said.lines())


def test_what_is_said_is_recorded_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with recorded_messages() as said:
        print("model.norm.weight is printed")  # noqa: T201
        warnings.warn("model.head.weight is warned of", stacklevel=1)
        logging.getLogger("a stranger").warning("%s is logged", "model.embed.weight")
    assert said.line_about("model.norm.weight") == "model.norm.weight is printed"
    assert said.line_about("model.head.weight") and said.line_about("model.embed.weight")
    assert said.line_about("transformer.norm.weight")  # the message has another prefix
    assert not said.line_about("model.norm.bias")
    assert capsys.readouterr() == ("", "")


def test_random_numbers_are_those_of_the_seed_and_then_the_ports_own() -> None:
    legacy: Any = np.random
    legacy.seed(3)
    expected = legacy.rand(2)
    legacy.seed(3)
    drawn = [legacy.rand()]
    with seeded(0):
        inside = legacy.rand()
    drawn.append(legacy.rand())
    assert np.array_equal(drawn, expected)
    with seeded(0):
        assert legacy.rand() == inside
