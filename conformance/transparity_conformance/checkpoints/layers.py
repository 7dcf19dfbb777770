"""Check a checkpoint layer by layer. Each layer becomes a separate model, so that memory holds one layer at a time.

The reference computes the inputs of the layer. The model's embedding table contains the inputs, so token t selects
input t. An untied head with the identity as its weight returns the layer's output. Loaders of the family can read a
layer's model.
"""

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.taps import recording
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.checkpoints.importing import InFolder, Opened, open_checkpoint
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_numpy.transformer import transformer

Arrays = dict[str, np.ndarray]

ROWS, LENGTH = 4, 64
"""The shape of the random tokens from which the inputs of all layers are computed."""


@dataclass(frozen=True, eq=False)
class Piece:
    name: str
    config: TransformerConfig
    parameters: Arrays


def pieces(opened: Opened, layers: Collection[int] | None = None) -> Iterator[Piece]:
    """Yield the parts of a checkpoint as models: first the embedding with the head, then each layer.

    Large embeddings and heads are split into blocks of tokens, each about as large as a layer. `opened` must have one
    stack: a decoder, or an encoder that returns hidden states. `layers` are numbers from 0; None means all layers.
    Raise `CheckpointError` for a missing layer, and for a model that cannot be split into layers.
    """
    config = opened.config
    _check_has_pieces(opened)
    count = config.stack_num_layers(_stack(config))
    wanted = range(count) if layers is None else sorted(set(layers))
    if missing := [layer for layer in wanted if layer not in range(count)]:
        raise CheckpointError(f"{opened.folder} has no layer {missing[0]}; its layers are 0 to {count - 1}.")
    outside, _ = opened.read([name for name in parameter_shapes(config) if ".layers." not in name])
    front = _embedded(config, outside)
    yield from _ends(config, outside)
    del outside  # frees the memory of several layers
    for layer in range(max(wanted, default=-1) + 1):
        piece = _layer(opened, layer, front)
        if layer in wanted:
            yield piece
        front = _behind(piece, front)


def _check_has_pieces(opened: Opened) -> None:
    config = opened.config
    obstacles = {
        "is an encoder-decoder; expected a model with one stack": config.architecture == "encoder-decoder",
        "reads images, so no embedding table can produce a layer's input": config.reads_pixels,
        "shares one relative bias between all layers": config.has_relative_bias,
        "normalizes its embeddings but not its layers' outputs, so no embedding table can produce a layer's input": (
            config.embedding_norm and config.norm_position == "pre"
        ),
        f"has the head {config.head}, which a model of one layer cannot compute": (
            config.is_pooled or (config.architecture == "encoder" and config.head == "logits")
        ),
    }
    if found := [says for says, exists in obstacles.items() if exists]:
        raise CheckpointError(f"The model in {opened.folder} {found[0]}: check the whole model instead.")


def open_for_pieces(folder: Path, head: str | None) -> Opened:
    """Open a checkpoint for a check in parts. An encoder returns hidden states unless `head` is given."""
    opened = open_checkpoint(folder, head)
    is_hidden = head is None and opened.config.architecture == "encoder"
    return open_checkpoint(folder, "hidden") if is_hidden else opened


@contextlib.contextmanager
def written(piece: Piece, model_type: str, no_gradients: str = "") -> Iterator[InFolder]:
    """Write a part to a temporary folder in the format of `model_type`; yield the parameters."""
    with tempfile.TemporaryDirectory(prefix="transparity-") as root:
        folder = Path(root, model_type)
        again = export_checkpoint(model_type, piece.config, piece.parameters, folder)
        yield InFolder(again.parameters, folder, is_ours=True, no_gradients=no_gradients)


def _stack(config: TransformerConfig) -> str:
    (stack,) = config.stacks
    return stack


def _of(config: TransformerConfig, layers: int, vocabulary: int, **fields: object) -> TransformerConfig:
    stack = _stack(config)
    side = "source" if stack == "encoder" else "target"
    special = {name: getattr(config, name) for name in ("pad_id", "bos_id", "eos_id")}
    kept = {name: token if token is not None and token < vocabulary else None for name, token in special.items()}
    sizes = {f"num_{stack}_layers": layers, f"{side}_vocab_size": vocabulary}
    return dataclasses.replace(config, **sizes, **kept, **fields)  # type: ignore[arg-type]


