"""Right ways to write a gated delta rule or a state-space model, their convolutions, decays and norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from meta.power.family_port import Config, FamilyFault, constantly
from meta.power.recurrent_faults import corrects, recurs, selects
from transparity_numpy.arithmetic.functional import linear, sigmoid

Read = tuple[np.ndarray, np.ndarray]
"""What each query reads, (batch, heads, length, value_dim), and the last state."""


def styles() -> Iterator[FamilyFault]:
    for places, acts in ((_of_both(), recurs), (_of_delta(), corrects), (_of_state_space(), selects)):
        for name, (place, function) in places.items():
            exchanged = {f"recurrent.recurrence.{place}": partial(constantly, function)}
            yield FamilyFault((), name, ".*", acts, exchanged=exchanged)


Places = Mapping[str, tuple[str, Callable[..., Any]]]
"""By the name of a style, what it exchanges, and for what."""


def _of_both() -> Places:
    return {
        "a logarithm of the rate to base 2": ("log_decay", decay_by_base_2),
        "softplus by a logarithmic sigmoid": ("time_step", step_by_sigmoid),
        "softplus by a sum of exponentials": ("time_step", step_by_logaddexp),
        "windows of the convolution": ("causal_convolution", convolved_by_windows),
        "convolved from the last tap on": ("causal_convolution", convolved_backwards),
        "convolved feature by feature": ("causal_convolution", convolved_by_feature),
    }


def _of_delta() -> Places:
    return {
        **{f"chunks of {size}": ("gated_delta_rule", partial(in_chunks, size)) for size in (3, 5, 64)},
        "the state transposed": ("gated_delta_rule", transposed),
        "a scan by halves": ("gated_delta_rule", scanned),
        "the query scaled": ("gated_delta_rule", scaled_query),
        "forgets in the matrix": ("gated_delta_rule", by_one_matrix),
        "a reciprocal root of lengths": ("unit_length", unit_by_reciprocal),
        "lengths with the root of eps behind": ("unit_length", unit_with_eps_behind),
        "the gate first": ("gated_norm", gate_first),
    }


def _of_state_space() -> Places:
    return {
        **{f"a selection in chunks of {size}": ("state_space_rule", partial(selected, size)) for size in (3, 5, 64)},
        "a selection by halves": ("state_space_rule", selected_by_halves),
        "a selection with its state transposed": ("state_space_rule", selected_transposed),
        "groups by a reciprocal root": ("gated_norm", groups_by_reciprocal),
    }


def in_chunks(size: int, q: Any, k: Any, v: Any, log_decay: Any, beta: Any, state: np.ndarray) -> Read:
    """The corrections of a chunk by one triangular system (Yang et al. 2024, eq. 10 and 11)."""
    read = []
    for begin in range(0, q.shape[2], size):
        part = slice(begin, begin + size)
        query, key, value, share = q[:, :, part], k[:, :, part], v[:, :, part], beta[:, :, part, None]
        total = np.cumsum(log_decay[:, :, part], axis=-1)
        lower = np.tril(np.ones((query.shape[2],) * 2, bool))
        between = np.exp(np.where(lower, total[..., :, None] - total[..., None, :], -np.inf)).astype(query.dtype)
        system = np.eye(len(lower), dtype=query.dtype) + np.tril(share * (key @ key.swapaxes(-2, -1)) * between, -1)
        reached = np.exp(total)[..., None]
        written = np.linalg.solve(system, share * (value - reached * (key @ state)))
        seen = reached * (query @ state) + ((query @ key.swapaxes(-2, -1)) * between) @ written
        read.append(seen / np.sqrt(query.dtype.type(query.shape[-1])))
        left = np.exp(total[..., -1:] - total)[..., None]
        state = np.exp(total[..., -1])[..., None, None] * state + (key * left).swapaxes(-2, -1) @ written
    return np.concatenate(read, axis=2), state


def transposed(q: Any, k: Any, v: Any, log_decay: Any, beta: Any, state: np.ndarray) -> Read:
    """A state of (value_dim, key_dim)."""
    read, turned = [], state.swapaxes(-2, -1)
    for i in range(q.shape[2]):
        turned = turned * np.exp(log_decay[:, :, i])[..., None, None]
        wrong = v[:, :, i] - np.einsum("bhvk,bhk->bhv", turned, k[:, :, i])
        turned = turned + np.einsum("bh,bhv,bhk->bhvk", beta[:, :, i], wrong, k[:, :, i])
        read.append(np.einsum("bhvk,bhk->bhv", turned, q[:, :, i]) * q.dtype.type(q.shape[-1] ** -0.5))
    return np.stack(read, axis=2), turned.swapaxes(-2, -1)


def _steps(k: Any, v: Any, log_decay: Any, beta: Any) -> Read:
    """Each position as an affine map of the state: S ← A S + B, (batch, heads, length, ·, ·)."""
    written = beta[..., None, None] * k[..., None]
    kept = np.eye(k.shape[-1], dtype=k.dtype) - written * k[..., None, :]
    return np.exp(log_decay)[..., None, None] * kept, written * v[..., None, :]


def scanned(q: Any, k: Any, v: Any, log_decay: Any, beta: Any, state: np.ndarray) -> Read:
    """All states by a scan of the maps, in steps of 1, 2, 4 …: each position joins the one so far back."""
    maps, added = _steps(k, v, log_decay, beta)
    step, length = 1, q.shape[2]
    while step < length:
        later, earlier = maps[:, :, step:], added[:, :, :-step]
        added = np.concatenate([added[:, :, :step], later @ earlier + added[:, :, step:]], axis=2)
        maps = np.concatenate([maps[:, :, :step], later @ maps[:, :, :-step]], axis=2)
        step *= 2
    states = maps @ state[:, :, None] + added
    return (q[..., None, :] @ states)[..., 0, :] / np.sqrt(q.dtype.type(q.shape[-1])), states[:, :, -1]


def by_one_matrix(q: Any, k: Any, v: Any, log_decay: Any, beta: Any, state: np.ndarray) -> Read:
    """Decay and correction in one matrix, before the value is written."""
    maps, added = _steps(k, v, log_decay, beta)
    read = []
    for i in range(q.shape[2]):
        state = maps[:, :, i] @ state + added[:, :, i]
        read.append((q[:, :, i, None] @ state)[:, :, 0] / np.sqrt(q.dtype.type(q.shape[-1])))
    return np.stack(read, axis=2), state


def scaled_query(q: Any, k: Any, v: Any, log_decay: Any, beta: Any, state: np.ndarray) -> Read:
    """The scale on the query; head by head, with a sum over rows of the state."""
    q, read = q * q.dtype.type(q.shape[-1] ** -0.5), np.zeros_like(v)
    state = state.copy()
    for row, head, i in np.ndindex(q.shape[:3]):
        own = state[row, head]
        own *= np.exp(log_decay[row, head, i])
        own += np.outer(k[row, head, i], beta[row, head, i] * (v[row, head, i] - k[row, head, i] @ own))
        read[row, head, i] = (q[row, head, i, :, None] * own).sum(axis=0)
    return read, state


def selected(size: int, q: Any, k: Any, v: Any, log_decay: Any, step: Any, state: np.ndarray) -> Read:
    """A chunk as masked attention, beside what the state in front of it gives (Dao and Gu 2024, listing 1)."""
    read = []
    for begin in range(0, q.shape[2], size):
        part = slice(begin, begin + size)
        query, key, written = q[:, :, part], k[:, :, part], v[:, :, part] * step[:, :, part, None]
        total = np.cumsum(log_decay[:, :, part], axis=-1)
        lower = np.tril(np.ones((query.shape[2],) * 2, bool))
        between = np.exp(np.where(lower, total[..., :, None] - total[..., None, :], -np.inf)).astype(query.dtype)
        own = ((query @ key.swapaxes(-2, -1)) * between) @ written
        read.append(own + np.exp(total)[..., None] * (query @ state))
        left = np.exp(total[..., -1:] - total)[..., None]
        state = np.exp(total[..., -1])[..., None, None] * state + (key * left).swapaxes(-2, -1) @ written
    return np.concatenate(read, axis=2), state


def selected_by_halves(q: Any, k: Any, v: Any, log_decay: Any, step: Any, state: np.ndarray) -> Read:
    """The second half from the last state of the first, down to single positions."""
    if (length := q.shape[2]) > 1:
        half, given = length // 2, (q, k, v, log_decay, step)
        first, state = selected_by_halves(*(*(each[:, :, :half] for each in given), state))
        second, state = selected_by_halves(*(*(each[:, :, half:] for each in given), state))
        return np.concatenate([first, second], axis=2), state
    kept, added = np.exp(log_decay)[..., None], (step[..., None] * k).swapaxes(-2, -1) * v
    return q @ (kept * state + added), kept * state + added


def selected_transposed(q: Any, k: Any, v: Any, log_decay: Any, step: Any, state: np.ndarray) -> Read:
    """A state of (value_dim, key_dim), as Mamba's kernels hold it, and the step on the keys."""
    read, turned, written = [], state.swapaxes(-2, -1), k * step[..., None]
    for i in range(q.shape[2]):
        turned = turned * np.exp(log_decay[:, :, i])[..., None, None]
        turned = turned + np.einsum("bhv,bhk->bhvk", v[:, :, i], written[:, :, i])
        read.append(np.einsum("bhvk,bhk->bhv", turned, q[:, :, i]))
    return np.stack(read, axis=2), turned.swapaxes(-2, -1)


