"""A hub's folder, run by transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.stranger import PortCallError, call_stranger
from transparity_conformance.checkpoints.reading import read_fields
from transparity_conformance.report.text import reason
from transparity_conformance.running.forward import forward_of
from transparity_conformance.running.loading import Limits, LoadError


class HubModel:
    """A folder with config.json and safetensors."""

    limits = Limits()

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self, config: TransformerConfig, parameters: Mapping[str, np.ndarray], *, dtype: str = "float32"
    ) -> Callable[..., Any]:
        """The forward pass of the model in `dtype`."""
        named = {"dtype": getattr(torch, dtype), "local_files_only": True, "use_safetensors": True}
        try:
            model = call_stranger(_model_class(config, self.folder).from_pretrained, str(self.folder), **named)
        except PortCallError as error:
            raised = error.__cause__ or error
            raise LoadError(f"{self.folder} cannot be read by transformers: {reason(raised)}.") from None
        return forward_of(model, config)


def load(path: Path) -> HubModel:
    """Open a folder: its config.json is read, and its weights once it is built."""
    read_fields(path)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return HubModel(path)


def _model_class(config: TransformerConfig, folder: Path) -> Any:
    """The class of transformers for what the model answers with; classes, and projections of a pooled state, are those
    of the class that config.json names, of texts or of images."""
    if config.head == "classes":
        named = read_fields(folder).get("architectures") or [None]
        return getattr(transformers, str(named[0]), transformers.AutoModelForSequenceClassification)
    if config.head != "logits":
        return transformers.AutoModel
    if config.architecture == "encoder":
        return transformers.AutoModelForMaskedLM
    if config.reads_frames:
        return transformers.AutoModelForSpeechSeq2Seq
    causal = config.architecture == "decoder"
    return transformers.AutoModelForCausalLM if causal else transformers.AutoModelForSeq2SeqLM
