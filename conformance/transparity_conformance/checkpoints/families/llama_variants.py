"""Models whose positions differ from Llama's: Phi-3, SmolLM3 and Ministral 3.

Phi-3 (Abdin et al. 2024) rotates only a part of each head and fuses projections. In SmolLM3 (Hugging Face 2025), some
layers have no positions (Yang et al. 2025). Ministral 3 (Mistral AI 2025) has a query temperature that grows with the
position.
"""

from __future__ import annotations

from typing import Any

from transparity.config import FULL, SLIDING, TransformerConfig
from transparity.errors import is_number, is_whole
from transparity_conformance.checkpoints.families.llama import EXAMPLE, LAYER, LLAMA, MISTRAL, NAMES
from transparity_conformance.checkpoints.naming import Table, stacked, without
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.tables.kinds import by_kind, kinds_given, layer_kinds, own_layers
from transparity_conformance.checkpoints.tables.rotary import ORIGINAL, rope, rotary, rotary_fields
from transparity_conformance.checkpoints.tables.rows import derived, tokens
from transparity_conformance.checkpoints.tables.values import Fields, as_flag, as_layers, as_whole, wrong


def _packed_phi3(config: TransformerConfig) -> Table:
    attention, feed_forward = f"{LAYER}.self_attention", f"{LAYER}.feed_forward"
    keys, inner = config.key_value_heads * config.head_dim, config.feed_forward_dim
    rows = {"query": config.attention_dim, "key": keys, "value": keys}
    return {
        "layers.{i}.self_attn.qkv_proj.weight": stacked({f"{attention}.{it}.weight": n for it, n in rows.items()}),
        "layers.{i}.mlp.gate_up_proj.weight": stacked({f"{feed_forward}.{it}.weight": inner for it in ("gate", "up")}),
    }


def _rotary_phi3(fields: Fields) -> dict[str, Any]:
    """Return the rotary fields; older Phi-3 files call LongRoPE `su` or `yarn`."""
    own = as_whole(fields, "hidden_size") // as_whole(fields, "num_attention_heads")
    for name in ("rope_scaling", "rope_parameters"):
        given = fields[name]
        if isinstance(given, dict) and given.get("rope_type", given.get("type")) in ("su", "yarn"):
            fields = {**fields, name: {**given, "rope_type": "longrope"}}
    found = rotary(fields, own if fields["head_dim"] is None else as_whole(fields, "head_dim"))
    if (scaling := found.get("rotary_scaling", "longrope")) != "longrope":
        raise wrong("rope_parameters.rope_type", scaling, "longrope or default, as transformers does for Phi-3")
    return found


def _write_rotary_phi3(config: TransformerConfig) -> dict[str, Any]:
    """Return the rotary fields, with the original length in config.json itself, where transformers reads it first."""
    outside = {ORIGINAL: config.rotary_original_length} if config.rotary_scaling == "longrope" else {}
    return rotary_fields(config) | outside


PHI3 = MISTRAL.variant(
    model="Phi3ForCausalLM",
    example=EXAMPLE | {"sliding_window": 5, "partial_rotary_factor": 0.7},
    rows=(rope(_rotary_phi3, _write_rotary_phi3, **{ORIGINAL: 4096}), tokens(pad=32_000, bos=1, eos=32_000)),
    defaults={"max_position_embeddings": 4096, "num_key_value_heads": None, "rms_norm_eps": 1e-5}
    | {"sliding_window": None},
    unneeded=("attention_dropout", "embd_pdrop", "resid_pdrop"),
    names=without(NAMES, "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"),
    packed=_packed_phi3,
)


NO_POSITIONS = "_without_positions"
"""The suffix of the layer kinds that have no positions."""


def _layers_smollm3(fields: Fields) -> dict[str, Any]:
    rotated, types = _rotated(fields), fields["layer_types"]
    window = fields["sliding_window"] if as_flag(fields, "use_sliding_window") else None
    if types is None:
        types = [FULL if window is None or turned else SLIDING for turned in rotated]
    types = kinds_given(types, len(rotated))
    if window is None and SLIDING in types:
        raise wrong(
            "use_sliding_window",
            fields["use_sliding_window"],
            "true and a sliding_window, because layer_types needs a window",
        )
    kinds = [kind if turned else kind + NO_POSITIONS for kind, turned in zip(types, rotated, strict=True)]
    facts = {
        f"{kind}{ends}": {"sliding_window": own, "positions": positions}
        for kind, own in ((SLIDING, window), (FULL, None))
        for ends, positions in (("", "rotary"), (NO_POSITIONS, "none"))
    }
    return by_kind(kinds, facts)


