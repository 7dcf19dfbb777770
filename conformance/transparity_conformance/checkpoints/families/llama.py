"""Llama (Touvron et al., 2023), Mistral, Qwen 2, Qwen 3, Granite 3, OLMo 2, Phi-3, SmolLM3 and Ministral 3.

Granite 3 (Granite Team, 2024) multiplies embeddings, residual branches and logits by factors. OLMo 2 (OLMo Team, 2024)
normalizes the outputs of sublayers. Phi-3 (Abdin et al., 2024) rotates a part of each head, and fuses projections. In
SmolLM3 (Hugging Face, 2025), some layers have no position encoding (Yang et al., 2025). In Ministral 3 (Mistral AI,
2025), the temperature of queries grows with the position.
"""

from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import is_number, is_whole
from transparity_conformance.checkpoints.naming import GATED, Table, fused, linears, projections, weights, without
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.tables import kinds as layers
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.codecs import OF_THE_LAST_TOKEN, SIZES, Family
from transparity_conformance.checkpoints.tables.kinds import FULL, SLIDING
from transparity_conformance.checkpoints.tables.rotary import ORIGINAL, rope, rotary, rotary_fields
from transparity_conformance.checkpoints.tables.rows import Fields

LAYER = "decoder.layers.{i}"

NAMES: Table = {
    "embed_tokens.weight": "decoder.token_embedding.weight",
    "norm.weight": "decoder.final_norm.weight",
    "lm_head.weight": "head.weight",
    **weights({"input_layernorm": "self_attention_norm"}, "layers.{i}", LAYER),
    **weights({"post_attention_layernorm": "feed_forward_norm"}, "layers.{i}", LAYER),
    **weights({"q_norm": "query_norm", "k_norm": "key_norm"}, "layers.{i}.self_attn", f"{LAYER}.self_attention"),
    **linears(projections("q_proj", "k_proj", "v_proj", "o_proj"), "layers.{i}.self_attn", f"{LAYER}.self_attention"),
    **linears(GATED, "layers.{i}.mlp", f"{LAYER}.feed_forward"),
}

EXAMPLE = SIZES | {"intermediate_size": 44, "num_attention_heads": 4, "num_key_value_heads": 2}
EXAMPLE |= {"bos_token_id": 1, "eos_token_id": 2}
WIDE = EXAMPLE | {"head_dim": 10}


ATTENTION_BIAS = row.rename("attention_bias", ("qkv_bias", "output_bias"), False)

LLAMA = Family(
    model="LlamaForCausalLM",
    example=EXAMPLE | {"rope_theta": 10_000.0, "rms_norm_eps": 1e-5},
    always={"architecture": "decoder", "norm": "rms", "norm_position": "pre", "final_norm": True}
    | {"gated": True, "head_bias": False},
    rows=(
        *row.sizes("decoder", 2048),
        row.rename("num_key_value_heads", "num_key_value_heads", None, written="key_value_heads"),
        row.rename("rms_norm_eps", "norm_eps", 1e-6),
        row.rename("tie_word_embeddings", "tied_head", False),
        rope(),
        row.head_width(),
        row.activation("hidden_act", "silu"),
        ATTENTION_BIAS,
        row.rename("mlp_bias", "feed_forward_bias", False),
    ),
    unneeded=("attention_dropout",),
    names=NAMES,
    prefixes=("model.",),
    no_parameters=("layers.{i}.self_attn.rotary_emb.inv_freq",),
)

PLAIN = LLAMA.variant(without=("mlp_bias",), always={"feed_forward_bias": False})
"""Llama without the field `mlp_bias`: feed-forwards have no biases."""

NO_BIAS = {"qkv_bias": False, "output_bias": False, "feed_forward_bias": False}

WINDOW = row.rename("sliding_window", "sliding_window", 4096)

