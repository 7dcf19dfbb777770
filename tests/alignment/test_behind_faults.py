"""Taps behind a fault, in front of it and between two are found where the port computes them, against its own taps."""

from __future__ import annotations

import numpy as np
import pytest
from tests.listening.common import is_same

from meta.pool.port import port_with, probes_called
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.identify.alignment.heard import aligned_probe
from transparity_conformance.identify.alignment.plan import plan_of, read
from transparity_conformance.running.process.running import built, run_listening

FAULTS = {
    "weak-mask": ("norm-missing-post",),
    "notes-lm": ("layer-shared-last",),
    "pre-norm": ("layer-shared-first", "mask-polarity-everything"),
    "shared-heads": ("head-split-merge",),
    "walkthrough": ("norm-swapped-two-sublayers",),
    "lone-encoder": ("norm-kind-no-mean",),
    "gemma": ("residual-source-normalised",),
    "translation": ("head-order-merge",),
    "llama": ("rotary-layout-the-other",),
    "opt": ("attention-mask-inverted",),
}


@pytest.mark.long
@pytest.mark.parametrize("case", FAULTS)
def test_every_tap_of_a_wrong_port_is_found_with_its_own_numbers(case: str) -> None:
    (showing, silent), probes = (port_with(*FAULTS[case], taps=taps) for taps in (True, False)), probes_called(case)
    aligned = aligned_probe(next(iter(probes.values())))
    taps, operations = run_listening(built(silent, aligned), aligned)
    plan = plan_of(aligned, operations, taps["logits"], "float32", Clock())
    for probe in (aligned, probes["one"], probes["square"]):
        taps, operations = run_listening(built(silent, probe), probe)
        found, _ = read(plan, probe, operations, taps["logits"])
        own = {tap: value.numpy() for tap, value in showing(probe.config, probe.parameters)(**probe.inputs).items()}
        assert own.keys() <= found.keys()
        assert [tap for tap in own if not is_same(found[tap], np.reshape(own[tap], found[tap].shape))] == []