def _rotated(fields: Fields) -> list[bool]:
    """Return whether each layer has rotary positions."""
    given, count = fields["no_rope_layers"], as_layers(fields)
    if given is None:
        every = as_whole(fields, "no_rope_layer_interval")
        return [(i + 1) % every != 0 for i in range(count)]
    if not isinstance(given, list) or len(given) < count or not all(is_whole(each, 0) for each in given):
        raise wrong("no_rope_layers", given, f"1 (with positions) or 0 (without positions) for each of {count} layers")
    return [bool(each) for each in given[:count]]


def _write_layers_smollm3(config: TransformerConfig) -> dict[str, Any]:
    own = own_layers(config)
    windows = [each.sliding_window for each in own if each.sliding_window is not None]
    return {
        "no_rope_layers": [int(each.positions == "rotary") for each in own],
        "layer_types": layer_kinds(config),
        "use_sliding_window": bool(windows),
        "sliding_window": windows[0] if windows else None,
    }


SMOLLM3 = LLAMA.variant(
    model="SmolLM3ForCausalLM",
    example=EXAMPLE | {"num_hidden_layers": 3, "no_rope_layer_interval": 3},
    rows=(
        derived(
            *(_layers_smollm3, _write_layers_smollm3),
            no_rope_layers=None,
            layer_types=None,
            sliding_window=None,
            no_rope_layer_interval=4,
            use_sliding_window=False,
        ),
        tokens(pad=128_004, bos=128_000, eos=128_001),
    ),
    defaults={"max_position_embeddings": 32_768, "num_key_value_heads": 4, "tie_word_embeddings": True}
    | {"rope_theta": 2_000_000.0},
)


BETA = "llama_4_scaling_beta"

OF_ROTARY: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, ORIGINAL: 16_384}
OF_ROTARY |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, BETA: 0.1}
"""The `rope_parameters` that transformers uses for a Ministral 3 file without any."""


def _rotary_ministral3(fields: Fields) -> dict[str, Any]:
    given = OF_ROTARY if fields["rope_parameters"] is None else fields["rope_parameters"]
    if not isinstance(given, dict):
        raise wrong("rope_parameters", given, "an object")
    if missing := [name for name in (BETA, ORIGINAL) if name not in given]:
        raise CheckpointError(
            f"rope_parameters has no {missing[0]}; expected it, because the query temperature depends on it."
        )
    if not is_number(given[BETA]) or not given[BETA] >= 0:
        raise wrong(f"rope_parameters.{BETA}", given[BETA], "a number, at least 0")
    plain = {name: value for name, value in given.items() if name not in (BETA, "max_position_embeddings")}
    found = rotary({**fields, "rope_parameters": plain})
    return found | {"query_temperature": given[BETA], "query_temperature_length": as_whole(given, ORIGINAL)}


def _write_rotary_ministral3(config: TransformerConfig) -> dict[str, Any]:
    own: dict[str, Any] = {BETA: config.query_temperature, ORIGINAL: config.query_temperature_length}
    fields = rotary_fields(config)
    return {**fields, "rope_parameters": fields["rope_parameters"] | own, "rope_scaling": None}


MINISTRAL3 = MISTRAL.variant(
    model="Ministral3ForCausalLM",
    example=EXAMPLE
    | {"rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, BETA: 0.7} | {ORIGINAL: 8}},
    rows=(rope(_rotary_ministral3, _write_rotary_ministral3, rope_theta=10_000.0, rope_parameters=None),),
    defaults={"max_position_embeddings": 262_144, "head_dim": 128, "rms_norm_eps": 1e-5, "sliding_window": None},
)

FAMILIES = {"phi3": PHI3, "smollm3": SMOLLM3, "ministral3": MINISTRAL3}
