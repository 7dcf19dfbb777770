"""A sample of `python -m meta.measure --pool fitting`: `fit` finds the configurations of drawn modules."""

from __future__ import annotations

import dataclasses

import pytest

from meta.fitting.drawn import MOST_DEPARTURES, drawn, module, template_of
from meta.fitting.measure import compared
from transparity_conformance.identify.fitting.fit import fit
from transparity_conformance.identify.fitting.templates import differences


def test_the_drawn_configurations_depart_from_their_template_in_up_to_six_fields() -> None:
    counts = [len(differences(config, template_of(name))) for name, config in map(drawn, range(12))]
    assert min(counts) >= 0 and max(counts) == MOST_DEPARTURES


@pytest.mark.long
def test_another_configuration_is_not_taken_for_the_drawn_one() -> None:
    _, config = drawn(2)
    made = fit(module(config))
    other = dataclasses.replace(config, norm_eps=config.norm_eps + 0.01)
    wrong, _ = compared(other, made)
    assert "norm_eps" in wrong
