"""Taps at which faults act (sites): their names, inputs and parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import WalkState
from transparity_conformance.oracle.probes import scoped_parameters
from transparity_conformance.oracle.undetermined import given_mask, keys_name, length_at, own_config, padding_at, split
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.layers.sequential import add_residual
from transparity_numpy.positions.in_attention import distances

Value = Any


def reads_tokens(config: TransformerConfig, site: str) -> bool:
    """Return whether positions are tokens, not image patches or audio frames."""
    return keys_name(config, site) in config.token_inputs


def has_padding(config: TransformerConfig, site: str) -> bool:
    return reads_tokens(config, site) and (config.pad_id is not None or given_mask(config, site))


def stack_config(config: TransformerConfig, site: str) -> TransformerConfig:
    return config.for_stack(site.split(".")[0])


def parameters_of(state: WalkState, scope: str) -> dict[str, np.ndarray]:
    return scoped_parameters(state.parameters, scope)


def sublayers(config: TransformerConfig, scope: str) -> list[str]:
    crosses = scope.startswith("decoder") and config.has_encoder
    feeds = own_config(config, f"{scope}.output").feed_forward_dim > 0
    return ["self_attention", *["cross_attention"] * crosses, *["feed_forward"] * feeds]


def layer_input(state: WalkState, scope: str) -> Value:
    stack, _, index = scope.split(".")
    return _behind_layers(state, stack, int(index))


def _behind_layers(state: WalkState, stack: str, layers: int) -> Value:
    first = "embedding_norm" if state.config.embedding_norm else "embedding"
    return state.taps[f"{stack}.layers.{layers - 1}.output" if layers else f"{stack}.{first}"]


def stream(state: WalkState, scope: str, upto: str) -> Value:
    """Return the residual stream before the sublayer `upto`; with parallel branches, the layer's input."""
    x = layer_input(state, scope)
    if state.config.branches != "sequential":
        return x
    for name in sublayers(state.config, scope):
        if name == upto:
            break
        if state.config.norm_position == "post":
            x = state.taps[f"{scope}.{name}_norm"]
        else:
            x = added(state, x, state.taps[branch_end(state.config, f"{scope}.{name}")])
    return x


def added(state: WalkState, x: Value, y: Value) -> Value:
    return add_residual(state.config, x, y)


ENDS = {"sandwich": "_post_norm", "post-branch": "_norm"}
"""The suffix of the tap of a norm after the sublayer, by `norm_position`."""


def branch_end(config: TransformerConfig, sublayer: str) -> str:
    """Return the last tap of a sublayer before the residual is added."""
    ending = ENDS.get(config.norm_position)
    return output_of(config, sublayer) if ending is None else f"{sublayer}{ending}"


def output_of(config: TransformerConfig, sublayer: str) -> str:
    """Return the tap of a sublayer's output, before a following norm. `self_attention` may stand for a recurrence."""
    scope, name = sublayer.rpartition(".")[::2]
    return f"{scope}.{own_config(config, sublayer).mixer_scope if name == MIXED else name}.output"


MIXED, RECURRENCE = "self_attention", "recurrence"


def sublayer_of(site: str) -> tuple[str, str]:
    """Return a tap's layer and sublayer. A norm belongs to the sublayer in its name."""
    scope, name, _ = split(site)
    return scope, MIXED if name == RECURRENCE else name.removesuffix("_norm").removesuffix("_post")


def norm_input(state: WalkState, site: str) -> Value:
    config, parts = state.config, site.split(".")
    if parts[1] == "embedding_norm":
        return state.taps[f"{parts[0]}.embedding"]
    if len(parts) == 2:
        return _behind_layers(state, parts[0], config.stack_num_layers(parts[0]))
    if is_head_norm(site):
        return state.taps[site.removesuffix("_norm")]
    if is_latent(site):
        return apply_linear(state, site, sublayer_input(state, *split(site)[:2]))
    scope, name = ".".join(parts[:3]), parts[3].removesuffix("_norm")
    if name == "memory":
        return state.taps["encoder.output"]
    if name.endswith("_post"):
        return state.taps[output_of(config, f"{scope}.{name.removesuffix('_post')}")]
    if config.norm_position == "post-branch":
        return state.taps[output_of(config, f"{scope}.{name}")]
    x = stream(state, scope, name)
    return added(state, x, state.taps[output_of(config, f"{scope}.{name}")]) if config.norm_position == "post" else x


def sublayer_input(state: WalkState, scope: str, sublayer: str, role: str = "query") -> Value:
    """Return a sublayer's input; in cross-attention, keys and values read the encoder's output."""
    sublayer = MIXED if sublayer == RECURRENCE else sublayer
    if sublayer == "cross_attention" and role in ("key", "value"):
        return state.taps[f"{scope}.memory_norm" if state.config.memory_norm else "encoder.output"]
    if state.config.norm_position in ("post", "post-branch") or not is_normed(state.config, f"{scope}.{sublayer}"):
        return stream(state, scope, sublayer)
    one_norm = state.config.branches == "parallel-one-norm"
    return state.taps[f"{scope}.{'self_attention' if one_norm else sublayer}_norm"]


def is_normed(config: TransformerConfig, site: str) -> bool:
    """Return whether the sublayer of a tap has norms. Some models have no norms at self-attention and recurrences."""
    return split(site)[1] not in (MIXED, RECURRENCE) or own_config(config, site).attention_norm


def is_norm(config: TransformerConfig, site: str) -> bool:
    return site.endswith("_norm") or (config.final_norm and site in ("encoder.output", "decoder.output"))


def is_head_norm(site: str) -> bool:
    return site.endswith(("attention.query_norm", "attention.key_norm"))


def is_latent(site: str) -> bool:
    """Return whether a tap is a latent vector of multi-head latent attention (MLA), after its norm."""
    return site.endswith(("attention.query_latent", "attention.key_value_latent"))


def is_gated_norm(site: str) -> bool:
    return site.endswith("recurrence.gated_context")


def norm_scope(site: str) -> str:
    if is_latent(site):
        return f"{site}_norm"
    return site.replace(".output", ".final_norm") if site.count(".") == 1 else site


def recurrence_input(state: WalkState, site: str) -> Value:
    """Return a recurrence's input, which is zero at padding if the mask hides padding."""
    scope, sublayer, _ = split(site)
    return unpadded(state, site, sublayer_input(state, scope, sublayer))


def unpadded(state: WalkState, site: str, x: Value) -> Value:
    hides = state.config.decoder_mask == "causal-and-padding" and has_padding(state.config, site)
    return x * padding_at(state, site)[:, 0, 0, :, None].astype(x.dtype) if hides else x


def apply_linear(state: WalkState, scope: str, x: Value) -> Value:
    return linear(parameters_of(state, scope), x)


def distances_at(state: WalkState, site: str) -> np.ndarray:
    length = length_at(state, site)
    return distances(np.arange(length)[None], length)


def token_table(config: TransformerConfig, stack: str) -> str:
    return f"{'encoder' if config.shared_embedding else stack}.token_embedding.weight"


def normalized_and_rotated(state: WalkState, scope: str, role: str) -> Value:
    """Return the `query` or `key` after the norm and rotation, if any."""
    names = [f"{scope}.{role}{step}" for step in ("_rotated", "_norm", "")]
    return state.taps[next(name for name in names if name in state.taps)]
