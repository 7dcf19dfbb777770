"""Mixtral (Jiang et al. 2024) and models with experts built like it: Qwen 2 MoE and Qwen 3 MoE, OLMoE (Muennighoff et
al. 2024)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection
from typing import Any

from transparity.config import FULL, SLIDING, TransformerConfig
from transparity.errors import is_whole
from transparity_conformance.checkpoints.families import llama
from transparity_conformance.checkpoints.fields import (
    Fields,
    by_kind,
    flag,
    kinds_given,
    layer_kinds,
    layers,
    whole,
    wrong,
)
from transparity_conformance.checkpoints.naming import Table, linears

FEED = f"{llama.LAYER}.feed_forward"

ATTENTION: Table = {theirs: ours for theirs, ours in llama.NAMES.items() if ".mlp." not in theirs}

UNNEEDED = ("attention_dropout", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise")

NO_BIAS = {"qkv_bias": False, "output_bias": False, "feed_forward_bias": False}


def _mixtral(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return {**llama.MISTRAL.configure(fields, names)}


def _write_mixtral(config: TransformerConfig) -> dict[str, Any]:
    return dict(llama.MISTRAL.write(config))


MIXTRAL = dataclasses.replace(
    llama.MISTRAL,
    always={**llama.MISTRAL.always, "router_normalized": True},
    fields=llama.FIELDS | {"num_local_experts": "num_experts", "num_experts_per_tok": "experts_per_token"},
    configure=_mixtral,
    write=_write_mixtral,
    model="MixtralForCausalLM",
    defaults={**llama.MISTRAL.defaults, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "sliding_window": None}
    | {"num_local_experts": 8, "num_experts_per_tok": 2, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2},
    unneeded=UNNEEDED,
    names={
        **ATTENTION,
        "layers.{i}.block_sparse_moe.gate.weight": f"{FEED}.router.weight",
        "layers.{i}.block_sparse_moe.experts.{e}.w1.weight": f"{FEED}.experts.{{e}}.gate.weight",
        "layers.{i}.block_sparse_moe.experts.{e}.w3.weight": f"{FEED}.experts.{{e}}.up.weight",
        "layers.{i}.block_sparse_moe.experts.{e}.w2.weight": f"{FEED}.experts.{{e}}.down.weight",
    },
)


def _experts_of(theirs: str, ours: str) -> dict[str, Any]:
    return linears({f"{theirs}.{role}_proj": f"{ours}.{role}" for role in ("gate", "up", "down")})


NAMES: Table = {
    **llama.NAMES,
    "layers.{i}.mlp.gate.weight": f"{FEED}.router.weight",
    **_experts_of("layers.{i}.mlp.experts.{e}", f"{FEED}.experts.{{e}}"),
}

EXPERTS, DENSE = "experts", "dense"
"""Kinds of layers."""

ROUTER = ("num_experts", "num_local_experts", "num_experts_per_tok", "norm_topk_prob")


def _router(fields: Fields) -> dict[str, Any]:
    return {
        "experts_per_token": whole(fields, "num_experts_per_tok"),
        "router_normalized": flag(fields, "norm_topk_prob"),
    }


def _count(fields: Fields) -> int:
    """The number of experts, by either of its two names."""
    name = "num_experts" if fields["num_local_experts"] is None else "num_local_experts"
    if not is_whole(fields[name], 0):
        raise wrong(name, fields[name], "a whole number")
    return int(fields[name])


def _write_router(config: TransformerConfig) -> dict[str, Any]:
    own = [config, *config.layer_kinds.values()]
    router = {"num_experts_per_tok": config.experts_per_token, "norm_topk_prob": config.router_normalized}
    return {"num_experts": max(each.num_experts for each in own)} | router


def _olmoe(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    found = llama.LLAMA.configure({**fields, "mlp_bias": False}, names)
    return {**found, **_router(fields), "num_experts": _count(fields)}


def _write_olmoe(config: TransformerConfig) -> dict[str, Any]:
    found = {name: value for name, value in llama.LLAMA.write(config).items() if name not in ("mlp_bias", "head_dim")}
    return found | _write_router(config)


OLMOE = dataclasses.replace(
    llama.LLAMA,
    always=llama.ALWAYS | {"query_key_norm": True, "query_key_norm_over": "projection"},
    configure=_olmoe,
    write=_write_olmoe,
    model="OlmoeForCausalLM",
    reads=(*llama.READS, "attention_bias", *ROUTER),
    defaults=llama.DEFAULTS
    | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "attention_bias": False, "num_experts": 64}
    | {"num_local_experts": None, "num_experts_per_tok": 8, "norm_topk_prob": False, "intermediate_size": 2048}
    | {"pad_token_id": 1, "bos_token_id": None, "eos_token_id": 50_279},
    only={"clip_qkv": ()},
    unneeded=UNNEEDED,
    names=NAMES,
)


SPARSE = ("moe_intermediate_size", "intermediate_size", "mlp_only_layers", "decoder_sparse_step")


def sparse(fields: Fields) -> dict[str, Any]:
    """The layers with experts, every `decoder_sparse_step`-th but those of `mlp_only_layers`, and the others."""
    dense, every, count = fields["mlp_only_layers"] or [], whole(fields, "decoder_sparse_step"), layers(fields)
    if not isinstance(dense, list) or not all(is_whole(each, 0) for each in dense):
        raise wrong("mlp_only_layers", dense, "the numbers of layers, from 0")
    experts = _count(fields)
    sparse = [experts > 0 and i not in dense and (i + 1) % every == 0 for i in range(count)]
    kinds = [EXPERTS if each else DENSE for each in sparse]
    facts = {
        EXPERTS: {"num_experts": experts, "feed_forward_dim": whole(fields, "moe_intermediate_size")},
        DENSE: {"num_experts": 0, "feed_forward_dim": whole(fields, "intermediate_size")},
    }
    return {**by_kind(kinds, facts), **_router(fields)}


def write_sparse(config: TransformerConfig) -> dict[str, Any]:
    own = [config.for_layer("decoder", i) for i in range(config.num_decoder_layers)] or [config]
    widths = {bool(each.num_experts): each.feed_forward_dim for each in own}
    return _write_router(config) | {
        "moe_intermediate_size": widths.get(True, config.feed_forward_dim),
        "intermediate_size": widths.get(False, config.feed_forward_dim),
        "mlp_only_layers": [i for i, each in enumerate(own) if not each.num_experts],
        "decoder_sparse_step": 1,
    }


def _window(fields: Fields) -> dict[str, Any]:
    """The window of all layers."""
    return {"sliding_window": fields["sliding_window"] if flag(fields, "use_sliding_window") else None}


def _written_window(config: TransformerConfig) -> dict[str, Any]:
    return {"use_sliding_window": config.sliding_window is not None, "sliding_window": config.sliding_window}


def _qwen3_moe(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    found = llama.LLAMA.configure({**fields, "mlp_bias": False}, names)
    return {**found, **sparse(fields), **_window(fields), "feed_forward_bias": False}


def _write_qwen3_moe(config: TransformerConfig) -> dict[str, Any]:
    return {**llama.write_common(config), **write_sparse(config), **_written_window(config)}


DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 32_768,
    "num_experts": 128,
    "num_local_experts": None,
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "mlp_only_layers": None,
    "decoder_sparse_step": 1,
    "use_sliding_window": False,
    "sliding_window": 4096,
}

WITHOUT_WIDTH = {theirs: ours for theirs, ours in llama.FIELDS.items() if theirs != "intermediate_size"}

QWEN3_MOE = dataclasses.replace(
    llama.LLAMA,
    always=llama.ALWAYS | {"query_key_norm": True},
    fields=WITHOUT_WIDTH,
    configure=_qwen3_moe,
    write=_write_qwen3_moe,
    model="Qwen3MoeForCausalLM",
    reads=(*llama.READS, "attention_bias", "use_sliding_window", "sliding_window", *ROUTER, *SPARSE),
    defaults=llama.DEFAULTS | DEFAULTS | {"attention_bias": False, "num_key_value_heads": 4},
    unneeded=(*UNNEEDED, "max_window_layers"),
    names=NAMES,
)


def _with_windows(fields: Fields) -> dict[str, Any]:
    """Layers with and without experts, and with and without a window: every other one from the first on, of those in
    front of `max_window_layers`, unless `layer_types` differs."""
    found, count = sparse(fields), layers(fields)
    if not flag(fields, "use_sliding_window"):
        return found
    first, window = fields["max_window_layers"], whole(fields, "sliding_window")
    if not is_whole(first, 0):
        raise wrong("max_window_layers", first, "a whole number")
    kinds = [SLIDING if i < first and i % 2 == 0 else FULL for i in range(count)]
    kinds = kinds if fields["layer_types"] is None else kinds_given(fields["layer_types"], count)
    feeds = list(itertools.islice(itertools.cycle(found.pop("layer_types", (EXPERTS,))), count))
    own = found.pop("layer_overrides", {})
    both = list(zip(feeds, kinds, strict=True))
    facts = {
        f"{feed}_{kind}": {**own.get(feed, {}), "sliding_window": window if kind == SLIDING else None}
        for feed, kind in sorted(set(both), reverse=True)  # experts first
    }
    return found | by_kind([f"{feed}_{kind}" for feed, kind in both], facts)


def _qwen2_moe(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    found = llama.LLAMA.configure({**fields, "attention_bias": False, "mlp_bias": False}, names)
    width = whole(fields, "shared_expert_intermediate_size")
    return {**found, **_with_windows(fields), "qkv_bias": flag(fields, "qkv_bias"), "shared_expert_dim": width}


def _write_qwen2_moe(config: TransformerConfig) -> dict[str, Any]:
    found = {name: value for name, value in llama.write_common(config).items() if name != "attention_bias"}
    found |= write_sparse(config) | _written_window(config) | {"qkv_bias": config.qkv_bias}
    return found | {"shared_expert_intermediate_size": config.shared_expert_dim, "layer_types": layer_kinds(config)}


QWEN2_MOE = dataclasses.replace(
    QWEN3_MOE,
    always={**llama.ALWAYS, "shared_expert_gate": True, "output_bias": False, "feed_forward_bias": False},
    configure=_qwen2_moe,
    write=_write_qwen2_moe,
    model="Qwen2MoeForCausalLM",
    reads=(
        *(*llama.READS, *ROUTER, *SPARSE, "qkv_bias", "shared_expert_intermediate_size"),
        *("use_sliding_window", "sliding_window", "max_window_layers", "layer_types"),
    ),
    defaults={name: value for name, value in QWEN3_MOE.defaults.items() if name != "attention_bias"}
    | {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
    | {"num_key_value_heads": 16, "qkv_bias": True, "shared_expert_intermediate_size": 5632}
    | {"intermediate_size": 5632, "max_window_layers": 28, "layer_types": None},
    unneeded=UNNEEDED,
    names={
        **NAMES,
        **_experts_of("layers.{i}.mlp.shared_expert", f"{FEED}.shared_expert"),
        "layers.{i}.mlp.shared_expert_gate.weight": f"{FEED}.shared_expert_gate.weight",
    },
)

FAMILIES = {"mixtral": MIXTRAL, "olmoe": OLMOE, "qwen2_moe": QWEN2_MOE, "qwen3_moe": QWEN3_MOE}
