"""A port of a family that makes a mistake: another field, other parameters, other inputs, or one function of the NumPy
column exchanged while the port runs; and the conditions under which a mistake is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import recording
from transparity_numpy.transformer import transformer

Arrays = dict[str, np.ndarray]
Config = TransformerConfig
Wrong = Callable[[Config], Any]
"""Replacement of a function or another value in a port, given its configuration."""
Acts = Callable[[Config], bool]
"""Condition on a configuration under which the fault changes something."""


@dataclass(frozen=True)
class FamilyFault:
    """One mistake: what it is called, the form it takes, where it shows, and how a port comes to make it."""

    ids: tuple[str, ...]
    """Names that are right: more than one where nothing tells them apart, none for what no catalogue has."""
    variant: str
    place: str
    """Pattern of the taps at which the fault may be found."""
    acts: Acts
    """In which configurations it is one."""
    fields: Callable[[Config], dict[str, Any]] = lambda config: {}
    parameters: Callable[[Config, Arrays], Arrays] = lambda config, parameters: parameters
    inputs: Callable[[Config, Arrays], Arrays] = lambda config, inputs: inputs
    exchanged: Mapping[str, Wrong] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.ids[0]} ({self.variant})" if self.ids else self.variant


def build_port(fault: FamilyFault | None, dtype: str = "float32") -> Callable[[Config, Arrays], Callable[..., Arrays]]:
    """`build(config, parameters)` of a port that makes the mistake, or none."""

    def build(config: Config, parameters: Arrays) -> Callable[..., Arrays]:
        changed = dataclasses.replace(config, **fault.fields(config)) if fault else config
        given = fault.parameters(config, dict(parameters)) if fault else parameters
        cast = {name: value.astype(dtype) for name, value in given.items()}

        def forward(**inputs: np.ndarray) -> Arrays:
            taps: Arrays = {}
            shown: Any = fault.inputs(config, dict(inputs)) if fault else inputs
            with ExitStack() as stack:
                for name, wrong in fault.exchanged.items() if fault else ():
                    # The configuration is the contract's; all else that is replaced is the column's.
                    package = "transparity" if name.startswith("config.") else "transparity_numpy"
                    stack.enter_context(patch(f"{package}.{name}", wrong(config)))
                transformer(changed, cast, **shown, tap=recording(taps))
            return taps

        return forward

    return build


def together(one: FamilyFault, other: FamilyFault) -> FamilyFault:
    """Both mistakes, made in one port. What they exchange has to be different."""
    assert not set(one.exchanged) & set(other.exchanged)
    return FamilyFault(
        (*one.ids, *other.ids),
        f"{one.variant} and {other.variant}",
        f"{one.place}|{other.place}",
        all_of(one.acts, other.acts),
        lambda config: one.fields(config) | other.fields(config),
        lambda config, parameters: other.parameters(config, one.parameters(config, parameters)),
        lambda config, inputs: other.inputs(config, one.inputs(config, inputs)),
        {**one.exchanged, **other.exchanged},
    )


def always(config: Config) -> bool:
    return True


def where(**fields: Any) -> Acts:
    """Configurations with these fields."""
    return lambda config: all(getattr(config, name) == value for name, value in fields.items())


def having(*fields: str) -> Acts:
    """Configurations in which these are not None, 0 or false."""
    return lambda config: all(getattr(config, name) for name in fields)


def all_of(*acts: Acts) -> Acts:
    return lambda config: all(each(config) for each in acts)


def unless(acts: Acts) -> Acts:
    return lambda config: not acts(config)


def fields_to(**fields: Any) -> Callable[[Config], dict[str, Any]]:
    """Fields that a port takes to be these."""
    return lambda config: fields


def replaced(change: Callable[[str, np.ndarray], np.ndarray]) -> Callable[[Config, Arrays], Arrays]:
    """Every parameter as `change(name, value)` leaves it."""
    return lambda config, parameters: {name: change(name, value) for name, value in parameters.items()}


def constantly(wrong: Any, _: Config) -> Any:
    return wrong
