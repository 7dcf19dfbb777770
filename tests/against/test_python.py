import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from transparity.errors import TransparityError
from transparity_conformance import assert_conforms, check
from transparity_conformance.against.probes import Source, probes_of, source_of
from transparity_conformance.against.reference import RefusedError, raised
from transparity_conformance.report.check.page import as_html
from transparity_conformance.report.check.terminal import as_text

INPUTS = [{"tokens": np.arange(10).reshape(2, 5)}, {"tokens": np.ones((1, 3), np.int64)}]


class Relu(nn.Module):
    function: Any = staticmethod(nn.functional.relu)

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.head(self.function(self.embedding(tokens)))
        return hidden


class Silu(Relu):
    function = staticmethod(nn.functional.silu)


class Heights(nn.Module):
    def forward(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(low, torch.eye(7)) + high


class Tanh(Relu):
    function = staticmethod(torch.tanh)


class WithTargets(Silu):
    """A module that returns the logits of all positions only with targets, and then also stores the loss."""

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        logits = super().forward(tokens)
        if targets is None:
            return logits[:, -1:]
        self.loss = nn.functional.cross_entropy(logits.mT, targets)
        return logits


class TwoMasks(Silu):
    """A module that passes `is_causal=True` and another mask to fused attention."""

    def forward(self, tokens: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embedding(tokens)[:, None]
        mask = None if attention_mask is None else attention_mask[:, None, None].bool()
        hidden: torch.Tensor = self.head(self.attended(x, mask)[:, 0])
        return hidden

    def attended(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask, is_causal=True)


class NormedPatches(nn.Module):
    """An image module with a norm of the patches, which no configuration expresses."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.embed, self.head = nn.LayerNorm(48), nn.Linear(48, 16), nn.Linear(16, 5)

    def forward(self, img: torch.Tensor) -> torch.Tensor:
        patches = img.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
        hidden: torch.Tensor = self.head(torch.tanh(self.embed(self.norm(patches)).mean(1)))
        return hidden


class InFloat32(Silu):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.head.weight.dtype != torch.float32:
            raise ValueError("expected float32")
        return super().forward(tokens)


class WithoutTwelve(Silu):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if tokens.shape[1] == 12:
            raise ValueError("expected another length")
        return super().forward(tokens)


@pytest.mark.parametrize("kind", [WithTargets, TwoMasks, NormedPatches])
def test_an_unusual_module_agrees_with_itself(kind: Any) -> None:
    torch.manual_seed(0)
    report = check(kind, against=kind)
    assert (report.verdict, report.faults) == ("agrees", ())
    assert {each.id for each in report.claims} >= {"forward.reach", "gradients", "repeats"}


def test_a_port_that_raises_at_a_length_of_the_reference_does_not_agree() -> None:
    report = check(WithoutTwelve, against=Silu)
    (untested,) = report.coverage.untested
    assert (report.verdict, report.exit_code) == ("inconclusive", 3)
    assert re.search(r"The port raised ValueError: .* on tokens \d+ × 12; the reference Silu accepts", untested)
    assert {"gradients", "repeats"} <= {each.id for each in report.claims}


def test_a_printed_report_is_the_answer_of_the_command() -> None:
    report = check(Relu, against=Silu, inputs=INPUTS)
    assert "departs from Silu" in str(report) and "your port applies ReLU" in str(report)
    assert str(report) == repr(report) == as_text([report])


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.up, self.down = nn.Embedding(50, 16), nn.Linear(16, 32), nn.Linear(32, 16)

    def activation(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.relu(hidden)

    def added(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return self.added(x, self.down(self.activation(self.up(x))))


class SubtractedAfterItsOwn(Residual):
    def activation(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.sin(hidden * 1.7) * torch.cos(hidden * hidden) + 0.3 * hidden.abs().sqrt()

    def added(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - y


def test_a_cause_after_a_step_without_one_is_told() -> None:
    report = check(SubtractedAfterItsOwn, against=Residual)
    assert report.faults[0].causes == ()
    assert [cause.says for each in report.faults for cause in each.causes] == [
        "your port applies `sub`, where the reference applies `add`"
    ]


class Random(Residual):
    def __init__(self) -> None:
        super().__init__()
        self.scale = np.random.default_rng().uniform(0.5, 0.7)

    def activation(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.relu(hidden) * self.scale


class Dropping(Residual):
    def activation(self, hidden: torch.Tensor) -> torch.Tensor:
        torch.seed()  # each model of this class resets the random generator
        return nn.functional.dropout(torch.relu(hidden), 0.5)


class Counting(Residual):
    calls = 0

    def activation(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.relu(hidden) * (1 if self.calls < 4 else 0.5)


@pytest.mark.parametrize(
    ("port", "mistake", "code"),
    [
        (Random, "weight-drawn", "* self.scale"),
        (Dropping, "dropout-active", "dropout"),
        (Counting, "history", "self.calls < 4"),
    ],
)
def test_an_answer_that_another_call_or_build_does_not_repeat_gets_its_cause_and_line(
    port: type[Residual], mistake: str, code: str
) -> None:
    (fault,) = check(port, against=Residual).faults
    assert [cause.mistake for cause in fault.causes] == [mistake]
    assert fault.source is not None and code in fault.source["code"]


class ScaledByItsLongestText(Residual):
    longest = 1

    def added(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.longest = max(self.longest, x.shape[1])
        return x - y * self.longest


def test_state_beside_another_mistake_is_not_a_random_weight() -> None:
    faults = check(ScaledByItsLongestText, against=Residual).faults
    assert faults and not any(cause.mistake == "weight-drawn" for fault in faults for cause in fault.causes)


def test_a_length_that_the_reference_refuses_is_listed() -> None:
    report = check(Silu, against=WithoutTwelve)
    assert report.verdict == "agrees" and 13 in report.coverage.lengths and 12 not in report.coverage.lengths
    assert any("× 12: The reference" in each for each in report.not_compared), report.not_compared


def test_a_stored_loss_of_the_port_keeps_its_graph() -> None:
    port, reference = WithTargets(), WithTargets()
    reference.load_state_dict(port.state_dict())
    tokens = torch.arange(10).reshape(2, 5)
    port(tokens, tokens)
    assert check(port, against=reference).verdict == "agrees"
    port.loss.backward()
    assert port.head.weight.grad is not None


def test_no_probe_repeats_one_token_of_a_text_with_audio() -> None:
    def draw(length: int, batch: int, _: int) -> dict[str, np.ndarray]:
        return {"input_features": np.zeros((batch, 4, 6)), "input_ids": np.zeros((batch, length), int)}

    assert not [name for name in probes_of(Source(draw, 64, is_text=True))[0] if "one token" in name]


def test_a_length_for_which_no_inputs_can_be_drawn_is_listed() -> None:
    def draw(length: int, batch: int, _: int) -> dict[str, np.ndarray]:
        if length == 1:
            raise RefusedError("No inputs of length 1 can be drawn.")
        return {"tokens": np.zeros((batch, length), int)}

    probes, refused = probes_of(Source(draw, 64, is_text=True))
    assert refused == ["1 × 1: No inputs of length 1 can be drawn."]
    assert {"2 × 11", "1 × 33"} <= probes.keys() and "1 × 1" not in probes


@pytest.mark.parametrize("limit", ["max_position_embeddings", "max_target_positions"])
def test_texts_are_as_long_as_the_decoder_of_a_combined_model_allows(limit: str) -> None:
    decoder = SimpleNamespace(**{"max_position_embeddings": -1, limit: 64})
    config = SimpleNamespace(to_dict=dict, get_text_config=lambda: decoder)
    assert source_of(SimpleNamespace(config=config)).longest == 64

    def of_two_texts() -> None:
        raise ValueError("Multiple valid text configs were found")

    config = SimpleNamespace(to_dict=dict, get_text_config=of_two_texts, max_position_embeddings=32)
    assert source_of(SimpleNamespace(config=config)).longest == 32


class ScaledUnlessSquare(NormedPatches):
    def forward(self, img: torch.Tensor) -> torch.Tensor:
        hidden = super().forward(img)
        return hidden if img.shape[-1] == img.shape[-2] else hidden * 1.01


def test_images_of_other_sizes_are_compared() -> None:
    report = check(ScaledUnlessSquare, against=NormedPatches)
    assert [each.probe for each in report.faults] in (["images of 3 × 8 × 13"], ["images of 3 × 13 × 8"])
    coverage = check(NormedPatches, against=NormedPatches).coverage
    assert "images of 3 × 8 × 8, 3 × 8 × 13, 3 × 13 × 8" in coverage.inputs


def test_a_folder_of_a_model_that_transformers_does_not_have_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "of-tomorrow"}', encoding="utf-8")

    def load(folder: str) -> Silu:
        assert folder == str(tmp_path)
        torch.manual_seed(0)
        return Silu()

    assert check(load, against=load, checkpoint=tmp_path).verdict == "agrees"


def test_an_error_of_the_reference_is_told_as_its_own() -> None:
    ours = TransparityError("The reference raised ValueError: no.")
    assert raised(ours) == "TransparityError: The reference raised ValueError: no"
    ours.__cause__ = ValueError("no.")
    assert raised(ours) == raised(ours.__cause__) == "ValueError: no"


def test_a_reference_that_refuses_float64_is_told_so() -> None:
    with pytest.raises(TransparityError, match="in float64 it raised ValueError: expected float32; change"):
        check(Silu, against=InFloat32, inputs=INPUTS)


def test_a_right_port_passes_and_a_wrong_one_raises_the_report() -> None:
    port, theirs = Relu(), Silu()
    port.load_state_dict(theirs.state_dict())
    assert assert_conforms(theirs, against=theirs, inputs=INPUTS).verdict == "agrees"
    with pytest.raises(AssertionError, match="departs from"):
        assert_conforms(port, against=theirs, inputs=INPUTS)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"against": "transformers"}, "needs a configuration"),
        ({"against": Heights}, "no inputs were found by calling it .*; give the inputs: --inputs FILE"),
        ({"against": len, "inputs": INPUTS}, "cannot be recorded"),
        ({"against": Silu, "inputs": {"tokens": 1}}, "expected a list of dicts of arrays"),
        ({"inputs": INPUTS}, "without against, leave out checkpoint and inputs"),
        ({"against": Silu, "inputs": INPUTS, "family": "llama"}, "With against, check.. takes only config"),
        ({"against": Silu, "inputs": INPUTS, "config": "config.json"}, "takes a folder|config.json"),
        ({"against": [Silu] * 3, "inputs": INPUTS}, "--against was given 3 times"),
    ],
)
def test_a_mistake_of_the_user_is_one_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(TransparityError, match=says) as raised:
        check(Relu, **options)
    assert str(raised.value).count(". ") == 0


@pytest.mark.parametrize(
    ("kinds", "alone", "says"),
    [
        ((Relu, Silu, Silu), "port", "Your port differs from the other two: Silu and Silu agree."),
        ((Silu, Relu, Silu), "reference", "Relu differs from the other two: your port and Silu agree."),
        ((Silu, Silu, Relu), "third", "Relu differs from the other two: your port and Silu agree."),
        ((Silu, Silu, Silu), "", "All three agree: your port, Silu and Silu."),
        ((Silu, Relu, Tanh), "", "No two of the three agree: your port, Relu and Tanh."),
    ],
)
def test_the_one_that_stands_alone_is_named(kinds: tuple[type[Relu], ...], alone: str, says: str) -> None:
    port, first, second = (kind() for kind in kinds)
    for module in (first, second):
        module.load_state_dict(port.state_dict())
    report = check(port, against=[first, second], inputs=INPUTS, budget=1)
    assert report.as_dict()["third"]["stands_alone"] == alone
    assert report.as_dict()["third"]["sentence"] == says
    assert report.verdict == ("agrees" if kinds[0] is kinds[1] else "diverges")
    assert says in as_html([report])
