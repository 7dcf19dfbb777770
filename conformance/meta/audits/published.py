"""The loaders of transformers, which has every family."""

from __future__ import annotations

import warnings
from typing import Any

from transparity_conformance.checkpoints.importing import FAMILIES

with warnings.catch_warnings():  # its warnings while it is imported are not about this project
    warnings.simplefilter("ignore")
    import transformers

transformers.logging.disable_progress_bar()


def causal(folder: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def encoder(folder: str) -> Any:
    return transformers.AutoModel.from_pretrained(folder)


def masked(folder: str) -> Any:
    return transformers.AutoModelForMaskedLM.from_pretrained(folder)


def translator(folder: str) -> Any:
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)


OTHERS = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), encoder),
    **dict.fromkeys(("bart", "marian", "t5"), translator),
    **dict.fromkeys(("distilbert", "modernbert"), masked),
}
LOADERS = {family: OTHERS.get(family, causal) for family in FAMILIES}
