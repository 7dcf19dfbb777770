"""Run a sample of `python -m meta.measure --pool fitting`: `fit` finds the configurations of random modules."""

import dataclasses

import pytest

from meta.fitting.drawn import MOST_DEPARTURES, computes_the_same, drawn, module, template_of
from meta.fitting.measure import compared, fitted, is_found
from transparity_conformance.identify.fitting.answer import differences
from transparity_conformance.identify.fitting.fit import fit

SAMPLE = (0, 2, 3, 4, 10, 5056, 5003, 5005, 5013, 5021)
"""Seeds that take a few seconds each. Seeds 10 and 5056 draw gated attention. Seed 5003 draws parallel branches with
a multiplier. Seed 5005 draws convolutions with fewer features than positions. Seeds 5013 and 5021 draw multiplied
token embeddings and position embeddings."""


@pytest.mark.long
@pytest.mark.parametrize("seed", SAMPLE)
def test_a_drawn_configuration_is_found(seed: int) -> None:
    answer = fitted(seed)
    assert is_found(answer), answer


def test_the_drawn_configurations_depart_from_their_template_in_up_to_six_fields() -> None:
    assert max(len(differences(config, template_of(name))) for name, config in map(drawn, range(12))) == MOST_DEPARTURES


def test_an_unused_parameter_is_no_departure() -> None:
    recurrent = template_of("qwen3_next").resized(num_decoder_layers=1, positions="none", rotary_dim=None)
    assert computes_the_same(recurrent, dataclasses.replace(recurrent, positions="relative"))
    gpt2 = template_of("gpt2")
    assert not computes_the_same(gpt2, dataclasses.replace(gpt2, key_bias=False))


@pytest.mark.long
def test_another_configuration_is_not_taken_for_the_drawn_one() -> None:
    _, config = drawn(2)
    made = fit(module(config))
    wrong, _ = compared(dataclasses.replace(config, norm_eps=config.norm_eps + 0.01), made)
    assert "norm_eps" in wrong
