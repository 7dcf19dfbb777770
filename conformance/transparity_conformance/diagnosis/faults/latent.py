"""Faults of latent attention: the norms of the latents that queries, keys and values are projected from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.fault import Fault, Settings, WalkState
from transparity_conformance.diagnosis.faults.sites import Value, apply_linear, parameters_of, split, sublayer_input
from transparity_numpy.normalization import gain, rms_norm

NORMS: dict[str, tuple[str, Callable[[Value, Value, float], Value]]] = {
    "missing": ("the latent of {role} is not normalised", lambda x, weight, eps: x),
    "without gain": (
        "the norm of the latent of {role} has no gain",
        lambda x, weight, eps: rms_norm(x, np.ones_like(weight), eps),
    ),
    "layer": (
        "the mean is subtracted from the latent of {role}, as a layer norm does, not an RMS norm",
        lambda x, weight, eps: rms_norm(x - x.mean(axis=-1, keepdims=True), weight, eps),
    ),
    "n − 1": (
        "the mean of the squares of the latent of {role} is taken over n − 1",
        lambda x, weight, eps: rms_norm(x, weight, eps * (1 - 1 / x.shape[-1])) * (1 - 1 / x.shape[-1]) ** 0.5,
    ),
    "eps outside": (
        "eps is added outside the root in the norm of the latent of {role}",
        lambda x, weight, eps: x / (np.sqrt(np.square(x).mean(axis=-1, keepdims=True)) + eps) * weight,
    ),
    "one-plus-weight": (
        "the norm of the latent of {role} multiplies by 1 + its weight",
        lambda x, weight, eps: rms_norm(x, 1 + weight, eps),
    ),
}
"""Wrong norms of a latent, in words and as functions of the latent, the gain and eps."""

ROLES = {"query_latent": "the queries", "key_value_latent": "keys and values"}


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    tap = split(site)[2]
    if tap in ROLES:
        for name, (says, change) in NORMS.items():
            yield Fault(
                "latent-norm", name, says.format(role=ROLES[tap]), formula=normalised, settings={"norm": change}
            )


def normalised(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """The latent with another norm."""
    scope, sublayer, _ = split(site)
    x = apply_linear(state, site, sublayer_input(state, scope, sublayer))
    weight = gain(state.config, parameters_of(state, f"{site}_norm")["weight"])
    return settings["norm"](x, weight, state.config.norm_eps).astype(value.dtype)
