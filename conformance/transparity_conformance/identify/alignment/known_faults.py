"""Find a port's values that the reference computes with a fault of the catalogue, or as intermediate results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transparity.taps import lengths_of
from transparity_conformance.catalogue import faults_at
from transparity_conformance.catalogue.fault import Fault, Hypothesis, WalkState
from transparity_conformance.diagnosis.walk import Impossible, TapReached, applied, made_with
from transparity_conformance.identify.alignment.found import Found
from transparity_conformance.matching.recorded import Match
from transparity_conformance.oracle.near_ties import is_choice
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_numpy.positions.in_attention import alibi_slopes
from transparity_numpy.positions.sinusoidal import sinusoidal_positions
from transparity_numpy.rotary.plain import rotate
from transparity_numpy.rotary.tables import rotary_frequencies
from transparity_numpy.transformer import transformer

ByOperation = dict[int, Match]


def behind_faults(found: Found, tap: str, *, of_weights: bool = True) -> ByOperation:
    """Return {operation: match} for the port's values that the reference, with a fault, computes for `tap`."""
    strict: ByOperation = {}
    loose: ByOperation = {}
    for _, value in _faulty(found, tap, of_weights=of_weights):
        on_its_way = lambda index: found.admits(tap, index) and found.leads_on(tap, index)
        if match := found.port.nearest(value, may_be=on_its_way):
            strict.setdefault(match.index, match)
        elif match := found.nearest(tap, value):
            loose.setdefault(match.index, match)
    return strict or loose  # an operation in `loose` may compute another tap


def made_by_a_fault(found: Found, tap: str, matches: ByOperation) -> Match | None:
    """Return the last match that is no intermediate result of the reference without faults, if any."""
    wrong = set(matches)
    for each in intermediates(found.probe, found.values, tap) if wrong else ():
        wrong -= set(found.port.with_numbers(each, wrong))
    return matches[max(wrong)] if wrong else None


def followed(found: Found, tap: str, matches: ByOperation) -> ByOperation:
    """If `tap` is a router's choice of experts, keep only the matches that later values of the port confirm."""
    if not is_choice(tap):
        return matches
    values = found.values
    behind = [name for name in found.flow.reached(tap, values) if name in values]

    def is_followed(match: Match) -> bool:
        chosen = found.port.read(match)
        if any(np.array_equal(values[name] != 0, chosen != 0) for name in found.flow.outputs[tap] & values.keys()):
            return True  # exactly these experts have nonzero weights
        ours = found.adding({tap: match}).ours
        return bool(behind) and all(found.port.agree(values[name], ours[name]) for name in behind)

    return {index: match for index, match in matches.items() if is_followed(match)}


def _faulty(found: Found, tap: str, *, of_weights: bool) -> Iterator[tuple[Fault, np.ndarray]]:
    for fault in faults_at(found.probe.config, tap):
        found.clock.check()
        if fault.alter is not None and not of_weights:
            continue
        try:
            yield fault, found.at(tap, (Hypothesis(fault, (tap,)),))
        except Impossible:
            continue


class Recorded(np.ndarray):
    """An array that records the floating-point results of its computations in `into`."""

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


def intermediates(probe: Probe, given: Arrays, until: str, hypotheses: Sequence[Hypothesis] = ()) -> list[np.ndarray]:
    """Return the reference's parameters, and the values that it computes from `given` up to `until`, without and with
    the faults. Embedding tables are left out."""
    values = [value for name, value in probe.exact.items() if not name.endswith("embedding.weight")]

    def tap(name: str, value: np.ndarray) -> np.ndarray:
        values.append(_plain(value))
        if name == "logits" and not probe.config.head_bias:
            values.append(_plain(value) / probe.config.head_input_scale)  # for ports that scale the logits
        if hypotheses:
            values.append(_plain(made_with(hypotheses, state, name, value)))
        if name == until:
            raise TapReached
        values.append(np.asarray(given.get(name, _plain(value)), np.float64))
        if probe.config.positions == "rotary" and name.endswith((".query", ".query_norm", ".key", ".key_norm")):
            # Add the intermediate result (−b, a) of rotating features (a, b), which many ports compute.
            half = np.ones((values[-1].shape[-2], probe.config.rotated_dim // 2))
            turned = values[-1][..., : probe.config.rotated_dim]
            values.insert(-1, rotate(turned, (0 * half, half), probe.config.rope_layout))
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
    values.clear()  # break reference cycles through arrays, which Python does not collect
    return found


def tables(probe: Probe) -> list[np.ndarray]:
    """Return tables that depend only on positions, such as angles and ALiBi slopes, and their negations."""
    config, length = probe.config, max(lengths_of(probe.config, probe.inputs).values())
    positions = np.arange(length)
    found = [value for name, value in probe.exact.items() if name.endswith("relative_bias.weight")]
    if "sinusoidal" in (config.positions, config.encoder_positions):
        options = (config.rope_theta, config.rope_layout, config.sinusoidal_timescales)
        found.append(sinusoidal_positions(length, config.embed_dim, *options))
    if config.positions == "rotary":
        frequencies = rotary_frequencies(config, beyond=length > config.rotary_original_length)
        angles, factor = positions[:, None] * frequencies, config.rotary_attention_factor
        rotations = np.stack([np.cos(angles), np.sin(angles), -np.sin(angles)])
        found += [frequencies, angles, rotations, factor * rotations]
    if config.positions == "alibi":
        slopes = alibi_slopes(config.num_heads)
        found += [slopes, np.abs(positions[:, None] - positions)[None] * slopes[:, None, None]]
    return [each for value in found for each in (value, -value)]
