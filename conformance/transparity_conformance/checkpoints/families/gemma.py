"""Gemma and Command R.

References: Gemma (Mesnard et al., 2024), Gemma 2 (Rivière et al., 2024), the text model of Gemma 3 (Kamath et al.,
2025). Command R (Cohere, 2024) has parallel branches, one norm without a bias, and scaled logits. Command R7B also has
windows.
"""

from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.tables import kinds as layers
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.kinds import FULL, SLIDING
from transparity_conformance.checkpoints.tables.rotary import read_rotary, rotary_by_kind, write_rotary
from transparity_conformance.checkpoints.tables.rows import Fields


def read_older_activation(fields: Fields) -> dict[str, Any]:
    name = "hidden_act" if fields["hidden_activation"] is None else "hidden_activation"
    found = row.as_activation(fields, name)
    return {"activation": "gelu-tanh" if found == "gelu" else found}  # `gelu` in older files means the approximation


def write_older_activation(config: TransformerConfig) -> dict[str, Any]:
    name = "gelu_pytorch_tanh" if config.activation == "gelu-tanh" else row.activation_name(config)
    return {"hidden_act": name, "hidden_activation": name}


def read_layers_gemma3(fields: Fields) -> dict[str, Any]:
    # The kind of scaling may have the key `type`, as in transformers 4. transformers 5 ignores a scaling with this key.
    of_sliding = {"rope_theta": fields["rope_local_base_freq"], "rope_scaling": None}
    rotated = rotary_by_kind(fields, {SLIDING: of_sliding, FULL: {}})
    facts = {SLIDING: {"sliding_window": fields["sliding_window"]}, FULL: {"sliding_window": None}}
    facts = {kind: facts[kind] | rotated[kind] for kind in facts}
    found = read_rotary({**fields, "rope_parameters": None, "rope_scaling": None})
    return found | layers.by_kind(layers.kinds_every(fields, "sliding_window_pattern"), facts)


def write_layers_gemma3(config: TransformerConfig) -> dict[str, Any]:
    own = layers.own_layers(config) or [config]
    full = next((each for each in own if each.sliding_window is None), own[0])
    sliding = next((each for each in own if each.sliding_window is not None), own[0])
    of_full, of_sliding = write_rotary(full), write_rotary(sliding)
    return of_full | {
        "rope_local_base_freq": sliding.rope_theta,
        "rope_parameters": {SLIDING: of_sliding["rope_parameters"], FULL: of_full["rope_parameters"]},
        **layers.window_fields(config),
    }


def read_windows_cohere2(fields: Fields) -> dict[str, Any]:
    window, kinds = fields["sliding_window"], layers.kinds_every(fields, "sliding_window_pattern")
    positions = "none" if window is None and kinds else "rotary"  # in transformers, only layers with a window rotate
    facts = {SLIDING: {"sliding_window": window, "positions": positions}}
    return layers.by_kind(kinds, facts | {FULL: {"sliding_window": None, "positions": "none"}})


def read_narrow(fields: Fields) -> dict[str, Any]:
    if row.read_head_width(fields):
        raise row.wrong("head_dim", fields["head_dim"], "hidden_size / num_attention_heads, or null")
    return {}


def read_hidden_activation(fields: Fields) -> dict[str, Any]:
    return {"activation": row.as_activation(fields, "hidden_activation")}


write_hidden_activation = write_older_activation


def read_scalar(fields: Fields) -> dict[str, Any]:
    return {"attention_multiplier": float(row.as_number(fields, "query_pre_attn_scalar") ** -0.5)}


def write_scalar(config: TransformerConfig) -> dict[str, Any]:
    """Return a number s, if possible an integer, for which s^(−1/2) is exactly the multiplier."""
    multiplier = config.attention_multiplier
    found = multiplier**-2
    scalar = row.nearest(round(found), found, right=lambda each: each > 0 and each**-0.5 == multiplier)
    return {"query_pre_attn_scalar": scalar}


def read_interleaved(fields: Fields) -> dict[str, Any]:
    return read_rotary(fields) | {"rope_layout": "interleaved"}


write_windows_cohere2 = layers.window_fields


write_narrow = row.write_head_width
