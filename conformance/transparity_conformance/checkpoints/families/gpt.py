"""GPT-2, GPT-J, GPT-NeoX, Pythia and Falcon.

References: GPT-2 (Radford et al., 2019), GPT-J (Wang and Komatsuzaki, 2021), GPT-NeoX (Black et al., 2022), Falcon
(Almazrouei et al., 2023). GPT-J has parallel branches after one norm. GPT-NeoX and Pythia have two norms, and a fused
projection with the query, key and value of each head in turn. Falcon has parallel branches with one or two norms, and
projections fused by head group.
"""

from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families.bert import EXAMPLE as BERT_EXAMPLE
from transparity_conformance.checkpoints.naming import (
    StoredTensor,
    Table,
    fused,
    linears,
    projections,
    transposed,
    weights,
)
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.codecs import OF_THE_LAST_TOKEN, SIZES, Family
from transparity_conformance.checkpoints.tables.rotary import ROTARY, rope, rotary, rotary_fields
from transparity_conformance.checkpoints.tables.rows import Fields

LAYER = "decoder.layers.{i}"
ROLES = [f"{LAYER}.self_attention.{role}" for role in ("query", "key", "value")]


def _packed(leaf: str) -> StoredTensor:
    parts = tuple(
        (f"{role}.{leaf}", lambda packed, i=i: np.split(packed, 3, axis=-1)[i].T) for i, role in enumerate(ROLES)
    )
    return StoredTensor(parts, lambda thirds: np.concatenate([third.T for third in thirds], axis=-1))


def _inner(fields: Fields) -> dict[str, Any]:
    inner = fields["n_inner"]
    return {"feed_forward_dim": 4 * row.as_whole(fields, "n_embd") if inner is None else inner}


def _write_inner(config: TransformerConfig) -> dict[str, Any]:
    inner = config.feed_forward_dim
    return {"n_inner": None if inner == 4 * config.embed_dim else inner}


EXAMPLE = {"vocab_size": 37, "n_positions": 29, "n_embd": 24, "n_layer": 2, "n_head": 3}

