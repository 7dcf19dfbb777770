"""Recording a model without taps: the right values under the right names, or an error in one sentence."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity.errors import TransparityError
from transparity.taps import Tap
from transparity_conformance import check
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.report.comparison import as_numbers, difference
from transparity_conformance.running.recording import as_is, heads, received, record_module, recorded
from transparity_pytorch.port import build as pytorch

Refused = Callable[..., AbstractContextManager[None]]
B, T, D, N, F_DIM, V = 2, 5, 12, 3, 20, 11
TOKENS = np.random.default_rng(0).integers(0, V, (B, T))


class TorchEncoder(nn.Module):
    """An encoder of PyTorch's own layers, as many a port has it."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(D, N, F_DIM, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(D, V)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


TORCH_TAPS: dict[str, Any] = {
    "embedding": "encoder.embedding",
    "layers.{i}.self_attn": {"encoder.layers.{i}.self_attention.output": operator.itemgetter(0)},
    "layers.{i}.norm1": "encoder.layers.{i}.self_attention_norm",
    "layers.{i}.linear2": {
        "encoder.layers.{i}.feed_forward.hidden": received(),
        "encoder.layers.{i}.feed_forward.output": as_is,
    },
    "layers.{i}": "encoder.layers.{i}.output",
}


@pytest.fixture
def model() -> TorchEncoder:
    torch.manual_seed(0)
    return TorchEncoder().eval()


def parts_oracle(model: TorchEncoder) -> Oracle:
    """The oracle of every tap of the model, computed part by part."""

    @torch.no_grad()
    def run(arrays: Arrays, tap: Tap) -> None:
        parts = TorchEncoder().eval().to(getattr(torch, arrays["head.weight"].dtype.name))
        parts.load_state_dict({name: torch.as_tensor(value) for name, value in arrays.items()})
        x = parts.embedding(torch.as_tensor(TOKENS))
        tap("encoder.embedding", x.numpy())
        for i, layer in enumerate(parts.layers):
            assert isinstance(layer, nn.TransformerEncoderLayer)
            scope = f"encoder.layers.{i}"
            attended = layer.self_attn(x, x, x)[0]
            tap(f"{scope}.self_attention.output", attended.numpy())
            normed = layer.norm1(x + attended)
            tap(f"{scope}.self_attention_norm", normed.numpy())
            hidden = F.relu(layer.linear1(normed))
            tap(f"{scope}.feed_forward.hidden", hidden.numpy())
            tap(f"{scope}.feed_forward.output", layer.linear2(hidden).numpy())
            x = layer(x)
            tap(f"{scope}.output", x.numpy())
        tap("logits", parts.head(x).numpy())

    return Oracle(run, {name: value.numpy() for name, value in model.state_dict().items()})


def test_the_taps_of_pytorchs_own_layers_are_what_their_parts_compute(model: TorchEncoder) -> None:
    taps, oracle = recorded(model, TORCH_TAPS)(tokens=TOKENS), parts_oracle(model)
    assert set(taps) == set(oracle.expected)
    for name, expected in oracle.expected.items():
        assert difference(as_numbers(taps[name]), expected) <= oracle.budget(name, "float32"), name


