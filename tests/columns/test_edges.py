from typing import Any

import numpy as np
import pytest
from tests.columns.test_gradients import RECURRENT
from tests.helpers import tiny

from transparity.config import TransformerConfig
from transparity.errors import InputError
from transparity.parameters import initialize_parameters
from transparity.protocol import Backend, Harness
from transparity.sampling import Sampling
from transparity.training import Training
from transparity_conformance.oracle.budgets import HALF, epsilon, rounded
from transparity_conformance.oracle.probes import probe_parameters, probes
from transparity_conformance.report.comparison import as_numbers


@pytest.mark.parametrize("uniform", [0.999, 0.9999, 1 - 1e-9, 1 - 2**-53])
def test_what_may_not_be_drawn_is_not_drawn_by_a_number_next_to_1(
    backend: Backend, harness: Harness, uniform: float
) -> None:
    for dtype in backend.dtypes:
        filter_logits = harness.function("decoding.generation.filter_logits", dtype=dtype)
        sampled = harness.function("decoding.generation.sampled_tokens", dtype=dtype)
        logits = filter_logits(np.array([[3.0, 2.0, 1.0, 0.0]]), Sampling(top_k=1))
        assert as_numbers(sampled(logits, np.array([uniform]))).tolist() == [0], dtype
        assert as_numbers(sampled(np.array([[3.0, -np.inf, -np.inf]]), np.array([uniform]))).tolist() == [0], dtype


def test_what_may_be_drawn_is_told_as_finely_in_half_precision(backend: Backend, harness: Harness) -> None:
    for dtype in set(backend.dtypes) & {"bfloat16", "float16"}:
        filter_logits = harness.function("decoding.generation.filter_logits", dtype=dtype)
        equal = filter_logits(np.zeros((1, 1000)), Sampling(top_p=0.5))
        assert np.isfinite(as_numbers(equal)).sum() in (499, 500, 501), dtype


@pytest.mark.parametrize(("dtype", "temperature"), [("float32", 1e-30), ("float32", 1e-4), ("float16", 1e-4)])
def test_a_low_temperature_draws_the_likeliest(harness: Harness, dtype: str, temperature: float) -> None:
    filter_logits, sampled = (
        harness.function(f"decoding.generation.{name}", dtype=dtype) for name in ("filter_logits", "sampled_tokens")
    )
    logits = filter_logits(np.array([[3.0, 7.0, 1.0]]), Sampling(temperature=temperature))
    assert as_numbers(sampled(logits, np.array([0.5]))).tolist() == [1]


def small(**fields: Any) -> tuple[TransformerConfig, dict[str, np.ndarray]]:
    sizes = {"target_vocab_size": 7, "max_length": 6, "num_heads": 2, "feed_forward_dim": 5, "pad_id": 0}
    config = tiny(**sizes | fields)
    return config, initialize_parameters(config, 3)


def test_a_loss_of_many_tokens_is_finite_in_half_precision(harness: Harness) -> None:
    loss = harness.function("training.loss.cross_entropy", dtype="float16")
    logits = np.zeros((8, 1024, 3))
    logits[..., 0] = 10
    expected = np.log(np.exp(10) + 2)
    assert abs(float(loss(logits, np.ones((8, 1024), int), None)) - expected) <= expected * epsilon("float16")


def test_a_cap_beyond_half_precision_caps_nothing(harness: Harness) -> None:
    apply_softcap = harness.function("arithmetic.precision.apply_softcap", dtype="float16")
    assert as_numbers(apply_softcap(np.array([0.0, 1.0, -300.0]), 1e5)).tolist() == [0, 1, -300]


def test_a_batch_norm_without_variance_is_finite_in_half_precision(harness: Harness) -> None:
    norm = harness.function("norms.batch.batch_norm", dtype="float16")
    zero, one = np.zeros(3), np.ones(3)
    assert as_numbers(norm(np.zeros((1, 2, 3)), one, one, zero, zero, 1e-8)).tolist() == [[[1, 1, 1], [1, 1, 1]]]


@pytest.mark.parametrize("name", ["pytorch", "flax"])
def test_a_model_without_a_norm_learns(name: str) -> None:
    backend = pytest.importorskip(f"transparity_{name}.port").build
    config, parameters = small(num_decoder_layers=0)
    forward = backend(config, parameters)
    tokens, targets = np.array([[1, 2, 3]]), np.array([[2, 3, 4]])
    loss, gradients = forward.loss_and_gradients(targets, tokens=tokens)
    assert set(gradients) == set(parameters) and np.isfinite(loss)
    assert len(forward.train([{"tokens": tokens, "targets": targets}], Training(optimizer="sgd"))[0]) == 1


def test_a_prompt_of_which_nothing_is_seen_is_refused(backend: Backend) -> None:
    config, parameters = small(target_mask="causal-and-padding")
    forward = backend(config, parameters)
    with pytest.raises(InputError, match=r"^Row 1 of prompt has only padding \(token 0\), .*\.$"):
        forward.generate(np.array([[1, 2], [0, 0]]), 2)
    with pytest.raises(InputError, match=r"^Row 0 of prompt"):
        forward.generate(np.array([[0, 2], [1, 2]]), 2, lengths=np.array([1, 2]))
    assert forward.generate(np.array([[0, 2]]), 2).shape == (1, 4)


def test_logits_are_written_into_the_memory_that_is_given(backend: Backend) -> None:
    probe = probes("notes-lm")["mixed"]
    forward = backend(probe.config, probe.parameters, dtype="float32")
    first = forward.logits(**probe.inputs)
    expected, address = as_numbers(first).copy(), address_of(first)
    again = forward.logits(**probe.inputs)
    assert address_of(again) != address  # results do not share memory unless `out` is given
    into = forward.logits(**probe.inputs, out=first)
    assert address_of(into) == address
    np.testing.assert_allclose(as_numbers(into), expected, rtol=0, atol=probe.oracle.budget("logits", "float32"))
    np.testing.assert_array_equal(as_numbers(again), expected)


def address_of(array: Any) -> int:
    if isinstance(array, np.ndarray):
        return int(array.ctypes.data)
    return int(array.data_ptr() if hasattr(array, "data_ptr") else array.unsafe_buffer_pointer())


def test_memory_of_another_shape_or_dtype_is_refused(backend: Backend) -> None:
    probe = probes("notes-lm")["mixed"]
    logits = backend(probe.config, probe.parameters, dtype="float32").logits(**probe.inputs)
    with pytest.raises(InputError, match="out is of shape"):
        backend(probe.config, probe.parameters, dtype="float32").logits(**probe.inputs, out=logits[:1])
    with pytest.raises(InputError, match=r"out has the dtype (torch\.)?float32"):
        backend(probe.config, probe.parameters, dtype="float16").logits(**probe.inputs, out=logits)


@pytest.mark.parametrize("mixer", RECURRENT)
def test_the_state_of_a_recurrence_is_kept_in_float32(backend: Backend, mixer: str) -> None:
    """Expect an unrounded state, because a large state in half precision would lose small changes."""
    config = RECURRENT[mixer]
    for half in set(backend.dtypes) & set(HALF):
        _, cache = backend(config, probe_parameters(config), dtype=half).step(np.array([[3, 4, 5]]), None)
        state = as_numbers(cache["layers"][0]["recurrence"]["state"])
        assert (state != rounded(state, half)).any(), half
