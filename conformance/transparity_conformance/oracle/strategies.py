"""Hypothesis strategies for configurations, seeds and inputs. A field's definition names the values to draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import numpy as np
from hypothesis import strategies as st

from transparity.config import FIELD_TYPES, TransformerConfig
from transparity_conformance.oracle.oracle import Arrays

HELD_BY = {
    "families.taps_and_logits": (
        *("patch_size", "image_channels", "class_token", "patch_bias", "mel_bins", "num_frames", "encoder_positions"),
        *("convolution_bias", "recurrent_bias", "time_step_min", "time_step_max"),
        *("q_lora_rank", "kv_lora_rank", "value_head_dim"),
    ),
    "recurrence.steps": (
        *("mixer", "recurrent_heads", "recurrent_key_heads", "recurrent_key_dim", "recurrent_value_dim"),
        "convolution_width",
    ),
    "normalization.batch_training": ("norm_momentum",),
    "positions.rotary_frequencies": ("rotary_slow_turns", "rotary_fast_turns"),
    "dropout.gradients_with_shared_masks": ("dropout", "dropout_at"),
    "generation.greedy": ("bos_id",),
    "generation.stops_at_end_token": ("eos_id",),
}
NOT_DRAWN = {field: claim for claim, fields in HELD_BY.items() for field in fields}
"""Fields that random configurations do not vary, with the claim that checks each."""

SIZES = {
    "max_length": st.integers(1, 5),
    "num_encoder_layers": st.integers(0, 2),
    "num_decoder_layers": st.integers(0, 2),
    "feed_forward_dim": st.integers(1, 9),
    "relative_buckets": st.integers(4, 8),
    "relative_max_distance": st.integers(5, 9),
    "num_token_types": st.integers(0, 2),
    "pooling": st.sampled_from(("first", "mean", "last", "largest")),  # not `eos`, because it needs an eos_id
}

ONLY_WITH: dict[str, Callable[[dict[str, Any]], bool]] = {
    "router_groups": lambda given: given["num_experts"] == 4 and given["experts_per_token"] <= 2,
    "topk_groups": lambda given: given.get("router_groups") == 2,
    "sinusoidal_timescales": lambda given: given["positions"] == "sinusoidal" and given["embed_dim"] >= 4,
    "position_count": lambda given: given["positions"] == "learned",
    "branches": lambda given: given["architecture"] != "encoder-decoder" and given.get("norm_position") == "pre",
    "attention_norm": lambda given: (
        given.get("norm_position") == "pre" and given.get("branches") in (None, "sequential")
    ),
    "query_key_norm_over": lambda given: given.get("projection") != "shared-per-head",
    "relative_bias": lambda given: given["positions"] in ("learned", "sinusoidal"),
    "rotary_dim": lambda given: given["positions"] == "rotary",
    "num_token_types": lambda given: given["architecture"] == "encoder",
    "head": lambda given: given["architecture"] == "encoder",
    "head_transform": lambda given: given.get("head", "logits") in ("logits", "classes") and given["norm"] != "batch",
}
"""Conditions under which a field is drawn; otherwise, the field keeps its default."""

OF_LAYERS = ("layer_types", "layer_overrides")
"""Fields that make layers differ, drawn last."""

OF_LONGROPE = ("rotary_short_factors", "rotary_long_factors")
"""Fields with one factor per rotary angle, drawn when the number of angles is known."""

OF_HEADS = ("num_key_value_heads", "attention_head_dim")
"""Fields drawn together with `projection`."""


def choice(name: str) -> st.SearchStrategy[Any]:
    """Draw a value of a field, the simplest first."""
    field, kind = TransformerConfig.__dataclass_fields__[name], FIELD_TYPES[name]
    if tried := field.metadata.get("tried"):
        return st.sampled_from(tried)
    if kind is bool:
        return st.booleans()
    assert get_origin(kind) is Literal, (
        f"{name} has no values to draw; pass values to `number` or `whole` in config/transformer_config.py"
    )
    return st.sampled_from(get_args(kind))


@st.composite
def configs(draw: st.DrawFn) -> TransformerConfig:
    """Draw a small valid configuration; the simplest has one head, one feature per head and no layers."""
    num_heads, head_dim = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    positions, norm = draw(choice("positions")), draw(choice("norm"))
    odd = num_heads * head_dim % 2 == 1
    if (odd and (positions == "sinusoidal" or norm == "layer-unbiased")) or (positions == "rotary" and head_dim % 2):
        head_dim += 1
    offset = draw(st.integers(0, 2)) if positions == "learned" else 0
    architecture, vocab_sizes = draw(choice("architecture")), (draw(st.integers(2, 7)), draw(st.integers(2, 7)))
    shared = architecture == "encoder-decoder" and draw(st.booleans())
    given = {
        "architecture": architecture,
        "source_vocab_size": vocab_sizes[0],
        "target_vocab_size": vocab_sizes[0] if shared else vocab_sizes[1],
        "shared_embedding": shared,
        "embed_dim": num_heads * head_dim,
        "num_heads": num_heads,
        "norm": norm,
        "positions": positions,
        "position_offset": offset,
    }
    for name in FIELD_TYPES:
        if name == "projection":
            given |= draw(heads(num_heads))
        elif name not in {*given, *NOT_DRAWN, *OF_HEADS, *OF_LAYERS, *OF_LONGROPE} and (
            name not in ONLY_WITH or ONLY_WITH[name](given)
        ):
            given[name] = draw(SIZES[name] if name in SIZES else choice(name))
    if given["rotary_scaling"] == "longrope":
        given |= draw(longrope(given))
    return TransformerConfig(**given | draw(kinds(given)))


@st.composite
def longrope(draw: st.DrawFn, given: dict[str, Any]) -> dict[str, Any]:
    head_dim = given.get("attention_head_dim") or given["embed_dim"] // given["num_heads"]
    count = (given.get("rotary_dim") or head_dim) // 2
    factors = st.lists(st.sampled_from((1.0, 1.5, 4.0)), min_size=count, max_size=count)
    return {name: draw(factors) for name in OF_LONGROPE}


@st.composite
def kinds(draw: st.DrawFn, given: dict[str, Any]) -> dict[str, Any]:
    if not draw(st.booleans()):
        return {}
    tried: dict[str, tuple[Any, ...]] = {"rope_theta": (5.0, 100.0), "rotary_scaling": ("linear", "llama3", "yarn")}
    tried |= {"rotary_factor": (2.0,)}
    tried |= {"positions": ("none",)} if given["positions"] == "rotary" else {}
    tried |= {"attention_norm": (False,)} if given.get("attention_norm") else {}
    tried |= {"query_temperature": (0.0, 0.4)}
    if given["sliding_window"] is not None:
        tried |= {"sliding_window": (None, 2), "window_kind": ("sliding", "chunked")}
    chosen = draw(st.lists(st.sampled_from(sorted(tried)), min_size=1, unique=True))
    overrides = {name: draw(st.sampled_from(tried[name])) for name in chosen}
    types = draw(st.sampled_from((("one", "other"), ("other", "one", "one"))))
    return {"layer_types": types, "layer_overrides": {"other": overrides}}


@st.composite
def heads(draw: st.DrawFn, num_heads: int) -> dict[str, Any]:
    projection = draw(choice("projection"))
    if projection == "shared-per-head":
        return {"projection": projection}
    divisors = [count for count in range(1, num_heads + 1) if num_heads % count == 0]
    groups = draw(st.sampled_from((None, *divisors)))
    return {"num_key_value_heads": groups, "attention_head_dim": draw(st.sampled_from((None, 2, 4)))}


@st.composite
def models(draw: st.DrawFn) -> tuple[TransformerConfig, int, Arrays]:
    config = draw(configs())
    batch = draw(st.integers(1, 3))
    inputs = {}
    for name in config.input_names:
        length = draw(st.integers(1, config.max_length))
        token = st.integers(0, config.stack_vocab_size(config.input_stack(name)) - 1)
        row = st.lists(token, min_size=length, max_size=length)
        inputs[name] = np.array(draw(st.lists(row, min_size=batch, max_size=batch)))
    rows, length = inputs[config.input_names[0]].shape
    for name in config.further_inputs:
        most = config.num_token_types - 1 if name == "token_types" else 1
        row = st.lists(st.integers(0, most), min_size=length, max_size=length)
        inputs[name] = np.array(draw(st.lists(row, min_size=rows, max_size=rows)))
    return config, draw(st.integers(0, 2**16)), inputs
