"""Whole configurations, weights and inputs, drawn from the space of fields: new fields are new lines here."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
from hypothesis import strategies as st

from transparity import config as fields
from transparity.config import TransformerConfig
from transparity_conformance.oracle import Arrays

MASK_VALUES = (-math.inf, -1e20, -1e9, -100.0, -3.0, -1e-20, 0.0)


def choice(kind: object) -> st.SearchStrategy[Any]:
    """Any value of a field that is a choice, the first being the simplest."""
    return st.sampled_from(get_args(kind))


@st.composite
def configs(draw: st.DrawFn) -> TransformerConfig:
    """Any configuration that is possible, small; what it shrinks to has one head, one feature a head and no layers."""
    num_heads, head_dim = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    positions, norm = draw(choice(fields.Positions)), draw(choice(fields.NormKind))
    odd = num_heads * head_dim % 2 == 1
    if odd and (positions == "sinusoidal" or norm == "layer-unbiased"):
        head_dim += 1
    return TransformerConfig(
        architecture=draw(choice(fields.Architecture)),
        source_vocab_size=draw(st.integers(2, 7)),
        target_vocab_size=draw(st.integers(2, 7)),
        max_length=draw(st.integers(1, 5)),
        embed_dim=num_heads * head_dim,
        num_heads=num_heads,
        num_encoder_layers=draw(st.integers(0, 2)),
        num_decoder_layers=draw(st.integers(0, 2)),
        feed_forward_dim=draw(st.integers(1, 9)),
        activation=draw(choice(fields.Activation)),
        norm=norm,
        norm_eps=draw(st.sampled_from((1e-5, 1e-2, 1e-12))),
        norm_position=draw(choice(fields.NormPosition)),
        final_norm=draw(st.booleans()),
        memory_norm=draw(st.booleans()),
        projection=draw(choice(fields.Projection)),
        qkv_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        attention_scale=draw(choice(fields.AttentionScale)),
        mask_value=draw(st.sampled_from(MASK_VALUES)),
        mask_order=draw(choice(fields.MaskOrder)),
        target_mask=draw(choice(fields.TargetMask)),
        positions=positions,
        embedding_scale=draw(choice(fields.EmbeddingScale)),
        pad_id=draw(st.sampled_from((0, 1, None))),
    )


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
    return config, draw(st.integers(0, 2**16)), inputs
