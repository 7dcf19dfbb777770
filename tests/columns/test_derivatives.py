from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from tests.looping import for_each

from transparity import PRESETS
from transparity.taps import Tap
from transparity_conformance.capabilities.learning.training import batches, tiny
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.differentiation.derivatives import Derivatives
from transparity_conformance.oracle.differentiation.derivatives import loss_and_gradients as at_once
from transparity_conformance.oracle.differentiation.leaning import Leaning, along
from transparity_conformance.oracle.oracle import Oracle
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters
from transparity_conformance.report.comparison import difference
from transparity_numpy.arithmetic.functional import STEP, derivative
from transparity_numpy.training.loss import cross_entropy, loss_and_gradients
from transparity_numpy.transformer import transformer

Parameters = Mapping[str, np.ndarray]


@for_each("case", ["notes-lm", "translation", "bloom"])
def test_gradients_of_one_pass_are_those_of_a_pass_for_each_number(case: str) -> None:
    config = tiny(PRESETS[case].config if case in PRESETS else CASES[case])
    given = batches(config)[0]

    def run(parameters: Parameters, tap: Tap) -> None:
        loss, gradients = loss_and_gradients(config, parameters, training=True, **given)
        for name, value in {"loss": loss, **gradients}.items():
            tap(name, value)

    oracle = Oracle(run, probe_parameters(config, 6))
    exact = {name: value.astype(np.float64) for name, value in oracle.arrays.items()}
    loss, gradients = at_once(config, exact, training=True, **given)
    for name, value in {"loss": loss, **gradients}.items():
        assert difference(value, oracle.expected[name]) <= oracle.budget(name, "float64"), name


WITH_LOGITS = [case for case, config in CASES.items() if config.head == "logits"]


@pytest.mark.parametrize("case", WITH_LOGITS)
def test_every_parameter_leans_by_its_own_direction(case: str) -> None:
    config = CASES[case]
    inputs: dict[str, Any] = {name: value[:2] for name, value in mixed_inputs(config).items()}
    ours = Derivatives(config, probe_parameters(config), inputs)
    exact = {name: value.astype(np.float64) for name, value in ours.oracle.arrays.items()}

    def loss(parameters: Mapping[str, np.ndarray]) -> np.ndarray:
        return cross_entropy(transformer(config, parameters, **inputs), ours.targets, config.pad_id)

    for name, parts in ours.directions.items():
        direction = np.multiply.outer(parts[0][0], parts[1][0]) if len(parts) == 2 else parts[0][0]
        expected = derivative(loss, exact, {name: direction})
        assert abs(ours.expected[name][0] - expected) < ours.budget(name, "float64"), name


def test_a_gradient_along_directions_is_the_sum_of_products() -> None:
    random = np.random.default_rng(0)
    gradient, left, right = (random.integers(-9, 9, shape).astype(float) for shape in ((6, 5), (3, 6), (3, 5)))
    products = [(toward * gradient).sum() for toward in left[..., None] * right[:, None]]  # integers are exact
    assert np.array_equal(along(gradient, (left, right)), products)
    assert np.array_equal(along(gradient[:, 0], (left,)), left @ gradient[:, 0])


def test_a_kernel_leans_in_what_it_is_multiplied_with() -> None:
    left, right, kernel = np.ones((4, 3)), np.arange(8.0).reshape(4, 2), np.full((3, 2), 5.0)
    product = np.full((4, 6, 3, 2), 7.0) * Leaning(kernel, (left, right))
    assert np.array_equal(product.real, np.full((4, 6, 3, 2), 35.0))
    assert np.array_equal(product.imag, np.broadcast_to(7.0 * (STEP * right)[:, None, None], product.shape))


def test_what_would_lose_a_derivative_is_refused() -> None:
    matrix = Leaning(np.ones((3, 2)), (np.ones((4, 3)), np.ones((4, 2))))
    uses: list[Callable[[], Any]] = [
        lambda: np.asarray(matrix),
        lambda: np.exp(matrix),
        lambda: matrix @ np.ones(2),
        lambda: matrix[slice(1)],
        lambda: matrix[0],
    ]
    for wrong in uses:
        with pytest.raises(TypeError, match="perturbed parameter"):
            wrong()
    with pytest.raises(TypeError, match="3 axes"):
        Leaning(np.ones((3, 2, 2)), (np.ones((4, 3)), np.ones((4, 2)), np.ones((4, 2))))


def test_no_direction_changes_the_padding_token_if_that_is_a_convention() -> None:
    config = CASES[next(case for case in WITH_LOGITS if CASES[case].pad_id is not None)]
    parameters, inputs = probe_parameters(config), mixed_inputs(config)
    table = next(name for name in parameters if name.endswith("token_embedding.weight"))
    for of_padding in (True, False):
        ours = Derivatives(config, parameters, inputs, of_padding=of_padding)
        assert ours.directions[table][0][:, config.pad_id].any() == of_padding
