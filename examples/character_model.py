"""Document 001's character language model learns the same text in PyTorch and in JAX, with the same batches.

    python examples/character_model.py [--steps N] [--out DIR]

A table shows text sampled from both models, before and after training, with the same random numbers. The picture
DIR/character_model.png shows both losses and their difference. For comparison, the picture also shows the difference
between two PyTorch runs whose initial weights are rounded differently.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import torch
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

import transparity_flax.port
import transparity_flax.training.optimization
import transparity_pytorch.port
import transparity_pytorch.training.optimization
from transparity.config import TransformerConfig
from transparity.parameters import initialize_parameters
from transparity.presets import preset
from transparity.protocol import Arrays
from transparity.training import Training

TEXT = Path(__file__).with_name("text.txt")
SIZES = {"max_length": 64, "embed_dim": 96, "num_heads": 6, "num_decoder_layers": 3}
TRAINING = Training(optimizer="adam", learning_rate=0.4, warmup_steps=100, max_norm=1.0)
BATCH = 16
PROMPT, WRITTEN = "Alice ", 200
"""The prompt of the sampled text, and the number of characters that follow it."""
LAST = 20

PALE, DARK, RED, GREY = "#f5b78a", "#1d3557", "#d1495b", "#8d99ae"


@dataclass(frozen=True)
class Column:
    """A framework: its `build`, its training function, and its function that converts a NumPy array to a tensor."""

    build: Callable[..., Any]
    train: Callable[..., tuple[list[float], Mapping[str, Any]]]
    tensor: Callable[[np.ndarray], Any]


PYTORCH = Column(transparity_pytorch.port.build, transparity_pytorch.training.optimization.train, torch.as_tensor)
JAX = Column(transparity_flax.port.build, transparity_flax.training.optimization.train, jnp.asarray)


@dataclass(frozen=True)
class Learned:
    losses: np.ndarray
    parameters: Arrays


class Watched(Sequence[Any]):
    """Batches that are converted to tensors when training reads them; `taken` is called for each batch."""

    def __init__(
        self, batches: Sequence[Arrays], tensor: Callable[[np.ndarray], Any], taken: Callable[[], Any]
    ) -> None:
        self.batches, self.tensor, self.taken = batches, tensor, taken

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, step: Any) -> Any:
        batch = {name: self.tensor(tokens) for name, tokens in self.batches[step].items()}
        self.taken()
        return batch


def paragraphs(text: str) -> str:
    """Return the text with its lines joined into paragraphs."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text.strip())


def characters_of(text: str) -> str:
    """Return the character of each token. Token 0 is padding, which the preset has and the document lacks."""
    return "\0" + "".join(sorted(set(text)))


def encoded(text: str, characters: str) -> np.ndarray:
    return np.array([characters.index(character) for character in text])


def decoded(tokens: np.ndarray, characters: str) -> str:
    return "".join(characters[token] for token in tokens).replace("\0", "·")


def config_for(characters: str, **sizes: Any) -> TransformerConfig:
    """Return the configuration of the document's model, at a size that two cores train in a minute."""
    return preset("notes-lm").resized(target_vocab_size=len(characters), **(SIZES | sizes))


