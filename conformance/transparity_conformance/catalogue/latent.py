"""Faults of latent attention: the norms of the latents that queries, keys and values are projected from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import Fault, Settings, WalkState
from transparity_conformance.catalogue.normalization import norm_with
from transparity_conformance.catalogue.sites import Value, is_latent, norm_input
from transparity_conformance.oracle.masks import split

NORMS: Mapping[str, tuple[str, Settings]] = {
    "without gain": ("the norm of the latent of {role} has no gain", {"gained": False}),
    "layer": (
        "the mean is subtracted from the latent of {role}, as a layer norm does, not an RMS norm",
        {"centered": True},
    ),
    "n − 1": ("the mean of the squares of the latent of {role} is taken over n − 1", {"correction": 1}),
    "eps outside": ("eps is added outside the root in the norm of the latent of {role}", {"outside": True}),
    "one-plus-weight": ("the norm of the latent of {role} multiplies by 1 + its weight", {"more": 1.0}),
}
"""Wrong norms of a latent, in words and as settings of the norm."""

ROLES = {"query_latent": "the queries", "key_value_latent": "keys and values"}


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if not is_latent(site):
        return
    role = ROLES[split(site)[2]]
    yield Fault("latent-norm", "missing", f"the latent of {role} is not normalised", patch=_missing)
    for name, (says, settings) in NORMS.items():
        if name != "one-plus-weight" or config.norm_gain == "weight":
            yield Fault("latent-norm", name, says.format(role=role), formula=norm_with, settings=settings)


def _missing(state: WalkState, site: str, value: Value) -> Value:
    return norm_input(state, site).astype(value.dtype)
