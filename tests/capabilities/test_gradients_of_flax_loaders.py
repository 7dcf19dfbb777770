"""Test gradients of a `flax.nnx.Module` from `load(folder)` with transposed kernels and its own parameter names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from transparity_conformance.capabilities.capability import BuiltPort, ForwardPass
from transparity_conformance.capabilities.learning.gradients import GRADIENTS_OF_GIVEN
from transparity_conformance.capabilities.table import compare_capability
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.oracle.probes import probe_parameters, probes_with
from transparity_conformance.report.report import CapabilityResult
from transparity_conformance.running.hub import loaded_here
from transparity_flax.state.parameters import load as load_parameters
from transparity_flax.transformer import Transformer


class Port(nnx.Module):
    """A model with one argument, whose query kernels have the axes (embed, heads, head_dim)."""

    def __init__(self, inner: Transformer, change: Callable[[Any], Any]) -> None:
        self.inner, self.change = inner, change
        self.queries = nnx.List(
            [
                nnx.Param(self._kernel(layer)[...].reshape(inner.config.embed_dim, -1, inner.config.head_dim))
                for layer in range(2)
            ]
        )
        for layer in range(2):
            del self._query(layer).kernel

    def _query(self, layer: int) -> Any:
        found: Any = self.inner.decoder.layers[layer]
        return found.self_attention.query

    def _kernel(self, layer: int) -> Any:
        return self._query(layer).kernel

    def __call__(self, tokens: Any) -> Any:
        for layer, query in enumerate(self.queries):
            flat = self.change(query[...].reshape(query.shape[0], -1))
            self._query(layer).kernel = nnx.Param(flat)
        logits = self.inner(tokens=tokens)
        for layer in range(2):
            del self._query(layer).kernel
        return logits


def compared(folder: Path, change: Callable[[Any], Any]) -> CapabilityResult:
    config = example_config("llama")
    export_checkpoint("llama", config, probe_parameters(config, 3), folder)
    given = import_checkpoint(folder)

    def load(folder: str) -> Any:
        inner = Transformer(given.config, rngs=nnx.Rngs(0))
        load_parameters(inner, given.parameters, np.float32)
        return Port(inner, change)

    probe = probes_with(given.config, given.parameters, "llama")["mixed"]
    with loaded_here(load, "llama") as build:
        port = BuiltPort(build, build(given.config, str(folder)))
        return compare_capability(GRADIENTS_OF_GIVEN, port, ForwardPass({"mixed": probe}, {}, "float32"))


@pytest.mark.long
def test_gradients_of_a_loaded_module_agree(tmp_path: Path) -> None:
    found = compared(tmp_path / "model", lambda value: value)
    assert [(claim.id, claim.verdict) for claim in found.claims if claim.id == "gradients"] == [("gradients", "agrees")]
    assert not [line for line in found.not_compared if line.startswith("gradients")], found.not_compared


def test_a_value_whose_gradient_is_stopped_diverges(tmp_path: Path) -> None:
    found = compared(tmp_path / "model", jax.lax.stop_gradient)
    assert found.faults[-1].where.endswith("self_attention.query.weight")


@pytest.mark.parametrize("axes", [(24, 3, 8), (3, 8, 24)])
def test_a_tensor_of_three_axes_is_two_matrices(axes: tuple[int, ...]) -> None:
    from transparity_conformance.running.gradients import found_by_rows

    random = np.random.default_rng(0)
    wanted = {"w": random.normal(size=(24, 24)).astype(np.float32), "b": random.normal(size=24).astype(np.float32)}
    given = {"kernel": wanted["w"].T.reshape(axes), "bias": wanted["b"].reshape(3, 8)}
    found = found_by_rows(wanted, given)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name].take(given), value)
