"""Chunked attention and the query temperature equal those in transformers' Llama 4, without its experts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families.llama import LLAMA
from transparity_conformance.checkpoints.importing import parameters_from
from transparity_conformance.checkpoints.naming import Table
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.report.comparison import difference
from transparity_numpy.transformer import transformer

NAMES: Table = {name.replace(".mlp.", ".feed_forward."): ours for name, ours in LLAMA.names.items()}
LAYERS, LENGTH = 4, 23

CONFIG = dataclasses.replace(CASES["llama4"], num_decoder_layers=LAYERS, max_length=32)


def peer(config: TransformerConfig) -> Any:
    """Return Llama 4 with the configuration's layers: rotary positions in chunks, or a query temperature."""
    rotated = [config.for_layer("decoder", i).positions == "rotary" for i in range(LAYERS)]
    theirs = transformers.Llama4TextConfig(
        vocab_size=config.target_vocab_size,
        hidden_size=config.embed_dim,
        intermediate_size_mlp=config.feed_forward_dim,
        num_hidden_layers=LAYERS,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.key_value_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        moe_layers=[],
        use_qk_norm=False,
        no_rope_layers=[int(each) for each in rotated],
        attention_chunk_size=config.sliding_window,
        attn_temperature_tuning=True,
        floor_scale=config.query_temperature_length,
        attn_scale=config.query_temperature,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = transformers.Llama4ForCausalLM(theirs).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return model


@pytest.mark.parametrize("size", [1, 3, 4, 30])
def test_a_model_of_chunks_and_temperatures_is_that_of_transformers(size: int) -> None:
    config = dataclasses.replace(CONFIG, sliding_window=size, rope_layout="interleaved")
    model = peer(config)
    tensors = {name: value.detach().numpy() for name, value in model.named_parameters()}
    parameters = parameters_from(dataclasses.replace(LLAMA, names=NAMES), config, tensors)
    tokens = np.random.default_rng(0).integers(0, config.stack_vocab_size("decoder"), (2, LENGTH))
    with torch.no_grad():
        theirs = model(torch.tensor(tokens)).logits.numpy()
    oracle = forward_oracle(config, parameters, {"tokens": tokens})
    budget = oracle.budget("logits", "float32")
    assert difference(theirs, oracle.expected["logits"]) <= budget
    wrong: list[dict[str, Any]] = [{"query_temperature_first": 0}]
    wrong += [{"window_kind": "sliding"}, {"sliding_window": size + 1}] if 1 < size < LENGTH else []
    for fields in wrong:
        other = transformer(dataclasses.replace(config, **fields), parameters, tokens=tokens)
        assert difference(theirs, other) > budget, fields
