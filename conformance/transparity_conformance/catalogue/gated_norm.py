"""The norm of a recurrence and its gate, with other settings."""

from __future__ import annotations

import numpy as np

from transparity_conformance.catalogue.fault import Settings, WalkState
from transparity_conformance.catalogue.sites import Value, apply_linear, recurrence_input
from transparity_conformance.oracle.masks import own_config
from transparity_numpy.arithmetic.functional import silu


def gated_norm(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """The norm of what a recurrence reads, times its gate, with other settings."""
    own, scope = own_config(state.config, site), site.rpartition(".")[0]
    is_delta = own.mixer == "gated-delta"
    order = settings.get("order", "gate behind" if is_delta else "gate first")
    z = apply_linear(state, f"{scope}.gate", recurrence_input(state, site))
    gate, x = settings.get("gate", silu)(z), state.taps[f"{scope}.context"]
    in_front = order == "gate first" or (order != "gate behind" and not is_delta)
    y = x * gate if in_front else x
    counts = {"all": 1, "head": own.recurrent_heads, "group": own.recurrent_key_heads}
    groups = y.reshape(*y.shape[:2], counts[settings.get("over", "head" if is_delta else "group")], -1)
    size = np.sqrt((groups * groups).mean(axis=-1, keepdims=True) + settings.get("eps", own.norm_eps))
    y = y if order in ("no norm", "weight") else (groups / size).reshape(y.shape)
    gain = settings.get("offset", 0.0) + state.parameters[f"{scope}.gated_norm.weight"]
    y = y if order == "no norm" else y * np.resize(gain, y.shape[-1])
    return (y if in_front else y * gate).astype(value.dtype)
