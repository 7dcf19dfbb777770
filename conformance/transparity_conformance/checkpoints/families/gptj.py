"""GPT-J (Wang and Komatsuzaki 2021): attention and feed-forward beside each other, behind one norm."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.fields import Family, Fields, activation, activation_name, whole
from transparity_conformance.checkpoints.naming import Table, linears

LAYER = "decoder.layers.{i}"

NAMES: Table = {
    "wte.weight": "decoder.token_embedding.weight",
    **{
        f"h.{{i}}.attn.{theirs}_proj.weight": f"{LAYER}.self_attention.{ours}.weight"
        for theirs, ours in {"q": "query", "k": "key", "v": "value", "out": "output"}.items()
    },
    **linears(
        {
            "h.{i}.ln_1": f"{LAYER}.self_attention_norm",
            "h.{i}.mlp.fc_in": f"{LAYER}.feed_forward.up",
            "h.{i}.mlp.fc_out": f"{LAYER}.feed_forward.down",
            "ln_f": "decoder.final_norm",
            "lm_head": "head",
        }
    ),
}


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return {
        "feed_forward_dim": 4 * whole(fields, "n_embd") if fields["n_inner"] is None else fields["n_inner"],
        "activation": activation(fields, "activation_function"),
        "rotary_dim": whole(fields, "rotary_dim"),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    inner = config.feed_forward_dim
    return {
        "n_inner": None if inner == 4 * config.embed_dim else inner,
        "activation_function": activation_name(config),
        "rotary_dim": config.rotated_dim,
    }


GPTJ = Family(
    always={
        "architecture": "decoder",
        "norm_position": "pre",
        "final_norm": True,
        "branches": "parallel-one-norm",
        "qkv_bias": False,
        "output_bias": False,
        "positions": "rotary",
    },
    fields={
        "vocab_size": "target_vocab_size",
        "n_positions": "max_length",
        "n_embd": "embed_dim",
        "n_layer": "num_decoder_layers",
        "n_head": "num_heads",
        "layer_norm_epsilon": "norm_eps",
        "tie_word_embeddings": "tied_head",
    },
    configure=_configure,
    write=_write,
    model="GPTJForCausalLM",
    reads=("n_inner", "activation_function", "rotary_dim"),
    defaults={
        "n_positions": 2048,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "rotary_dim": 64,
        "tie_word_embeddings": False,
    },
    unneeded=(
        *("n_ctx", "attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_activation", "rotary"),
        *("summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    ),
    names=NAMES,
    prefixes=("transformer.",),
    no_parameters=("h.{i}.attn.bias", "h.{i}.attn.masked_bias"),  # the causal mask
)

FAMILIES = {"gptj": GPTJ}
