import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.helpers import table

from transparity_conformance import check
from transparity_conformance.against.probes import Answer, Source
from transparity_conformance.against.reference import Reference, RefusedError
from transparity_conformance.against.ways import calls, catalogue
from transparity_conformance.against.ways.calls import IGNORED, PROMPT, _requests, _with_labels
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.report.report import Cause, Divergence, Report
from transparity_conformance.running.loading import load_port
from transparity_conformance.running.ways import cache_name


@pytest.mark.parametrize(("causes", "count"), [((Cause("number", "0.25 instead of 0.5"),), 3), ((), 5)])
def test_a_fault_without_an_edit_is_named_only_if_it_explains_every_call(
    causes: tuple[Cause, ...], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def judged(preset: str, probes: dict[str, Any], *args: Any, **options: Any) -> Report:
        tried.extend(probes)
        return Report(preset, "diverges", "logits")

    tokens, logits = np.ones((1, 3), int), np.ones((1, 3, 5))
    answers = [Answer(f"call {i}", {"input_ids": tokens}, 1.0, 0.1, logits, 15, 0, (1, 3, 5)) for i in range(5)]
    checkpoint = SimpleNamespace(config=example_config("llama"), parameters={})
    monkeypatch.setattr(catalogue, "import_checkpoint", lambda folder: checkpoint)
    monkeypatch.setattr(catalogue, "judge", judged)
    report = Report("theirs", "diverges", "answer", (Divergence("answer", 1.0, 0.1, causes),))
    catalogue.with_names(report, Path(), answers, None, lambda *_: None)
    assert len(tried) == count


MODEL = table(__file__, "ways.toml")
THEIRS: str = MODEL["text"]
FAULTS: dict[str, dict[str, str]] = MODEL["faults"]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")


CONFIGURATION = "        self.config = PretrainedConfig(vocab_size=61, max_position_embeddings=29, sliding_window=6)\n"


def checked(folder: Path, old: str = "", new: str = "", theirs: str = THEIRS) -> Report:
    import torch

    made = []
    for name, text in (("theirs", theirs), ("port", theirs.replace(old, new, 1))):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        torch.manual_seed(0)
        made.append(load_port(f"{folder / name}.py:Model")())
    return check(made[1], against=made[0], budget=2)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_that_a_forward_pass_does_not_show_is_told_with_its_line(kind: str, tmp_path: Path) -> None:
    old, new, claim = (FAULTS[kind].get(name, "") for name in ("old", "new", "claim"))
    report = checked(tmp_path, old, new)
    assert report.verdict == "diverges"
    assert [each.id for each in report.claims if each.verdict == "diverges"] == [claim] * bool(claim)
    line = next(number for number, text in enumerate(THEIRS.splitlines(), 1) if old in text)
    told = {each["line"] for fault in report.faults for each in (fault.source, fault.reference_source) if each}
    assert line in told or line + 1 in told, told


def test_small_weights_show_a_wrong_epsilon_of_a_module(tmp_path: Path) -> None:
    report = checked(tmp_path, "nn.LayerNorm(16)", "nn.LayerNorm(16, eps=6e-6)")
    assert [each.id for each in report.claims if each.verdict == "diverges"] == ["forward.small_weights"]


def test_a_wrong_step_is_told_if_the_reference_refuses_a_shorter_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "up_to", lambda inputs, end: {"of_tomorrow": inputs["input_ids"]})
    fault = FAULTS["the position of a step"]
    report = checked(tmp_path, fault["old"], fault["new"])
    assert [each.id for each in report.claims if each.verdict == "diverges"] == ["step"]


def test_a_wrong_answer_of_a_reference_that_cannot_be_recorded_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise RefusedError("The reference theirs cannot be recorded.")

    monkeypatch.setattr(Reference, "program", refuse)
    report = checked(tmp_path, FAULTS["a length"]["old"], FAULTS["a length"]["new"])
    assert report.verdict == "diverges"
    assert any("no line was found: The reference theirs cannot be recorded" in each for each in report.notes)


