"""Llama (Touvron et al., 2023), Mistral, Qwen 2, Qwen 3, Granite 3, OLMo 2, Phi-3, SmolLM3 and Ministral 3.

Granite 3 (Granite Team, 2024) multiplies embeddings, residual branches and logits by factors. OLMo 2 (OLMo Team, 2024)
normalizes the outputs of sublayers. Phi-3 (Abdin et al., 2024) rotates a part of each head, and fuses projections. In
SmolLM3 (Hugging Face, 2025), some layers have no position encoding (Yang et al., 2025). In Ministral 3 (Mistral AI,
2025), the temperature of queries grows with the position.
"""

from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import is_number, is_whole
from transparity_conformance.checkpoints.naming import Table, fused
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.tables import kinds as layers
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.kinds import FULL, SLIDING
from transparity_conformance.checkpoints.tables.rotary import ORIGINAL, read_rotary, write_rotary
from transparity_conformance.checkpoints.tables.rows import Fields

LAYER = "decoder.layers.{i}"


def read_windows(fields: Fields) -> dict[str, Any]:
    """Return the fields about Qwen's windows. By default, layers from `max_window_layers` on have a window."""
    window = layers.used_window(fields)
    first, count = row.as_whole(fields, "max_window_layers", 0, "a whole number"), row.as_layers(fields)
    kinds = [SLIDING if window is not None and i >= first else FULL for i in range(count)]
    kinds = kinds if fields["layer_types"] is None else fields["layer_types"]
    layers.check_window(fields, kinds)
    return layers.windows(kinds, window, count)


def write_windows(config: TransformerConfig) -> dict[str, Any]:
    is_full = config.sliding_window is None
    last = config.num_decoder_layers if is_full else 0
    return {"use_sliding_window": not is_full, "max_window_layers": last} | layers.window_fields(config)


def packed_phi3(config: TransformerConfig) -> Table:
    keys, halves = config.key_value_heads * config.head_dim, dict.fromkeys(("gate", "up"), config.feed_forward_dim)
    rows, leaves = {"query": config.attention_dim, "key": keys, "value": keys}, ("weight",)
    attention = fused("layers.{i}.self_attn.qkv_proj", rows, f"{LAYER}.self_attention", leaves=leaves)
    return attention | fused("layers.{i}.mlp.gate_up_proj", halves, f"{LAYER}.feed_forward", leaves=leaves)


def read_rotary_phi3(fields: Fields) -> dict[str, Any]:
    """Return the rotary fields. Older files of Phi-3 call LongRoPE `su` or `yarn`."""
    own = row.as_whole(fields, "hidden_size") // row.as_whole(fields, "num_attention_heads")
    for name in ("rope_scaling", "rope_parameters"):
        given = fields[name]
        if isinstance(given, dict) and given.get("rope_type", given.get("type")) in ("su", "yarn"):
            fields = {**fields, name: {**given, "rope_type": "longrope"}}
    found = read_rotary(fields, own if fields["head_dim"] is None else row.as_whole(fields, "head_dim"))
    if (scaling := found.get("rotary_scaling", "longrope")) != "longrope":
        raise row.wrong("rope_parameters.rope_type", scaling, "longrope or default, as in transformers' Phi-3")
    return found


def write_rotary_phi3(config: TransformerConfig) -> dict[str, Any]:
    """Return the rotary fields. For LongRoPE, the original length is a field beside `rope_scaling`."""
    outside = {ORIGINAL: config.rotary_original_length} if config.rotary_scaling == "longrope" else {}
    return write_rotary(config) | outside


NO_POSITIONS = "_without_positions"
"""The suffix in names of layers without positions, such as `full_attention_without_positions`."""


def read_layers_smollm3(fields: Fields) -> dict[str, Any]:
    rotated, types = _rotated(fields), fields["layer_types"]
    window = layers.used_window(fields)
    if types is None:
        types = [FULL if window is None or turned else SLIDING for turned in rotated]
    types = layers.kinds_given(types, len(rotated))
    layers.check_window(fields, types)
    kinds = [kind if turned else kind + NO_POSITIONS for kind, turned in zip(types, rotated, strict=True)]
    facts = {
        f"{kind}{ends}": {"sliding_window": own, "positions": positions}
        for kind, own in ((SLIDING, window), (FULL, None))
        for ends, positions in (("", "rotary"), (NO_POSITIONS, "none"))
    }
    return layers.by_kind(kinds, facts)


def _rotated(fields: Fields) -> list[bool]:
    given, count = fields["no_rope_layers"], row.as_layers(fields)
    if given is None:
        every = row.as_whole(fields, "no_rope_layer_interval")
        return [(i + 1) % every != 0 for i in range(count)]
    if not isinstance(given, list) or len(given) < count or not all(is_whole(each, 0) for each in given):
        raise row.wrong(
            "no_rope_layers", given, f"1 (with positions) or 0 (without positions) for each of {count} layers"
        )
    return [bool(each) for each in given[:count]]


def write_layers_smollm3(config: TransformerConfig) -> dict[str, Any]:
    own = layers.own_layers(config)
    windows = [each.sliding_window for each in own if each.sliding_window is not None]
    return {
        "no_rope_layers": [int(each.positions == "rotary") for each in own],
        "layer_types": layers.layer_kinds(config),
        "use_sliding_window": bool(windows),
        "sliding_window": windows[0] if windows else None,
    }


BETA = "llama_4_scaling_beta"

OF_ROTARY: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, ORIGINAL: 16_384}

OF_ROTARY |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, BETA: 0.1}
"""The `rope_parameters` that `transformers` uses for a Ministral 3 file without this field."""


def read_rotary_ministral3(fields: Fields) -> dict[str, Any]:
    given = OF_ROTARY if fields["rope_parameters"] is None else fields["rope_parameters"]
    if not isinstance(given, dict):
        raise row.wrong("rope_parameters", given, "an object")
    if missing := [name for name in (BETA, ORIGINAL) if name not in given]:
        raise CheckpointError(
            f"rope_parameters has no {missing[0]}; expected this field, because the query temperature depends on it."
        )
    if not is_number(given[BETA]) or not given[BETA] >= 0:
        raise row.wrong(f"rope_parameters.{BETA}", given[BETA], "a number, at least 0")
    plain = {name: value for name, value in given.items() if name not in (BETA, "max_position_embeddings")}
    found = read_rotary({**fields, "rope_parameters": plain})
    return found | {"query_temperature": given[BETA], "query_temperature_length": row.as_whole(given, ORIGINAL)}


def write_rotary_ministral3(config: TransformerConfig) -> dict[str, Any]:
    own: dict[str, Any] = {BETA: config.query_temperature, ORIGINAL: config.query_temperature_length}
    fields = write_rotary(config)
    return {**fields, "rope_parameters": fields["rope_parameters"] | own, "rope_scaling": None}


def read_logits_scaling(fields: Fields) -> dict[str, Any]:
    return {"head_multiplier": 1 / row.as_number(fields, "logits_scaling")}


def write_logits_scaling(config: TransformerConfig) -> dict[str, Any]:
    factor = config.head_multiplier
    return {"logits_scaling": row.nearest(1 / factor, right=lambda scaling: 1 / scaling == factor)}