def batches_of(tokens: np.ndarray, config: TransformerConfig, steps: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Return a batch for each step: windows of the text, and the same windows one character later as targets."""
    random, width = np.random.default_rng(seed), config.max_length + 1
    begins = random.integers(0, len(tokens) - width + 1, (steps, BATCH, 1))
    windows = tokens[begins + np.arange(width)]
    return [{"tokens": window[:, :-1], "targets": window[:, 1:]} for window in windows]


def nudged(parameters: Arrays, seed: int = 0) -> dict[str, np.ndarray]:
    """Replace every weight by the next float32 above or below it, which is the smallest possible change."""
    random = np.random.default_rng(seed)
    sides = {name: random.choice([-np.inf, np.inf], value.shape) for name, value in parameters.items()}
    return {name: np.nextafter(value, sides[name].astype(value.dtype)) for name, value in parameters.items()}


def learn(
    column: Column,
    config: TransformerConfig,
    parameters: Arrays,
    batches: Sequence[Arrays],
    taken: Callable[[], Any] = lambda: None,
) -> Learned:
    """Train with the column's training function; `forward.train` would convert all batches before the first step."""
    model = column.build(config, parameters).model
    losses, learned = column.train(model, Watched(batches, column.tensor, taken), TRAINING)
    return Learned(np.array(losses), {name: np.asarray(value) for name, value in learned.items()})


def written(
    column: Column, config: TransformerConfig, parameters: Arrays, characters: str, count: int = WRITTEN, seed: int = 0
) -> str:
    """Return the prompt and sampled text after it, with the same random numbers in every column."""
    uniforms = np.random.default_rng(seed).random((1, count))
    prompt = encoded(PROMPT, characters)[None]
    return decoded(column.build(config, parameters).generate(prompt, count, uniforms=uniforms)[0], characters)


def samples(before: Sequence[str], after: Sequence[str]) -> Table:
    """Return the sampled texts of PyTorch and JAX side by side; ¶ marks a new paragraph."""
    table = Table(title="Text sampled with the same random numbers", show_lines=True)
    for heading in ("", "PyTorch", "JAX"):
        table.add_column(heading, ratio=1 if heading else None, overflow="fold")
    for when, texts in (("before", before), ("after", after)):
        table.add_row(when, *(Text(re.sub("\n+", "¶", text)) for text in texts))
    return table


def outcome(runs: Mapping[str, Learned]) -> Table:
    """Return the mean of each run's last losses, and the largest difference from PyTorch's loss."""
    table = Table(title="Losses")
    for heading in ("", f"mean of the last {LAST} steps", "largest difference from PyTorch's"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, run in runs.items():
        distance = np.abs(run.losses - runs["PyTorch"].losses)
        furthest = f"{distance.max():.2g} (step {distance.argmax() + 1})" if distance.any() else ""
        table.add_row(name, f"{run.losses[-LAST:].mean():.4f}", furthest)
    return table


def plot(runs: Mapping[str, Learned]) -> Figure:
    """Plot both losses and, below them, the difference between them."""
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    pytorch, jax, control = (run.losses for run in runs.values())
    steps = np.arange(1, len(pytorch) + 1)
    # A thick, pale line is drawn under a thin, dark line, so that both are visible where they coincide.
    above.plot(steps, pytorch, color=PALE, linewidth=5, solid_capstyle="round", label="PyTorch")
    above.plot(steps, jax, color=DARK, linewidth=1.1, label="JAX")
    above.set(title="The same training in two frameworks: document 001's character model", ylabel="loss (nats)")
    plot_distance(below, pytorch, control, RED, "PyTorch, with initial weights changed by one rounding")
    plot_distance(below, pytorch, jax, DARK, "JAX")
    last_bit = np.spacing(pytorch.astype(np.float32))
    below.plot(steps, last_bit, "--", color=GREY, linewidth=1.1, label="the last bit of the loss")
    below.set(xlabel="step", ylabel="difference from PyTorch's loss", yscale="log", xlim=(0, len(steps) + 1))
    below.set_ylim(bottom=last_bit.min() / 2)
    finish(above, loc="upper right")
    finish(below, loc="lower right", bbox_to_anchor=(1, 0.13))  # between both curves
    return figure


def plot_distance(panel: Axes, losses: np.ndarray, others: np.ndarray, color: str, label: str) -> None:
    """Plot a dot for each step, and a line through the largest difference so far.

    The axis is logarithmic, so differences of zero are not shown.
    """
    distance = np.abs(losses - others)
    distance[distance == 0] = np.nan
    steps = np.arange(1, len(losses) + 1)
    panel.plot(steps, distance, ".", color=color, markersize=3.5, alpha=0.5, markeredgewidth=0)
    panel.plot(steps, np.fmax.accumulate(distance), color=color, linewidth=1.6, label=label)


def finish(panel: Axes, **place: Any) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color="#e5e5e5", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.legend(frameon=False, **place)


def compare(
    config: TransformerConfig, first: Arrays, batches: Sequence[Arrays], console: Console
) -> dict[str, Learned]:
    """Train once in each framework, and once more in PyTorch from slightly different weights."""
    planned = {
        "PyTorch": (PYTORCH, first),
        "JAX": (JAX, first),
        "PyTorch, weights changed by one rounding": (PYTORCH, nudged(first)),
    }
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    runs = {}
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        tasks = {name: bar.add_task(name, total=len(batches), start=False) for name in planned}
        for name, (column, parameters) in planned.items():
            bar.start_task(tasks[name])
            runs[name] = learn(column, config, parameters, batches, partial(bar.advance, tasks[name]))
    return runs


def main(
    steps: Annotated[int, typer.Option(min=1, help="The number of training steps in each framework.")] = 500,
    out: Annotated[Path, typer.Option(help="The folder of the plot.")] = Path("reports"),
) -> None:
    """Train document 001's character model in PyTorch and in JAX, and compare."""
    console = Console()
    text = paragraphs(TEXT.read_text(encoding="utf-8"))
    characters = characters_of(text)
    config = config_for(characters)
    first = initialize_parameters(config)
    runs = compare(config, first, batches_of(encoded(text, characters), config, steps), console)
    before = [written(column, config, first, characters) for column in (PYTORCH, JAX)]
    trained = ((PYTORCH, runs["PyTorch"]), (JAX, runs["JAX"]))
    after = [written(column, config, run.parameters, characters) for column, run in trained]
    console.print(samples(before, after), outcome(runs))
    out.mkdir(parents=True, exist_ok=True)
    plot(runs).savefig(out / "character_model.png", dpi=150)
    console.print(f"The curves are in {out / 'character_model.png'}.", soft_wrap=True, highlight=False)


if __name__ == "__main__":
    typer.run(main)
