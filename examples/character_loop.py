"""A small Llama learns to predict characters. The PyTorch column is an ordinary module, so the loop is plain PyTorch.

python examples/character_loop.py [--steps N]
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from torch.nn import functional as F

from transparity import TransformerConfig
from transparity_pytorch.transformer import Transformer

TEXT = Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
CHARACTERS = sorted(set(TEXT))
LENGTH, BATCH = 64, 16


LLAMA = TransformerConfig(
    architecture="decoder",
    target_vocab_size=len(CHARACTERS),
    max_length=LENGTH,
    embed_dim=96,
    num_heads=6,
    num_key_value_heads=2,
    num_decoder_layers=3,
    feed_forward_dim=256,
    gated=True,
    activation="silu",
    norm="rms",
    norm_position="pre",
    final_norm=True,
    positions="rotary",
    pad_id=None,
)


def learn(model: Transformer, steps: int) -> list[float]:
    """Train the model; return the loss before each step."""
    tokens = torch.tensor([CHARACTERS.index(character) for character in TEXT])
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(steps):
        begins = torch.randint(len(tokens) - LENGTH, (BATCH, 1))
        window = tokens[begins + torch.arange(LENGTH + 1)]
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(steps: Annotated[int, typer.Option(min=1)] = 200) -> None:
    torch.manual_seed(0)
    losses = learn(Transformer(LLAMA), steps)
    print(f"loss {losses[0]:.2f} before the first step, {losses[-1]:.2f} before the last")


if __name__ == "__main__":
    typer.run(main)
