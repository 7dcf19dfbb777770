"""Generated parts of the pages of the five documents: presets, departures from the paper, and recomputed numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from docs.site.pages import TITLES, cell, table

from transparity.config import TransformerConfig
from transparity.parameters import initialize_parameters, parameter_shapes
from transparity.presets import PRESETS, departures
from transparity.protocol import Harness
from transparity_conformance.oracle.backends import backend, harness
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.suite.claims import documents as printed

PLACE = "<!-- run: by docs/site/documents.py, in the site -->"
"""The line of a document's page that the generated part replaces."""

DOCUMENTS = ("000", "001", "002", "003", "004")


@dataclass(frozen=True)
class Printed:
    """Numbers that a document prints, and a function that computes these numbers in one of the three frameworks."""

    title: str
    numbers: Any
    compute: Callable[[str], Any]
    note: str = ""


def _harness(column: str) -> Harness:
    parts = harness(column)
    assert parts, f"the column {column} has no harness"
    return parts


def _function(name: str, *arguments: Any) -> Callable[[str], Any]:
    return lambda column: _harness(column).function(name, dtype="float32", device="cpu")(*arguments)


def _einsum(subscripts: str) -> Callable[[str], Any]:
    return lambda column: _harness(column).einsum(subscripts, printed.A, printed.B)


def _padding(column: str) -> Any:
    visible = _function("masks.visible_keys", np.array(printed.PADDED), 0)(column)
    return as_numbers(_function("masks.padding_mask", visible)(column))[:, 0, 0]


WRONG = "The document prints this result for `ij,kj->ik`, which would be A·Bᵀ."
HEADS = _function("mixers.attention.split_heads", np.array([printed.TOKENS], np.float32), 2)
FUTURE = _function("masks.causal_mask", np.arange(5)[None], 5)

NUMBERS: dict[str, tuple[Printed, ...]] = {
    "000": (
        Printed("`einsum('ij,jk->ik', A, B)`", printed.PRODUCT, _einsum("ij,jk->ik"), WRONG),
        Printed("`einsum('ij,kj->ikj', A, B)`", printed.ROW_BY_ROW, _einsum("ij,kj->ikj")),
        Printed("`einsum('ij,kl->ijkl', A, B)`", printed.OUTER, _einsum("ij,kl->ijkl")),
    ),
    "003": (
        Printed("`split_heads`", printed.HEADS, HEADS),
        Printed("The padding mask", printed.PADDING, _padding),
        Printed("`future_mask(5)`", printed.FUTURE, FUTURE),
    ),
}
"""The numbers that documents print, except random numbers. The printed shapes are in `PRINTED_SHAPES` of the claims."""


def section(document: str) -> str:
    systems = {name: system for name, system in PRESETS.items() if system.document.startswith(document)}
    parts = [_preset(name, system.config, system.decided) for name, system in systems.items()]
    shown = [_numbers(each) for each in NUMBERS.get(document, ())]
    shown += [_shape(name) for name in systems if name in printed.PRINTED_SHAPES]
    told = "Computed when this site was built, by the three columns." if shown else "The document prints no numbers."
    return "\n\n".join([*parts, f"## The document's numbers, recomputed\n\n{told}", *shown]) + "\n"


def _preset(name: str, config: TransformerConfig, decided: str) -> str:
    number = sum(int(np.prod(shape)) for shape in parameter_shapes(config).values())
    stacks = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    layers = " and ".join(
        f"{count} layers of the {stack}" for stack, count in stacks.items() if stack in config.architecture
    )
    sizes = f"{config.embed_dim} features, {config.num_heads} heads, {layers}: {number:,} parameters."
    listed = "\n".join(f"- {cell(sentence)}" for sentence in departures(config))
    silent = f"\n\nDecided where the document is silent: {cell(decided)}." if decided else ""
    return f"## The preset `{name}`\n\n{sizes} It differs from Vaswani et al. (2017):\n\n{listed}{silent}"


def _numbers(each: Printed) -> str:
    expected = np.array(each.numbers)
    for column in TITLES:
        found = as_numbers(each.compute(column))
        if not np.array_equal(found.ravel(), expected.ravel()):
            raise ValueError(f"{each.title}: {column} computes {found.tolist()}, not what the document prints.")
    shown = f"```text\n{_text(expected)}\n```"
    told = f"{each.title}, as the document prints it. All three columns compute exactly these numbers:"
    return "\n\n".join(part for part in (told, shown, each.note) if part)


def _text(numbers: np.ndarray) -> str:
    with np.printoptions(linewidth=100, threshold=1000):
        return str(numbers.astype(int) if numbers.dtype == bool else numbers)


def _shape(name: str) -> str:
    batch, shape = printed.PRINTED_SHAPES[name]
    config = PRESETS[name].config
    given = {key: np.array(tokens)[:, : None if key == "source" else -1] for key, tokens in batch.items()}
    parameters = initialize_parameters(config, 9)
    logits = {}
    for column in TITLES:
        logits[column] = as_numbers(backend(column)(config, parameters, dtype="float32").logits(**given))
        if logits[column].shape != shape:
            raise ValueError(
                f"{name}: {column} has logits of the shape {logits[column].shape}; the document prints {shape}."
            )
    first = logits["numpy"]
    rows = [
        (f"`{name}`, {title}", str(logits[column].shape), f"{np.abs(logits[column] - first).max():.0e}")
        for column, title in TITLES.items()
    ]
    told = (
        f"The document prints `torch.Size({list(shape)})` for its batch. With the document's sizes, in float32, with "
        "random weights:"
    )
    return f"{told}\n\n{table(('logits of', 'shape', 'largest difference from NumPy'), rows)}"
