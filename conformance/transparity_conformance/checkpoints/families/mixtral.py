"""Mixtral (Jiang et al., 2024) and similar models: Qwen 2 MoE, Qwen 3 MoE, OLMoE and gpt-oss.

References: OLMoE (Muennighoff et al., 2024) and gpt-oss (OpenAI, 2025). gpt-oss has attention sinks, windows in every
other layer, and clamped gates. Files of gpt-oss store all experts of a layer as one tensor.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import is_whole
from transparity_conformance.checkpoints.families.llama import (
    EXAMPLE,
    LAYER,
    MISTRAL,
    NAMES,
    OVER_PROJECTION,
    PLAIN,
    WIDE,
)
from transparity_conformance.checkpoints.naming import GATED, StoredTensor, Table, linears, weights, without
from transparity_conformance.checkpoints.tables import kinds as layers
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.kinds import FULL, SLIDING
from transparity_conformance.checkpoints.tables.rotary import rope, rotary
from transparity_conformance.checkpoints.tables.rows import Fields

FEED = f"{LAYER}.feed_forward"
EXPERT = f"{FEED}.experts.{{e}}"

UNNEEDED = ("attention_dropout", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise")

MIXTRAL = MISTRAL.variant(
    model="MixtralForCausalLM",
    example=EXAMPLE | {"sliding_window": 5, "num_local_experts": 5},
    always={"normalize_topk": True},
    rows=(
        row.rename("num_local_experts", "num_experts", 8),
        row.rename("num_experts_per_tok", "experts_per_token", 2),
        row.tokens(pad=None, bos=1, eos=2),
    ),
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "sliding_window": None},
    unneeded=UNNEEDED,
    names={
        **without(NAMES, ".mlp."),
        **weights({"gate": "router"}, "layers.{i}.block_sparse_moe", FEED),
        **weights({"w1": "gate", "w3": "up", "w2": "down"}, "layers.{i}.block_sparse_moe.experts.{e}", EXPERT),
    },
)


NAMES_WITH_EXPERTS: Table = {
    **NAMES,
    "layers.{i}.mlp.gate.weight": f"{FEED}.router.weight",
    **linears(GATED, "layers.{i}.mlp.experts.{e}", EXPERT),
}

EXPERTS, DENSE = "experts", "dense"
"""The two kinds of layers: with experts, or with one feed-forward for all tokens."""

ROUTER = (row.whole("num_experts_per_tok", "experts_per_token", 8), row.flag("norm_topk_prob", "normalize_topk", False))


def _count(fields: Fields) -> int:
    name = "num_experts" if fields["num_local_experts"] is None else "num_local_experts"
    return row.as_whole(fields, name, 0, "a whole number")


def _written_count(config: TransformerConfig) -> dict[str, Any]:
    return {"num_experts": max(each.num_experts for each in (config, *config.layer_kinds.values()))}


OLMOE = PLAIN.variant(
    model="OlmoeForCausalLM",
    example=EXAMPLE | {"num_experts": 5, "num_experts_per_tok": 3},
    always=OVER_PROJECTION,
    rows=(
        *ROUTER,
        row.derived(
            lambda fields: {"num_experts": _count(fields)}, _written_count, num_experts=64, num_local_experts=None
        ),
        row.derived(row.as_head_width, row.unwritten, head_dim=None),
        row.tokens(pad=1, bos=None, eos=50_279),
    ),
    defaults={"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "intermediate_size": 2048},
    only={"clip_qkv": ()},
    unneeded=UNNEEDED,
    names=NAMES_WITH_EXPERTS,
)


def sparse(fields: Fields) -> dict[str, Any]:
    """Return the fields of layers with and without experts. Every `decoder_sparse_step`-th layer has experts, except
    the layers that `mlp_only_layers` lists."""
    dense, every = fields["mlp_only_layers"] or [], row.as_whole(fields, "decoder_sparse_step")
    count = row.as_layers(fields)
    if not isinstance(dense, list) or not all(is_whole(each, 0) for each in dense):
        raise row.wrong("mlp_only_layers", dense, "the numbers of layers, from 0")
    experts = _count(fields)
    sparse = [experts > 0 and i not in dense and (i + 1) % every == 0 for i in range(count)]
    facts = {
        EXPERTS: {"num_experts": experts, "feed_forward_dim": row.as_whole(fields, "moe_intermediate_size")},
        DENSE: {"num_experts": 0, "feed_forward_dim": row.as_whole(fields, "intermediate_size")},
    }
    return layers.by_kind([EXPERTS if each else DENSE for each in sparse], facts)


def write_sparse(config: TransformerConfig) -> dict[str, Any]:
    """Invert `sparse`: return fields of config.json, with all layers without experts in `mlp_only_layers`."""
    own = layers.own_layers(config) or [config]
    widths = {bool(each.num_experts): each.feed_forward_dim for each in own}
    return _written_count(config) | {
        "moe_intermediate_size": widths.get(True, config.feed_forward_dim),
        "intermediate_size": widths.get(False, config.feed_forward_dim),
        "mlp_only_layers": [i for i, each in enumerate(own) if not each.num_experts],
        "decoder_sparse_step": 1,
    }


SPARSE: dict[str, Any] = {"num_experts": 128, "num_local_experts": None, "moe_intermediate_size": 768}
SPARSE |= {"intermediate_size": 6144, "mlp_only_layers": None, "decoder_sparse_step": 1}


def _write_window(config: TransformerConfig) -> dict[str, Any]:
    return {"use_sliding_window": config.sliding_window is not None, "sliding_window": config.sliding_window}


QWEN3_MOE = PLAIN.variant(
    model="Qwen3MoeForCausalLM",
    example=WIDE
    | {"num_hidden_layers": 3, "num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True}
    | {"moe_intermediate_size": 20, "mlp_only_layers": [0]},
    always={"query_key_norm": True},
    rows=(
        *ROUTER,
        row.derived(sparse, write_sparse, **SPARSE),
        row.derived(
            lambda fields: {"sliding_window": layers.used_window(fields)},
            _write_window,
            use_sliding_window=False,
            sliding_window=4096,
        ),
    ),
    without=("intermediate_size",),
    defaults={"max_position_embeddings": 32_768, "num_key_value_heads": 4},
    unneeded=(*UNNEEDED, "max_window_layers"),
    names=NAMES_WITH_EXPERTS,
)


def _sparse_windows(fields: Fields) -> dict[str, Any]:
    """Return the fields for experts and windows of each layer. By default, layers 0, 2, 4, … have a window."""
    found, count = sparse(fields), row.as_layers(fields)
    if not row.as_flag(fields, "use_sliding_window"):
        return found
    first = row.as_whole(fields, "max_window_layers", 0, "a whole number")
    window = row.as_whole(fields, "sliding_window")
    kinds = [SLIDING if i < first and i % 2 == 0 else FULL for i in range(count)]
    kinds = kinds if fields["layer_types"] is None else layers.kinds_given(fields["layer_types"], count)
    return layers.by_both(found, kinds, {SLIDING: {"sliding_window": window}, FULL: {"sliding_window": None}}, EXPERTS)


SHARED_EXPERT: Table = {
    **linears(GATED, "layers.{i}.mlp.shared_expert", f"{FEED}.shared_expert"),
    "layers.{i}.mlp.shared_expert_gate.weight": f"{FEED}.shared_expert_gate.weight",
}

QWEN2_MOE = PLAIN.variant(
    model="Qwen2MoeForCausalLM",
    example=EXAMPLE
    | {"num_hidden_layers": 3, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
    | {"shared_expert_intermediate_size": 28, "mlp_only_layers": [0]},
    always={"shared_expert_gate": True, "output_bias": False},
    rows=(
        *ROUTER,
        row.derived(
            _sparse_windows,
            lambda config: write_sparse(config) | _write_window(config) | {"layer_types": layers.layer_kinds(config)},
            **{**SPARSE, "num_experts": 60, "moe_intermediate_size": 1408, "intermediate_size": 5632},
            use_sliding_window=False,
            sliding_window=4096,
            max_window_layers=28,
            layer_types=None,
        ),
        row.flag("qkv_bias", "qkv_bias", True),
        row.whole("shared_expert_intermediate_size", "shared_expert_dim", 5632),
    ),
    without=("intermediate_size", "attention_bias"),
    defaults={"max_position_embeddings": 32_768, "num_key_value_heads": 16, "num_experts_per_tok": 4},
    unneeded=UNNEEDED,
    names={**NAMES_WITH_EXPERTS, **SHARED_EXPERT},
)


YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
YARN |= {"original_max_position_embeddings": 4096}
"""The rotary scaling that `transformers` uses for a file without a scaling."""


def _part(expert: int, first: int, step: int, tensor: np.ndarray) -> np.ndarray:
    return tensor[expert, ..., first::step].T


def _gates_and_ups(parts: Sequence[np.ndarray]) -> np.ndarray:
    """In each expert, interleave the gate's features and the up projection's features, as the file does."""
    pairs = [np.stack([gate.T, up.T], axis=-1) for gate, up in zip(parts[::2], parts[1::2], strict=True)]
    return np.stack([pair.reshape(*pair.shape[:-2], -1) for pair in pairs])


def _packed(config: TransformerConfig) -> Table:
    found: dict[str, str | StoredTensor] = {}
    for ending, leaf in (("", "weight"), ("_bias", "bias")):
        experts = [(f"{FEED}.experts.{expert}", expert) for expert in range(config.num_experts)]
        roles = [(f"{scope}.{role}.{leaf}", expert) for scope, expert in experts for role in ("gate", "up")]
        pairs = tuple((name, partial(_part, expert, place % 2, 2)) for place, (name, expert) in enumerate(roles))
        found[f"layers.{{i}}.mlp.experts.gate_up_proj{ending}"] = StoredTensor(pairs, _gates_and_ups)
        downs = tuple((f"{scope}.down.{leaf}", partial(_part, expert, 0, 1)) for scope, expert in experts)
        joined = lambda parts: np.stack([part.T for part in parts])
        found[f"layers.{{i}}.mlp.experts.down_proj{ending}"] = StoredTensor(downs, joined)
    return found


def _rotary(fields: Fields) -> dict[str, Any]:
    given = fields["rope_parameters"] or fields["rope_scaling"]
    return rotary(fields if given else {**fields, "rope_parameters": YARN})


GPT_OSS = PLAIN.variant(
    model="GptOssForCausalLM",
    example=WIDE
    | {"num_hidden_layers": 3, "sliding_window": 5, "num_local_experts": 5, "num_experts_per_tok": 2}
    | {"rope_theta": 150_000.0},
    always={"activation": "gelu-quick", "up_offset": 1.0, "feed_forward_bias": True, "attention_sinks": True}
    | {"router_bias": True, "normalize_topk": True},
    rows=(
        row.rename("num_local_experts", "num_experts", 128),
        row.rename("num_experts_per_tok", "experts_per_token", 4),
        row.rename("swiglu_limit", "gate_limit", 7.0),
        rope(_rotary, rope_theta=150_000.0),
        layers.windows_in_turn(128),
        row.flag("attention_bias", ("qkv_bias", "output_bias"), True),
    ),
    without=("hidden_act",),
    defaults={"max_position_embeddings": 131_072, "num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5},
    only={"swiglu_alpha": (1.702,)},
    unneeded=(
        *("attention_dropout", "hidden_act", "initial_context_length", "output_router_logits"),
        *("router_aux_loss_coef", "experts_per_token"),
    ),
    names={
        **without(NAMES, ".mlp."),
        "layers.{i}.self_attn.sinks": f"{LAYER}.self_attention.sinks",
        **linears({"layers.{i}.mlp.router": f"{FEED}.router"}),
    },
    packed=_packed,
)
FAMILIES = {"gpt_oss": GPT_OSS, "mixtral": MIXTRAL, "olmoe": OLMOE, "qwen2_moe": QWEN2_MOE, "qwen3_moe": QWEN3_MOE}
