"""Mistakes in recurrences, as a port of a gated delta network or of Mamba-2 makes them.

Nothing here knows how the checker imitates a mistake: what is said in both places was thought of twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meta.power.family_port import Acts, Arrays, Config, FamilyFault, constantly
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.recurrent import recurrence


def recurs(config: Config) -> bool:
    """Whether some layers are recurrences."""
    return config.is_recurrent


def corrects(config: Config) -> bool:
    """Whether some layers have the gated delta rule."""
    return any(own.mixer == "gated-delta" for own in config.layer_kinds.values())


def selects(config: Config) -> bool:
    """Whether some layers are state-space models."""
    return any(own.mixer == "state-space" for own in config.layer_kinds.values())


def faults() -> Iterator[FamilyFault]:
    yield from _of_both()
    yield from _of_delta()
    yield from _of_state_space()


def _of_both() -> Iterator[FamilyFault]:
    """Wrong ends of the convolution, of the time step, and of key heads."""
    for name, convolution in (
        ("of the future", lambda w, x, before, b=None: _slid(w, np.concatenate([x, before], axis=1), b)),
        ("reversed", lambda w, x, before, b=None: _slid(w[:, ::-1], np.concatenate([before, x], axis=1), b)),
        ("none", lambda w, x, before, b=None: x if b is None else x + b),
    ):
        yield _in_recurrence("recurrent-convolution", name, "_convolved", causal_convolution=convolution)
    for name, function in (("none", lambda x: x), ("relu", lambda x: np.maximum(x, 0))):
        yield _in_recurrence("recurrent-activation", name, "_convolved", convolve=_convolve_with(function))
    for name, function in (("no softplus", lambda x: x), ("a sigmoid", lambda x: 1 / (1 + np.exp(-x)))):
        yield _in_recurrence("time-step", name, STEP, softplus=function)
    unbiased = lambda config, p, x: _held(config, np.log1p(np.exp(linear(p["decay"], x))))  # noqa: E731
    yield _in_recurrence("time-step", "no bias", STEP, time_step=unbiased)
    late = lambda config, p, x: _held(config, np.log1p(np.exp(linear(p["decay"], x))) + p["time_step_bias"])  # noqa: E731
    yield _in_recurrence("time-step", "bias behind", STEP, time_step=late)
    yield _in_recurrence("decay", "A itself", "log_decay", log_decay=lambda p, step: p["log_rate"] * step)
    yield _in_recurrence("decay", "positive", "log_decay", log_decay=lambda p, step: np.exp(p["log_rate"]) * step)
    yield _in_recurrence("decay", "no step", "log_decay", log_decay=lambda p, s: s * 0 - np.exp(p["log_rate"]))
    tiled = lambda x, heads: np.concatenate([x] * (heads // x.shape[1]), axis=1)  # noqa: E731
    yield _in_recurrence("recurrent-heads", "tiled", "context", repeat_heads=tiled)
    names = "(query|key)_convolved"
    yield _in_recurrence("weight-swapped", "queries and keys", names, convolve=_exchanging, acts=corrects)
    # in a state-space model nothing but their names tells C and B that are exchanged early from those exchanged late
    early = f"({names}|context)"
    yield _in_recurrence("weight-swapped", "queries and keys", early, convolve=_exchanging, acts=selects)


def _of_delta() -> Iterator[FamilyFault]:
    """Lines of a gated delta network, as ports have had them: linear attention, Mamba-2's gate."""
    yield _in_recurrence("unit-length", "none", "_normalized", unit_length=lambda x: x, acts=corrects)
    rms = lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)  # noqa: E731
    yield _in_recurrence("unit-length", "rms", "_normalized", unit_length=rms, acts=corrects)
    yield _in_recurrence("beta", "no sigmoid", "beta", sigmoid=lambda x: x, acts=corrects)
    yield _in_recurrence("beta", "from 0 to 2", "beta", sigmoid=lambda x: 2 / (1 + np.exp(-x)), acts=corrects)
    right = recurrence.gated_delta_rule
    rules: dict[str, tuple[str, Callable[..., Any]]] = {
        "no scale": ("read-out-scale", lambda q, *rest: right(q * np.sqrt(q.shape[-1]), *rest)),
        "no decay": ("state-decay", lambda q, k, v, g, b, s: right(q, k, v, 0 * g, b, s)),
        "linear attention": ("delta-rule", _linear_attention),
    }
    for name, (identity, rule) in rules.items():
        yield _in_recurrence(identity, name, "context", gated_delta_rule=rule, acts=corrects)
    norms: dict[str, tuple[str, Callable[..., Any]]] = {
        "as in Mamba-2": ("gated-norm", lambda x, w, eps, z: _of_mean_square(x * _swish(z), eps) * w),
        "1 + w": ("gated-norm", lambda x, w, eps, z: _of_mean_square(x, eps) * (1 + w) * _swish(z)),
        "not normalised": ("gated-norm", lambda x, w, eps, z: x * w * _swish(z)),
        "eps 1e-6": ("norm-eps", lambda x, w, eps, z: _of_mean_square(x, 1e-6) * w * _swish(z)),
        "no gate": ("recurrent-gate", lambda x, w, eps, z: _of_mean_square(x, eps) * w),
        "logistic": ("recurrent-gate", lambda x, w, eps, z: _of_mean_square(x, eps) * w / (1 + np.exp(-z))),
    }
    for name, (identity, norm) in norms.items():
        yield _in_recurrence(identity, name, "gated_context", gated_norm=_by_head(norm), acts=corrects)


