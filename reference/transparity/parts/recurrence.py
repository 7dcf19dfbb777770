"""The parameters and activations of gated delta networks and state-space models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transparity.errors import ConfigError
from transparity.parts.part import Cut, Part, joined, linear, tapped, vector
from transparity.parts.variants import Held, Mixer, check_needed

if TYPE_CHECKING:
    from transparity.config import TransformerConfig


def gated_delta(config: TransformerConfig, length: str) -> Part:
    keys = ("batch", config.recurrent_key_heads, length, config.recurrent_key_dim)
    numbers = ("batch", length, config.recurrent_heads)
    gain = vector("gated_norm.weight", config.recurrent_value_dim, Cut(why_whole="one gain serves all heads"))
    taps = {"query_normalized": keys, "key_normalized": keys, "beta": numbers}
    return _recurrence(config, length, ("decay", "beta"), ("dt_bias", "A_log"), gain, taps)


def state_space(config: TransformerConfig, length: str) -> Part:
    gain = vector("gated_norm.weight", config.recurrent_dim, _of_keys(config, 0))
    taps = {"time_step": ("batch", length, config.recurrent_heads)}
    return _recurrence(config, length, ("decay",), ("dt_bias", "A_log", "D"), gain, taps)


def _recurrence(
    config: TransformerConfig,
    length: str,
    rates: tuple[str, ...],
    vectors: tuple[str, ...],
    gain: Part,
    taps: Mapping[str, tuple[int | str, ...]],
) -> Part:
    bias, heads, rows = config.recurrent_bias, config.recurrent_heads, _of_keys(config, 0)
    read: tuple[int | str, ...] = ("batch", length, config.recurrent_dim)

    def convolved(role: str, features: int) -> Part:
        width, with_bias = config.convolution_width, config.convolution_bias
        return joined(
            linear(role, features, config.embed_dim, bias=bias, cut=rows),
            linear(f"{role}_convolution", features, width, bias=with_bias, cut=rows),
            tapped({f"{role}_convolved": ("batch", length, features)}),
        )

    return joined(
        *(convolved(role, features) for role, features in config.convolution_dims.items()),
        *(linear(role, heads, config.embed_dim, bias=bias, cut=rows) for role in rates),
        *(vector(role, heads, rows) for role in vectors),
        linear("gate", config.recurrent_dim, config.embed_dim, bias=bias, cut=rows),
        gain,
        linear("output", config.embed_dim, config.recurrent_dim, bias=bias, cut=_of_keys(config, 1)),
        tapped({**taps, "log_decay": ("batch", length, heads), "context": read, "gated_context": read}),
        tapped({"output": ("batch", length, config.embed_dim)}),
    )


def _of_keys(config: TransformerConfig, axis: int) -> Cut:
    """Return the cut by key heads: each rank has whole key heads, and all value heads that share these key heads."""
    return Cut(axis, config.recurrent_key_heads, "heads of keys")


def _state(config: TransformerConfig) -> dict[str, Held]:
    """Return the arrays in the cache of a recurrence: the last inputs of its convolutions, and each head's state."""
    earlier, of_keys = config.convolution_width - 1, "key.weight"
    size = ("batch", config.recurrent_heads, config.recurrent_key_dim, config.recurrent_value_dim)
    held = {role: Held(("batch", earlier, width), cut=(of_keys, 2)) for role, width in config.convolution_dims.items()}
    return held | {"state": Held(size, is_wide=True, cut=(of_keys, 1))}


def _check_recurrence(config: TransformerConfig) -> None:
    if config.recurrent_heads % config.recurrent_key_heads:
        raise ConfigError(
            f"recurrent_key_heads is {config.recurrent_key_heads}, but recurrent_heads is {config.recurrent_heads}; "
            "expected a divisor of recurrent_heads."
        )
    if config.time_step_max is not None and config.time_step_min > config.time_step_max:
        raise ConfigError(
            f"time_step_min is {config.time_step_min}; it should be at most {config.time_step_max}, which is "
            "time_step_max."
        )
    needed: dict[str, Any] = {"architecture": "decoder", "sliding_window": None, "query_temperature": 0.0}
    why = f"a recurrence (mixer {config.mixer!r}) needs a decoder-only model and has no attention scores"
    check_needed(config, needed, why)


GATED_DELTA = Mixer(gated_delta, _state, "recurrence", _check_recurrence)
STATE_SPACE = Mixer(state_space, _state, "recurrence", _check_recurrence)
