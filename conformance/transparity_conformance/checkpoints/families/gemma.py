"""Gemma and Command R.

References: Gemma (Mesnard et al., 2024), Gemma 2 (Rivière et al., 2024), the text model of Gemma 3 (Kamath et al.,
2025). Command R (Cohere, 2024) has parallel branches, one norm without a bias, and scaled logits. Command R7B also has
windows.
"""

from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families.llama import EXAMPLE, LAYER, NAMES, PLAIN, WIDE
from transparity_conformance.checkpoints.naming import weights, without
from transparity_conformance.checkpoints.tables import kinds as layers
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.kinds import FULL, SLIDING
from transparity_conformance.checkpoints.tables.rotary import ROTARY, rope, rotary, rotary_by_kind, rotary_fields
from transparity_conformance.checkpoints.tables.rows import Fields


def _activation(fields: Fields) -> dict[str, Any]:
    name = "hidden_act" if fields["hidden_activation"] is None else "hidden_activation"
    found = row.as_activation(fields, name)
    return {"activation": "gelu-tanh" if found == "gelu" else found}  # `gelu` in older files means the approximation


def _write_activation(config: TransformerConfig) -> dict[str, Any]:
    name = "gelu_pytorch_tanh" if config.activation == "gelu-tanh" else row.activation_name(config)
    return {"hidden_act": name, "hidden_activation": name}


GEMMA = PLAIN.variant(
    model="GemmaForCausalLM",
    example=WIDE | {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1},
    always={"norm_gain": "one-plus-weight", "embedding_scale": "embed_dim"},
    rows=(
        row.derived(_activation, _write_activation, hidden_activation=None, hidden_act="gelu_pytorch_tanh"),
        row.tokens(pad=0, bos=2, eos=1),
    ),
    without=("hidden_act",),
    defaults={"max_position_embeddings": 8192, "num_key_value_heads": 16, "tie_word_embeddings": True, "head_dim": 256},
    only={"use_bidirectional_attention": (False,)},
)


def _scalar(multiplier: float) -> float:
    """Return a number s, if possible an integer, for which s^(−1/2) is exactly the multiplier."""
    found = multiplier**-2
    return row.nearest(round(found), found, right=lambda each: each > 0 and each**-0.5 == multiplier)


GEMMA2 = GEMMA.variant(
    model="Gemma2ForCausalLM",
    example=WIDE | {"sliding_window": 5, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 3.0},
    always={"norm_position": "sandwich", "attention_scale": "none"},
    rows=(
        row.rename("attn_logit_softcapping", "attention_softcap", 50.0),
        row.rename("final_logit_softcapping", "final_softcap", 30.0),
        row.derived(
            lambda fields: {"activation": row.as_activation(fields, "hidden_activation")},
            _write_activation,
            hidden_activation="gelu_pytorch_tanh",
        ),
        row.number("query_pre_attn_scalar", "attention_multiplier", 256, lambda scalar: float(scalar**-0.5), _scalar),
        layers.windows_in_turn(4096),
    ),
    defaults={"num_key_value_heads": 4},
    unneeded=("attention_dropout", "hidden_act"),
    names={
        **NAMES,
        **weights({"post_attention_layernorm": "self_attention_post_norm"}, "layers.{i}", LAYER),
        **weights({"pre_feedforward_layernorm": "feed_forward_norm"}, "layers.{i}", LAYER),
        **weights({"post_feedforward_layernorm": "feed_forward_post_norm"}, "layers.{i}", LAYER),
    },
)


def _layers3(fields: Fields) -> dict[str, Any]:
    # The kind of scaling may have the key `type`, as in transformers 4. transformers 5 ignores a scaling with this key.
    of_sliding = {"rope_theta": fields["rope_local_base_freq"], "rope_scaling": None}
    rotated = rotary_by_kind(fields, {SLIDING: of_sliding, FULL: {}})
    facts = {SLIDING: {"sliding_window": fields["sliding_window"]}, FULL: {"sliding_window": None}}
    facts = {kind: facts[kind] | rotated[kind] for kind in facts}
    found = rotary({**fields, "rope_parameters": None, "rope_scaling": None})
    return found | layers.by_kind(layers.kinds_every(fields, "sliding_window_pattern"), facts)


