"""JAX's fast path spreads a batch over the CPU's devices, where a user asked for more than one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("flax")

SPREAD = """
import jax
import numpy as np
from transparity.port import build as numpy_build
from transparity_conformance.probes import probes
from transparity_flax.port import build

assert len(jax.devices("cpu")) == 2
for case, name, axis in [("translation", "mixed", 0), ("notes-lm", "mixed", 0), ("notes-lm", "longest", 1)]:
    probe = probes(case)[name]
    given = probe.inputs.items()
    even = {what: value[:2] if axis == 0 else value[:1, : len(value[0]) // 2 * 2] for what, value in given}
    odd = {what: value[:3] if axis == 0 else value[:1, :3] for what, value in given}
    forward, reference = build(probe.config, probe.parameters), numpy_build(probe.config, probe.parameters)
    for inputs, devices in ((even, 2), (odd, 1)):
        logits, expected = forward.logits(**inputs), reference.logits(**inputs)
        assert len(logits.sharding.device_set) == devices, (case, logits.sharding)
        targets = next(reversed(inputs.values()))
        assert abs(forward.loss(targets, **inputs) - reference.loss(targets, **inputs)) < 1e-4
        np.testing.assert_allclose(logits, expected, rtol=0, atol=probe.oracle.budget("logits", "float32"))
"""


def test_two_devices_say_what_one_says() -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", SPREAD]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
