"""DeepSeek-V3 (DeepSeek-AI, 2024): latent attention, and grouped experts in all layers except the first few."""

import math
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families.llama import LAYER, NO_BIAS, PLAIN
from transparity_conformance.checkpoints.families.mixtral import DENSE, EXPERTS, FEED, NAMES_WITH_EXPERTS
from transparity_conformance.checkpoints.naming import GATED, Table, by_group, linears, stacked, weights, without
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.codecs import SIZES
from transparity_conformance.checkpoints.tables.kinds import by_kind, own_layers
from transparity_conformance.checkpoints.tables.rotary import mscale_of, rope, rotary, rotary_fields, yarn_scale
from transparity_conformance.checkpoints.tables.rows import Fields

ATTENTION = f"{LAYER}.self_attention"


def _attention(fields: Fields) -> dict[str, Any]:
    heads, given = row.as_whole(fields, "num_attention_heads"), fields["num_key_value_heads"]
    if given not in (None, heads):
        raise row.wrong("num_key_value_heads", given, f"{heads}, the number of query heads")
    turned = row.as_whole(fields, "qk_rope_head_dim")
    return rotary(fields) | {
        "rope_layout": "interleaved" if row.as_flag(fields, "rope_interleave") else "halves",
        "rotary_dim": turned,
        "attention_head_dim": turned + row.as_whole(fields, "qk_nope_head_dim"),
        "attention_multiplier": _multiplier(fields),
        "q_lora_rank": None if fields["q_lora_rank"] is None else row.as_whole(fields, "q_lora_rank"),
    }


def _multiplier(fields: Fields) -> float:
    """Return the attention multiplier: the square of YaRN's scale for `mscale_all_dim`."""
    given = fields["rope_parameters"] or fields["rope_scaling"] or {}
    share = given.get("mscale_all_dim")
    return _squared(row.as_number(given, "mscale_all_dim"), row.as_number(given, "factor")) if share else 1.0


def _squared(share: float, factor: float) -> float:
    scale = yarn_scale(factor, share)
    return scale * scale


def _write_attention(config: TransformerConfig) -> dict[str, Any]:
    rope = rotary_fields(config)
    rope.pop("partial_rotary_factor", None)
    rope["rope_parameters"].pop("partial_rotary_factor", None)
    if config.attention_multiplier != 1:
        share = _share(config)
        scales = {"mscale": mscale_of(config, share), "mscale_all_dim": share}
        for name in ("rope_parameters", "rope_scaling"):
            rope[name] = {key: value for key, value in rope[name].items() if key != "attention_factor"} | scales
    return rope | {
        "rope_interleave": config.rope_layout == "interleaved",
        "num_key_value_heads": config.num_heads,
        "q_lora_rank": config.q_lora_rank,
        "qk_rope_head_dim": config.rotated_dim,
        "qk_nope_head_dim": config.projected_key_dim,
    }


def _share(config: TransformerConfig) -> float:
    """Return the `mscale_all_dim` from which `_multiplier` computes exactly the configuration's multiplier."""
    factor, right = config.rotary_factor, config.attention_multiplier
    if config.rotary_scaling != "yarn" or factor <= 1 or right < 1:
        raise CheckpointError(
            f"The family deepseek_v3 cannot express the attention_multiplier {right}; expected 1, or a larger number "
            "if rotary_scaling is 'yarn'."
        )
    found = (math.sqrt(right) - 1) / (0.1 * math.log(factor))
    return row.nearest(round(found, 6), found, right=lambda each: _squared(each, factor) == right)


def _experts(fields: Fields) -> dict[str, Any]:
    count, width = row.as_layers(fields), row.as_whole(fields, "moe_intermediate_size")
    dense = row.as_whole(fields, "first_k_dense_replace", 0, "the number of layers without experts, at least 0")
    facts = {
        EXPERTS: {"num_experts": row.as_whole(fields, "n_routed_experts"), "feed_forward_dim": width},
        DENSE: {"num_experts": 0, "feed_forward_dim": row.as_whole(fields, "intermediate_size")},
    }
    shared = {"shared_expert_dim": row.as_whole(fields, "n_shared_experts") * width}
    return shared | by_kind([DENSE if i < dense else EXPERTS for i in range(count)], facts)


