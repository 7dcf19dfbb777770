import copy
import dataclasses
import functools
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from transparity import preset
from transparity.config import TransformerConfig
from transparity.errors import InputError
from transparity.parameters import initialize_parameters
from transparity_conformance.oracle.cases import CASES, MODELS
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.report.comparison import difference
from transparity_numpy.transformer import transformer
from transparity_pytorch.transformer import Transformer

TIED = dataclasses.replace(MODELS["marian"], padding="token")
EACH = ["whisper", *(pytest.param(name, marks=pytest.mark.long) for name in MODELS if name != "whisper")]
SOURCE, TARGET = torch.tensor([[3, 4, 5, 6], [6, 5, 4, 0]]), torch.tensor([[1, 7, 8], [1, 9, 8]])


def loaded(case: str) -> tuple[Transformer, Probe, dict[str, Tensor]]:
    probe = probes_of(MODELS[case], case)["mixed"]
    model = Transformer(probe.config).eval()
    model.load_state_dict({name: torch.as_tensor(value) for name, value in probe.parameters.items()})
    inputs = {name: torch.as_tensor(value) for name, value in probe.inputs.items()}
    return model, probe, {name: x.float() if x.is_floating_point() else x for name, x in inputs.items()}


def assert_agrees(logits: Tensor, probe: Probe, dtype: str = "float32") -> None:
    expected = probe.oracle.expected["logits"]
    assert difference(logits.detach().float().numpy(), expected) <= probe.oracle.budget("logits", dtype)


def test_dropout_acts_in_training_only() -> None:
    model = Transformer(dataclasses.replace(TIED, dropout=0.5))
    assert not torch.equal(model(SOURCE, TARGET), model(SOURCE, TARGET))
    model.eval()
    assert torch.equal(model(SOURCE, TARGET), model(SOURCE, TARGET))


@pytest.mark.parametrize("assign", [False, True])
def test_loading_keeps_tied_parameters_tied(assign: bool) -> None:
    with torch.device("meta"):
        model = Transformer(TIED)
    model = model if assign else model.to_empty(device="cpu")
    model.load_state_dict(Transformer(TIED).state_dict(), assign=assign)
    assert copy.deepcopy(model).head.weight is not model.head.weight
    for each in (model, copy.deepcopy(model)):
        tables = [stack.get_parameter("token_embedding.weight") for stack in (each.encoder, each.decoder)]
        assert each.head.weight is tables[0] is tables[1]


def test_a_tied_model_can_be_pickled_and_called_with_other_parameters() -> None:
    model = Transformer(TIED).eval()
    expected, others = model(SOURCE, TARGET), {name: 2 * value for name, value in model.named_parameters()}
    assert torch.equal(pickle.loads(pickle.dumps(model))(SOURCE, TARGET), expected)
    assert not torch.equal(torch.func.functional_call(model, others, (SOURCE, TARGET)), expected)
    torch.func.grad(lambda given: torch.func.functional_call(model, given, (SOURCE, TARGET)).sum())(others)
    assert torch.equal(model(SOURCE, TARGET), expected)
    tables = [model.get_parameter(f"{stack}.token_embedding.weight") for stack in TIED.stacks]
    assert tables[0] is tables[1] is model.head.weight


def test_inputs_are_taken_in_order_or_by_name() -> None:
    model = Transformer(TIED).eval()
    expected = model(source=SOURCE, target=TARGET)
    assert torch.equal(model(SOURCE, TARGET), expected) and torch.equal(model(SOURCE, target=TARGET), expected)
    with pytest.raises(InputError, match="takes source and target; inputs given by position: 1, by name: none"):
        model(SOURCE)
    with pytest.raises(InputError, match="given by position: 1, by name: source, target"):
        model(SOURCE, source=SOURCE, target=TARGET)


def test_a_new_model_is_compiled_as_one_graph_and_exported_strictly() -> None:
    """Use a configuration whose properties nothing has read: a cached property takes a lock, which Dynamo refuses."""
    model = Transformer(dataclasses.replace(TIED, dropout=0.0)).eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(SOURCE, TARGET), Transformer.forward(model, SOURCE, TARGET))
    fresh = Transformer(dataclasses.replace(TIED, dropout=0.0)).eval()
    assert torch.export.export(fresh, (SOURCE, TARGET), strict=True) is not None


@pytest.mark.parametrize("case", EACH)
def test_it_is_exported(case: str) -> None:
    model, probe, inputs = loaded(case)
    with torch.no_grad():
        assert_agrees(torch.export.export(model, (), inputs).module()(**inputs), probe)


@pytest.mark.parametrize("case", EACH)
def test_it_runs_and_learns_under_autocast(case: str) -> None:
    model, probe, inputs = loaded(case)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(**inputs)
    assert_agrees(logits, probe, "bfloat16")
    logits.float().sum().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


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


def test_dropout_acts_in_training_alone_and_draws_anew() -> None:
    config = small("pre-norm", dropout=0.5)
    model, given = made(config), tokens_of(config)
    first = model(*given)
    assert (first == model(*given)).all()
    model.train()
    assert (model(*given) != model(*given)).any()
    model.eval()
    assert (first == model(*given)).all()


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


def test_an_unknown_input_is_refused_by_every_column() -> None:
    tokens = np.array([[3, 4]])
    config = preset("notes-lm").resized()
    parameters = initialize_parameters(config)
    in_jax, says = made(config), "^The model has no input attention_masks; it takes tokens"
    columns: list[Any] = [functools.partial(transformer, config, parameters), Transformer(config), in_jax]
    for forward in columns:
        for value in (tokens, None):
            with pytest.raises(InputError, match=says):
                forward(tokens=tokens, attention_masks=value)
