"""The descriptions of variants of a model: mixers, inputs, and scalings of rotary angles.

`parts/tables.py` has a row for each variant. The configuration imports `parts/tables.py`, so this file imports the
configuration only for types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from transparity.errors import ConfigError
from transparity.parts.part import Part

if TYPE_CHECKING:
    from transparity.config import TransformerConfig


def accept(config: TransformerConfig) -> None:
    """Accept every configuration."""


def check_needed(config: TransformerConfig, needed: Mapping[str, Any], why: str) -> None:
    """Raise `ConfigError` unless `config` has the value of each field in `needed`."""
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise ConfigError(f"{name} is {getattr(config, name)!r}, but {why}; expected {value!r}.")


class Held(NamedTuple):
    """An array that a layer's cache holds."""

    shape: tuple[int | str, ...]
    """The sizes of the array's axes; `batch` and `capacity` stand for the cache's numbers of rows and of positions."""
    is_wide: bool = False
    """Whether the array's dtype is at least float32."""
    cut: tuple[str, int] | None = None
    """The name of a parameter of the mixer, and an axis of this array: if the parameter is distributed, this array is
    distributed along the axis. None means that every rank has the whole array."""

    def sizes(self, batch: int, capacity: int) -> tuple[int, ...]:
        known = {"batch": batch, "capacity": capacity}
        return tuple(known[axis] if isinstance(axis, str) else axis for axis in self.shape)


class Mixer(NamedTuple):
    """The description of a value of `config.mixer`: how a layer mixes positions."""

    part: Callable[[TransformerConfig, str], Part]
    state: Callable[[TransformerConfig], dict[str, Held]]
    """The arrays of a layer's cache, by name."""
    scope: str
    """The name of the mixer in a layer's parameters, activations and cache."""
    check: Callable[[TransformerConfig], None] = accept

    @property
    def attends(self) -> bool:
        return self.scope == "self_attention"


class Input(NamedTuple):
    """An input of a stack; `config.input_kinds[stack]` names the last row of `INPUTS` whose `is_read` returns True."""

    part: Callable[[TransformerConfig, str, str], Part]
    is_read: Callable[[TransformerConfig, str], bool]
    """A function that returns whether the given stack reads this input."""
    name: str = "tokens"
    """The name of the argument in a model with one stack."""
    axes: Callable[[TransformerConfig], tuple[int, ...]] | None = None
    """The sizes of the axes after the batch. None means any number of tokens."""
    expected: str = ""
    """The expected shape, for messages, with `{}` for each size."""
    positions: Callable[[TransformerConfig], int] | None = None
    """The number of positions. None means that each token is a position."""
    check: Callable[[TransformerConfig], None] = accept
    probe_sizes: Callable[[TransformerConfig], dict[str, Any]] = lambda config: {}
    """The small sizes at which ports are compared."""


class Scaling(NamedTuple):
    """The description of a value of `config.rotary_scaling`."""

    probe_length: int | None = None
    """The `rotary_original_length` at which ports are compared. None keeps the model's own length."""
    depends_on_length: bool = False
    """Whether angles are different in sequences longer than `rotary_original_length`."""
    check: Callable[[TransformerConfig], None] = accept
