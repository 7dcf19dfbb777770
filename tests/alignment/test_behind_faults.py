"""Taps behind a fault, in front of it and between two are found where the port computes them, against its own taps."""

from __future__ import annotations

import numpy as np
import pytest
from tests.listening.common import is_same

from meta.power.simulated import SimulatedPort, build_of, case_probes, family_ports, of_logits, plain_ports
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.identify.alignment.heard import aligned_probe
from transparity_conformance.identify.alignment.plan import plan_of, read
from transparity_conformance.running.process.running import built, run_listening

FAULTS = (
    "weak-mask, operations: norm-missing (feed_forward in encoder.layers.0)",
    "notes-lm, operations: layer-shared (last)",
    "notes-lm, operations: layer-shared (first) and mask-polarity (everything)",
    "shared-heads, operations: head-order (split in encoder.layers.0)",
    "walkthrough, operations: norm-swapped (self_attention with feed_forward in encoder.layers.0)",
    "lone-encoder, operations: norm-kind (rms)",
    "pre-norm, operations: residual-source (the normalised in encoder.layers.0)",
    "weak-mask, operations: head-order (merge in decoder.layers.1)",
    "llama, operations: rotary-layout (other)",
    "opt, operations: attention-mask (inverted)",
)


def port_called(name: str) -> SimulatedPort:
    case = name.partition(",")[0]
    ports = family_ports([case]) if case in ("llama", "opt") else plain_ports((case,))
    return next(port for port in ports if str(port) == name)


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_every_tap_of_a_wrong_port_is_found_with_its_own_numbers(name: str) -> None:
    port = port_called(name)
    build, probes = build_of(port.faults), case_probes(port.case)
    aligned = aligned_probe(next(iter(probes.values())))
    taps, operations = run_listening(built(of_logits(build), aligned), aligned)
    plan = plan_of(aligned, operations, taps["logits"], "float32", Clock())
    assert plan.matches.keys() == aligned.oracle.expected.keys()
    for probe in (aligned, probes["one"], probes["square"]):
        taps, operations = run_listening(built(of_logits(build), probe), probe)
        found, _ = read(plan, probe, operations, taps["logits"])
        own = build(probe.config, probe.parameters)(**probe.inputs)
        wrong = [tap for tap in own if not is_same(found[tap], np.reshape(own[tap], found[tap].shape))]
        assert not wrong
