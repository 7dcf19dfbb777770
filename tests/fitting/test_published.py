"""Modules of PyTorch and of transformers are fitted as they stand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transparity_conformance.identify.fitting.fit import fit

with warnings.catch_warnings():  # its warnings while it is imported are not about this project
    warnings.simplefilter("ignore")
    import transformers

SIZES: dict[str, Any] = {"vocab_size": 53, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 44}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


class Translation(nn.Module):
    """`nn.Transformer`, whose attention has the tokens in front of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(53, 24), nn.Embedding(51, 24)
        self.before, self.behind = nn.Embedding(40, 24), nn.Embedding(40, 24)
        self.transformer = nn.Transformer(24, 3, 2, 2, 40, activation="gelu", batch_first=True)
        self.head = nn.Linear(24, 51)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        future = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=self.head.weight.dtype)
        x = self.source(source) + self.before(torch.arange(source.shape[1]))
        y = self.target(target) + self.behind(torch.arange(target.shape[1]))
        hidden = {"src_key_padding_mask": source == 1, "memory_key_padding_mask": source == 1}
        return self.head(self.transformer(x, y, tgt_mask=future, **hidden))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_pytorchs_own_transformer_is_fitted() -> None:
    made = fit(Translation())
    config = made.config
    assert made.is_confirmed
    assert (config.architecture, config.num_heads, config.activation) == ("encoder-decoder", 3, "gelu")
    assert (config.norm_position, config.final_norm, config.pad_id) == ("post", True, 1)


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=53, n_embd=24, n_layer=2, n_head=3))


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **HEADS))


def t5() -> Any:
    config = transformers.T5Config(vocab_size=53, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3)
    return transformers.T5ForConditionalGeneration(config)


def gemma2() -> Any:
    config = transformers.Gemma2Config(
        **SIZES, **HEADS, head_dim=8, sliding_window=5, attn_implementation="eager", layer_types=None
    )
    return transformers.Gemma2ForCausalLM(config)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("make", [gpt2, llama, t5, gemma2], ids=lambda make: make.__name__)
def test_a_model_of_transformers_is_fitted_to_its_family(make: Callable[[], Any]) -> None:
    made = fit(make())
    assert made.is_confirmed
    assert set(made.differences) <= {"padding", "attention_multiplier", "attention_softcap", "final_softcap"}
    assert made.unused == ()
