"""Models built like Llama but for one part each: Granite 3 (Granite Team 2024), with factors; OLMo 2 (OLMo Team 2024),
with norms behind the sublayers; Phi-3 (Abdin et al. 2024), with fused projections and heads rotated in part; SmolLM3
(Hugging Face 2025), with layers that have no positions (Yang et al. 2025)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any

from transparity.config import FULL, SLIDING, TransformerConfig
from transparity.errors import is_whole
from transparity_conformance.checkpoints.families import llama
from transparity_conformance.checkpoints.fields import (
    Fields,
    activation,
    activation_name,
    by_kind,
    flag,
    head_width,
    kinds_given,
    layer_kinds,
    layers,
    number,
    rotary,
    rotary_fields,
    whole,
    wrong,
)
from transparity_conformance.checkpoints.naming import Table, stacked

MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier")
"""Fields that are called alike here and there."""


def _granite(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    found = llama.LLAMA.configure(fields, names)
    factors = {name: number(fields, name) for name in MULTIPLIERS}
    return found | factors | {"head_multiplier": 1 / number(fields, "logits_scaling")}


def _write_granite(config: TransformerConfig) -> dict[str, Any]:
    factors = {name: getattr(config, name) for name in MULTIPLIERS}
    return {**llama.LLAMA.write(config), **factors, "logits_scaling": reciprocal(config.head_multiplier)}


def reciprocal(factor: float) -> float:
    """The number of which `factor` is exactly the reciprocal; rounding may leave a neighbour of it."""
    found = 1 / factor
    candidates = (found, math.nextafter(found, 0), math.nextafter(found, math.inf))
    return next((each for each in candidates if 1 / each == factor), found)


GRANITE = dataclasses.replace(
    llama.LLAMA,
    always={**llama.LLAMA.always, "attention_scale": "none"},
    configure=_granite,
    write=_write_granite,
    model="GraniteForCausalLM",
    reads=(*llama.LLAMA.reads, *MULTIPLIERS, "logits_scaling"),
    defaults={**llama.LLAMA.defaults, **dict.fromkeys((*MULTIPLIERS, "logits_scaling"), 1.0)},
)


NAMES_OF_OLMO2: Table = {
    **{theirs: ours for theirs, ours in llama.NAMES.items() if "layernorm" not in theirs},
    "layers.{i}.post_attention_layernorm.weight": f"{llama.LAYER}.self_attention_norm.weight",
    "layers.{i}.post_feedforward_layernorm.weight": f"{llama.LAYER}.feed_forward_norm.weight",
}


def _olmo2(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return dict(llama.LLAMA.configure({**fields, "mlp_bias": False}, names))


def _write_olmo2(config: TransformerConfig) -> dict[str, Any]:
    return {name: value for name, value in llama.LLAMA.write(config).items() if name != "mlp_bias"}


OLMO2 = dataclasses.replace(
    llama.LLAMA,
    always=llama.ALWAYS | {"norm_position": "branch", "query_key_norm": True, "query_key_norm_over": "projection"},
    configure=_olmo2,
    write=_write_olmo2,
    model="Olmo2ForCausalLM",
    reads=(*llama.READS, "attention_bias"),
    defaults=llama.DEFAULTS
    | {"rms_norm_eps": 1e-5, "attention_bias": False}
    | {"pad_token_id": 1, "bos_token_id": None, "eos_token_id": 50_279},
    names=NAMES_OF_OLMO2,
)


FUSED = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")

NAMES_OF_PHI3: Table = {
    theirs: ours for theirs, ours in llama.NAMES.items() if not any(part in theirs for part in FUSED)
}


def _packed_phi3(config: TransformerConfig) -> Table:
    attention, feed_forward = f"{llama.LAYER}.self_attention", f"{llama.LAYER}.feed_forward"
    keys, inner = config.key_value_heads * config.head_dim, config.feed_forward_dim
    rows = {"query": config.attention_dim, "key": keys, "value": keys}
    return {
        "layers.{i}.self_attn.qkv_proj.weight": stacked({f"{attention}.{it}.weight": n for it, n in rows.items()}),
        "layers.{i}.mlp.gate_up_proj.weight": stacked({f"{feed_forward}.{it}.weight": inner for it in ("gate", "up")}),
    }


def _phi3(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    found = head_width(fields, "hidden_size", "num_attention_heads")
    own = found.get("attention_head_dim", whole(fields, "hidden_size") // whole(fields, "num_attention_heads"))
    found |= rotary(_as_longrope(fields), own) | {"activation": activation(fields, "hidden_act")}
    if (scaling := found.get("rotary_scaling", "longrope")) != "longrope":
        raise wrong("rope_parameters.rope_type", scaling, "longrope or default, as transformers does for Phi-3")
    return found | {"sliding_window": fields["sliding_window"]}


def _as_longrope(fields: Fields) -> Fields:
    """Older files of Phi-3 call LongRoPE `su` or, of a later version of its factors, `yarn`."""
    scalings = {name: fields[name] for name in ("rope_scaling", "rope_parameters") if isinstance(fields[name], dict)}
    for name, given in scalings.items():
        if given.get("rope_type", given.get("type")) in ("su", "yarn"):
            fields = {**fields, name: {**given, "rope_type": "longrope"}}
    return fields


def _write_phi3(config: TransformerConfig) -> dict[str, Any]:
    """The original length is outside of the scaling, where transformers looks for it first."""
    heads = {"num_key_value_heads": config.key_value_heads, "sliding_window": config.sliding_window}
    found = rotary_fields(config) | heads | {"hidden_act": activation_name(config)}
    if config.rotary_scaling == "longrope":
        found |= {"original_max_position_embeddings": config.rotary_original_length}
    return found


PHI3 = dataclasses.replace(
    llama.MISTRAL,
    configure=_phi3,
    write=_write_phi3,
    model="Phi3ForCausalLM",
    defaults=llama.DEFAULTS
    | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "sliding_window": None}
    | {"original_max_position_embeddings": 4096}
    | {"pad_token_id": 32_000, "bos_token_id": 1, "eos_token_id": 32_000},
    unneeded=("attention_dropout", "embd_pdrop", "resid_pdrop"),
    names=NAMES_OF_PHI3,
    packed=_packed_phi3,
)


NO_POSITIONS = "_without_positions"
"""What the kind of a layer without positions ends with."""


def _smollm3(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    found = llama.LLAMA.configure(fields, names)
    rotated, types = _rotated(fields), fields["layer_types"]
    window = fields["sliding_window"] if flag(fields, "use_sliding_window") else None
    if types is None:
        types = [FULL if window is None or turned else SLIDING for turned in rotated]
    types = kinds_given(types, len(rotated))
    if window is None and SLIDING in types:
        raise wrong("use_sliding_window", fields["use_sliding_window"], "true and a sliding_window, by layer_types")
    kinds = [kind if turned else kind + NO_POSITIONS for kind, turned in zip(types, rotated, strict=True)]
    facts = {
        f"{kind}{ends}": {"sliding_window": own, "positions": positions}
        for kind, own in ((SLIDING, window), (FULL, None))
        for ends, positions in (("", "rotary"), (NO_POSITIONS, "none"))
    }
    return found | by_kind(kinds, facts)


def _rotated(fields: Fields) -> list[bool]:
    """Whether each layer has positions."""
    given, count = fields["no_rope_layers"], layers(fields)
    if given is None:
        every = whole(fields, "no_rope_layer_interval")
        return [(i + 1) % every != 0 for i in range(count)]
    if not isinstance(given, list) or len(given) < count or not all(is_whole(each, 0) for each in given):
        raise wrong("no_rope_layers", given, f"1 (with positions) or 0 (without) for each of {count} layers")
    return [bool(each) for each in given[:count]]


def _write_smollm3(config: TransformerConfig) -> dict[str, Any]:
    own = [config.for_layer("decoder", i) for i in range(config.num_decoder_layers)]
    windows = [each.sliding_window for each in own if each.sliding_window is not None]
    return llama.LLAMA.write(config) | {
        "no_rope_layers": [int(each.positions == "rotary") for each in own],
        "layer_types": layer_kinds(config),
        "use_sliding_window": bool(windows),
        "sliding_window": windows[0] if windows else None,
    }


READS_OF_SMOLLM3 = ("no_rope_layers", "no_rope_layer_interval", "layer_types", "use_sliding_window", "sliding_window")

SMOLLM3 = dataclasses.replace(
    llama.LLAMA,
    configure=_smollm3,
    write=_write_smollm3,
    model="SmolLM3ForCausalLM",
    reads=(*llama.LLAMA.reads, *READS_OF_SMOLLM3),
    defaults={**llama.LLAMA.defaults}
    | {"max_position_embeddings": 32_768, "num_key_value_heads": 4, "tie_word_embeddings": True}
    | {"rope_theta": 2_000_000.0, "pad_token_id": 128_004, "bos_token_id": 128_000, "eos_token_id": 128_001}
    | dict.fromkeys(READS_OF_SMOLLM3)
    | {"no_rope_layer_interval": 4, "use_sliding_window": False},
)

FAMILIES = {"granite": GRANITE, "olmo2": OLMO2, "phi3": PHI3, "smollm3": SMOLLM3}
