"""The PyTorch column is an ordinary `nn.Module`, which works without other parts of the project."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from transparity.errors import InputError
from transparity.parameters import initialize_parameters, parameter_shapes
from transparity_conformance.oracle.cases import MODELS
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.report.comparison import difference
from transparity_pytorch.port import build
from transparity_pytorch.transformer import Transformer

TIED = dataclasses.replace(MODELS["marian"], padding="token")
CASES = ["whisper", *(pytest.param(name, marks=pytest.mark.long) for name in MODELS if name != "whisper")]
SOURCE, TARGET = torch.tensor([[3, 4, 5, 6], [6, 5, 4, 0]]), torch.tensor([[1, 7, 8], [1, 9, 8]])


def loaded(case: str) -> tuple[Transformer, Probe, dict[str, Tensor]]:
    """Return a model in evaluation mode with a probe's parameters, and the probe's inputs as tensors."""
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


def test_dropout_drops_its_share_at_the_taps_of_the_configuration() -> None:
    config = dataclasses.replace(TIED, dropout=0.25, dropout_at=("embedding",))
    embedded: dict[str, Tensor] = {}

    def tap(name: str, value: Tensor) -> Tensor:
        embedded.setdefault(name, value)
        return value

    tokens = torch.randint(3, config.vocab_size, (64, config.max_length))
    Transformer(config)(tokens, tokens, tap=tap)
    count, dropped = embedded["encoder.embedding"].numel(), (embedded["encoder.embedding"] == 0).float().mean()
    assert abs(dropped - config.dropout) < 5 * (config.dropout * (1 - config.dropout) / count) ** 0.5
    assert embedded["encoder.layers.0.self_attention.output"].ne(0).all()


def test_masks_take_the_place_of_dropout() -> None:
    """Check that calls of the checker use only given dropout masks, or no dropout."""
    config = dataclasses.replace(TIED, dropout=0.5)
    forward = build(config, initialize_parameters(config))
    source, target = SOURCE.numpy(), TARGET.numpy()
    losses = {
        forward.loss_and_gradients(target, training=training, source=source, target=target)[0]
        for training in (False, True)
    }
    assert len(losses) == 1


def test_a_state_dict_has_the_documented_names() -> None:
    assert TIED.shared_embedding and TIED.has_tied_head
    model, parameters = Transformer(TIED), initialize_parameters(TIED)
    assert model.state_dict().keys() == parameter_shapes(TIED).keys()
    model.load_state_dict({name: torch.as_tensor(value) for name, value in parameters.items()})
    assert all(np.array_equal(value, parameters[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("assign", [False, True])
def test_loading_keeps_tied_parameters_tied(assign: bool) -> None:
    with torch.device("meta"):
        model = Transformer(TIED)
    model = model if assign else model.to_empty(device="cpu")
    model.load_state_dict(Transformer(TIED).state_dict(), assign=assign)
    assert copy.deepcopy(model).head.weight is not model.head.weight
    for each in (model, copy.deepcopy(model)):
        assert each.head.weight is each.encoder.token_embedding.weight is each.decoder.token_embedding.weight


def test_inputs_are_taken_in_order_or_by_name() -> None:
    model = Transformer(TIED).eval()
    expected = model(source=SOURCE, target=TARGET)
    assert torch.equal(model(SOURCE, TARGET), expected) and torch.equal(model(SOURCE, target=TARGET), expected)
    with pytest.raises(InputError, match="takes source and target; 1 inputs by position and none by name were given"):
        model(SOURCE)
    with pytest.raises(InputError, match="1 inputs by position and source, target by name"):
        model(SOURCE, source=SOURCE, target=TARGET)


def test_it_learns_from_its_own_initialization() -> None:
    torch.manual_seed(0)
    model = Transformer(dataclasses.replace(TIED, dropout=0.0))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(20):
        losses.append(F.cross_entropy(model(SOURCE, TARGET[:, :-1]).flatten(0, 1), TARGET[:, 1:].flatten()))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] / 2


@pytest.mark.long
@pytest.mark.parametrize("case", MODELS)
def test_it_is_compiled_as_one_graph(case: str) -> None:
    """Check evaluation and training; the backend `eager` saves the time to compile code and uses the same graph."""
    model, probe, inputs = loaded(case)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_agrees(compiled(**inputs), probe)
    model.train()
    assert compiled(**inputs).requires_grad


@pytest.mark.parametrize("case", CASES)
def test_it_is_exported(case: str) -> None:
    model, probe, inputs = loaded(case)
    with torch.no_grad():
        exported = torch.export.export(model, (), inputs).module()
        assert_agrees(exported(**inputs), probe)


@pytest.mark.parametrize("case", CASES)
def test_it_runs_and_learns_under_autocast(case: str) -> None:
    model, probe, inputs = loaded(case)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(**inputs)
    assert_agrees(logits, probe, "bfloat16")
    logits.float().sum().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("case", CASES)
def test_it_has_a_shape_without_memory(case: str) -> None:
    model, _, inputs = loaded(case)
    shape = model(**inputs).shape
    meta = copy.deepcopy(model).to("meta")(**{name: value.to("meta") for name, value in inputs.items()})
    assert meta.is_meta and meta.shape == shape
