"""DeepSeek-V3 (DeepSeek-AI, 2024): latent attention, and grouped experts in all layers except the first few."""

import math
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families.llama import LAYER
from transparity_conformance.checkpoints.families.mixtral import DENSE, EXPERTS
from transparity_conformance.checkpoints.naming import Table, by_group, stacked
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.kinds import by_kind, own_layers
from transparity_conformance.checkpoints.tables.rotary import mscale_of, read_rotary, write_rotary, yarn_scale
from transparity_conformance.checkpoints.tables.rows import Fields

ATTENTION = f"{LAYER}.self_attention"


def read_attention(fields: Fields) -> dict[str, Any]:
    heads, given = row.as_whole(fields, "num_attention_heads"), fields["num_key_value_heads"]
    if given not in (None, heads):
        raise row.wrong("num_key_value_heads", given, f"{heads}, the number of query heads")
    turned = row.as_whole(fields, "qk_rope_head_dim")
    return read_rotary(fields) | {
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


def write_attention(config: TransformerConfig) -> dict[str, Any]:
    rope = write_rotary(config)
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
    """Invert `_multiplier`: return the `mscale_all_dim` that gives exactly the configuration's attention multiplier."""
    factor, right = config.rotary_factor, config.attention_multiplier
    if config.rotary_scaling != "yarn" or factor <= 1 or right < 1:
        raise CheckpointError(
            f"The family deepseek_v3 cannot express the attention_multiplier {right}; expected 1, or a larger number "
            "if rotary_scaling is 'yarn'."
        )
    found = (math.sqrt(right) - 1) / (0.1 * math.log(factor))
    return row.nearest(round(found, 6), found, right=lambda each: _squared(each, factor) == right)


def read_experts(fields: Fields) -> dict[str, Any]:
    count, width = row.as_layers(fields), row.as_whole(fields, "moe_intermediate_size")
    dense = row.as_whole(fields, "first_k_dense_replace", 0, "the number of layers without experts, at least 0")
    facts = {
        EXPERTS: {"num_experts": row.as_whole(fields, "n_routed_experts"), "feed_forward_dim": width},
        DENSE: {"num_experts": 0, "feed_forward_dim": row.as_whole(fields, "intermediate_size")},
    }
    shared = {"shared_expert_dim": row.as_whole(fields, "n_shared_experts") * width}
    return shared | by_kind([DENSE if i < dense else EXPERTS for i in range(count)], facts)


def write_experts(config: TransformerConfig) -> dict[str, Any]:
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


def packed_deepseek(config: TransformerConfig) -> Table:
    low = config.kv_lora_rank or 0
    down = {f"{ATTENTION}.key_value_latent.weight": low, f"{ATTENTION}.key_rotary.weight": config.rotated_dim}
    up = {f"{ATTENTION}.key.weight": config.projected_key_dim, f"{ATTENTION}.value.weight": config.value_dim}
    query = "q_proj" if config.q_lora_rank is None else "q_b_proj"
    return {
        f"layers.{{i}}.self_attn.{query}.weight": f"{ATTENTION}.query.weight",
        "layers.{i}.self_attn.kv_a_proj_with_mqa.weight": stacked(down),
        "layers.{i}.self_attn.kv_b_proj.weight": by_group(up, config.num_heads),
    }
