"""Curated Transformers: BERT and RoBERTa with padding, Llama with a cache."""

import json
from pathlib import Path
from typing import Any

import torch
from curated_transformers.layers.attention import AttentionMask
from curated_transformers.models.bert import BERTEncoder
from curated_transformers.models.llama import LlamaCausalLM
from curated_transformers.models.roberta import RoBERTaEncoder
from safetensors.torch import load_file

DROPOUTS = {"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1}
"""The dropout rates in published folders."""


def _loaded(kind: Any, folder: str, tensors: dict[str, torch.Tensor]) -> Any:
    config = DROPOUTS | json.loads(Path(folder, "config.json").read_text())
    model = kind.from_hf_config(hf_config=config)
    model.load_state_dict(model.state_dict_from_hf(tensors))
    return model.eval()


def load_bert(folder: str, kind: Any = BERTEncoder) -> Any:
    """Build BERT, or another encoder, and add the pooler, which these models lack."""
    tensors = load_file(f"{folder}/model.safetensors")
    weight, bias = tensors.pop("pooler.dense.weight"), tensors.pop("pooler.dense.bias")
    model = _loaded(kind, folder, tensors)

    def forward(input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> torch.Tensor:
        hidden = model(input_ids, AttentionMask(attention_mask.bool()), type_ids=token_type_ids).last_hidden_layer_state
        return torch.tanh(hidden[:, 0] @ weight.T + bias)

    return forward


def load_roberta(folder: str) -> Any:
    return load_bert(folder, RoBERTaEncoder)


def load_llama(folder: str) -> Any:
    model = _loaded(LlamaCausalLM, folder, load_file(f"{folder}/model.safetensors"))

    def forward(input_ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids, AttentionMask(torch.ones_like(input_ids, dtype=torch.bool))).logits

    def step(tokens: Any, cache: Any) -> tuple[torch.Tensor, Any]:
        tokens = torch.as_tensor(tokens)
        seen = 0 if cache is None else cache[0].key.shape[-2]
        mask = AttentionMask(torch.ones(len(tokens), seen + tokens.shape[1], dtype=torch.bool))
        with torch.no_grad():
            answer = model(tokens, mask, cache=cache, store_cache=True)
        return answer.logits, answer.cache

    forward.step = step  # type: ignore[attr-defined]
    return forward
