"""The interfaces of a port, a backend and a harness.

A port is any function `build(config, parameters)` that returns a `forward`. `forward(**tokens)` returns the logits, or
a dict of activations that includes `logits`. Other capabilities are attributes of `forward`; a report lists missing
capabilities as not compared.

To register a backend, a package lists its `build` in the entry-point group `transparity.backends`. A package may also
list a `Harness` under the same name in `transparity.harnesses`. Without a harness, the suite skips its comparisons of
single functions and modules.
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
    """A model with its weights. Token inputs are integer arrays (batch, length)."""

    def __call__(self, **tokens: Any) -> dict[str, Any]:
        """Return every activation by name; `transparity.taps.tap_shapes` lists the names and shapes."""

    def logits(self, *, out: Any = None, **tokens: Any) -> Any:
        """Return only the logits, as an array of the framework; this is faster than a call of the model.

        Args:
            out: an array for the logits, with their shape and dtype. Passing the logits of an earlier call saves the
                time to clear new memory. Afterwards, use the returned array instead of `out`, which JAX deletes.
            tokens: the inputs by name.
        """

    def loss(self, targets: Any, **tokens: Any) -> float:
        """Return the mean cross-entropy of the logits; padding in `targets` (batch, length) does not count."""

    def loss_and_gradients(
        self, targets: Any, *, training: bool = False, masks: Arrays | None = None, **tokens: Any
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Return the loss, and its gradients with respect to all learned parameters, by name.

        Args:
            targets: (batch, length), the expected tokens.
            training: whether batch norms use the statistics of the batch; running statistics do not change.
            masks: dropout masks by activation (`transparity.training.dropout_masks`). None means no dropout.
            tokens: the inputs by name.

        The NumPy column lacks this method; `transparity_numpy.training.loss` has numerical derivatives.
        """

    def train(
        self, batches: Sequence[Mapping[str, Any]], training: Training
    ) -> tuple[list[float], dict[str, np.ndarray]]:
        """Train from this model's parameters, one step per batch (`targets` and inputs); the model itself does not
        change.

        Returns:
            The loss before each step, and the learned parameters after the last step.
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
        """Decode `tokens` with a cache. Raise `InputError` if masked keys keep a weight (see `mask_is_exact`).

        Args:
            tokens: (batch, length), the next tokens; with the tokens in the cache, at most `max_length`.
            cache: the cache that the previous step returned; use each cache only once. None starts a new sequence.
            source: (batch, keys), in the first step of an encoder-decoder.
            valid_lengths: (batch,), how many of `tokens` are valid in each row. None means all.
            attention_mask: (batch, length), the mask of `source` or, without a `source`, of `tokens`; only for models
                whose `padding` is `attention-mask`.

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
            prompt: (batch, length). None means `bos_id` for each row of the source.
            max_new_tokens: the largest number of new tokens. Generation ends earlier if every row has reached `eos_id`.
            lengths: (batch,), how many tokens of each row of `prompt` are valid. None means all.
            source: (batch, keys), for an encoder-decoder.
            uniforms: (batch, max_new_tokens), the random numbers in [0, 1) that sample the tokens. None means greedy.
            sampling: temperature, top-k and top-p, which have an effect only with `uniforms`.

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
        """Return each prompt with the best of `beams` continuations, and the scores (batch,); see `generate`."""

    def ready(self, result: Any) -> None:
        """Wait until `result` is computed, because frameworks may return it before the device has finished."""


class Backend(Protocol):
    """A `build` with a choice of precision, device and mode. The first of `dtypes` and of `modes` is the default."""

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
            parameters: float32 arrays by name; `transparity.parameters.parameter_shapes` lists the names.
            dtype: the precision of the computation.
            device: one of `devices()`.
            mode: one of `modes`.
            weights: a lower precision to which the parameters are rounded once.
            activations: a lower precision to which every activation is rounded.
        """

    def devices(self) -> tuple[str, ...]:
        """Return the available devices, `cpu` first."""


class Harness(Protocol):
    """Access to a column's functions and modules by name, for comparisons. A Python module can be a harness."""

    def function(self, name: str, *, dtype: str = ..., device: str = ...) -> Callable[..., Any]:
        """Return a function of the column, such as `attention.split_heads`, that takes and returns NumPy arrays."""

    def module(
        self, name: str, config: TransformerConfig, parameters: Arrays, *, dtype: str = ..., device: str = ...
    ) -> Module:
        """Return a module, such as `layers.EncoderLayer`; the names of `parameters` are relative to the module."""

    def einsum(self, subscripts: str, *arrays: np.ndarray) -> np.ndarray:
        """Call the framework's own `einsum`."""

    def describe(self, device: str) -> dict[str, str]:
        """Return the versions of the libraries, the device's name, and the precision of float32 matrix products."""

    def pinned(self) -> AbstractContextManager[None]:
        """Return a context manager in which float32 matrix products use float32 on every device, without TF32. In this
        context, PyTorch models pack weights of any size, so that claims about small models test packed weights."""


class ShardedBackend(Backend, Protocol):
    """A backend that distributes a model over ranks. Every rank makes the same calls and gets the same results."""

    takes_part: bool
    """Whether this rank has a share of the model. If the launcher started more ranks than the mesh has, only the first
    ranks have a share."""

    def from_file(self, config: TransformerConfig, path: Any, dtype: str | None = None) -> Forward:
        """Build a model from a safetensors file; each rank reads only its slices."""


class ShardedHarness(Harness, Protocol):
    """A harness of a column that can run over several ranks."""

    SHARDED: str
    """The name of the module with the class `ShardedBackend(data, tensor)`, which implements the protocol
    `ShardedBackend`. Each process imports the module when a launcher such as torchrun starts it."""

    def processes(self, ranks: int) -> int:
        """Return the number of processes that `ranks` need: one per rank, or a single process with several devices."""


class Module(Protocol):
    """A part of a model that maps NumPy arrays to NumPy arrays."""

    def __call__(
        self, *arrays: Any, context: Mapping[str, Any] | None = None, taps: dict[str, Any] | None = None, **named: Any
    ) -> Any:
        """Return the result of the part, and write the activations of the part into `taps`, if given.

        Args:
            context: fields of the column's `Context`, for parts that need one.
        """

    def use_batch_statistics(self) -> None:
        """Make batch norms use the statistics of the batch and update their running statistics, as in training."""

    def parameters(self) -> dict[str, np.ndarray]:
        """Return the current parameters, including running statistics."""
