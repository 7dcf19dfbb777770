import pytest
from tests.helpers import run_python

SPREAD = """
import jax
import numpy as np
from transparity_numpy.port import build as numpy_build
from transparity_conformance.oracle.probes import probes
from transparity_flax.port import build

assert len(jax.devices("cpu")) == 2
for case in ("translation", "notes-lm"):
    probe = probes(case)["mixed"]
    forward, reference = build(probe.config, probe.parameters), numpy_build(probe.config, probe.parameters)
    for rows, devices in ((2, 2), (3, 1), (1, 1)):
        inputs = {what: value[:rows] for what, value in probe.inputs.items()}
        logits, expected = forward.logits(**inputs), reference.logits(**inputs)
        assert len(logits.sharding.device_set) == devices, (case, logits.sharding)
        targets = next(reversed(inputs.values()))
        budget = probe.oracle.budget("logits", "float32")
        np.testing.assert_allclose(logits, expected, rtol=0, atol=budget)
        # A loss changes at most twice as much as its logits.
        assert abs(forward.loss(targets, **inputs) - reference.loss(targets, **inputs)) <= 2 * budget
"""


THREADS = """
import os
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from transparity_numpy.fast import threads
from transparity_numpy.port import build
from transparity_conformance.oracle.probes import probes

assert threads.threads() == 2
split, seen = threads.split_batch, []
import transparity_numpy.port
transparity_numpy.port.split_batch = lambda *given: seen.append(given) or split(*given)
for case in ("translation", "notes-lm"):
    probe = probes(case)["mixed"]
    forward, expected = build(probe.config, probe.parameters, dtype="float32"), probe.oracle.expected["logits"]
    for rows, calls in ((3, 1), (2, 2), (1, 2)):
        logits = forward.logits(**{name: value[:rows] for name, value in probe.inputs.items()})
        assert len(seen) == calls, (case, rows, len(seen))
        np.testing.assert_allclose(logits, expected[:rows], rtol=0, atol=probe.oracle.budget("logits", "float32"))
    seen.clear()

tokens = {"tokens": np.arange(12).reshape(4, 3)}

def square(tokens):
    assert threads.threads() == 1
    return tokens**2

with ThreadPoolExecutor(4) as callers:  # a second caller does not restore the first one's limit
    for result in callers.map(lambda _: split(square, tokens, np.empty((4, 3), int)), range(50)):
        np.testing.assert_array_equal(result, tokens["tokens"] ** 2)
assert threads.threads() == 2

if hasattr(os, "fork"):
    child = os.fork()
    if child == 0:
        split(square, tokens, np.empty((4, 3), int))
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_two_devices_say_what_one_says() -> None:
    pytest.importorskip("flax")
    ended = run_python("-c", SPREAD, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert ended.returncode == 0, ended.stderr


def test_two_threads_say_what_one_says() -> None:
    ended = run_python("-c", THREADS, OPENBLAS_NUM_THREADS="2", OMP_NUM_THREADS="2", MKL_NUM_THREADS="2")
    assert ended.returncode == 0, ended.stderr
