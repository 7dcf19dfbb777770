"""A loader whose model shards the logits over the ranks, along the vocabulary."""

import os
from pathlib import Path
from typing import Any

import torch

from transparity_conformance.running.loading import load_port

load_whole = load_port(f"{Path(__file__).parents[1] / 'check' / 'hand_written_llama.py'}:load")

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Columns(torch.nn.Module):
    """A model that returns the rank's share of the logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.placements = model, {"logits": "sharded:-1"}

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(tokens).tensor_split(RANKS, -1)[RANK]


def load(folder: str) -> Columns:
    return Columns(load_whole(folder))
