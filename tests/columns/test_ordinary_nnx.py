"""The JAX column is an ordinary `nnx` module, which works without other parts of the project."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from transparity import initialize_parameters, preset
from transparity.config import TransformerConfig
from transparity.errors import InputError
from transparity_conformance.oracle.cases import CASES

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax")
jnp = jax.numpy


def made(config: TransformerConfig) -> Any:
    from transparity_flax.transformer import Transformer

    return Transformer(config, rngs=nnx.Rngs(0))


def tokens_of(config: TransformerConfig, seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    sizes = [config.stack_vocab_size(config.input_stack(name)) for name in config.input_names]
    return [jnp.asarray(random.integers(3, size, (4, 6))) for size in sizes]


def small(name: str, **fields: Any) -> TransformerConfig:
    config = CASES[name] if name in CASES else preset(name)
    return dataclasses.replace(config.resized(num_encoder_layers=1, num_decoder_layers=1), **fields)


def test_inputs_go_by_position_or_by_name_and_a_wrong_number_is_told() -> None:
    config = small("translation")
    model, (source, target) = made(config), tokens_of(config)
    expected = model(source=source, target=target)
    assert (model(source, target) == expected).all() and (model(source, target=target) == expected).all()
    assert (nnx.jit(lambda model, *given: model(*given))(model, source, target)).shape == expected.shape
    with pytest.raises(InputError, match="takes source and target; 1 inputs by position and none by name"):
        model(source)


def test_dropout_acts_in_training_alone_and_draws_anew() -> None:
    config = small("pre-norm", dropout=0.5)
    model, given = made(config), tokens_of(config)
    first = model(*given)
    assert (first == model(*given)).all()
    model.train()
    assert (model(*given) != model(*given)).any()
    model.eval()
    assert (first == model(*given)).all()


def test_every_parameter_is_in_the_state_and_can_be_loaded_into_it() -> None:
    from transparity_flax.state.parameters import dump, load

    config = small("pre-norm", dropout=0.5)
    model, parameters = made(config), initialize_parameters(config)
    assert set(dump(model)) == set(parameters)
    load(model, parameters, "float32")
    graph, state = nnx.split(model)
    assert (nnx.merge(graph, state)(*tokens_of(config)) == model(*tokens_of(config))).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["translation", "gemma", "mamba2", "qwen3-next"])
def test_a_new_model_learns_by_nnx_and_optax(name: str) -> None:
    config = small(name)
    model, given = made(config), tokens_of(config)
    model.train()
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)

    def loss_of(model: Any, *given: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model(*given), given[-1]).mean()

    @nnx.jit  # type: ignore[untyped-decorator]
    def step(model: Any, optimizer: Any, *given: Any) -> tuple[Any, Any]:
        loss, gradients = nnx.value_and_grad(loss_of)(model, *given)
        optimizer.update(model, gradients)
        return loss, gradients

    _, gradients = step(model, optimizer, *given)
    unreached = [path for path, gradient in nnx.to_flat_state(gradients) if not gradient.get_value().any()]
    assert [path for path in unreached if path[-2:] != ("key", "bias")] == []  # a key bias changes no weight
    for _ in range(60):
        step(model, optimizer, *given)
    model.eval()
    assert (model(*given).argmax(axis=-1) == given[-1]).all()
