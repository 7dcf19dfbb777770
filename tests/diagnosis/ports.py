"""Ports that compute like the reference in float32, with changed activations."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.transformer import transformer

Change = Callable[[TransformerConfig, str, np.ndarray], np.ndarray]
"""Maps the configuration, a tap and its value to a new value."""


def port(
    change: Change = lambda config, name, value: value, shown: Change = lambda config, name, value: value
) -> Callable[..., Any]:
    """Return the `build` of a port with changes.

    `change` changes the values that the port computes with, and `shown` only the returned values.
    """

    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Mapping[str, np.ndarray]]:
        def forward(**tokens: Any) -> Mapping[str, np.ndarray]:
            taps = Arrays()

            def tap(name: str, value: np.ndarray) -> np.ndarray:
                value = change(config, name, value).astype(np.float32)
                taps[name] = shown(config, name, value)
                return value

            transformer(config, parameters, tap=tap, **tokens)
            return taps

        return forward

    return build
