"""The door: what a port, a backend and a harness offer.

A port is any `build(config, parameters) -> forward`, with `forward(**tokens)` returning logits or a dict of taps that
includes `logits`. Everything else is offered by attribute; what is not offered is reported as not compared.

A package becomes a backend by naming its `build` in the entry-point group `transparity.backends`. Under the same name
it may list a `Harness` in `transparity.harnesses`: without one, claims about single functions and modules are not
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from transparity.config import TransformerConfig
from transparity.sampling import Sampling
from transparity.training import Training

ENTRY_POINTS = "transparity.backends"
HARNESS_ENTRY_POINTS = "transparity.harnesses"

Arrays = Mapping[str, np.ndarray]


class Forward(Protocol):
    """A model with its weights in it. Tokens are integer arrays (batch, length)."""

    def __call__(self, **tokens: Any) -> dict[str, Any]:
        """Every tap by name (`transparity.taps.tap_shapes`): the traced path."""

    def logits(self, **tokens: Any) -> Any:
        """The logits alone, as an array of the framework: the fast path."""

    def loss(self, targets: Any, **tokens: Any) -> float:
        """The mean cross-entropy of the logits, padded targets (batch, length) ignored."""

    def loss_and_gradients(
        self, targets: Any, *, training: bool = False, masks: Arrays | None = None, **tokens: Any
    ) -> tuple[float, dict[str, np.ndarray]]:
        """The loss, and its gradient by every learned parameter, under the parameter's name and in its shape. In
        `training` a batch norm normalises by the batch; its running statistics stay as they are. Dropout keeps what
        `masks` show (`transparity.training.dropout_masks`); without them nothing is dropped. NumPy's column does not
        offer it: `transparity_numpy.differentiation` takes a forward pass for each number, or for each direction."""

    def train(
        self, batches: Sequence[Mapping[str, Any]], training: Training
    ) -> tuple[list[float], dict[str, np.ndarray]]:
        """One step for each batch (`targets` and tokens), from these parameters: the losses before each step, and what
        the learned parameters have become. The model itself stays as it is."""

    def step(
        self, tokens: Any, cache: Any = None, *, source: Any = None, counts: Any = None, attention_mask: Any = None
    ) -> tuple[Any, Any]:
        """The logits (batch, length, vocab) behind each of `tokens` (batch, length), which follow those in `cache`, and
        the cache to go on with; the one given is used up. Without a cache they are the first, and an encoder reads
        `source` (batch, keys), once. Of each row the first `counts` (batch,) tokens count, or all; the rest fills it
        up. Where a mask tells padding, `attention_mask` is the tokens', or with a `source` the source's; without one,
        `pad_id` tells. Up to `max_length` tokens, and only where what is masked weighs nothing."""

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int,
        *,
        lengths: Any = None,
        source: Any = None,
        uniforms: Any = None,
        sampling: Sampling | None = None,
    ) -> np.ndarray:
        """`prompt` (batch, length), of each row its first `lengths` tokens or all, continued by `max_new_tokens`:
        greedily, or drawn by `uniforms` (batch, max_new_tokens) as `sampling` says. A row that is shorter or reached
        the end token is filled up; generation ends with the last row."""

    def beam_search(
        self,
        prompt: Any,
        max_new_tokens: int,
        beams: int,
        *,
        length_penalty: float = 0.0,
        lengths: Any = None,
        source: Any = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same, by the best of `beams` continuations, with its score (batch,)."""

    def ready(self, result: Any) -> None:
        """Wait until `result` is computed: frameworks answer before their device has finished."""


class Backend(Protocol):
    """A `build` with everything offered. `name`, `dtypes` and `modes` list the first as the default."""

    name: str
    dtypes: tuple[str, ...]
    modes: tuple[str, ...]

    def __call__(
        self,
        config: TransformerConfig,
        parameters: Arrays,
        *,
        dtype: str = ...,
        device: str = ...,
        mode: str = ...,
        weights: str | None = ...,
        activations: str | None = ...,
    ) -> Forward:
        """The model of `config` with `parameters` (float32, as `parameter_shapes` names them), computed in `dtype`.
        Where another precision is given, `weights` are rounded to it once, and `activations` at every tap of the
        forward pass."""

    def devices(self) -> tuple[str, ...]:
        """The devices at hand, `cpu` first."""


class Harness(Protocol):
    """The parts of a column by name, for claims about single functions and modules. A Python module can be one."""

    def function(self, name: str, *, dtype: str = ..., device: str = ...) -> Callable[..., Any]:
        """A free function of the column, such as `attention.split_heads`, from NumPy arrays to NumPy arrays."""

    def module(
        self, name: str, config: TransformerConfig, parameters: Arrays, *, dtype: str = ..., device: str = ...
    ) -> Module:
        """A module of the column, such as `layers.EncoderLayer`, with its own `parameters` (names from it on down)."""

    def einsum(self, subscripts: str, *arrays: np.ndarray) -> np.ndarray:
        """The framework's own `einsum`, in which the documents write attention."""

    def describe(self, device: str) -> dict[str, str]:
        """Versions, the device's name, and the precision of float32 matrix products."""

    def pinned(self) -> AbstractContextManager[None]:
        """While entered, float32 matrix products keep all of float32's bits on every device (no TF32)."""


class Module(Protocol):
    """A part of a model, from NumPy arrays to NumPy arrays."""

    def __call__(self, *arrays: Any, taps: dict[str, Any] | None = None, **named: Any) -> Any:
        """Return the part's result; put its activations into `taps`, if given."""

    def use_batch_statistics(self) -> None:
        """Normalise by the batch from now on, and update running statistics."""

    def parameters(self) -> dict[str, np.ndarray]:
        """The parameters as they are now, running statistics included."""
