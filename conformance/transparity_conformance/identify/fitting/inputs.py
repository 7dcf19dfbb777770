"""Create inputs for the model that `fit` examines: tokens with or without padding, masks, images and audio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.port_calls import call_port
from transparity_conformance.identify.fitting.subject import FitError, FittedModel, ForeignError, RecordedCall
from transparity_conformance.identify.fitting.values.embedding import table_of
from transparity_conformance.identify.fitting.values.signals import frame_shapes, image_embedding, image_shapes
from transparity_conformance.oracle.oracle import Arrays

LENGTHS = ((31, 29), (19, 17), (13, 11), (9, 7), (5, 4), (3, 2))
"""Lengths of the source (or of a single stack) and the target, in the order of attempts."""

FRAMES = ("input_features", "mel", "mels", "audio", "frames", "features", "spectrogram")

FIRST, LAST = 12, 4
"""How many of the first and the last tokens of a large vocabulary are tried as padding."""

MOST = 512

Option = TypeVar("Option")
Taken = TypeVar("Taken")


def first_answer(subject: FittedModel) -> tuple[dict[str, int], Arrays]:
    """Return inputs that the module accepts, and the number of rows in the table of each input."""
    if "pixels" in subject.names:
        return _of_image(subject)
    if subject.names.get("source") in FRAMES:
        return _with_frames(subject)
    options: list[Callable[[FittedModel], tuple[dict[str, int], Arrays]]] = [_of_tokens]
    if subject.values and "attention_mask" not in subject.names:  # the first input may be an image or audio
        options += [_of_image if subject.inputs == ("tokens",) else _with_frames]
    try:
        return _first_taken(options, lambda answer: answer(subject))
    except FitError:
        subject.positions = {}
        raise


def _of_image(subject: FittedModel) -> tuple[dict[str, int], Arrays]:
    before = subject.names, subject.renamed
    if "pixels" not in subject.names:
        subject.names, subject.renamed = {"pixels": subject.names["tokens"]}, {"pixels": "tokens"}

    def taken(pixels: np.ndarray) -> np.ndarray:
        subject.positions = {"pixels": 1}  # a placeholder until `count_patches`
        subject.call({"pixels": pixels})
        return pixels

    try:
        shapes = (_drawn(subject, shape) for shape in image_shapes(subject.values))
        return {}, {"pixels": _first_taken(shapes, taken, NO_IMAGES)}
    except FitError:
        subject.names, subject.renamed = before
        raise


def count_patches(subject: FittedModel, pixels: np.ndarray) -> None:
    """Store an image's number of positions, and whether the module accepts larger images."""
    found = image_embedding(subject.hear({"pixels": pixels}), subject.values)
    subject.positions, more = {"pixels": len(found.value) // BATCH}, found.fields["patch_size"]
    if subject.takes({"pixels": np.pad(pixels, ((0, 0), (0, 0), (0, more), (0, more)))}):
        subject.loose.add("pixels")


def _with_frames(subject: FittedModel) -> tuple[dict[str, int], Arrays]:
    subject.names = {name: theirs for name, theirs in subject.names.items() if name in ("source", "target")}

    def taken(frames: np.ndarray) -> tuple[dict[str, int], Arrays]:
        subject.positions = {"source": frames.shape[2] // 2}
        sizes, target = _of_tokens(subject, {"source": frames})
        if subject.takes({**target, "source": np.pad(frames, ((0, 0), (0, 0), (0, 2)))}):
            subject.loose.add("source")
        return sizes, {**target, "source": frames}

    shapes = dict.fromkeys(frame_shapes(subject.values, {**subject.values, **call_port(subject.model.buffers)}))
    return _first_taken((_drawn(subject, shape) for shape in shapes), taken, NO_FRAMES)


def _of_tokens(subject: FittedModel, given: Arrays | None = None) -> tuple[dict[str, int], Arrays]:
    """Return the sizes of the tables, and `given` with random tokens of the first accepted length."""

    def taken(most: tuple[int, int]) -> tuple[dict[str, int], Arrays]:
        lengths = dict(zip(("source", "target") if len(subject.inputs) > 1 else subject.inputs, most, strict=False))
        lengths = {name: length - (length in subject.positions.values()) for name, length in lengths.items()}
        first = {name: subject.random.integers(0, 2, (BATCH, lengths[name])) for name in subject.tokens}
        sizes = _tables(subject, subject.hear(with_further(subject, {**(given or {}), **first}, {})))
        plain = Arrays()
        for name in first:  # avoid likely padding tokens; use distinct tokens in a row if possible
            usual = np.arange(4, sizes[name] - 1) if sizes[name] > 8 else np.arange(sizes[name])
            rows = (np.resize(subject.random.permutation(usual), lengths[name]) for _ in range(BATCH))
            plain[name] = np.stack([subject.random.permutation(row) for row in rows])
        plain = with_further(subject, {**(given or {}), **plain}, sizes)
        subject.call(plain)  # a table with fewer positions may accept `first`, which contains padding
        return sizes, plain

    of_tables = {each.shape[0] for each in subject.values.values() if each.ndim > 1 and each.shape[0] <= MOST}
    options = (*LENGTHS, *((each, each) for each in (64, 128, *sorted(of_tables))))  # 64, 128: for chunks
    return _first_taken(dict.fromkeys(options), taken)


def _first_taken(options: Iterable[Option], taken: Callable[[Option], Taken], without: str = "") -> Taken:
    """Return the result of the first option that the module accepts. Without such an option, raise the first error, or
    an error with the text `without`."""
    errors = [FitError(without)]
    for each in options:
        try:
            return taken(each)
        except ForeignError:
            raise
        except FitError as error:
            errors.append(error)
    raise errors[min(1, len(errors) - 1)]


def _tables(subject: FittedModel, heard: RecordedCall) -> dict[str, int]:
    sizes: dict[str, int] = {}
    used: set[str] = set()
    for name in (*subject.tokens, *(["token_types"] if "token_types" in subject.names else [])):
        left = {each: value for each, value in subject.values.items() if name in subject.tokens or each not in used}
        table = table_of(heard.operations, heard.inputs[name], left)
        if table is None and name == "token_types":  # the module ignores its token types
            del subject.names[name]
            continue
        if table is None:
            raise FitError(
                f"No operation uses the {name} as row numbers of a parameter; expected a table of embeddings that one "
                "operation indexes with all tokens."
            )
        used.add(table)
        sizes[name] = len(subject.values[table])
    return sizes


def with_further(subject: FittedModel, inputs: Arrays, sizes: Mapping[str, int]) -> Arrays:
    first = inputs[subject.inputs[0]]
    further: Arrays = {}
    if "attention_mask" in subject.names:
        further["attention_mask"] = np.ones_like(first)
    if "token_types" in subject.names:
        further["token_types"] = (np.arange(first.shape[1]) + np.arange(len(first))[:, None]) % sizes.get(
            "token_types", 1
        )
    return {name: inputs[name] for name in subject.inputs} | further


def masked(inputs: Arrays) -> Arrays:
    mask = np.ones_like(inputs["attention_mask"])
    for row in range(len(mask)):
        mask[row, 1 + row :: 3] = 0
    return {**inputs, "attention_mask": mask}


def may_pad(size: int) -> np.ndarray:
    return np.arange(size) if size <= 256 else np.r_[:FIRST, size - LAST : size]


def paddings(plain: Arrays, sizes: Mapping[str, int]) -> Arrays:
    """Return rows in which each possible padding token follows another token; for images, return flipped images."""
    if not sizes:
        return {name: value[::-1, :, ::-1] for name, value in plain.items()}
    rows: dict[str, list[np.ndarray]] = {}
    for name, size in sizes.items():
        if name == "token_types":
            continue
        tokens = plain[name]
        length = tokens.shape[1]
        tried = may_pad(size)
        most = max(1, length - 2)
        chunks = [tried[begin : begin + most] for begin in range(0, len(tried), most)]
        rows[name] = []
        for chunk in chunks:
            for first in (tokens[0, 0], tokens[1, 0] if tokens[1, 0] != tokens[0, 0] else tokens[0, 1]):
                row = np.full(length, first)
                row[1 : 1 + len(chunk)] = chunk[: length - 1]
                rows[name].append(row)
    most = max(map(len, rows.values()))
    signals = {name: value for name, value in plain.items() if value.dtype.kind == "f"}
    every = signals | rows
    return {name: np.stack([every[name][i % len(every[name])] for i in range(most)]) for name in every}


BATCH = 3

NO_IMAGES = "The module takes images, but no parameter maps square patches; expected a kernel or a matrix."
NO_FRAMES = "The module takes frames of audio, but has no two successive convolutions over time of width 3."


def _drawn(subject: FittedModel, shape: tuple[int, ...]) -> np.ndarray:
    return subject.random.normal(size=(BATCH, *shape)).astype(np.float32)


def longest_taken(subject: FittedModel, inputs: Arrays) -> int:
    """Return the largest accepted number of tokens, at most the default `max_length`, or an image's positions."""
    if not subject.tokens:
        return max(subject.positions.values())

    def takes(length: int) -> bool:
        sized = {name: (len(value), length) for name, value in inputs.items() if name not in subject.positions}
        return subject.takes(inputs | {name: np.resize(inputs[name], shape) for name, shape in sized.items()})

    low = max(inputs[name].shape[1] for name in subject.tokens)
    high = max(low, TransformerConfig.max_length)
    while low < high:
        tried = high if high == TransformerConfig.max_length else (low + high + 1) // 2
        low, high = (tried, high) if takes(tried) else (low, tried - 1)
    return low