GPT2 = Family(
    model="GPT2LMHeadModel",
    example=EXAMPLE,
    always={"architecture": "decoder", "norm": "layer", "norm_position": "pre", "final_norm": True}
    | {"positions": "learned", "head_bias": False},
    rows=(
        row.rename("vocab_size", "target_vocab_size"),
        row.rename("n_positions", "max_length", 1024),
        row.rename("n_embd", "embed_dim"),
        row.rename("n_layer", "num_decoder_layers"),
        row.rename("n_head", "num_heads"),
        row.derived(_inner, _write_inner, n_inner=None),
        row.activation("activation_function", "gelu_new"),
        row.rename("layer_norm_epsilon", "norm_eps", 1e-5),
        row.switch("scale_attn_weights", "attention_scale", "head_dim", "none", True),
        row.rename("tie_word_embeddings", "tied_head", True),
    ),
    only={"scale_attn_by_inverse_layer_idx": (False,)},
    unneeded=(
        *("n_ctx", "attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn", "summary_activation"),
        *("summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    ),
    names={
        "wte.weight": "decoder.token_embedding.weight",
        "wpe.weight": "decoder.position_embedding.weight",
        "lm_head.weight": "head.weight",
        "h.{i}.attn.c_attn.weight": _packed("weight"),
        "h.{i}.attn.c_attn.bias": _packed("bias"),
        "h.{i}.attn.c_proj.weight": transposed(f"{LAYER}.self_attention.output.weight"),
        "h.{i}.attn.c_proj.bias": f"{LAYER}.self_attention.output.bias",
        "h.{i}.mlp.c_fc.weight": transposed(f"{LAYER}.feed_forward.up.weight"),
        "h.{i}.mlp.c_fc.bias": f"{LAYER}.feed_forward.up.bias",
        "h.{i}.mlp.c_proj.weight": transposed(f"{LAYER}.feed_forward.down.weight"),
        "h.{i}.mlp.c_proj.bias": f"{LAYER}.feed_forward.down.bias",
        **linears({"ln_1": "self_attention_norm", "ln_2": "feed_forward_norm"}, "h.{i}", LAYER),
        **linears({"ln_f": "decoder.final_norm"}),
    },
    prefixes=("transformer.",),
    no_parameters=("h.{i}.attn.bias", "h.{i}.attn.masked_bias"),  # the causal mask
    classifier=OF_THE_LAST_TOKEN,
)

GPTJ = GPT2.variant(
    model="GPTJForCausalLM",
    example=EXAMPLE | {"rotary_dim": 4},
    always={"branches": "parallel-one-norm", "qkv_bias": False, "output_bias": False, "positions": "rotary"}
    | {"head_bias": True},
    rows=(row.whole("rotary_dim", "rotary_dim", 64, written="rotated_dim"),),
    without=("scale_attn_weights",),
    defaults={"n_positions": 2048, "tie_word_embeddings": False},
    only={},
    unneeded=(
        *("n_ctx", "attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_activation", "rotary"),
        *("summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    ),
    names={
        "wte.weight": "decoder.token_embedding.weight",
        **weights(projections("q_proj", "k_proj", "v_proj", "out_proj"), "h.{i}.attn", f"{LAYER}.self_attention"),
        **linears({"ln_1": "self_attention_norm"}, "h.{i}", LAYER),
        **linears({"fc_in": "up", "fc_out": "down"}, "h.{i}.mlp", f"{LAYER}.feed_forward"),
        **linears({"ln_f": "decoder.final_norm", "lm_head": "head"}),
    },
    classifier=None,
)


def _rotary_neox(fields: Fields) -> dict[str, Any]:
    given = {"rope_theta": fields["rotary_emb_base"], "partial_rotary_factor": fields["rotary_pct"]}
    given |= {name: value for name, value in fields.items() if name in ("rope_theta", *ROTARY) and value is not None}
    head_dim = row.as_whole(fields, "hidden_size") // row.as_whole(fields, "num_attention_heads")
    return rotary({**fields, **given}, head_dim)


def _write_rotary_neox(config: TransformerConfig) -> dict[str, Any]:
    whole_heads = (config.key_value_heads, config.attention_dim) == (config.num_heads, config.embed_dim)
    if not whole_heads or config.projection != "full":
        raise CheckpointError(
            f"The family gpt_neox cannot express {config.key_value_heads} key heads of {config.head_dim} features with "
            f"projection {config.projection!r}; expected 'full', and {config.num_heads} heads that divide embed_dim."
        )
    found = rotary_fields(config)
    part = found.get("partial_rotary_factor", 1.0)
    rope = found["rope_parameters"] | {"partial_rotary_factor": part}
    return {"rope_parameters": rope, "rotary_emb_base": config.rope_theta, "rotary_pct": part}


GPT_NEOX = Family(
    model="GPTNeoXForCausalLM",
    example=BERT_EXAMPLE | {"rotary_pct": 0.5, "bos_token_id": 0, "eos_token_id": 2},
    always={"architecture": "decoder", "norm_position": "pre", "final_norm": True, "head_bias": False},
    rows=(
        *row.sizes("decoder", 2048),
        row.rename("layer_norm_eps", "norm_eps", 1e-5),
        row.rename("tie_word_embeddings", "tied_head", False),
        row.derived(
            *(_rotary_neox, _write_rotary_neox, "rope_theta", *ROTARY), rotary_emb_base=10_000.0, rotary_pct=0.25
        ),
        row.activation("hidden_act", "gelu"),
        row.switch("use_parallel_residual", "branches", "parallel", "sequential", True),
        row.flag("attention_bias", ("qkv_bias", "output_bias"), True),
    ),
    unneeded=("attention_dropout", "hidden_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"),
    names={
        "embed_in.weight": "decoder.token_embedding.weight",
        "embed_out.weight": "head.weight",
        **linears({"input_layernorm": "self_attention_norm"}, "layers.{i}", LAYER),
        **linears({"post_attention_layernorm": "feed_forward_norm"}, "layers.{i}", LAYER),
        **linears({"attention.dense": "self_attention.output"}, "layers.{i}", LAYER),
        **linears({"dense_h_to_4h": "up", "dense_4h_to_h": "down"}, "layers.{i}.mlp", f"{LAYER}.feed_forward"),
        **linears({"final_layer_norm": "decoder.final_norm"}),
    },
    packed=lambda config: fused(
        "layers.{i}.attention.query_key_value", dict.fromkeys(ROLES, config.head_dim), groups=config.num_heads
    ),
    prefixes=("gpt_neox.",),
    no_parameters=(
        *("layers.{i}.attention.bias", "layers.{i}.attention.masked_bias"),  # the causal mask
        "layers.{i}.attention.rotary_emb.inv_freq",
    ),
)


ONE_NORM = linears({"input_layernorm": "self_attention_norm"}, "h.{i}", LAYER)

NORMS: dict[str, Table] = {
    "parallel": linears({"ln_attn": "self_attention_norm", "ln_mlp": "feed_forward_norm"}, "h.{i}", LAYER),
    "parallel-one-norm": ONE_NORM,
    "sequential": ONE_NORM | linears({"post_attention_layernorm": "feed_forward_norm"}, "h.{i}", LAYER),
}
"""The names of a layer's norms in the file, for each value of `branches`."""


def _packed_falcon(config: TransformerConfig) -> Table:
    counts = (config.num_heads // config.key_value_heads, 1, 1)
    rows = {role: count * config.head_dim for role, count in zip(ROLES, counts, strict=True)}
    packed = fused("h.{i}.self_attention.query_key_value", rows, groups=config.key_value_heads)
    return {**NORMS[config.branches], **packed}


def _heads(fields: Fields) -> dict[str, Any]:
    heads, grouped = row.as_whole(fields, "num_attention_heads"), row.as_flag(fields, "new_decoder_architecture")
    if grouped and not row.as_flag(fields, "parallel_attn"):
        raise row.wrong("parallel_attn", fields["parallel_attn"], "true, because new_decoder_architecture is true")
    given = heads if fields["num_kv_heads"] is None else row.as_whole(fields, "num_kv_heads")
    norms = fields["num_ln_in_parallel_attn"]
    if norms not in (None, 1, 2):
        raise row.wrong("num_ln_in_parallel_attn", norms, "1, 2 or null")
    branches = "parallel" if grouped and norms != 1 else "parallel-one-norm"
    return {
        "num_key_value_heads": given if grouped else 1 if row.as_flag(fields, "multi_query") else heads,
        "branches": branches if row.as_flag(fields, "parallel_attn") else "sequential",
    }


def _write_heads(config: TransformerConfig) -> dict[str, Any]:
    heads, is_whole = config.key_value_heads, config.attention_dim == config.embed_dim
    grouped = config.branches == "parallel" or heads not in (1, config.num_heads)
    if not is_whole or (grouped and config.branches == "sequential"):
        raise CheckpointError(
            f"The family falcon cannot express {heads} key heads of {config.head_dim} features with branches "
            f"{config.branches!r}; expected heads that divide embed_dim, and parallel branches for grouped queries."
        )
    return {
        "new_decoder_architecture": grouped,
        "num_kv_heads": heads,
        "num_ln_in_parallel_attn": {"parallel": 2, "parallel-one-norm": 1}.get(config.branches),
        "multi_query": heads == 1,
        "parallel_attn": config.branches != "sequential",
    }


def _inner_falcon(fields: Fields) -> dict[str, Any]:
    name, times = ("hidden_size", 4) if fields["ffn_hidden_size"] is None else ("ffn_hidden_size", 1)
    return {"feed_forward_dim": times * row.as_whole(fields, name)}


FALCON = Family(
    model="FalconForCausalLM",
    example=SIZES | {"num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2},
    always={"architecture": "decoder", "norm_position": "pre", "final_norm": True, "head_bias": False},
    rows=(
        *row.sizes("decoder", 2048)[:-1],
        row.rename("layer_norm_epsilon", "norm_eps", 1e-5),
        row.rename("tie_word_embeddings", "tied_head", True),
        rope(),
        row.derived(
            *(_heads, _write_heads),
            num_kv_heads=None,
            new_decoder_architecture=False,
            num_ln_in_parallel_attn=None,
            multi_query=True,
            parallel_attn=True,
        ),
        row.activation("activation", "gelu"),
        row.derived(_inner_falcon, lambda config: {"ffn_hidden_size": config.feed_forward_dim}, ffn_hidden_size=None),
        row.flag("bias", ("qkv_bias", "output_bias", "feed_forward_bias"), False),
        row.tokens(bos=11, eos=11),
    ),
    # Falcon adds ALiBi biases before scores are scaled, and rounds them to bfloat16. The reference supports neither.
    only={"alibi": (False,), "apply_residual_connection_post_layernorm": (False,)},
    unneeded=("attention_dropout", "hidden_dropout"),
    names={
        "word_embeddings.weight": "decoder.token_embedding.weight",
        "lm_head.weight": "head.weight",
        **linears({"self_attention.dense": "self_attention.output"}, "h.{i}", LAYER),
        **linears({"dense_h_to_4h": "up", "dense_4h_to_h": "down"}, "h.{i}.mlp", f"{LAYER}.feed_forward"),
        **linears({"ln_f": "decoder.final_norm"}),
    },
    packed=_packed_falcon,
    prefixes=("transformer.",),
    no_parameters=("h.{i}.self_attention.rotary_emb.inv_freq",),
)
FAMILIES = {"falcon": FALCON, "gpt2": GPT2, "gptj": GPTJ, "gpt_neox": GPT_NEOX}
