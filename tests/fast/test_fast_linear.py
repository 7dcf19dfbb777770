from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

from transparity.parameters import initialize_parameters
from transparity.presets import PRESETS
from transparity.taps import Tap
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.oracle.probes import Probe, probes
from transparity_conformance.report.comparison import difference
from transparity_flax.fast import fast_linear as flax_fast_linear
from transparity_flax.port import build as build_flax
from transparity_flax.state.parameters import dump
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.fast.fast_linear import FEW
from transparity_numpy.port import build as build_numpy
from transparity_pytorch.fast import fast_linear
from transparity_pytorch.fast.fast_linear import (
    ONE_ROW,
    PackedLinear,
    can_be_packed,
    multiplied_by_one_row,
    one_row_by_mkl,
)
from transparity_pytorch.port import build


@pytest.fixture(autouse=True)
def _small_weights_are_packed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_linear, "LEAST", 0)


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


def test_small_weights_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = probes("translation")["mixed"]
    model = build(probe.config, probe.parameters).model
    monkeypatch.setattr(fast_linear, "LEAST", model.head.weight.numel())
    maps = [each for each in fast_linear.packed(model).modules() if isinstance(each, nn.Linear)]
    assert {PackedLinear, nn.Linear} == {type(each) for each in maps}
    for each in maps:
        assert isinstance(each, PackedLinear) == (each.weight.numel() >= fast_linear.LEAST)


def test_its_parameters_are_the_models_own() -> None:
    probe = probes("translation")["mixed"]
    forward = build(probe.config, probe.parameters)
    own, packed = (dict(model.named_parameters()) for model in (forward.model, forward.fastest))
    assert own.keys() == packed.keys() and all(packed[name] is own[name] for name in own)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_what_cannot_be_packed_stays_as_it_is(dtype: str) -> None:
    probe = probes("notes-lm")["mixed"]
    assert linears(build(probe.config, probe.parameters, dtype=dtype).fastest) == {nn.Linear}