def _write_layers3(config: TransformerConfig) -> dict[str, Any]:
    own = layers.own_layers(config) or [config]
    full = next((each for each in own if each.sliding_window is None), own[0])
    sliding = next((each for each in own if each.sliding_window is not None), own[0])
    of_full, of_sliding = rotary_fields(full), rotary_fields(sliding)
    return of_full | {
        "rope_local_base_freq": sliding.rope_theta,
        "rope_parameters": {SLIDING: of_sliding["rope_parameters"], FULL: of_full["rope_parameters"]},
        **layers.window_fields(config),
    }


GEMMA3 = GEMMA2.variant(
    model="Gemma3ForCausalLM",
    example=WIDE
    | {"num_hidden_layers": 3, "sliding_window": 5, "query_pre_attn_scalar": 7, "sliding_window_pattern": 3}
    | {"rope_local_base_freq": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    always={"query_key_norm": True},
    rows=(
        row.derived(
            *(_layers3, _write_layers3, *ROTARY),
            rope_theta=1_000_000.0,
            rope_local_base_freq=10_000.0,
            sliding_window=4096,
            layer_types=None,
            sliding_window_pattern=6,
        ),
    ),
    without=("attn_logit_softcapping", "sliding_window"),
    defaults={"max_position_embeddings": 131_072, "final_logit_softcapping": None},
    only={**GEMMA2.only, "attn_logit_softcapping": ()},
    unneeded=(*GEMMA2.unneeded, "_sliding_window_pattern"),
)


COHERE = PLAIN.variant(
    model="CohereForCausalLM",
    example=EXAMPLE | {"logit_scale": 0.3},
    always={"norm": "layer", "norm_bias": False, "branches": "parallel-one-norm"},
    rows=(
        row.rename("layer_norm_eps", "norm_eps", 1e-5),
        rope(lambda fields: rotary(fields) | {"rope_layout": "interleaved"}),
        row.number("logit_scale", "head_multiplier", 0.0625),
        row.tokens(pad=0, bos=5, eos=255_001),
    ),
    without=("rms_norm_eps",),
    defaults={"max_position_embeddings": 8192, "tie_word_embeddings": True, "rope_theta": 500_000.0},
    only={"use_qk_norm": (False,)},
    names=without(NAMES, "post_attention_layernorm", "q_norm", "k_norm"),
)


def _windows_cohere2(fields: Fields) -> dict[str, Any]:
    window, kinds = fields["sliding_window"], layers.kinds_every(fields, "sliding_window_pattern")
    positions = "none" if window is None and kinds else "rotary"  # in transformers, only layers with a window rotate
    facts = {SLIDING: {"sliding_window": window, "positions": positions}}
    return layers.by_kind(kinds, facts | {FULL: {"sliding_window": None, "positions": "none"}})


def _narrow(fields: Fields) -> dict[str, Any]:
    if row.as_head_width(fields):
        raise row.wrong("head_dim", fields["head_dim"], "hidden_size / num_attention_heads, or null")
    return {}


COHERE2 = COHERE.variant(
    model="Cohere2ForCausalLM",
    example=EXAMPLE | {"num_hidden_layers": 3, "sliding_window": 5, "sliding_window_pattern": 3},
    rows=(
        row.derived(
            _windows_cohere2, layers.window_fields, sliding_window=4096, layer_types=None, sliding_window_pattern=4
        ),
        row.derived(_narrow, lambda config: {"head_dim": config.head_dim}, head_dim=None),
    ),
    defaults={"rope_theta": 10_000.0},
)

FAMILIES = {"gemma": GEMMA, "gemma2": GEMMA2, "gemma3_text": GEMMA3, "cohere": COHERE, "cohere2": COHERE2}
