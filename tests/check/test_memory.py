"""A process that checks many ports does not keep the models of earlier checks in memory."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity_conformance import check
from transparity_conformance.capabilities.capability import kept_in
from transparity_conformance.identify.alignment.known_faults import Recorded, intermediates
from transparity_conformance.oracle import probes
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_numpy.port import build as numpy_build

SMALL = preset("notes-lm").resized(embed_dim=4, num_heads=2, num_decoder_layers=1, max_length=5)


def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Any:
    return numpy_build(config, parameters, dtype="float32")


def test_no_probe_outlives_its_check(monkeypatch: Any) -> None:
    made: list[weakref.ref[Probe]] = []

    def recorded(config: TransformerConfig, case: str) -> dict[str, Probe]:
        found = probes_of(config, case)
        made.extend(weakref.ref(probe) for probe in found.values())
        return found

    monkeypatch.setattr("transparity_conformance.checking.stages.evidence.probes_of", recorded)
    assert check(build, config=SMALL).verdict == "agrees"
    assert made
    assert not [probe for probe in made if probe() is not None]


def test_nothing_that_was_computed_to_find_a_line_is_kept() -> None:
    probe = next(iter(probes_of(SMALL, "small").values()))
    before = all_recorded()  # other tests in this process may keep recordings
    assert len(intermediates(probe, {}, "logits")) > len(probe.parameters)
    assert len(all_recorded()) <= len(before)


def all_recorded() -> list[Recorded]:
    """Return every recording in this process."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Recorded)]


def test_results_are_kept_in_the_object_that_they_belong_to() -> None:
    calls = []

    @kept_in(0)
    def double(config: TransformerConfig, number: int) -> int:
        calls.append(number)
        return 2 * number

    first, second = (dataclasses.replace(SMALL) for _ in range(2))
    assert (double(first, 1), double(first, 1), double(first, 2), double(second, 1)) == (2, 2, 4, 2)
    assert calls == [1, 2, 1]


def test_probes_of_a_preset_are_kept() -> None:
    assert probes.probes("notes-lm") is probes.probes("notes-lm")