@pytest.mark.parametrize("product", ONE_ROW)
@pytest.mark.parametrize("bias", [False, True])
def test_one_row_is_multiplied_as_several_are(bias: bool, product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use five output features; five is a multiple of neither the number of threads nor the vector width."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    torch.manual_seed(0)
    linear, row = nn.Linear(7, 5, bias=bias), torch.randn(1, 1, 7)
    with torch.no_grad():
        result = multiplied_by_one_row(row, linear.weight, linear.bias, ONE_ROW[product])
        assert_linear(result, row, linear.weight, linear.bias if bias else np.zeros(5, np.float32))


@pytest.mark.parametrize(
    ("processor", "has_mkl", "without_avx512", "expected"),
    [
        ("Intel Xeon", True, False, "whole"),
        ("AMD EPYC", True, True, "parts"),
        ("AMD EPYC", True, False, None),
        ("Intel Xeon", False, False, None),
    ],
)
def test_one_row_is_left_to_the_library_that_is_faster_on_the_processor(
    processor: str, has_mkl: bool, without_avx512: bool, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": processor}, raising=False)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    vector = "AVX2" if without_avx512 else "AVX512"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vector)
    assert one_row_by_mkl() == expected


def test_one_row_is_decoded_by_what_was_compiled_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect a graph only for a batch of one row; the backend `eager` records graphs without compiling them."""
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend="eager"))
    probe = probes("notes-lm")["mixed"]
    forward, eager = (build(probe.config, probe.parameters, mode=mode) for mode in ("compile", "eager"))
    counted = torch._dynamo.utils.counters["stats"]
    before = counted["unique_graphs"]
    forward.generate(np.array([[1, 2], [3, 4]]), 3)
    assert counted["unique_graphs"] == before
    one = forward.generate(np.array([[1, 2]]), 3)
    assert counted["unique_graphs"] > before
    np.testing.assert_array_equal(one, eager.generate(np.array([[1, 2]]), 3))


@pytest.mark.parametrize("shape", [(2, 3), (FEW, 2), (3,)])
def test_numpy_multiplies_all_rows_at_once(shape: tuple[int, ...]) -> None:
    probe = probes("translation")["mixed"]
    forward = build_numpy(probe.config, probe.parameters, dtype="float32")
    weight, bias = (forward.fastest[f"head.{part}"] for part in ("weight", "bias"))
    assert np.shares_memory(weight, forward.parameters["head.weight"])
    rows = np.random.default_rng(0).normal(size=(*shape, probe.config.embed_dim)).astype(np.float32)
    product = linear({"weight": weight, "bias": bias}, rows)
    assert type(product) is np.ndarray  # a FastWeight if NumPy multiplied
    assert_linear(product, rows, *head_of(probe))
    assert product + bias is product
    assert {type(each) for each in (weight[np.array([1, 2])], weight * 2, np.exp(weight))} == {np.ndarray}


def test_flax_decodes_with_its_kernels_the_other_way_around() -> None:
    probe = probes("translation")["mixed"]
    forward = build_flax(probe.config, probe.parameters)
    _, form, weights = forward.split
    turned, own = (
        {path: value for path, value in nnx.to_flat_state(nnx.state(model)) if path[-1] == "kernel"}
        for model in (form.model(weights), forward.model)
    )
    assert turned and turned.keys() == own.keys()
    assert all(np.array_equal(turned[path][...], own[path][...].T) for path in own)
    rows = jax.random.normal(jax.random.key(0), (2, 3, probe.config.embed_dim))
    for head in (form.model(weights).head, forward.model.head):
        assert_linear(head(rows), rows, *head_of(probe))
    kept = dump(forward.model)
    assert all(np.array_equal(kept[name], value.astype(np.float32)) for name, value in probe.parameters.items())


def test_flax_learns_by_products_of_matrices() -> None:
    """Expect matrix products in training; claims compare the gradients with the oracle."""
    probe = probes("translation")["mixed"]
    model = build_flax(probe.config, probe.parameters).model
    learner = flax_fast_linear.for_training(model)
    own, others = (dict(nnx.to_flat_state(nnx.state(each))) for each in (model, learner))
    assert own.keys() == others.keys()
    assert all(others[path].get_value() is variable.get_value() for path, variable in own.items())
    rows = jax.random.normal(jax.random.key(0), (2, 3, probe.config.embed_dim))
    for head, axes in ((learner.head, {2}), (model.head, {2, 3})):
        assert_linear(head(rows), rows, *head_of(probe))
        assert axes_multiplied(head, rows) == axes


def head_of(probe: Probe) -> tuple[np.ndarray, np.ndarray]:
    return probe.parameters["head.weight"], probe.parameters["head.bias"]


def assert_linear(actual: Any, rows: Any, weight: Any, bias: Any) -> None:
    """Assert that a float32 product equals x Wᵀ + b."""

    def run(arrays: Arrays, tap: Tap) -> None:
        tap("result", arrays["rows"] @ arrays["weight"].T + arrays["bias"])

    arrays = {"rows": rows, "weight": weight, "bias": bias}
    oracle = Oracle(run, {name: np.asarray(value) for name, value in arrays.items()})
    assert difference(np.asarray(actual), oracle.expected["result"]) <= oracle.budget("result", "float32")


def axes_multiplied(linear: nnx.Linear, rows: jax.Array) -> set[int]:
    """Return the ranks (`ndim`) of all operands of the matrix products in a layer's gradient."""
    graph, state = nnx.split(linear)
    program = jax.make_jaxpr(jax.grad(lambda state: nnx.merge(graph, state)(rows).sum()))(state)
    products = [step for step in program.eqns if step.primitive.name == "dot_general"]
    return {len(operand.aval.shape) for step in products for operand in step.invars}


def test_two_flax_models_of_one_configuration_are_decoded_by_one_program() -> None:
    config = probes("notes-lm")["mixed"].config
    one, other = (build_flax(config, initialize_parameters(config, seed)).split[1] for seed in (0, 1))
    assert one is other
    wider = probes("translation")["mixed"]
    assert one is not build_flax(wider.config, wider.parameters).split[1]
