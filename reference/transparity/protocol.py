"""Protocols: the interfaces of a port, a backend and a harness.

A port is any `build(config, parameters) -> forward`, with `forward(**tokens)` returning logits or a dict of taps that
includes `logits`. Other capabilities are attributes; missing ones are reported as not compared.

A package becomes a backend by naming its `build` in the entry-point group `transparity.backends`. Under the same name
it may list a `Harness` in `transparity.harnesses`; without one, claims about single functions and modules are skipped.
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
    """A model with its weights. Tokens are integer arrays (batch, length)."""

    def __call__(self, **tokens: Any) -> dict[str, Any]:
        """Return every tap by name (`transparity.taps.tap_shapes`): the traced path."""

    def logits(self, *, out: Any = None, **tokens: Any) -> Any:
        """Return only the logits, as an array of the framework: the fast path.

        Args:
            out: an array of the logits' shape and dtype that they are written into, such as those of the last call:
                its memory needs no clearing. Use the result in its place; JAX deletes `out`.
            tokens: the inputs by name.
        """

    def loss(self, targets: Any, **tokens: Any) -> float:
        """Return the mean cross-entropy of the logits; padding among `targets` (batch, length) is ignored."""

    def loss_and_gradients(
        self, targets: Any, *, training: bool = False, masks: Arrays | None = None, **tokens: Any
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Return the loss, and its gradient by every learned parameter, by name.

        Args:
            targets: (batch, length), the expected tokens.
            training: whether a batch norm normalizes by the batch; its running statistics do not change.
            masks: dropout masks by tap (`transparity.training.dropout_masks`); None: nothing is dropped.
            tokens: the inputs by name.

        The NumPy column does not offer it; `transparity_numpy.training.differentiation` has numerical derivatives.
        """

    def train(
        self, batches: Sequence[Mapping[str, Any]], training: Training
    ) -> tuple[list[float], dict[str, np.ndarray]]:
        """Take one step for each batch (`targets` and tokens), from these parameters; the model itself does not change.

        Returns:
            The loss before each step, and the learned parameters after the last.
        """

    def step(
        self,
        tokens: Any,
        cache: Any = None,
        *,
        source: Any = None,
        valid_lengths: Any = None,
        attention_mask: Any = None,
    ) -> tuple[Any, Any]:
        """Extend cached decoding by `tokens`; only for models whose masked keys weigh nothing.

        Args:
            tokens: (batch, length), the tokens that follow those in the cache; `max_length` at most in total.
            cache: the cache that the last step returned, not to be used again; None: these are the first tokens.
            source: (batch, keys), read once, in the first step of an encoder-decoder.
            valid_lengths: (batch,), how many of `tokens` are valid in each row; None: all.
            attention_mask: of `source` if given, else of `tokens`, where `padding` is `attention-mask`.

        Returns:
            The logits (batch, length, vocab) after each token, and the cache for the next step.
        """

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
        """Continue `prompt`, greedily or by sampling.

        Args:
            prompt: (batch, length); None: `bos_id` for each row of the source.
            max_new_tokens: the most tokens to generate; generation ends earlier if every row has reached `eos_id`.
            lengths: (batch,), how many tokens of each row of `prompt` are valid; None: all.
            source: (batch, keys), for an encoder-decoder.
            uniforms: (batch, max_new_tokens), numbers in [0, 1) that draw the tokens; None: take the likeliest.
            sampling: temperature, top-k and top-p, with `uniforms`.

        Returns:
            The prompt and its continuation, (batch, total_length); shorter rows are padded on the right.
        """

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
        """Return the best of `beams` continuations, in the form of `generate`, and its score (batch,)."""

    def ready(self, result: Any) -> None:
        """Wait until `result` is computed: frameworks return before their device has finished."""


class Backend(Protocol):
    """A `build` with a choice of precision, device and mode; the first of `dtypes` and of `modes` is the default."""

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
        """Build a model.

        Args:
            config: the configuration.
            parameters: float32 arrays by the names of `parameter_shapes`.
            dtype: the precision of the computation.
            device: one of `devices()`.
            mode: one of `modes`.
            weights: a coarser precision to which the parameters are rounded once.
            activations: a coarser precision to which the value at every tap is rounded.
        """

    def devices(self) -> tuple[str, ...]:
        """Return the available devices, `cpu` first."""


class Harness(Protocol):
    """The parts of a column by name, for claims about single functions and modules. A Python module can be one."""

    def function(self, name: str, *, dtype: str = ..., device: str = ...) -> Callable[..., Any]:
        """Return a free function of the column, such as `attention.split_heads`, between NumPy arrays."""

    def module(
        self, name: str, config: TransformerConfig, parameters: Arrays, *, dtype: str = ..., device: str = ...
    ) -> Module:
        """Return a module of the column, such as `layers.EncoderLayer`, with `parameters` named relative to it."""

    def einsum(self, subscripts: str, *arrays: np.ndarray) -> np.ndarray:
        """Call the framework's own `einsum`, with which the documents compute attention."""

    def describe(self, device: str) -> dict[str, str]:
        """Return versions, the device's name, and the precision of float32 matrix products."""

    def pinned(self) -> AbstractContextManager[None]:
        """Context manager in which float32 matrix products have float32's precision on every device (no TF32)."""


class ShardedBackend(Backend, Protocol):
    """A backend over a mesh of ranks. Every rank makes the same calls, and gets the same results."""

    takes_part: bool
    """Whether this rank is in the mesh: a mesh has the first of the ranks that were launched."""

    def from_file(self, config: TransformerConfig, path: Any, dtype: str | None = None) -> Forward:
        """Build a model from a safetensors file; each rank reads only its slices."""


class ShardedHarness(Harness, Protocol):
    """A harness of a column that also runs over several ranks; other columns skip claims about ranks."""

    SHARDED: str
    """The module with a class `ShardedBackend(data, tensor)`, whose instances are `ShardedBackend`s. It is imported in
    every process that torchrun, or the like, launched."""

    def processes(self, ranks: int) -> int:
        """Return the number of processes for `ranks`: one per rank, or one with several devices."""


class Module(Protocol):
    """A part of a model that maps NumPy arrays to NumPy arrays."""

    def __call__(
        self, *arrays: Any, context: Mapping[str, Any] | None = None, taps: dict[str, Any] | None = None, **named: Any
    ) -> Any:
        """Return the part's result; put its activations into `taps`, if given.

        Args:
            context: Fields of the column's `LayerContext`, for parts that take one.
        """

    def use_batch_statistics(self) -> None:
        """Normalize by the batch from now on, and update running statistics."""

    def parameters(self) -> dict[str, np.ndarray]:
        """Return the current parameters, including running statistics."""
