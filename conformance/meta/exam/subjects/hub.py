"""Loaders that read Hugging Face folders with transformers, with fused or plain attention, with or without a cache."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

transformers.logging.disable_progress_bar()

LONGER = {"max_position_embeddings": 37}
"""The maximum length, which must exceed the 32 tokens with which `meta.exam.rules` judges a port."""

FIELDS = dict.fromkeys(("bert", "gemma", "gemma2", "llama", "mistral", "opt", "qwen2", "qwen3"), LONGER)
FIELDS |= {"bart": LONGER, "marian": LONGER, "gpt2": {"n_positions": 37}, "t5": {"n_positions": 37}}
FIELDS |= {"roberta": {"max_position_embeddings": 39}, "whisper": {"max_target_positions": 37}}
_EXPERTS = ("deepseek_v3", "gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next")
_OTHERS = ("cohere", "gemma3_text", "granite", "gpt_neox", "mamba2", "ministral3", "olmo2", "phi3", "smollm3")
FIELDS |= dict.fromkeys((*_EXPERTS, *_OTHERS, "clip_text_model", "modernbert"), LONGER)


def _loader(kind: str, **named: Any) -> Callable[[str], Any]:
    return lambda folder: getattr(transformers, kind).from_pretrained(folder, **named)


EAGER = {"attn_implementation": "eager"}

load, eager = _loader("AutoModelForCausalLM"), _loader("AutoModelForCausalLM", **EAGER)
encoder, listener = _loader("AutoModel"), _loader("AutoModelForSpeechSeq2Seq")
translator, eager_translator = _loader("AutoModelForSeq2SeqLM"), _loader("AutoModelForSeq2SeqLM", **EAGER)


def named(folder: str) -> Any:
    name = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))["architectures"][0]
    return getattr(transformers, name).from_pretrained(folder)


class Cached:
    """A decoder that also runs in cached steps."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval()

    def __call__(self, input_ids: torch.Tensor) -> Any:
        return self.model(input_ids, use_cache=False)

    def step(self, tokens: torch.Tensor, cache: Any) -> Any:
        answer = self.model(tokens, past_key_values=cache, use_cache=True)
        return answer.logits, answer.past_key_values


def cached(folder: str) -> Any:
    return Cached(load(folder))


class CachedTranslator:
    """An encoder-decoder that also runs in cached steps."""

    def __init__(self, model: Any) -> None:
        self.model, self.pad = model.eval(), model.config.pad_token_id

    def __call__(self, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor, attention_mask: Any) -> Any:
        given = {"attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids}
        return self.model(input_ids, **given, use_cache=False)

    def step(self, tokens: torch.Tensor, cache: Any, source: torch.Tensor | None = None) -> Any:
        memory, mask, past = cache or (None, (source != self.pad).long(), None)
        memory = self.model.get_encoder()(source, attention_mask=mask) if memory is None else memory
        given = {"encoder_outputs": memory, "attention_mask": mask, "decoder_input_ids": tokens}
        answer = self.model(**given, past_key_values=past, use_cache=True)
        return answer.logits, (memory, mask, answer.past_key_values)


def cached_translator(folder: str) -> Any:
    return CachedTranslator(translator(folder))
