"""A toy translation by document 004's transformer: words of random letters are spelled backwards.

    python examples/toy_translation.py [--backend pytorch|flax]

The bar shows the loss, and the share of held-out words that greedy decoding gets right to the last letter. At the end,
other held-out words decide: the exit code is 0 if at least 99 % of them are right, else 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from transparity.config import TransformerConfig
from transparity.parameters import initialize_parameters
from transparity.presets import preset
from transparity.protocol import ENTRY_POINTS, Backend, Forward
from transparity.training import Training

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHORTEST, LONGEST = 4, 11
PAD, BOS, EOS, FIRST_LETTER = 0, 1, 2, 3
SHOWN = ("transparity", "attention", "softmax", "decoder")
"""Words in the table at the end; held out too."""

CONFIG = preset("translation").resized(
    source_vocab_size=FIRST_LETTER + len(LETTERS),
    target_vocab_size=FIRST_LETTER + len(LETTERS),
    max_length=LONGEST + 2,
    embed_dim=64,
    num_heads=4,
)

# Each call of `train` begins with new moments and its own warm-up, so each round is a warm restart.
TRAINING = Training(optimizer="adam", learning_rate=0.16, warmup_steps=75, max_norm=1.0)
ROUNDS, STEPS, BATCH = 8, 150, 64
HELD_OUT, NEEDED = 1000, 0.99
"""Held-out words to follow training by, and as many to judge it by; the share that must be right."""
ENOUGH = 0.998
"""The share of watched words at which training ends early."""


class Framework(StrEnum):
    """The column to train."""

    pytorch = "pytorch"
    flax = "flax"


@dataclass(frozen=True)
class Round:
    """The model after some steps of training."""

    forward: Forward
    loss: float
    accuracy: float


def backend(framework: Framework) -> Backend:
    """Return the column's `build` without importing the other framework."""
    (entry_point,) = entry_points(group=ENTRY_POINTS, name=framework.value)
    build: Backend = entry_point.load()
    return build


def random_words(random: np.random.Generator, count: int, excluded: Collection[str] = ()) -> list[str]:
    """Return different words of random letters and lengths, without those `excluded`."""
    words: dict[str, None] = {}
    while len(words) < count:
        letters = random.choice(list(LETTERS), random.integers(SHORTEST, LONGEST + 1))
        word = "".join(letters)
        if word not in excluded:
            words[word] = None
    return list(words)


def tokens_of(words: Sequence[str]) -> np.ndarray:
    """Return `<bos>`, the letters and `<eos>` of every word, padded to the longest possible word."""
    rows = np.full((len(words), LONGEST + 2), PAD)
    for row, word in zip(rows, words, strict=True):
        row[: len(word) + 2] = [BOS, *(FIRST_LETTER + LETTERS.index(letter) for letter in word), EOS]
    return rows


def words_of(rows: np.ndarray) -> list[str]:
    """Return the letters of every row up to its `<eos>`, with `?` for other tokens."""
    words = []
    for row in rows.tolist():
        spelled = row[: row.index(EOS)] if EOS in row else row
        words.append("".join(LETTERS[token - FIRST_LETTER] if token >= FIRST_LETTER else "?" for token in spelled))
    return words


def backwards(words: Sequence[str]) -> list[str]:
    return [word[::-1] for word in words]


def batch_of(words: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the words, their reversals, and as targets the next token at each position."""
    translation = tokens_of(backwards(words))
    return {"source": tokens_of(words), "target": translation[:, :-1], "targets": translation[:, 1:]}


def translated(forward: Forward, words: Sequence[str]) -> list[str]:
    """Decode the words greedily, from `<bos>` to `<eos>`."""
    rows = forward.generate(None, LONGEST + 1, source=tokens_of(words))
    return words_of(rows[:, 1:])


def accuracy(forward: Forward, words: Sequence[str]) -> float:
    """Return the share of the words that come out exactly."""
    pairs = zip(translated(forward, words), backwards(words), strict=True)
    return sum(got == expected for got, expected in pairs) / len(words)


def rounds(
    build: Backend,
    watched: Sequence[str],
    held_out: Collection[str],
    *,
    config: TransformerConfig = CONFIG,
    steps: int = STEPS,
    seed: int = 0,
) -> Iterator[Round]:
    """Train in rounds on words that are not held out, each with a smaller learning rate."""
    random, parameters = np.random.default_rng(seed), initialize_parameters(config, seed)
    for number in range(1, ROUNDS + 1):
        batches = [batch_of(random_words(random, BATCH, held_out)) for _ in range(steps)]
        training = dataclasses.replace(TRAINING, learning_rate=TRAINING.learning_rate / number)
        losses, learned = build(config, parameters).train(batches, training)
        parameters = dict(learned)
        forward = build(config, parameters)
        yield Round(forward, float(np.mean(losses[-20:])), accuracy(forward, watched))


def learn(build: Backend, watched: Sequence[str], held_out: Collection[str], console: Console) -> Forward:
    """Return the model after the first round that is good enough, or after the last."""
    columns = SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("steps"), TimeElapsedColumn()
    says = TextColumn("loss {task.fields[loss]:.4f}, right {task.fields[accuracy]:.1%}")
    with Progress(*columns, says, console=console) as bar:
        task = bar.add_task("", total=ROUNDS * STEPS, loss=float("nan"), accuracy=0.0)
        for done in rounds(build, watched, held_out):
            bar.update(task, advance=STEPS, loss=done.loss, accuracy=done.accuracy)
            if done.accuracy >= ENOUGH:
                break
        bar.update(task, total=bar.tasks[task].completed)
    return done.forward


def shown(forward: Forward) -> Table:
    """Return some words beside their translations."""
    table = Table("word", "translated", title="Spelled backwards")
    for word, got in zip(SHOWN, translated(forward, SHOWN), strict=True):
        table.add_row(word, got if got == word[::-1] else f"[red]{got}")
    return table


def main(
    framework: Annotated[Framework, typer.Option("--backend", help="The column to train.")] = Framework.pytorch,
    seed: Annotated[int, typer.Option(help="Seed of the held-out words.")] = 1,
) -> None:
    """Train document 004's transformer to spell words backwards, and judge it by words that it has not seen."""
    console = Console(highlight=False)
    held_out = random_words(np.random.default_rng(seed), 2 * HELD_OUT, SHOWN)
    watched, judges = held_out[:HELD_OUT], held_out[HELD_OUT:]
    forward = learn(backend(framework), watched, {*held_out, *SHOWN}, console)
    console.print(shown(forward))
    share = accuracy(forward, judges)
    console.print(f"{share:.1%} of {HELD_OUT} words that were in no batch are right to the last letter.")
    raise typer.Exit(0 if share >= NEEDED else 1)


if __name__ == "__main__":
    typer.run(main)
