"""The parameters and activations of a layer: sublayers with their norms."""

from __future__ import annotations

from collections.abc import Callable

from transparity.config import TransformerConfig
from transparity.parts.attention import attention
from transparity.parts.feed_forward import experts, feed_forward
from transparity.parts.latent import latent
from transparity.parts.part import NOTHING, Part, joined, norm, tapped
from transparity.parts.recurrence import gated_delta, state_space

MIXERS: dict[str, Callable[[TransformerConfig, str], Part]] = {
    "attention": lambda config, length: attention(config, length, length),
    "latent": latent,
    "gated-delta": gated_delta,
    "state-space": state_space,
}
"""The function for each `config.mixer_name`."""

NORMS = {
    "pre": ("norm", None),
    "post": (None, "norm"),
    "sandwich": ("norm", "post_norm"),
    "post-branch": (None, "norm"),
}
"""The last parts of the names of the norms before and after a sublayer, by `config.norm_position`."""


def layer(config: TransformerConfig, length: str, memory: str | None) -> Part:
    """Return a layer with the configuration of its kind; `memory` is the encoder's input in a decoder with an
    encoder."""
    parts = [_sublayer(config, "self_attention", length, _mixer(config, length), has_norm=config.attention_norm)]
    if memory:
        inner = attention(config, length, memory).under("cross_attention")
        before = norm("memory_norm", config, length=memory) if config.memory_norm else NOTHING
        parts.append(_sublayer(config, "cross_attention", length, inner, before=before))
    if config.feed_forward_dim:
        inner = (experts if config.num_experts else feed_forward)(config, length).under("feed_forward")
        has_norm = config.branches != "parallel-one-norm"
        parts.append(_sublayer(config, "feed_forward", length, inner, has_norm=has_norm))
    return joined(*parts, tapped({"output": ("batch", length, config.embed_dim)}))


def _mixer(config: TransformerConfig, length: str) -> Part:
    return MIXERS[config.mixer_name](config, length).under(config.mixer_scope)


def _sublayer(
    config: TransformerConfig, name: str, length: str, inner: Part, *, before: Part = NOTHING, has_norm: bool = True
) -> Part:
    """Return the sublayer `name` with its norms.

    The norms' parameters follow the sublayer's. Activations are in the order of computation.
    """
    ends = [end for end in NORMS[config.norm_position] if end and has_norm]
    norms = {end: norm(f"{name}_{end}", config, length=length) for end in sorted(ends)}
    first, last = NORMS[config.norm_position]
    taps = [norms[end].taps if end in norms else {} for end in (first, last)]
    parameters = joined(inner, *norms.values(), before)
    return parameters._replace(taps=taps[0] | before.taps | inner.taps | taps[1])
