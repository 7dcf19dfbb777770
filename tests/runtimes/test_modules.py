import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import mlx.core as mx
import numpy as np
import pytest

from meta.modules.measure import CASES, LINES, causes, judged, models_of
from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.identify.adapting.adapt import adapt
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.running.frameworks.modules import of_build, tensors_of

pytestmark = pytest.mark.filterwarnings("ignore:.*You are using a softmax over axis:UserWarning")

SAMPLE = [case for case in CASES if case["id"] in ("right", "scale", "exact", "tiled", "theta")]
SLOW = {"exact", "theta"}
"""Cases that run here only in Keras with PyTorch, because JAX compiles every shape."""

ROWS = np.array([[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8]])
LLAMA = dataclasses.replace(example_config("llama"), num_decoder_layers=1)


@pytest.mark.parametrize(
    ("framework", "case"),
    [
        pytest.param(each, case, marks=[pytest.mark.long] * (each == "keras" and case is not SAMPLE[0]))
        for each in ("equinox", "keras")
        for case in SAMPLE
        if each == "keras" or case["id"] not in SLOW
    ],
)
def test_a_module_is_judged(framework: str, case: dict[str, Any]) -> None:
    report = judged(framework, case)
    assert report.verdict == ("diverges" if case["causes"] else "agrees")
    assert causes(report) == {*case["causes"]}
    is_own_code = (framework, case["family"]) != ("keras", "gpt2")  # Keras itself runs a functional model
    for fault in report.faults if is_own_code else ():
        assert fault.source is not None
        assert Path(fault.source["file"]).name == f"{framework}_models.py"


@pytest.mark.parametrize("framework", ["equinox", "keras"])
def test_the_tensors_of_a_module_are_matched(framework: str) -> None:
    found = adapt(models_of(framework).model("llama"), LLAMA)
    assert found.is_proved
    assert found.adapter.lines == LINES[framework]["llama"]


class ForOne(eqx.Module):
    table: jax.Array

    def __call__(self, tokens: Any, key: Any = None) -> Any:
        assert tokens.ndim == 1
        return self.table[tokens] + jnp.arange(len(tokens))[:, None]


class ForAll(eqx.Module):
    table: jax.Array

    def __call__(self, input_ids: Any) -> Any:
        _, length = input_ids.shape
        return {"logits": self.table[input_ids] + jnp.arange(length)[:, None]}


class ForEither(eqx.Module):
    table: jax.Array

    def __call__(self, tokens: Any) -> Any:
        return self.table[tokens] + jnp.arange(tokens.shape[-1])[:, None]


class Untraced(eqx.Module):
    """A module that reads the values of its tokens, which JAX cannot trace."""

    table: jax.Array

    def __call__(self, tokens: Any) -> Any:
        assert tokens.max() < len(self.table)
        return self.table[tokens] + jnp.arange(tokens.shape[1])[:, None]


@pytest.mark.parametrize("kind", [ForOne, ForAll, ForEither, Untraced])
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_a_module_of_equinox_takes_one_sequence_or_a_batch(kind: Any, batch: int) -> None:
    table = np.arange(37 * 3, dtype=np.float32).reshape(37, 3)
    tokens = np.resize(ROWS, (batch, 4))
    answer = of_build(kind(jnp.asarray(table)), LLAMA)(tokens=tokens)
    found = answer["logits"] if isinstance(answer, dict) else answer
    assert np.array_equal(found, table[tokens] + np.arange(4)[:, None])


class Several(eqx.Module):
    both: tuple[jax.Array, jax.Array]
    tied: jax.Array
    named: dict[str, list[jax.Array]]
    numbers: jax.Array
    width: int

    def __call__(self, tokens: Any) -> Any:
        return tokens


def test_the_arrays_of_a_module_of_equinox_are_read_and_written() -> None:
    one, other, third = (jnp.full((2, 3), float(value)) for value in (1, 2, 3))
    module = Several((one, other), one, {"a": [third]}, jnp.arange(3), 4)
    tensors = tensors_of(module)
    assert list(tensors) == ["both.0", "both.1", "named.a.0"]
    for value, tensor in enumerate(tensors.values(), 5):
        tensor.write(np.full(6, value))
    assert [float(tensor.read()[0, 0]) for tensor in tensors.values()] == [5, 6, 7]
    assert float(module.tied[0, 0]) == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        module.width = 5


def test_layers_that_keras_named_itself_have_names_without_a_history() -> None:
    def model() -> Any:
        first = keras.Input((4,))
        return keras.Model(
            first, keras.layers.Dense(3)(keras.layers.Dense(2, name="inner_7")(keras.layers.Dense(5)(first)))
        )

    expected = ["dense.0.kernel", "dense.0.bias", "inner.7.kernel", "inner.7.bias", "dense.1.kernel", "dense.1.bias"]
    assert [list(tensors_of(model())) for _ in range(2)] == [expected, expected]


class Pair(keras.Model):
    """A model that takes both inputs in one argument, as in the examples of Keras."""

    def call(self, inputs: Any) -> Any:
        source, target = inputs
        return source * 100 + target


def test_the_inputs_of_keras_are_given_by_name_or_as_one() -> None:
    config = TransformerConfig(
        architecture="encoder-decoder", source_vocab_size=7, target_vocab_size=7, pad_id=0, bos_id=1, eos_id=2
    )
    source, target = keras.Input((None,), name="encoder_token_ids"), keras.Input((None,), name="decoder_token_ids")
    functional = keras.Model([target, source], source * 100 + target)
    for model in (functional, Pair()):
        found = of_build(model, config)(source=ROWS, target=ROWS + 1)
        assert np.array_equal(keras.ops.convert_to_numpy(found), ROWS * 101 + 1)


def test_an_input_that_has_no_name_of_ours_is_named() -> None:
    one, other = keras.Input((None,), name="token_ids"), keras.Input((None,), name="ages")
    with pytest.raises(Exception, match=r"has an input 'ages'; expected names among .*token_ids.*: rename it"):
        of_build(keras.Model([one, other], one + other), LLAMA)(tokens=ROWS)


def test_numbers_of_half_precision_are_read() -> None:
    for dtype in (mx.bfloat16, mx.float16, mx.float32):
        assert np.array_equal(as_numbers(mx.array([1.5, -2.0], dtype)), [1.5, -2.0])
