"""DeepSeek-V3 (DeepSeek-AI 2024): latent attention, and experts in groups behind a few dense layers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import is_whole
from transparity_conformance.checkpoints.families import llama
from transparity_conformance.checkpoints.families.experts.mixtral import DENSE, EXPERTS, FEED, NAMES
from transparity_conformance.checkpoints.fields import (
    ROTARY,
    Fields,
    activation,
    activation_name,
    by_kind,
    flag,
    layers,
    number,
    rotary,
    rotary_fields,
    whole,
    wrong,
)
from transparity_conformance.checkpoints.naming import Table, by_group, linears, stacked
from transparity_conformance.checkpoints.reading import CheckpointError

ATTENTION = f"{llama.LAYER}.self_attention"

WIDTHS = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")

SIZES = (
    *("n_routed_experts", "num_experts_per_tok", "n_group", "topk_group", "n_shared_experts"),
    *("moe_intermediate_size", "intermediate_size", "first_k_dense_replace"),
)


def _attention(fields: Fields) -> dict[str, Any]:
    heads, given = whole(fields, "num_attention_heads"), fields["num_key_value_heads"]
    if given not in (None, heads):
        raise wrong("num_key_value_heads", given, f"{heads}, the heads of the queries")
    turned = whole(fields, "qk_rope_head_dim")
    return rotary(fields) | {
        "rope_layout": "interleaved" if flag(fields, "rope_interleave") else "halves",
        "rotary_dim": turned,
        "attention_head_dim": turned + whole(fields, "qk_nope_head_dim"),
        "attention_multiplier": _multiplier(fields),
        "query_rank": None if fields["q_lora_rank"] is None else whole(fields, "q_lora_rank"),
        "key_value_rank": whole(fields, "kv_lora_rank"),
        "value_head_dim": whole(fields, "v_head_dim"),
    }


def _multiplier(fields: Fields) -> float:
    """The square of YaRN's factor of `mscale_all_dim`, by which scores are multiplied."""
    given = fields["rope_parameters"] or fields["rope_scaling"] or {}
    share = given.get("mscale_all_dim")
    return _squared(number(given, "mscale_all_dim"), number(given, "factor")) if share else 1.0


