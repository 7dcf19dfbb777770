"""Whole configurations, weights and inputs, drawn from the space of fields: new fields are new lines here."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
from hypothesis import strategies as st

from transparity import config as fields
from transparity.config import TransformerConfig
from transparity_conformance.oracle.oracle import Arrays

MASK_VALUES = (-math.inf, -1e20, -1e9, -100.0, -3.0, -1e-20, 0.0)


def choice(kind: object) -> st.SearchStrategy[Any]:
    """Any value of a field that is a choice, the first being the simplest."""
    return st.sampled_from(get_args(kind))


@st.composite
def configs(draw: st.DrawFn) -> TransformerConfig:
    """Any configuration that is possible, small; what it shrinks to has one head, one feature a head and no layers."""
    num_heads, head_dim = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    positions, norm = draw(choice(fields.Positions)), draw(choice(fields.NormKind))
    odd = num_heads * head_dim % 2 == 1
    if (odd and (positions == "sinusoidal" or norm == "layer-unbiased")) or (positions == "rotary" and head_dim % 2):
        head_dim += 1
    offset = draw(st.integers(0, 2)) if positions == "learned" else 0
    architecture, vocab_sizes = draw(choice(fields.Architecture)), (draw(st.integers(2, 7)), draw(st.integers(2, 7)))
    shared = architecture == "encoder-decoder" and draw(st.booleans())
    return TransformerConfig(
        architecture=architecture,
        source_vocab_size=vocab_sizes[0],
        target_vocab_size=vocab_sizes[0] if shared else vocab_sizes[1],
        shared_embedding=shared,
        max_length=draw(st.integers(1, 5)),
        embed_dim=num_heads * head_dim,
        num_heads=num_heads,
        num_encoder_layers=draw(st.integers(0, 2)),
        num_decoder_layers=draw(st.integers(0, 2)),
        feed_forward_dim=draw(st.integers(1, 9)),
        feed_forward_bias=draw(st.booleans()),
        gated=draw(st.booleans()),
        activation=draw(choice(fields.Activation)),
        norm=norm,
        norm_gain=draw(choice(fields.NormGain)),
        norm_eps=draw(st.sampled_from((1e-5, 1e-2, 1e-12))),
        norm_position=draw(choice(fields.NormPosition)),
        final_norm=draw(st.booleans()),
        memory_norm=draw(st.booleans()),
        **draw(heads(num_heads)),
        qkv_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        query_key_norm=draw(st.booleans()),
        attention_scale=draw(choice(fields.AttentionScale)),
        attention_multiplier=draw(st.sampled_from((1.0, 0.5))),
        attention_softcap=draw(st.sampled_from((None, 1.5))),
        sliding_window=draw(st.sampled_from((None, 1, 2, 3))),
        full_attention_every=draw(st.sampled_from((None, 1, 2))),
        mask_value=draw(st.sampled_from(MASK_VALUES)),
        mask_order=draw(choice(fields.MaskOrder)),
        target_mask=draw(choice(fields.TargetMask)),
        padding=draw(choice(fields.Padding)),
        positions=positions,
        position_offset=offset,
        position_count=draw(choice(fields.PositionCount)) if offset else "all",
        rope_layout=draw(choice(fields.RopeLayout)),
        rope_theta=draw(st.sampled_from((10_000.0, 5.0))),
        rotary_dim=draw(st.sampled_from((None, 2))) if positions == "rotary" else None,
        rotary_scaling=draw(choice(fields.RotaryScaling)),
        rotary_factor=draw(st.sampled_from((1.0, 3.0))),
        rotary_original_length=draw(st.sampled_from((8, 64))),
        relative_buckets=draw(st.integers(4, 8)),
        relative_max_distance=draw(st.integers(5, 9)),
        num_token_types=draw(st.integers(0, 2)) if architecture == "encoder" else 0,
        embedding_scale=draw(choice(fields.EmbeddingScale)),
        embedding_norm=draw(st.booleans()),
        head=draw(choice(fields.Head)) if architecture == "encoder" else "logits",
        tied_head=draw(st.booleans()),
        head_bias=draw(st.booleans()),
        head_scale=draw(choice(fields.HeadScale)),
        final_softcap=draw(st.sampled_from((None, 2.0))),
        pad_id=draw(st.sampled_from((0, 1, None))),
    )


@st.composite
def heads(draw: st.DrawFn, num_heads: int) -> dict[str, Any]:
    """How features become heads: heads may be shared, or be as wide as they like, unless one map serves them all."""
    projection = draw(choice(fields.Projection))
    if projection == "shared-per-head":
        return {"projection": projection}
    divisors = [count for count in range(1, num_heads + 1) if num_heads % count == 0]
    groups = draw(st.sampled_from((None, *divisors)))
    return {"num_key_value_heads": groups, "attention_head_dim": draw(st.sampled_from((None, 2, 4)))}


@st.composite
def models(draw: st.DrawFn) -> tuple[TransformerConfig, int, Arrays]:
    """A configuration, the seed of its weights, and inputs that fit it."""
    config = draw(configs())
    batch = draw(st.integers(1, 3))
    inputs = {}
    for name in config.input_names:
        length = draw(st.integers(1, config.max_length))
        token = st.integers(0, config.stack_vocab_size(config.input_stack(name)) - 1)
        row = st.lists(token, min_size=length, max_size=length)
        inputs[name] = np.array(draw(st.lists(row, min_size=batch, max_size=batch)))
    rows, length = inputs[config.input_names[0]].shape
    for name in config.inputs_beside:
        most = config.num_token_types - 1 if name == "token_types" else 1
        row = st.lists(st.integers(0, most), min_size=length, max_size=length)
        inputs[name] = np.array(draw(st.lists(row, min_size=rows, max_size=rows)))
    return config, draw(st.integers(0, 2**16)), inputs
