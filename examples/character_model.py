"""Document 001's character language model learns the same text in PyTorch and in JAX, with the same batches.

    python examples/character_model.py [--steps N] [--out DIR]

A table shows text sampled from both models, before and after training, with the same random numbers. The picture
DIR/character_model.png shows both losses and their difference. For comparison, the picture also shows the difference
between two PyTorch runs whose initial weights are rounded differently.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from transparity.config import TransformerConfig
from transparity.parameters import initialize_parameters
from transparity.presets import preset
from transparity.protocol import Arrays
from transparity.training import Training
from transparity_flax.port import build as jax
from transparity_pytorch.port import build as pytorch

TEXT = Path(__file__).with_name("text.txt")
SIZES = {"max_length": 64, "embed_dim": 96, "num_heads": 6, "num_decoder_layers": 3}
TRAINING = Training(optimizer="adam", learning_rate=0.4, warmup_steps=100, max_norm=1.0)
BATCH = 16
PROMPT, WRITTEN = "Alice ", 200
"""The prompt of the sampled text, and the number of characters that follow it."""
LAST = 20

PALE, DARK, RED, GREY = "#f5b78a", "#1d3557", "#d1495b", "#8d99ae"


Build = Callable[..., Any]


@dataclass(frozen=True)
class Learned:
    losses: np.ndarray
    parameters: Arrays


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


def learn(build: Build, config: TransformerConfig, parameters: Arrays, batches: Sequence[Arrays]) -> Learned:
    losses, learned = build(config, parameters).train(batches, TRAINING)
    return Learned(np.array(losses), learned)


def written(build: Build, config: TransformerConfig, parameters: Arrays, characters: str) -> str:
    """Return the prompt and sampled text after it, with the same random numbers in every column."""
    uniforms = np.random.default_rng(0).random((1, WRITTEN))
    prompt = encoded(PROMPT, characters)[None]
    return decoded(build(config, parameters).generate(prompt, WRITTEN, uniforms=uniforms)[0], characters)


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
    first, other, control = (run.losses for run in runs.values())
    steps = np.arange(1, len(first) + 1)
    # A thick, pale line is drawn under a thin, dark line, so that both are visible where they coincide.
    above.plot(steps, first, color=PALE, linewidth=5, solid_capstyle="round", label="PyTorch")
    above.plot(steps, other, color=DARK, linewidth=1.1, label="JAX")
    above.set(title="The same training in two frameworks: document 001's character model", ylabel="loss (nats)")
    plot_distance(below, first, control, RED, "PyTorch, with initial weights changed by one rounding")
    plot_distance(below, first, other, DARK, "JAX")
    last_bit = np.spacing(first.astype(np.float32))
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
    planned: dict[str, tuple[Build, Arrays]] = {
        "PyTorch": (pytorch, first),
        "JAX": (jax, first),
        "PyTorch, weights changed by one rounding": (pytorch, nudged(first)),
    }
    runs = track(planned.items(), "Training", console=console)
    return {name: learn(build, config, parameters, batches) for name, (build, parameters) in runs}


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
    before = [written(build, config, first, characters) for build in (pytorch, jax)]
    trained = ((pytorch, runs["PyTorch"]), (jax, runs["JAX"]))
    after = [written(build, config, run.parameters, characters) for build, run in trained]
    console.print(samples(before, after), outcome(runs))
    out.mkdir(parents=True, exist_ok=True)
    plot(runs).savefig(out / "character_model.png", dpi=150)
    console.print(f"The curves are in {out / 'character_model.png'}.", soft_wrap=True, highlight=False)


if __name__ == "__main__":
    typer.run(main)
