"""Llama and Mistral of Penzai (JAX), made from transformers models by Penzai's converter."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import torch
from penzai import pz
from penzai.models.transformer.variants.llamalike_common import llamalike_from_huggingface_model
from safetensors.torch import load_file


def load(folder: str) -> Any:
    c = json.loads(Path(folder, "config.json").read_text())
    config = SimpleNamespace(**c | {"rope_theta": c["rope_parameters"]["rope_theta"]})
    tensors = load_file(f"{folder}/model.safetensors")
    model = llamalike_from_huggingface_model(
        SimpleNamespace(config=config, dtype=torch.float32, state_dict=lambda: tensors)
    )

    def forward(input_ids: Any) -> Any:
        tokens = pz.nx.wrap(jnp.asarray(input_ids)).tag("batch", "seq")
        logits = model(tokens, token_positions=pz.nx.arange("seq", tokens.named_shape["seq"]))
        return logits.unwrap("batch", "seq", "vocabulary")

    return forward
