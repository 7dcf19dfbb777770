"""PyTorch's fast path multiplies by packed weights: the same numbers, held once more in another order."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from transparity.presets import PRESETS
from transparity_conformance.probes import probes
from transparity_pytorch.packing import PackedLinear, can_be_packed
from transparity_pytorch.port import build


def linears(model: nn.Module) -> set[type]:
    return {type(module) for module in model.modules() if isinstance(module, nn.Linear)}


@pytest.mark.parametrize("case", PRESETS)
def test_a_packed_model_says_what_the_model_says(case: str) -> None:
    probe = probes(case)["mixed"]
    forward = build(probe.config, probe.parameters)
    if not can_be_packed(forward.model.head.weight.dtype, "cpu"):
        pytest.skip("oneDNN is not there")
    assert linears(forward.fastest) == {PackedLinear}
    fast = np.asarray(forward.logits(**probe.inputs))
    forward.fastest = forward.model
    plain = np.asarray(forward.logits(**probe.inputs))
    np.testing.assert_allclose(fast, plain, rtol=0, atol=probe.oracle.budget("logits", "float32"))


def test_its_parameters_are_the_models_own() -> None:
    probe = probes("translation")["mixed"]
    forward = build(probe.config, probe.parameters)
    own, packed = (dict(model.named_parameters()) for model in (forward.model, forward.fastest))
    assert own.keys() == packed.keys()
    assert all(packed[name] is parameter for name, parameter in own.items())


@pytest.mark.parametrize(("dtype", "mode"), [("float64", "eager"), ("float16", "eager"), ("float32", "compile")])
def test_what_cannot_be_packed_or_is_compiled_stays_as_it_is(dtype: str, mode: str) -> None:
    probe = probes("notes-lm")["mixed"]
    forward = build(probe.config, probe.parameters, dtype=dtype, mode=mode)
    assert linears(forward.fastest) == {nn.Linear}


def test_what_is_looked_into_and_what_learns_is_not_packed() -> None:
    probe = probes("notes-lm")["mixed"]
    forward = build(probe.config, probe.parameters)
    forward.logits(**probe.inputs)
    assert linears(forward.model) == {nn.Linear}