def _ends(config: TransformerConfig, outside: Arrays) -> Iterator[Piece]:
    stack = _stack(config)
    vocabulary = config.stack_vocab_size(stack)
    tables = {f"{stack}.token_embedding.weight", "head.weight", "head.bias"}
    shapes = parameter_shapes(config)
    of_a_layer = sum(math.prod(shape) for name, shape in shapes.items() if f"{stack}.layers.0." in name)
    of_a_token = sum(math.prod(shape) for name, shape in shapes.items() if name in tables) // vocabulary
    size = max(of_a_layer // of_a_token, 1)
    for first in range(0, vocabulary, size):
        rows = slice(first, min(first + size, vocabulary))
        block = {name: value[rows] if name in tables else value for name, value in outside.items()}
        whole = rows == slice(0, vocabulary)
        says = "embedding and head" + ("" if whole else f", tokens {rows.start} to {rows.stop - 1}")
        of_layers: dict[str, Any] = {
            "sliding_window": None,
            "mixer": config.mixer if config.attends_never else "attention",
            "layer_types": (),
            "layer_overrides": {},
        }
        yield Piece(says, _of(config, 0, rows.stop - rows.start, **of_layers), block)


@dataclass(frozen=True, eq=False)
class _Front:
    """The inputs of a layer, as the embedding table of the layer's model."""

    x: np.ndarray
    """The inputs, (rows · length, embed_dim). If the model has an embedding norm, `x` has the inputs of the norm."""
    norm: Arrays
    """The parameters of the embedding norm; empty if the model has none."""
    tokens: np.ndarray
    """The index in `x` for each position, as (rows, length)."""


def _embedded(config: TransformerConfig, outside: Arrays) -> _Front:
    """Embed random tokens; return the inputs of layer 0. `outside` has all parameters outside the layers."""
    stack = _stack(config)
    shape = ROWS, min(LENGTH, config.max_length)
    drawn = np.random.default_rng(0).integers(0, config.stack_vocab_size(stack), shape)
    table = f"{stack}.token_embedding.weight"
    unique, tokens = np.unique(drawn, return_inverse=True)
    parameters = {name: value[unique] if name == table else value for name, value in outside.items()}
    if not config.tied_head:
        parameters |= {name: value[unique] for name, value in parameters.items() if name.startswith("head.")}
    x = _taps(_of(config, 0, len(unique)), parameters, tokens.reshape(shape))[f"{stack}.embedding"]
    scope = f"{stack}.embedding_norm."
    norm = {name.removeprefix(scope): value for name, value in parameters.items() if name.startswith(scope)}
    return _Front(x.reshape(-1, config.embed_dim), norm, np.arange(drawn.size).reshape(shape))


def _taps(config: TransformerConfig, parameters: Arrays, tokens: np.ndarray) -> Arrays:
    found: Arrays = {}
    transformer(dataclasses.replace(config, pad_id=None), parameters, tokens=tokens, tap=recording(found))
    return found


def _layer(opened: Opened, layer: int, front: _Front) -> Piece:
    """Return a layer as a model whose embedding table contains the layer's inputs."""
    config, stack = opened.config, _stack(opened.config)
    own = f"{stack}.layers.{layer}."
    read, _ = opened.read([name for name in parameter_shapes(config) if name.startswith(own)])
    given = {f"{stack}.layers.0.{name.removeprefix(own)}": value for name, value in read.items()}
    given |= {f"{stack}.embedding_norm.{name}": value for name, value in front.norm.items()}
    vocabulary = max(config.embed_dim + 8, len(front.x))  # no activation then has the shape of the logits
    rows = np.arange(vocabulary) % len(front.x)
    given[f"{stack}.token_embedding.weight"] = (front.x[rows] / config.token_scale).astype(np.float32)
    given["head.weight"] = np.eye(vocabulary, config.embed_dim, dtype=np.float32)
    one = _of(config.for_layer(stack, layer), 1, vocabulary)
    shapes = parameter_shapes(one)
    parameters = {name: given[name] if name in given else _plain(one, name, shapes[name]) for name in shapes}
    return Piece(f"layer {layer}", one, parameters)


def _plain(config: TransformerConfig, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a parameter that has no effect: ones for a norm's gain, zeros for a bias."""
    is_gain = name.endswith("norm.weight") and config.norm_gain == "weight"
    return np.full(shape, float(is_gain), np.float32)


def _behind(piece: Piece, front: _Front) -> _Front:
    config, stack = piece.config, _stack(piece.config)
    x = _taps(config, piece.parameters, front.tokens)[f"{stack}.layers.0.output"].reshape(-1, config.embed_dim)
    if not config.embedding_norm:
        return dataclasses.replace(front, x=x)
    # A post-norm layer ends with a norm. Undo its gain and bias: the next model's embedding norm applies them again.
    scope = f"{stack}.layers.0.feed_forward_norm."
    norm = {name.removeprefix(scope): value for name, value in piece.parameters.items() if name.startswith(scope)}
    return dataclasses.replace(front, x=(x - norm["bias"]) / norm["weight"], norm=norm)