MISTRAL = PLAIN.variant(
    model="MistralForCausalLM",
    example=EXAMPLE | {"sliding_window": 5},
    always=NO_BIAS,
    rows=(WINDOW,),
    without=("attention_bias",),
    defaults={"max_position_embeddings": 131_072, "num_key_value_heads": 8},
)


def _windows(fields: Fields) -> dict[str, Any]:
    """Return the fields about Qwen's windows. By default, layers from `max_window_layers` on have a window."""
    window = layers.used_window(fields)
    first, count = row.as_whole(fields, "max_window_layers", 0, "a whole number"), row.as_layers(fields)
    kinds = [SLIDING if window is not None and i >= first else FULL for i in range(count)]
    kinds = kinds if fields["layer_types"] is None else fields["layer_types"]
    layers.check_window(fields, kinds)
    return layers.windows(kinds, window, count)


def _write_windows(config: TransformerConfig) -> dict[str, Any]:
    is_full = config.sliding_window is None
    last = config.num_decoder_layers if is_full else 0
    return {"use_sliding_window": not is_full, "max_window_layers": last} | layers.window_fields(config)


WINDOWS: dict[str, Any] = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}

QWEN2 = PLAIN.variant(
    model="Qwen2ForCausalLM",
    example=EXAMPLE | {"tie_word_embeddings": True},
    always=NO_BIAS | {"qkv_bias": True},
    rows=(row.derived(_windows, _write_windows, **WINDOWS, layer_types=None),),
    without=("attention_bias",),
    defaults={"max_position_embeddings": 32_768, "num_key_value_heads": 32},
)

QWEN3 = PLAIN.variant(
    model="Qwen3ForCausalLM",
    example=WIDE,
    always={"query_key_norm": True},
    rows=(row.derived(_windows, _write_windows, **WINDOWS, layer_types=None),),
    defaults={"max_position_embeddings": 32_768, "num_key_value_heads": 32, "head_dim": 128},
)


MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier")

GRANITE = LLAMA.variant(
    model="GraniteForCausalLM",
    example=EXAMPLE
    | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3, "logits_scaling": 5.0},
    always={"attention_scale": "none"},
    rows=(
        *(row.number(name, name, 1.0) for name in MULTIPLIERS),
        row.number(
            *("logits_scaling", "head_multiplier", 1.0, lambda scaling: 1 / scaling),
            back=lambda factor: row.nearest(1 / factor, right=lambda scaling: 1 / scaling == factor),
        ),
    ),
)

OVER_PROJECTION = {"query_key_norm": True, "query_key_norm_over": "projection"}

OLMO2 = PLAIN.variant(
    model="Olmo2ForCausalLM",
    example=EXAMPLE,
    always=OVER_PROJECTION | {"norm_position": "post-branch"},
    rows=(row.tokens(pad=1, bos=None, eos=50_279),),
    defaults={"rms_norm_eps": 1e-5},
    names={
        **without(NAMES, "layernorm"),
        "layers.{i}.post_attention_layernorm.weight": f"{LAYER}.self_attention_norm.weight",
        "layers.{i}.post_feedforward_layernorm.weight": f"{LAYER}.feed_forward_norm.weight",
    },
)


def _packed_phi3(config: TransformerConfig) -> Table:
    keys, halves = config.key_value_heads * config.head_dim, dict.fromkeys(("gate", "up"), config.feed_forward_dim)
    rows, leaves = {"query": config.attention_dim, "key": keys, "value": keys}, ("weight",)
    attention = fused("layers.{i}.self_attn.qkv_proj", rows, f"{LAYER}.self_attention", leaves=leaves)
    return attention | fused("layers.{i}.mlp.gate_up_proj", halves, f"{LAYER}.feed_forward", leaves=leaves)