def _of_state_space() -> Iterator[FamilyFault]:
    """Lines of Mamba-2, as ports have had them: no clamp, no D, a norm that is not grouped, B and C exchanged."""
    right = recurrence.state_space_rule
    rules: dict[str, tuple[str, Callable[..., Any]]] = {
        "x as it is": ("state-space", lambda q, k, v, g, dt, s: right(q, k, v, g, dt**0, s)),
        "C writes, B reads": ("state-space", lambda q, k, *rest: right(k, q, *rest)),
        "as attention scales": ("read-out-scale", lambda q, *rest: right(q / np.sqrt(q.shape[-1]), *rest)),
        "no decay": ("state-decay", lambda q, k, v, g, dt, s: right(q, k, v, 0 * g, dt, s)),
        "decays what it writes": (
            "state-decay",
            lambda q, k, v, g, dt, s: right(q, k * np.exp(g)[..., None], v, g, dt, s),
        ),
        "read too early": ("state-space", _read_early),
    }
    for name, (identity, rule) in rules.items():
        yield _in_recurrence(identity, name, "context", state_space_rule=rule, acts=selects)
    raw = lambda config, p, x: np.logaddexp(0, linear(p["decay"], x) + p["time_step_bias"])  # noqa: E731
    limited = lambda config: selects(config) and config.time_step_most is not None  # noqa: E731
    yield _in_recurrence("time-step", "no clamp", STEP, time_step=raw, acts=limited)
    for name, change in (("without D", lambda d: 0 * d), ("D of ones", np.ones_like)):
        yield FamilyFault(("skip",), name, r".*context", selects, parameters=_skips(change))
    unmasked = lambda x, context: x  # noqa: E731
    masked = lambda config: selects(config) and config.decoder_mask == "causal-and-padding"  # noqa: E731
    convolve = _convolve_with(_swish, padding=unmasked)
    yield _in_recurrence("recurrent-padding", "seen behind", "_convolved", convolve=convolve, acts=masked)
    norms: dict[str, tuple[str, Callable[..., Any]]] = {
        "gate behind": ("gated-norm", lambda x, z, eps: _of_mean_square(x, eps) * _swish(z)),
        "not normalised": ("gated-norm", lambda x, z, eps: x * _swish(z)),
        "no gate": ("recurrent-gate", lambda x, z, eps: _of_mean_square(x, eps)),
        "logistic": ("recurrent-gate", lambda x, z, eps: _of_mean_square(x / (1 + np.exp(-z)), eps)),
        "eps 1e-6": ("norm-eps", lambda x, z, eps: _of_mean_square(x * _swish(z), 1e-6)),
    }
    for name, (identity, norm) in norms.items():
        yield _in_recurrence(identity, name, "gated_context", gated_norm=_by_group(norm), acts=selects)
    whole = _by_group(lambda x, z, eps: _of_mean_square(x * _swish(z), eps), groups=1)
    yield _in_recurrence("gated-norm", "of all features", "gated_context", gated_norm=whole, acts=selects)