def _squared(share: float, factor: float) -> float:
    scale = 1.0 if factor <= 1 else 0.1 * share * math.log(factor) + 1.0
    return scale * scale


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    count, dense, width = layers(fields), fields["first_k_dense_replace"], whole(fields, "moe_intermediate_size")
    if not is_whole(dense, 0):
        raise wrong("first_k_dense_replace", dense, "the number of layers without experts")
    facts = {
        EXPERTS: {"num_experts": whole(fields, "n_routed_experts"), "feed_forward_dim": width},
        DENSE: {"num_experts": 0, "feed_forward_dim": whole(fields, "intermediate_size")},
    }
    return {
        **_attention(fields),
        **by_kind([DENSE if i < dense else EXPERTS for i in range(count)], facts),
        "activation": activation(fields, "hidden_act"),
        "experts_per_token": whole(fields, "num_experts_per_tok"),
        "router_groups": whole(fields, "n_group"),
        "router_groups_chosen": whole(fields, "topk_group"),
        "router_normalized": flag(fields, "norm_topk_prob"),
        "router_scale": number(fields, "routed_scaling_factor"),
        "shared_expert_dim": whole(fields, "n_shared_experts") * width,
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    own = [config.for_layer("decoder", i) for i in range(config.num_decoder_layers)] or [config]
    routed, dense = [each for each in own if each.num_experts], [each for each in own if not each.num_experts]
    # where no layer has experts, as in one dense layer by itself, any that fit the router will do
    width = routed[0].feed_forward_dim if routed else config.shared_expert_dim
    few = config.router_groups * max(2, config.experts_per_token)
    if own != dense + routed or not config.shared_expert_dim or config.shared_expert_dim % width:
        raise CheckpointError(
            f"The family deepseek_v3 cannot express {len(dense)} dense layers among {len(own)}, with a shared expert "
            f"of {config.shared_expert_dim} features beside experts of {width}; expected dense layers before the "
            "others, and a multiple."
        )
    return _written_attention(config) | {
        "hidden_act": activation_name(config),
        "n_routed_experts": routed[0].num_experts if routed else few,
        "num_experts_per_tok": config.experts_per_token,
        "n_group": config.router_groups,
        "topk_group": config.router_groups_chosen,
        "norm_topk_prob": config.router_normalized,
        "routed_scaling_factor": config.router_scale,
        "n_shared_experts": config.shared_expert_dim // width,
        "moe_intermediate_size": width,
        "intermediate_size": (dense or [config])[0].feed_forward_dim,
        "first_k_dense_replace": len(dense),
    }


def _written_attention(config: TransformerConfig) -> dict[str, Any]:
    rope = rotary_fields(config)
    rope = {name: value for name, value in rope.items() if name not in ("head_dim", "partial_rotary_factor")}
    rope["rope_parameters"].pop("partial_rotary_factor", None)
    if config.attention_multiplier != 1:
        share = {"mscale_all_dim": _share(config)}
        rope |= {name: rope[name] | share for name in ("rope_parameters", "rope_scaling")}
    return rope | {
        "rope_interleave": config.rope_layout == "interleaved",
        "num_key_value_heads": config.num_heads,
        "q_lora_rank": config.query_rank,
        "kv_lora_rank": config.key_value_rank,
        "qk_rope_head_dim": config.rotated_dim,
        "qk_nope_head_dim": config.projected_key_dim,
        "v_head_dim": config.value_dim,
    }


def _share(config: TransformerConfig) -> float:
    """The `mscale_all_dim` of which the factor of the scores is exactly the multiplier; rounding may leave a
    neighbour."""
    factor, right = config.rotary_factor, config.attention_multiplier
    if config.rotary_scaling != "yarn" or factor <= 1 or right < 1:
        raise CheckpointError(
            f"The family deepseek_v3 cannot express the attention_multiplier {right}; expected 1, or more of it where "
            "rotary_scaling is 'yarn'."
        )
    found = (math.sqrt(right) - 1) / (0.1 * math.log(factor))
    near = [found + step * math.ulp(found) for step in range(-8, 9)]
    return next((each for each in (round(found, 6), *near) if _squared(each, factor) == right), found)


def _packed(config: TransformerConfig) -> Table:
    """The projections of queries, which have another name without a latent, and of keys and values."""
    low = config.key_value_rank or 0
    down = {f"{ATTENTION}.key_value_latent.weight": low, f"{ATTENTION}.key_rotary.weight": config.rotated_dim}
    up = {f"{ATTENTION}.key.weight": config.projected_key_dim, f"{ATTENTION}.value.weight": config.value_dim}
    query = "q_proj" if config.query_rank is None else "q_b_proj"
    return {
        f"layers.{{i}}.self_attn.{query}.weight": f"{ATTENTION}.query.weight",
        "layers.{i}.self_attn.kv_a_proj_with_mqa.weight": stacked(down),
        "layers.{i}.self_attn.kv_b_proj.weight": by_group(up, config.num_heads),
    }


OTHERS = ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm")

DEEPSEEK_V3 = dataclasses.replace(
    llama.LLAMA,
    always=llama.ALWAYS
    | {"router_scores": "sigmoid", "router_correction": True}
    | {"qkv_bias": False, "output_bias": False, "feed_forward_bias": False},
    fields={
        theirs: ours
        for theirs, ours in llama.FIELDS.items()
        if theirs not in ("intermediate_size", "num_key_value_heads")
    },
    configure=_configure,
    write=_write,
    model="DeepseekV3ForCausalLM",
    reads=(
        *(*ROTARY, *WIDTHS, *SIZES, "rope_interleave", "hidden_act", "norm_topk_prob", "routed_scaling_factor"),
        "num_key_value_heads",
    ),
    defaults={name: value for name, value in llama.DEFAULTS.items() if name != "head_dim"}
    | {"max_position_embeddings": 4096, "rope_interleave": True, "q_lora_rank": 1536, "kv_lora_rank": 512}
    | {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 256, "n_group": 8}
    | {"num_experts_per_tok": 8, "topk_group": 4, "n_shared_experts": 1, "moe_intermediate_size": 2048}
    | {"intermediate_size": 18_432, "first_k_dense_replace": 3, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
    | {"bos_token_id": 0, "eos_token_id": 1},
    # the norms of the latents have this eps, whatever that of the others is
    only={"attention_bias": (False,), "rms_norm_eps": (1e-6,), "topk_method": ("noaux_tc",), "moe_layer_freq": (1,)}
    | {"scoring_func": ("sigmoid",)},
    unneeded=(
        *("attention_dropout", "aux_loss_alpha", "seq_aux", "ep_size", "head_dim", "qk_head_dim"),
        *("num_nextn_predict_layers", "num_mtp_layers", "output_router_logits", "router_aux_loss_coef"),
    ),
    names={
        **{theirs: ours for theirs, ours in NAMES.items() if not any(f".{part}." in theirs for part in OTHERS)},
        **{
            f"layers.{{i}}.self_attn.{theirs}.weight": f"{ATTENTION}.{ours}.weight"
            for theirs, ours in (
                ("q_a_proj", "query_latent"),
                ("q_a_layernorm", "query_latent_norm"),
                ("kv_a_layernorm", "key_value_latent_norm"),
            )
        },
        "layers.{i}.mlp.gate.e_score_correction_bias": f"{FEED}.router_correction",
        **linears(
            {
                f"layers.{{i}}.mlp.shared_experts.{role}_proj": f"{FEED}.shared_expert.{role}"
                for role in ("gate", "up", "down")
            }
        ),
    },
    packed=_packed,
)

FAMILIES = {"deepseek_v3": DEEPSEEK_V3}
