"""Collect every intermediate result of the reference up to a tap, not only the taps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import lengths_of
from transparity_conformance.catalogue.fault import Hypothesis, WalkState
from transparity_conformance.diagnosis.walk import TapReached, applied, made_with
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_numpy.positions.added import sinusoidal_positions
from transparity_numpy.positions.bias import alibi_slopes
from transparity_numpy.rotary import rotary_frequencies, rotate
from transparity_numpy.transformer import transformer


class Recorded(np.ndarray):
    """An array that appends every result computed from it to `into`. The results do the same."""

    into: list[np.ndarray]

    def __array_finalize__(self, source: Any) -> None:
        self.into = getattr(source, "into", [])

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        options = {name: _plain(value) for name, value in options.items()}
        return self._kept(getattr(ufunc, method)(*map(_plain, inputs), **options))

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        return self._kept(function(*map(_plain, inputs), **{name: _plain(value) for name, value in options.items()}))

    def __getitem__(self, key: Any) -> Any:
        return self._kept(_plain(self)[key])

    def repeat(self, *inputs: Any, **options: Any) -> Any:
        """Repeat elements, such as the heads of keys and values."""
        return self._kept(_plain(self).repeat(*inputs, **options))

    def _kept(self, result: Any) -> Any:
        if not isinstance(result, np.ndarray) or result.dtype.kind != "f":
            return result
        self.into.append(result)
        return _recorded(result, self.into)


def _recorded(value: np.ndarray, into: list[np.ndarray]) -> Recorded:
    wrapped = value.view(Recorded)
    wrapped.into = into
    return wrapped


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_plain, value))
    return value.view(np.ndarray) if isinstance(value, Recorded) else value


TURNED = ("query", "query_norm", "key", "key_norm")
"""Names of taps that the model may rotate next."""


def _quarter_turn(config: TransformerConfig, x: np.ndarray) -> np.ndarray:
    """Return the feature pairs (a, b) rotated to (−b, a). Many ports multiply this array by the sines."""
    turned = x[..., : config.rotated_dim]
    half = np.ones((x.shape[-2], config.rotated_dim // 2))
    return rotate(turned, (0 * half, half), config.rope_layout)


def intermediates(probe: Probe, given: Arrays, until: str, hypotheses: Sequence[Hypothesis] = ()) -> list[np.ndarray]:
    """Return the parameters and every value that the reference computes from the port's taps, up to the tap `until`.

    Embedding tables are left out; rows that the model looks up are included.

    Args:
        given: the port's values by tap.
        hypotheses: faults that the reference applies; values without these faults are included too.
    """
    values = [value for name, value in probe.exact.items() if not name.endswith("embedding.weight")]

    def tap(name: str, value: np.ndarray) -> np.ndarray:
        values.append(_plain(value))
        if hypotheses:
            values.append(_plain(made_with(hypotheses, state, name, value)))
        if name == until:
            raise TapReached
        values.append(np.asarray(given.get(name, _plain(value)), np.float64))
        if probe.config.positions == "rotary" and name.rpartition(".")[2] in TURNED:
            values.insert(-1, _quarter_turn(probe.config, values[-1]))
        state.taps[name] = _recorded(values[-1], values)
        return state.taps[name]

    model = applied(hypotheses, probe.config, dict(probe.exact))
    parameters: Arrays = {name: _recorded(value, values) for name, value in model.parameters.items()}
    state = WalkState(model.config, parameters, probe.inputs)
    tokens: dict[str, Any] = dict(probe.inputs)
    try:
        with np.errstate(all="ignore"):
            transformer(model.config, parameters, tap=tap, **tokens)
    except TapReached:
        pass
    found = list(values)
    values.clear()  # Each array's base refers to the list. Python does not collect cycles through arrays.
    return found


def tables(probe: Probe) -> list[np.ndarray]:
    """Return the numbers that depend only on positions: angles, sines and cosines, slopes, and distance biases."""
    config, length = probe.config, max(lengths_of(probe.config, probe.inputs).values())
    positions = np.arange(length)
    found = [value for name, value in probe.exact.items() if name.endswith("relative_bias.weight")]
    if "sinusoidal" in (config.positions, config.encoder_positions):
        options = (config.rope_theta, config.rope_layout, config.sinusoidal_timescales)
        found.append(sinusoidal_positions(length, config.embed_dim, *options))
    if config.positions == "rotary":
        frequencies = rotary_frequencies(config, beyond=length > config.rotary_original_length)
        angles, factor = positions[:, None] * frequencies, config.rotary_attention_factor
        found += [frequencies, angles, np.cos(angles), np.sin(angles)]
        found += [factor * np.cos(angles), factor * np.sin(angles)] if factor != 1 else []
    if config.positions == "alibi":
        slopes = alibi_slopes(config.num_heads)
        found += [slopes, np.abs(positions[:, None] - positions)[None] * slopes[:, None, None]]
    return [each for value in found for each in (value, -value)]