def _rotary_phi3(fields: Fields) -> dict[str, Any]:
    """Return the rotary fields. Older files of Phi-3 call LongRoPE `su` or `yarn`."""
    own = row.as_whole(fields, "hidden_size") // row.as_whole(fields, "num_attention_heads")
    for name in ("rope_scaling", "rope_parameters"):
        given = fields[name]
        if isinstance(given, dict) and given.get("rope_type", given.get("type")) in ("su", "yarn"):
            fields = {**fields, name: {**given, "rope_type": "longrope"}}
    found = rotary(fields, own if fields["head_dim"] is None else row.as_whole(fields, "head_dim"))
    if (scaling := found.get("rotary_scaling", "longrope")) != "longrope":
        raise row.wrong("rope_parameters.rope_type", scaling, "longrope or default, as in transformers' Phi-3")
    return found


def _write_rotary_phi3(config: TransformerConfig) -> dict[str, Any]:
    """Return the rotary fields. For LongRoPE, the original length is a field outside of the scaling."""
    outside = {ORIGINAL: config.rotary_original_length} if config.rotary_scaling == "longrope" else {}
    return rotary_fields(config) | outside


PHI3 = MISTRAL.variant(
    model="Phi3ForCausalLM",
    example=EXAMPLE | {"sliding_window": 5, "partial_rotary_factor": 0.7},
    rows=(rope(_rotary_phi3, _write_rotary_phi3, **{ORIGINAL: 4096}), row.tokens(pad=32_000, bos=1, eos=32_000)),
    defaults={"max_position_embeddings": 4096, "num_key_value_heads": None, "rms_norm_eps": 1e-5}
    | {"sliding_window": None},
    unneeded=("attention_dropout", "embd_pdrop", "resid_pdrop"),
    names=without(NAMES, "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"),
    packed=_packed_phi3,
)


NO_POSITIONS = "_without_positions"
"""The suffix in the name of each kind of layers without positions."""


def _layers_smollm3(fields: Fields) -> dict[str, Any]:
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


def _write_layers_smollm3(config: TransformerConfig) -> dict[str, Any]:
    own = layers.own_layers(config)
    windows = [each.sliding_window for each in own if each.sliding_window is not None]
    return {
        "no_rope_layers": [int(each.positions == "rotary") for each in own],
        "layer_types": layers.layer_kinds(config),
        "use_sliding_window": bool(windows),
        "sliding_window": windows[0] if windows else None,
    }


SMOLLM3 = LLAMA.variant(
    model="SmolLM3ForCausalLM",
    example=EXAMPLE | {"num_hidden_layers": 3, "no_rope_layer_interval": 3},
    rows=(
        row.derived(
            *(_layers_smollm3, _write_layers_smollm3),
            no_rope_layers=None,
            layer_types=None,
            sliding_window=None,
            no_rope_layer_interval=4,
            use_sliding_window=False,
        ),
        row.tokens(pad=128_004, bos=128_000, eos=128_001),
    ),
    defaults={"max_position_embeddings": 32_768, "num_key_value_heads": 4, "tie_word_embeddings": True}
    | {"rope_theta": 2_000_000.0},
)


BETA = "llama_4_scaling_beta"

OF_ROTARY: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, ORIGINAL: 16_384}
OF_ROTARY |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, BETA: 0.1}
"""The `rope_parameters` that `transformers` uses for a Ministral 3 file without this field."""


def _rotary_ministral3(fields: Fields) -> dict[str, Any]:
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
    found = rotary({**fields, "rope_parameters": plain})
    return found | {"query_temperature": given[BETA], "query_temperature_length": row.as_whole(given, ORIGINAL)}


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
FAMILIES = {"granite": GRANITE, "olmo2": OLMO2, "phi3": PHI3, "smollm3": SMOLLM3, "ministral3": MINISTRAL3} | {
    name: family.variant(classifier=OF_THE_LAST_TOKEN)
    for name, family in (("llama", LLAMA), ("mistral", MISTRAL), ("qwen2", QWEN2), ("qwen3", QWEN3))
}