def test_no_hook_is_left_after_recording(model: TorchEncoder) -> None:
    recorded(model, TORCH_TAPS)(tokens=TOKENS)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_heads_are_split_as_the_contract_has_them() -> None:
    value = np.arange(B * T * 3 * D).reshape(B, T, 3 * D)
    keys = heads(N, part=1, parts=3)(value)
    assert keys.shape == (B, N, T, D // N)
    assert keys[1, 2, 3, 1] == value[1, 3, D + 2 * (D // N) + 1]
    np.testing.assert_array_equal(heads(N)(torch.as_tensor(value[..., D : 2 * D])).numpy(), keys)


def test_a_value_is_recorded_before_it_is_overwritten() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    x = torch.tensor([[1.0, -2.0, 3.0]])
    with record_module(model, {"0": "encoder.embedding", "1": {"decoder.embedding": received()}}) as taps:
        model(x)
    torch.testing.assert_close(taps["encoder.embedding"], model[0](x), rtol=0, atol=0)
    torch.testing.assert_close(taps["decoder.embedding"], model[0](x), rtol=0, atol=0)


def test_a_custom_call_runs_the_model_and_returns_its_logits(model: TorchEncoder) -> None:
    plain = recorded(model, {})(tokens=TOKENS)["logits"]
    taps = recorded(model, {"embedding": "encoder.embedding"}, lambda tokens: {"logits": model(tokens)})(tokens=TOKENS)
    assert list(taps) == ["encoder.embedding", "logits"]
    torch.testing.assert_close(taps["logits"], plain, rtol=0, atol=0)
    head = recorded(model, {"head": "logits"}, lambda tokens: (model(tokens), "and more"))(tokens=TOKENS)
    torch.testing.assert_close(head["logits"], plain, rtol=0, atol=0)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.linear(x))


@pytest.mark.parametrize(
    ("taps", "begins"),
    [
        (
            {"layers.{i}.norm_1": "a.{i}"},
            "The model has no module 'layers.{i}.norm_1'; the nearest name is",
        ),
        ({"layers.0": "a.{i}"}, "The tap 'a.{i}' and the module 'layers.0' do not have the same number of {i}"),
        ({"layers.0": "a", "layers.1": "a"}, "The tap 'a' is named for two modules, 'layers.0' and 'layers.1'"),
        ({"layers.0.self_attn": "a"}, "Module 'layers.0.self_attn' returns a tuple of 2; give the tap 'a' a function"),
        ({"layers.0.self_attn.out_proj": "a"}, "Module 'layers.0.self_attn.out_proj' was never called"),
        ({"embedding": {"a": heads(5)}}, "Module 'embedding' returns an array of the shape (2, 5, 12), on which"),
        ({"embedding": {"a": operator.itemgetter("x")}}, "Module 'embedding' returns an array of the shape"),
        ({"embedding": {"a": list}}, "The function for the tap 'a' returns a list of 2; expected an array"),
    ],
)
def test_taps_that_cannot_be_recorded_are_refused(
    model: TorchEncoder, taps: dict[str, Any], begins: str, refused: Refused
) -> None:
    with refused(TransparityError, begins):
        recorded(model, taps)(tokens=TOKENS)


def test_a_module_that_is_called_twice_is_refused(refused: Refused) -> None:
    model, begins = Twice(), "Module 'linear' is called more than once"
    with refused(TransparityError, begins), record_module(model, {"linear": "a"}):
        model(torch.ones(1, 3))


def test_a_model_that_returns_more_than_logits_is_refused(model: TorchEncoder, refused: Refused) -> None:
    with refused(TransparityError, "The model returns a tuple of 2, not its logits"):
        recorded(model, {}, lambda tokens: (model(tokens), None))(tokens=TOKENS)
    with refused(TransparityError, "The tap 'logits' is both recorded and returned by the model"):
        recorded(model, {"head": "logits"}, lambda tokens: {"logits": model(tokens)})(tokens=TOKENS)
    with refused(TransparityError, "The model is 'model'; expected a torch.nn.Module or a flax.nnx.Module"):
        recorded("model", {})
    with refused(TransparityError, "heads(0, part=0, parts=1) has no such heads"):
        heads(0)


def test_an_error_of_the_model_is_its_own(model: TorchEncoder) -> None:
    with pytest.raises(IndexError):
        recorded(model, TORCH_TAPS)(tokens=TOKENS + V)


class NnxLayer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.query, self.down = nnx.Linear(D, D, rngs=rngs), nnx.Linear(D, D, rngs=rngs)
        self.norm = nnx.LayerNorm(D, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(x + self.down(jax.nn.relu(self.query(x))))


class NamedLayer(NnxLayer):
    """A subclass whose call is its parent's."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return super().__call__(x)


class NnxModel(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(V, D, rngs=rngs)
        self.layers = nnx.List([NnxLayer(rngs), NamedLayer(rngs)])
        self.head = nnx.Linear(D, V, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


NNX_TAPS: dict[str, Any] = {
    "embedding": "decoder.embedding",
    "layers.{i}.query": {"decoder.layers.{i}.self_attention.query": heads(N)},
    "layers.{i}.down": {"decoder.layers.{i}.feed_forward.hidden": received()},
    "layers.{i}": "decoder.layers.{i}.output",
}


def test_the_taps_of_a_flax_model_are_what_its_parts_compute() -> None:
    model = NnxModel(nnx.Rngs(0))
    taps = recorded(model, NNX_TAPS)(tokens=TOKENS)
    x = model.embedding(jnp.asarray(TOKENS))
    for i, layer in enumerate(model.layers):
        query = layer.query(x)
        np.testing.assert_array_equal(taps[f"decoder.layers.{i}.self_attention.query"], heads(N)(query))
        np.testing.assert_array_equal(taps[f"decoder.layers.{i}.feed_forward.hidden"], jax.nn.relu(query))
        x = layer(x)
        np.testing.assert_array_equal(taps[f"decoder.layers.{i}.output"], x)
    np.testing.assert_array_equal(taps["logits"], model.head(x))
    assert len(taps) == 1 + 2 * 3 + 1


def test_flax_classes_are_restored_after_recording() -> None:
    class Inherits(NnxLayer):
        pass

    before = [kind.__call__ for kind in (nnx.Linear, nnx.Embed, NnxLayer, NamedLayer, Inherits)]
    recorded(NnxModel(nnx.Rngs(0)), NNX_TAPS)(tokens=TOKENS)
    layer = Inherits(nnx.Rngs(0))
    with record_module(layer, {"": "decoder.layers.0.output"}) as taps:
        output = layer(jnp.ones((1, 2, D)))
        NnxLayer(nnx.Rngs(1))(jnp.zeros((1, 2, D)))
    np.testing.assert_array_equal(taps["decoder.layers.0.output"], output)
    assert [kind.__call__ for kind in (nnx.Linear, nnx.Embed, NnxLayer, NamedLayer, Inherits)] == before
    assert "__call__" not in vars(Inherits)


def test_a_flax_model_that_is_traced_is_refused(refused: Refused) -> None:
    model = NnxModel(nnx.Rngs(0))

    @jax.jit
    def compiled(tokens: jax.Array) -> jax.Array:
        return model(tokens)

    with refused(TransparityError, "The model ran while JAX was tracing it"):
        recorded(model, NNX_TAPS, compiled)(tokens=TOKENS)


def test_recorded_taps_locate_a_fault() -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Callable[..., Any]:
        parameters["decoder.layers.1.feed_forward.up.bias"][:] = 0
        model = pytorch(config, parameters).model
        taps: dict[str, Any] = {
            "decoder.layers.{i}.feed_forward.down": {"decoder.layers.{i}.feed_forward.hidden": received()},
            "decoder.layers.{i}": "decoder.layers.{i}.output",
        }
        return recorded(model, taps, lambda tokens: model(tokens=tokens))

    report = check(build, "notes-lm")
    assert [fault.where for fault in report.faults] == ["decoder.layers.1.feed_forward.hidden"]
    assert report.faults[0].causes[0].mistake == "bias-dropped"
