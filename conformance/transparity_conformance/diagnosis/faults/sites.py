"""Where a tap stands in the model: what its part is called, and what goes into it."""

from __future__ import annotations

from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.fault import WalkState
from transparity_numpy.functional import linear
from transparity_numpy.masks import padding_mask, visible_keys
from transparity_numpy.positions import distances

Value = Any
ATTENTIONS = ("self_attention", "cross_attention")


def split(site: str) -> tuple[str, str, str]:
    """`decoder.layers.0`, `self_attention` and `scores` of a tap's name; what it lacks is empty."""
    parts = site.split(".")
    if len(parts) < 4:
        return (parts[0], "", parts[-1])
    return ".".join(parts[:3]), parts[3], parts[4] if len(parts) > 4 else ""


def parameters_of(state: WalkState, scope: str) -> dict[str, np.ndarray]:
    """The weight and bias of one part."""
    scope += "."
    return {name.removeprefix(scope): value for name, value in state.parameters.items() if name.startswith(scope)}


def sublayers(config: TransformerConfig, scope: str) -> list[str]:
    """The sublayers of a layer, in order."""
    crosses = scope.startswith("decoder") and config.has_encoder
    return ["self_attention", *["cross_attention"] * crosses, "feed_forward"]


def layer_input(state: WalkState, scope: str) -> Value:
    """What flows into a layer."""
    stack, _, index = scope.split(".")
    return _behind_layers(state, stack, int(index))


def _behind_layers(state: WalkState, stack: str, layers: int) -> Value:
    """What flows behind the first `layers` of a stack."""
    first = "embedding_norm" if state.config.embedding_norm else "embedding"
    return state.taps[f"{stack}.layers.{layers - 1}.output" if layers else f"{stack}.{first}"]


def stream(state: WalkState, scope: str, upto: str) -> Value:
    """The residual stream of a layer in front of the sublayer `upto`."""
    x = layer_input(state, scope)
    for name in sublayers(state.config, scope):
        if name == upto:
            break
        behind = state.config.norm_position == "post"
        x = (
            state.taps[f"{scope}.{name}_norm"]
            if behind
            else x + state.taps[branch_end(state.config, f"{scope}.{name}")]
        )
    return x


def branch_end(config: TransformerConfig, sublayer: str) -> str:
    """The tap behind which the residual is added to what the sublayer at `sublayer` gives."""
    return f"{sublayer}_post_norm" if config.norm_position == "both" else f"{sublayer}.output"


def sublayer_of(site: str) -> tuple[str, str]:
    """`decoder.layers.0` and `self_attention` of any tap of the sublayer, its norms' too."""
    scope, name, _ = split(site)
    return scope, name.removesuffix("_norm").removesuffix("_post")


def norm_input(state: WalkState, site: str) -> Value:
    """What goes into the norm whose result is tapped as `site` (a stack's output, if it has a final norm)."""
    config, parts = state.config, site.split(".")
    if parts[1] == "embedding_norm":
        return state.taps[f"{parts[0]}.embedding"]
    if len(parts) == 2:
        return _behind_layers(state, parts[0], config.stack_num_layers(parts[0]))
    if is_head_norm(site):
        return state.taps[site.removesuffix("_norm")]
    scope, name = ".".join(parts[:3]), parts[3].removesuffix("_norm")
    if name == "memory":
        return state.taps["encoder.output"]
    if name.endswith("_post"):
        return state.taps[f"{scope}.{name.removesuffix('_post')}.output"]
    x = stream(state, scope, name)
    return x + state.taps[f"{scope}.{name}.output"] if config.norm_position == "post" else x


def sublayer_input(state: WalkState, scope: str, sublayer: str, role: str = "query") -> Value:
    """What goes into a sublayer: for the keys and values of cross-attention, the memory."""
    if sublayer == "cross_attention" and role in ("key", "value"):
        return state.taps[f"{scope}.memory_norm" if state.config.memory_norm else "encoder.output"]
    if state.config.norm_position == "post":
        return stream(state, scope, sublayer)
    return state.taps[f"{scope}.{sublayer}_norm"]


def is_norm(config: TransformerConfig, site: str) -> bool:
    return site.endswith("_norm") or (config.final_norm and site in ("encoder.output", "decoder.output"))


def is_head_norm(site: str) -> bool:
    """Whether the norm is of each head's queries or keys."""
    return site.endswith(("attention.query_norm", "attention.key_norm"))


def norm_scope(site: str) -> str:
    """Where a norm's parameters are."""
    return site.replace(".output", ".final_norm") if site.count(".") == 1 else site


def apply_linear(state: WalkState, scope: str, x: Value) -> Value:
    return linear(parameters_of(state, scope), x)


def keys_name(config: TransformerConfig, site: str) -> str:
    """The input that an attention looks at, or that is embedded."""
    scope, sublayer, _ = split(site)
    stack = scope.split(".")[0]
    if sublayer == "cross_attention" or (stack == "encoder" and config.has_decoder):
        return "source"
    return config.input_names[-1]


def keys_of(state: WalkState, site: str) -> tuple[np.ndarray, bool]:
    """The tokens that an attention looks at, and whether it is causal."""
    scope, sublayer, _ = split(site)
    name = keys_name(state.config, site)
    return state.inputs[name], scope.startswith("decoder") and sublayer != "cross_attention"


def given_mask(config: TransformerConfig, site: str) -> bool:
    """Whether a mask that is given beside the tokens tells which of those at `site` are padding."""
    return config.padding == "attention-mask" and keys_name(config, site) != "target"


def padding_at(state: WalkState, site: str, *, by_token: bool = False) -> np.ndarray:
    """What is no padding (batch, 1, 1, keys) of the tokens at `site`; `by_token`, whatever mask is given."""
    given = state.inputs["attention_mask"] if given_mask(state.config, site) and not by_token else None
    return padding_mask(visible_keys(state.inputs[keys_name(state.config, site)], state.config.pad_id, given))


def distances_at(state: WalkState, site: str) -> np.ndarray:
    """How far (1, queries, keys) each key of a self-attention stands behind its query."""
    length = state.inputs[keys_name(state.config, site)].shape[1]
    return distances(np.arange(length)[None], length)


def token_table(config: TransformerConfig, stack: str) -> str:
    """The parameter that tokens of `stack` are embedded by."""
    return f"{'encoder' if config.shared_embedding else stack}.token_embedding.weight"


def met(state: WalkState, scope: str, role: str) -> Value:
    """The `query` or the `key` of the attention at `scope` as they meet: normalised and turned, where there is such."""
    names = [f"{scope}.{role}{step}" for step in ("_rotated", "_norm", "")]
    return state.taps[next(name for name in names if name in state.taps)]