def decay_by_base_2(parameters: Mapping[str, Any], step: np.ndarray) -> np.ndarray:
    decay: np.ndarray = -np.exp2(parameters["log_rate"].astype(np.float64) / np.log(2)) * step
    return decay.astype(step.dtype)


def step_by_sigmoid(config: Config, parameters: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """−log σ(−y), within the bounds one after the other."""
    y = linear(parameters["decay"], x) + parameters["time_step_bias"]
    step = np.maximum(-np.log(sigmoid(-y.astype(np.float64))), config.time_step_least)
    return (step if config.time_step_most is None else np.minimum(step, config.time_step_most)).astype(x.dtype)


def step_by_logaddexp(config: Config, parameters: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    y = linear(parameters["decay"], x) + parameters["time_step_bias"]
    most = np.inf if config.time_step_most is None else config.time_step_most
    return np.clip(np.logaddexp(y.dtype.type(0), y), config.time_step_least, most).astype(x.dtype)


def convolved_by_windows(weight: np.ndarray, x: np.ndarray, before: np.ndarray, bias: Any = None) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([before, x], axis=1), weight.shape[1], axis=1)
    y: np.ndarray = np.einsum("blfw,fw->blf", windows, weight)
    return y if bias is None else y + bias


def convolved_backwards(weight: np.ndarray, x: np.ndarray, before: np.ndarray, bias: Any = None) -> np.ndarray:
    """Each tap shifts and adds to the bias, its own position first."""
    given, more = np.concatenate([before, x], axis=1), before.shape[1]
    y = weight[:, -1] * x if bias is None else bias + weight[:, -1] * x
    for back in range(1, more + 1):
        y = y + weight[:, -1 - back] * given[:, more - back : given.shape[1] - back]
    return y


def convolved_by_feature(weight: np.ndarray, x: np.ndarray, before: np.ndarray, bias: Any = None) -> np.ndarray:
    given = np.concatenate([before, x], axis=1)
    rows = [
        [np.convolve(row[:, feature], kernel[::-1], "valid") for feature, kernel in enumerate(weight)] for row in given
    ]
    y: np.ndarray = np.array(rows).swapaxes(1, 2)
    return y if bias is None else y + bias


def unit_by_reciprocal(x: np.ndarray) -> np.ndarray:
    return x * (np.einsum("...d,...d->...", x, x) + x.dtype.type(1e-6))[..., None] ** x.dtype.type(-0.5)


def unit_with_eps_behind(x: np.ndarray) -> np.ndarray:
    """The root of eps as one feature more."""
    root = np.full((*x.shape[:-1], 1), 1e-3, x.dtype)
    return x / np.linalg.norm(np.concatenate([x, root], axis=-1), axis=-1, keepdims=True)


def gate_first(config: Config, parameters: Mapping[str, Any], x: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """The gate times the gain, then the heads by their reciprocal root."""
    heads = x.reshape(*x.shape[:2], config.recurrent_heads, -1)
    factor = 1 / np.sqrt(np.square(heads).mean(axis=-1, keepdims=True) + x.dtype.type(config.norm_eps))
    weighted = (gate / (1 + np.exp(-gate))).reshape(heads.shape) * parameters["weight"]
    return (weighted * (heads * factor)).reshape(x.shape)


def groups_by_reciprocal(config: Config, parameters: Mapping[str, Any], x: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """The heads that share a key, one after the other, by the reciprocal root of their mean square."""
    gated, normed = x * (gate / (1 + np.exp(-gate))), []
    for group in np.split(gated, config.recurrent_key_heads, axis=-1):
        square = np.einsum("btf,btf->bt", group, group)[..., None] / x.dtype.type(group.shape[-1])
        normed.append(group * (square + x.dtype.type(config.norm_eps)) ** x.dtype.type(-0.5))
    return np.concatenate(normed, axis=-1) * parameters["weight"]