STEP = "(time_step|log_decay)"


def _held(config: Config, step: Any) -> Any:
    return np.minimum(np.maximum(step, config.time_step_least), config.time_step_most or np.inf)


def _skips(change: Callable[[Any], Any]) -> Callable[[Config, Arrays], Arrays]:
    return lambda config, given: {name: change(x) if name.endswith(".skip") else x for name, x in given.items()}


def _read_early(q: Any, k: Any, v: Any, g: Any, dt: Any, state: Any) -> Any:
    read = []
    for t in range(q.shape[2]):
        read.append(np.einsum("bnk,bnkv->bnv", q[:, :, t], state))
        added = np.einsum("bnk,bnv,bn->bnkv", k[:, :, t], v[:, :, t], dt[:, :, t])
        state = state * np.exp(g[:, :, t, None, None]) + added
    return np.stack(read, axis=2), state


def _by_group(norm: Callable[..., Any], groups: int = 0) -> Callable[..., Any]:
    def gated(config: Config, parameters: Any, x: Any, z: Any) -> Any:
        shape = (*x.shape[:2], groups or config.recurrent_key_heads, -1)
        return norm(x.reshape(shape), z.reshape(shape), config.norm_eps).reshape(x.shape) * parameters["weight"]

    return gated


right_convolve = recurrence.convolve


def _exchanging(config: Config, parameters: Any, name: str, *rest: Any) -> Any:
    """Queries by all that keys are made of, and the reverse."""
    pairs = [(f"query{end}", f"key{end}") for end in ("", "_convolution")]
    both = {**dict(pairs), **{new: old for old, new in pairs}}
    return right_convolve(config, {part: parameters[both.get(part, part)] for part in parameters}, name, *rest)


def _in_recurrence(
    identity: str, variant: str, place: str, acts: Acts = recurs, **functions: Callable[..., Any]
) -> FamilyFault:
    exchanged = {
        f"recurrent.recurrence.{name}": functools.partial(constantly, wrong) for name, wrong in functions.items()
    }
    return FamilyFault((identity,), variant, rf".*{place}", acts, exchanged=exchanged)


def _slid(weight: np.ndarray, x: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[1], axis=1)
    return np.einsum("btfw,fw->btf", windows, weight) + (0 if bias is None else bias)


right_unpadded = recurrence.unpadded


def _convolve_with(function: Callable[[Any], Any], padding: Callable[..., Any] | None = None) -> Callable[..., Any]:
    def convolve(config: Config, parameters: Any, name: str, x: Any, context: Any, tap: Any, cache: Any = None) -> Any:
        x = linear(parameters[name], x)
        before = np.zeros((len(x), config.convolution_width - 1, x.shape[-1]), x.dtype)
        kernel = parameters[f"{name}_convolution"]
        y = function(_slid(kernel["weight"], np.concatenate([before, x], axis=1), kernel.get("bias")))
        masked = (padding or right_unpadded) if config.mixer == "state-space" else (lambda x, context: x)
        return tap(f"{name}_convolved", masked(y, context))

    return convolve


def _linear_attention(q: Any, k: Any, v: Any, g: Any, b: Any, state: Any) -> Any:
    read = []
    for t in range(q.shape[2]):
        state = state * np.exp(g[:, :, t, None, None]) + np.einsum(
            "bnk,bnv,bn->bnkv", k[:, :, t], v[:, :, t], b[:, :, t]
        )
        read.append(np.einsum("bnk,bnkv->bnv", q[:, :, t], state) / np.sqrt(q.shape[-1]))
    return np.stack(read, axis=2), state


def _of_mean_square(x: Any, eps: float) -> Any:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)


def _swish(z: Any) -> Any:
    return z / (1 + np.exp(-z))


def _by_head(norm: Callable[..., Any]) -> Callable[..., Any]:
    def gated(config: Config, parameters: Any, x: Any, z: Any) -> Any:
        x, z = (each.reshape(*each.shape[:2], config.recurrent_heads, -1) for each in (x, z))
        y = norm(x, parameters["weight"], config.norm_eps, z)
        return y.reshape(*y.shape[:2], -1)

    return gated
