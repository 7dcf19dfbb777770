"""Classes of transformers, as they are loaded from a hub's folder."""

from __future__ import annotations

from typing import Any

import transformers

transformers.logging.disable_progress_bar()


def load(folder: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def encoder(folder: str) -> Any:
    return transformers.AutoModel.from_pretrained(folder)


def translator(folder: str) -> Any:
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)


LONGER = {"max_position_embeddings": 37}
FIELDS = dict.fromkeys(("bert", "gemma", "gemma2", "llama", "mistral", "opt", "qwen2", "qwen3"), LONGER)
FIELDS |= {"bart": LONGER, "marian": LONGER, "gpt2": {"n_positions": 37}, "t5": {"n_positions": 37}}
FIELDS |= {"roberta": {"max_position_embeddings": 39}}
