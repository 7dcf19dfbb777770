"""What a port computes tells causes apart that its logits do not; where nothing does, both are named."""

from __future__ import annotations

import pytest

from meta.power.family_faults import acting
from meta.power.judgement import Judgement, is_named, is_placed, judged
from meta.power.plain_port import PlainFault
from meta.power.simulated import SimulatedPort, View


def of_family(case: str, name: str, view: View = "operations") -> Judgement:
    """The judgement of a port of a family with a fault."""
    fault = next(each for each in acting(case) if str(each) == name)
    return judged(SimulatedPort("fault", case, (fault,), view=view))


def of_preset(case: str, fault: PlainFault) -> Judgement:
    """The judgement of a port of a preset with a fault, which is listened to."""
    return judged(SimulatedPort("fault", case, (fault,), view="operations"))


def is_right(answer: Judgement) -> bool:
    return is_named(answer) and is_placed(answer) and all(each.causes for each in answer.divergences)


@pytest.mark.parametrize("case", ["bloom", "modern-bert"])
def test_a_factor_in_front_of_a_norm_is_none_of_the_norm(case: str) -> None:
    """It shows in eps alone, and is an operation of its own."""
    answer = of_family(case, "embedding-scale (the other)")
    assert is_right(answer), str(answer)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("deepseek", "norm-eps (3e-06 of latents)"),
        ("qwen3-next", "norm-eps (eps 1e-6)"),
        ("mamba2", "norm-eps (eps 1e-6)"),
    ],
)
def test_eps_of_a_latent_and_of_a_gated_norm_is_that_of_a_norm(case: str, name: str) -> None:
    answer = of_family(case, name, "taps")
    assert is_right(answer), str(answer)


@pytest.mark.long
def test_an_exchange_that_nothing_but_a_name_tells_from_another_is_listed_with_it() -> None:
    """C and B of a state-space model, exchanged where they are made or where they are used."""
    answer = of_family("mamba2", "weight-swapped (queries and keys)")
    assert is_right(answer), str(answer)
    assert {each.causes[0].mistake for each in answer.divergences} == {"state-space"}
    assert {each.indistinguishable for each in answer.divergences} == {("weight-swapped",)}
    shown = of_family("mamba2", "state-space (C writes, B reads)", "taps")
    assert not any(each.indistinguishable for each in shown.divergences), "the port names them"


@pytest.mark.parametrize(
    ("variant", "tap"),
    [
        ("embedding", "embedding"),
        ("weights", "layers.0.self_attention.weights"),
        ("sublayer", "layers.0.self_attention.output"),
    ],
)
def test_dropout_that_is_on_is_placed_at_the_tap_that_it_drops(variant: str, tap: str) -> None:
    answer = of_preset("notes-lm", PlainFault("dropout-active", variant))
    assert is_right(answer), str(answer)
    assert answer.divergences[0].causes[0].at == f"decoder.{tap}"


@pytest.mark.long
def test_a_norm_in_front_of_a_convolution_is_not_taken_for_the_convolution() -> None:
    """Its output is a little off, so that sigmoid of the convolved is found before the convolved."""
    answer = of_family("mamba2", "norm-eps (1e-3)")
    assert is_right(answer), str(answer)
    assert {cause.mistake for each in answer.divergences for cause in each.causes} == {"norm-eps"}


@pytest.mark.long
@pytest.mark.parametrize("name", ["convolution-padding (causal, both)", "convolution-activation (none, both)"])
def test_two_convolutions_that_are_wrong_alike_are_each_found(name: str) -> None:
    answer = of_family("whisper", name)
    assert is_right(answer), str(answer)
    assert [each.where for each in answer.divergences] == ["encoder.first_convolution", "encoder.second_convolution"]


@pytest.mark.long
def test_norms_in_another_place_are_placed_where_that_first_acts() -> None:
    answer = of_preset("notes-lm", PlainFault("norm-placement", "the other"))
    assert is_right(answer), str(answer)
    assert answer.divergences[0].causes[0].at == "decoder.layers.0.self_attention_norm"