@pytest.mark.parametrize("kind", ["the position of a step", "a length", "a batch"])
def test_without_a_configuration_other_sizes_and_steps_show_a_fault(kind: str, tmp_path: Path) -> None:
    report = checked(tmp_path, FAULTS[kind]["old"], FAULTS[kind]["new"], THEIRS.replace(CONFIGURATION, ""))
    assert [each.id for each in report.claims if each.verdict == "diverges"] == [FAULTS[kind]["claim"]]


WAYS = ["forward.reach", "step", "forward.small_weights", "generate", "loss", "gradients", "repeats"]


def test_without_a_configuration_a_right_copy_agrees_up_to_the_longest_text(tmp_path: Path) -> None:
    report = checked(tmp_path, theirs=THEIRS.replace(CONFIGURATION, ""))
    assert (report.verdict, report.not_compared) == ("agrees", ())
    assert [each.id for each in report.claims] == ["forward.reach", "step", *WAYS[1:]]  # steps after two prompts
    assert report.coverage.lengths == (*range(1, 18), 29)
    assert report.coverage.batches == tuple(range(1, 14))


def test_a_right_copy_agrees_in_every_way(tmp_path: Path) -> None:
    report = checked(tmp_path)
    assert (report.verdict, report.faults) == ("agrees", ())
    assert [*dict.fromkeys(each.id for each in report.claims)] == WAYS
    assert report.coverage.lengths == (*range(1, 18), 28, 29)
    assert report.coverage.batches == tuple(range(1, 14))


def test_a_right_port_may_store_its_hidden_units_in_another_order(tmp_path: Path) -> None:
    last = "self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 24), nn.Linear(24, 16)\n"
    flip = "for each, axis in ((self.up.weight, 0), (self.up.bias, 0), (self.down.weight, 1)):\n"
    report = checked(tmp_path, last, f"{last}        {flip}            each.data = each.data.flip(axis)\n")
    unknown = "gradients of up.bias: no parameter of the port has this parameter's values"
    assert (report.verdict, report.not_compared) == ("agrees", (unknown,))


def test_a_prompt_of_codebooks_has_as_many_positions_as_one_of_text() -> None:
    def draw(length: int, batch: int, _: int) -> dict[str, np.ndarray]:
        return {"input_ids": np.zeros((batch, length, 3), int)}

    reference = cast("Any", SimpleNamespace(weights={}, numbers=[20.0]))
    firsts = [way.settings[0] for way, _ in _requests(reference, Source(draw, 64, is_text=True))]
    assert firsts == [PROMPT, PROMPT, 19]


def labels_of(shape: tuple[int, ...], kept: np.ndarray | None = None) -> np.ndarray:
    shown = None if kept is None else np.broadcast_to(kept, shape)
    model: Any = SimpleNamespace(near=lambda inputs: (np.zeros(shape), 0.0), kept=lambda inputs, shape: shown)
    labels: np.ndarray = _with_labels(model, {})["labels"]
    return labels


def test_no_label_counts_that_padding_predicts() -> None:
    labels = labels_of((40, 6, 9), np.arange(6)[:, None] > 2)
    assert (labels[:, :4] == IGNORED).all()
    assert (labels[:, 4:] != IGNORED).any()


def test_each_row_of_a_classifier_has_one_label() -> None:
    labels = labels_of((40, 9))
    assert labels.shape == (40,)
    assert (labels != IGNORED).any()


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("input_ids, past_key_values=None, use_cache=None", "past_key_values"),
        ("tokens, kv=None", "kv"),
        ("input_ids, state=None, output_hidden_states=None", "state"),
        ("input_ids, encoder_hidden_states=None, cache_position=None", ""),
    ],
)
def test_the_argument_for_a_cache_is_found_by_the_words_of_its_name(names: str, found: str) -> None:
    assert cache_name(eval(f"lambda {names}: 0")) == found
