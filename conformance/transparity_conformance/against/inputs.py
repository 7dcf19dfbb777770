"""Inputs of a model of transformers, by the names of its forward."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig

Arrays = dict[str, np.ndarray]


def example_inputs(model: torch.nn.Module, length: int = 11, batch: int = 2, seed: int = 0) -> Arrays:
    """Return arrays that the model's forward takes; of several layouts, the first that runs."""
    failure: Exception | None = None
    for inputs in _candidates(model, length, batch, seed):
        try:
            with torch.no_grad():
                model(**{name: torch.from_numpy(value) for name, value in inputs.items()})
        except Exception as error:  # noqa: BLE001 - the next layout is tried
            failure = failure or error
        else:
            return inputs
    raise failure or TypeError(f"{type(model).__name__}.forward takes no known input")


def _find(config: PretrainedConfig, *names: str) -> Any:
    """Return the first of the fields in the configuration or in one inside it."""
    for name in names:
        if (value := vars(config).get(config.attribute_map.get(name, name))) is not None:
            return value
    inside = (value for value in vars(config).values() if isinstance(value, PretrainedConfig))
    return next((found for each in inside if (found := _find(each, *names)) is not None), None)


def _candidates(model: Any, length: int, batch: int, seed: int) -> Iterator[Arrays]:
    draw = np.random.default_rng(seed)
    names = inspect.signature(model.forward).parameters
    config, main = model.config, model.main_input_name
    texts = _texts(config, names, main, length, batch, draw)
    if "pixel_values" in names and main != "input_ids":
        for shape in _images(config):
            yield texts | {"pixel_values": draw.standard_normal((batch, *shape), np.float32)}
    elif main in ("input_features", "input_values", "input_ids") and main in names and main != "input_ids":
        for shape in _sounds(config, main):
            yield texts | {main: draw.standard_normal((batch, *shape), np.float32)}
    elif "input_ids" in names:
        mask = np.ones((batch, length), np.int64)
        mask[-1, -2:] = 0
        yield texts | {"attention_mask": mask} if "attention_mask" in names else texts
        yield texts


def _texts(config: PretrainedConfig, names: Any, main: str, length: int, batch: int, draw: np.random.Generator) -> Arrays:
    found = {}
    vocabulary = _find(config, "vocab_size", "text_vocab_size", "src_vocab_size") or 32
    if main == "input_ids":
        found["input_ids"] = draw.integers(3, min(vocabulary, 64), (batch, length))
    if "decoder_input_ids" in names and getattr(config, "is_encoder_decoder", False):
        found["decoder_input_ids"] = draw.integers(3, min(vocabulary, 64), (batch, length - 2))
    if "bbox" in names and main == "input_ids":
        corners = np.sort(draw.integers(0, 32, (batch, length, 2, 2)), axis=2)
        found["bbox"] = corners.reshape(batch, length, 4)
    if "token_type_ids" in names and main == "input_ids" and (_find(config, "type_vocab_size") or 0) > 1:
        found["token_type_ids"] = draw.integers(0, 2, (batch, length))
    return found


def _images(config: PretrainedConfig) -> Iterator[tuple[int, ...]]:
    channels = _find(config, "num_channels", "in_channels", "in_chans") or 3
    size = _find(config, "image_size", "img_size") or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    yield channels, height, width
    yield channels, 64, 64
    yield _find(config, "num_frames") or 2, channels, height, width


def _sounds(config: PretrainedConfig, main: str) -> Iterator[tuple[int, ...]]:
    bins = _find(config, "num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim") or 80
    positions = _find(config, "max_source_positions", "max_length") or 32
    if main == "input_values":
        yield (4000,)
    yield bins, 2 * positions
    yield 2 * positions, bins
    yield positions, bins
    yield (4000,)
    yield 1, 4000
