"""Write docs/forward.json, the data of the site's animation: forward passes of a small model that spells words
backwards.

`python -m docs.forward` trains the model with the PyTorch column for some minutes. Then the NumPy column computes the
activations.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import initialize_parameters
from transparity.protocol import Arrays
from transparity.training import Training
from transparity_conformance.checkpoints.examples import example_config
from transparity_numpy.port import build
from transparity_pytorch.port import build as build_pytorch

DATA = Path(__file__).with_name("forward.json")
LETTERS = "\0>.abcdefghijklmnopqrstuvwxyz"
"""The character of each token: padding, the mark between word and answer, the end, and letters."""

WORDS = ("gradient", "softmax", "pytorch", "masked", "residual")
LENGTHS, LENGTH = (3, 9), 20
BATCH, STEPS = 64, 2500
TRAINING = Training(optimizer="adam", learning_rate=0.5, warmup_steps=400, max_norm=1.0)
BEST = 5
"""The number of predictions shown for each position."""


def model() -> TransformerConfig:
    sizes: dict[str, Any] = {"embed_dim": 32, "num_heads": 4, "num_decoder_layers": 2, "feed_forward_dim": 128}
    sizes |= {"max_length": LENGTH, "target_vocab_size": len(LETTERS)}
    return dataclasses.replace(example_config("gpt2"), pad_id=0, **sizes)


def batch(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random words, each followed by its reversal; only the reversal is in the targets."""
    tokens, targets = np.zeros((2, BATCH, LENGTH), int)
    for row in range(BATCH):
        word = random.integers(3, len(LETTERS), random.integers(LENGTHS[0], LENGTHS[1] + 1))
        line = np.concatenate([word, [1], word[::-1], [2]])
        tokens[row, : len(line) - 1] = line[:-1]
        targets[row, len(word) : len(line) - 1] = line[len(word) + 1 :]
    return {"tokens": tokens, "targets": targets}


def learned(config: TransformerConfig, steps: int) -> Arrays:
    random = np.random.default_rng(0)
    forward = build_pytorch(config, initialize_parameters(config, 0))
    return forward.train([batch(random) for _ in range(steps)], TRAINING)[1]


def recorded(config: TransformerConfig, parameters: Arrays, word: str) -> dict[str, Any]:
    """Return what the page shows for one word: attention weights as integers from 0 to 99, the residual stream, and
    predictions.

    Raises:
        ValueError: The model does not spell the word backwards.
    """
    text = f"{word}>{word[::-1]}"
    output = build(config, parameters, dtype="float64")(tokens=np.array([[LETTERS.index(letter) for letter in text]]))
    taps = {name: value[0] for name, value in output.items()}
    logits = taps["logits"]
    answer = "".join(LETTERS[token] for token in logits.argmax(-1)[len(word) :])
    if answer != f"{word[::-1]}.":
        raise ValueError(f"The model spells {word} backwards as {answer}; train it for more steps.")
    share = np.exp(logits - logits.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    order = np.argsort(-share, axis=-1)[:, :BEST]
    layers = [f"decoder.layers.{layer}" for layer in range(config.num_decoder_layers)]
    lower = np.tril_indices(len(text))
    stream = [("embedding", taps["decoder.embedding"])]
    stream += [(f"after layer {number}", taps[f"{name}.output"]) for number, name in enumerate(layers, 1)]
    return {
        "tokens": text,
        "weights": [
            [(head[lower] * 99).round().astype(int).tolist() for head in taps[f"{layer}.self_attention.weights"]]
            for layer in layers
        ],
        "stream": [(title, value.round(2).tolist()) for title, value in stream],
        "next": [
            [(LETTERS[token], round(100 * float(row[token]), 1)) for token in best]
            for row, best in zip(share, order, strict=True)
        ],
    }


def copying(runs: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the layer and the head that attends most to the letter to be written next."""
    found: dict[tuple[int, int], float] = {}
    for run in runs:
        size = run["tokens"].index(">")
        for layer, heads in enumerate(run["weights"]):
            for head, weights in enumerate(heads):
                looks = (weights[q * (q + 1) // 2 + 2 * size - q] for q in range(size, 2 * size))
                found[layer, head] = found.get((layer, head), 0) + sum(looks)
    return max(found, key=lambda place: found[place])


def main(steps: int = STEPS) -> None:
    config = model()
    parameters = learned(config, steps)
    runs = [recorded(config, parameters, word) for word in WORDS]
    text = json.dumps({"head": copying(runs), "runs": runs}, ensure_ascii=False, separators=(",", ":"))
    DATA.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