def _write_experts(config: TransformerConfig) -> dict[str, Any]:
    own = own_layers(config) or [config]
    routed, dense = [each for each in own if each.num_experts], [each for each in own if not each.num_experts]
    # If no layer has experts, fields about experts have no effect, but they must be valid.
    width = routed[0].feed_forward_dim if routed else config.shared_expert_dim
    few = config.router_groups * max(2, config.experts_per_token)
    if own != dense + routed or not config.shared_expert_dim or config.shared_expert_dim % width:
        raise CheckpointError(
            f"The family deepseek_v3 cannot express {len(dense)} dense layers among {len(own)} with shared_expert_dim "
            f"{config.shared_expert_dim}; expected dense layers first, and a shared_expert_dim divisible by {width}."
        )
    return {
        "n_routed_experts": routed[0].num_experts if routed else few,
        "n_shared_experts": config.shared_expert_dim // width,
        "moe_intermediate_size": width,
        "intermediate_size": (dense or [config])[0].feed_forward_dim,
        "first_k_dense_replace": len(dense),
    }


def _packed(config: TransformerConfig) -> Table:
    low = config.kv_lora_rank or 0
    down = {f"{ATTENTION}.key_value_latent.weight": low, f"{ATTENTION}.key_rotary.weight": config.rotated_dim}
    up = {f"{ATTENTION}.key.weight": config.projected_key_dim, f"{ATTENTION}.value.weight": config.value_dim}
    query = "q_proj" if config.q_lora_rank is None else "q_b_proj"
    return {
        f"layers.{{i}}.self_attn.{query}.weight": f"{ATTENTION}.query.weight",
        "layers.{i}.self_attn.kv_a_proj_with_mqa.weight": stacked(down),
        "layers.{i}.self_attn.kv_b_proj.weight": by_group(up, config.num_heads),
    }


DEEPSEEK_V3 = PLAIN.variant(
    model="DeepseekV3ForCausalLM",
    example=SIZES
    | {"num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 44, "first_k_dense_replace": 1}
    | {"moe_intermediate_size": 20, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 3, "topk_group": 2}
    | {"q_lora_rank": 13, "kv_lora_rank": 9, "qk_rope_head_dim": 8, "qk_nope_head_dim": 6, "v_head_dim": 5}
    | {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
        | {"mscale": 0.8, "mscale_all_dim": 0.5}
    }
    | {"bos_token_id": 1, "eos_token_id": 2},
    always=NO_BIAS | {"router_scores": "sigmoid", "router_score_bias": True},
    rows=(
        rope(
            *(_attention, _write_attention),
            num_key_value_heads=None,
            rope_interleave=True,
            q_lora_rank=1536,
            qk_rope_head_dim=64,
            qk_nope_head_dim=128,
        ),
        row.whole("kv_lora_rank", "kv_lora_rank", 512),
        row.whole("v_head_dim", "value_head_dim", 128, written="value_dim"),
        row.derived(
            *(_experts, _write_experts),
            n_routed_experts=256,
            n_shared_experts=1,
            moe_intermediate_size=2048,
            intermediate_size=18_432,
            first_k_dense_replace=3,
        ),
        row.whole("num_experts_per_tok", "experts_per_token", 8),
        row.whole("n_group", "router_groups", 8),
        row.whole("topk_group", "topk_groups", 4),
        row.flag("norm_topk_prob", "normalize_topk", True),
        row.number("routed_scaling_factor", "router_scale", 2.5),
        row.tokens(bos=0, eos=1),
    ),
    without=("intermediate_size", "num_key_value_heads", "head_dim", "attention_bias"),
    defaults={"max_position_embeddings": 4096},
    # In transformers, the norms of latents always have this eps, even if rms_norm_eps differs.
    only={"attention_bias": (False,), "rms_norm_eps": (1e-6,), "topk_method": ("noaux_tc",), "moe_layer_freq": (1,)}
    | {"scoring_func": ("sigmoid",)},
    unneeded=(
        *("attention_dropout", "aux_loss_alpha", "seq_aux", "ep_size", "head_dim", "qk_head_dim"),
        *("num_nextn_predict_layers", "num_mtp_layers", "output_router_logits", "router_aux_loss_coef"),
    ),
    names={
        **without(NAMES_WITH_EXPERTS, ".q_proj.", ".k_proj.", ".v_proj.", ".q_norm.", ".k_norm."),
        **weights(
            {
                "q_a_proj": "query_latent",
                "q_a_layernorm": "query_latent_norm",
                "kv_a_layernorm": "key_value_latent_norm",
            },
            *("layers.{i}.self_attn", ATTENTION),
        ),
        "layers.{i}.mlp.gate.e_score_correction_bias": f"{FEED}.router_score_bias",
        **linears(GATED, "layers.{i}.mlp.shared_experts", f"{FEED}.shared_expert"),
    },
    packed=_packed,
)

FAMILIES = {"deepseek_v3": DEEPSEEK_V3}
