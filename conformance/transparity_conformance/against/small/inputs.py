"""Make random inputs for a `transformers` model, by the argument names of its `forward`."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig

from transparity_conformance.against.small.fields import kind_of, sizes
from transparity_conformance.against.small.sizes import configs_in
from transparity_conformance.running.forward import called_by_its_names

Arrays = dict[str, np.ndarray]

FEATURES = {
    "pixel_values": ("get_image_features", ("image_token_id", "image_token_index", "media_token_id")),
    "input_features": ("get_audio_features", ("audio_token_id", "audio_token_index")),
}
"""For each input that can accompany text: the method that extracts features, and fields with the placeholder's id."""

SAMPLES, FIRST, LAST = 4000, 3, 111
"""The number of samples of raw audio, and the range of token ids."""

EDGE = 32
"""The width and height of a page, which contains the boxes of words."""

MEDIA = ("pixel_values", "pixel_values_videos", "input_features", "input_values")

MAIN = ("input_ids", *MEDIA, "inputs")


def example_inputs(model: Any, length: int = 11, batch: int = 2, seed: int = 0) -> Arrays:
    """Return random arrays that the model accepts, after trying several layouts; the main input comes first. A decoder
    with an encoder gets two tokens fewer than `length`. The last two tokens of the last row are padding if the model
    takes a mask."""
    failure: Exception = TypeError(f"The {type(model).__name__} accepts none of {', '.join(MAIN)}")
    made = _Inputs(model, length, batch, seed)
    for number, inputs in enumerate(made.candidates()):
        if (error := error_on(model, inputs)) is None:
            return {name: inputs[name] for name in sorted(inputs, key=lambda name: name != made.main)}
        failure = failure if number else error
    raise failure


def with_arguments(model: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, Arrays]:
    """For each optional argument that `inputs` lack and the model accepts, return `inputs` with this argument."""
    draw, made = np.random.default_rng(0), dict[str, Arrays]()
    takes = inspect.signature(getattr(model, "forward", model)).parameters
    for name, value in inputs.items():
        if value.ndim != 2 or name not in ("input_ids", "decoder_input_ids", "input_values"):
            continue
        (rows, length), stack = value.shape, "decoder_" * name.startswith("decoder")
        mask = np.ones(value.shape, np.int64)
        hidden = mask.copy()
        hidden[-1, length // 5 : length // 2] = 0
        made[f"{stack}attention_mask"] = {f"{stack}attention_mask": hidden}
        if name != "input_values":
            # Without a mask, transformers would read a jump of positions as the start of another document.
            plain = {each: mask for each in (f"{stack}attention_mask",) if each in takes}
            made[f"{stack}position_ids"] = plain | {
                f"{stack}position_ids": np.arange(length) * np.arange(1, rows + 1)[:, None]
            }
        if name == "input_ids":
            made["token_type_ids"] = {"token_type_ids": draw.integers(0, 2, value.shape)}
    found = {name: {**inputs, **added} for name, added in made.items() if name in takes.keys() - inputs.keys()}
    return {name: each for name, each in found.items() if error_on(model, each) is None}


def error_on(model: Any, inputs: Mapping[str, np.ndarray]) -> Exception | None:
    try:
        if not isinstance(model, torch.nn.Module):
            called_by_its_names(model)(**inputs)
            return None
        with torch.no_grad():
            model(**tensors(inputs))
    except Exception as error:  # noqa: BLE001 - the caller tries other inputs
        return error
    return None


def tensors(inputs: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in inputs.items()}


class _Inputs:
    def __init__(self, model: Any, length: int, batch: int, seed: int) -> None:
        self.model, self.config, self.length, self.batch = model, model.config, length, batch
        self.draw = np.random.default_rng(seed)
        self.names = inspect.signature(getattr(model, "forward", model)).parameters
        values = [item for each in configs_in(self.config, set()) for item in vars(each).items()]
        self.special = {token for name, value in values if kind_of(name) == "token" for token in sizes(value)}
        main = model.main_input_name
        self.main = main if main in self.names else next((name for name in MAIN if name in self.names), "")

    def candidates(self) -> Iterator[Arrays]:
        beside = self._beside()
        if "input_ids" in self.names:
            yield from self._with_features()
        if self.main == "input_ids":
            boxes = [{"bbox": np.divide(beside["bbox"], EDGE, dtype=np.float32)}] if "bbox" in beside else []
            has_images = "pixel_values" in self.names and self._method(FEATURES["pixel_values"][0]) is None
            images = [*self._images(), {}] if has_images else [{}]  # without placeholder tokens in the text
            for shape, form, image in itertools.product(self._rows(), [*boxes, {}], images):
                ids = {"input_ids": self._ids(shape)}
                yield ids | image | beside | form | self._mask(shape)
                yield ids | image | beside | form
        elif self.main == "inputs":
            yield {self.main: self._ids((self.batch, self.length))}
        if self.main in ("pixel_values", "pixel_values_videos", "inputs"):
            for layout in self._images():
                layout[self.main] = layout.pop("pixel_values")
                yield layout | self._text() | beside
                yield layout | beside
        if self.main in ("input_features", "input_values", "inputs"):
            for shape in self._sounds():
                yield {self.main: self._normal(*shape)} | beside

    def _find(self, *names: str, config: PretrainedConfig | None = None) -> Any:
        """Return the first field of `names` in the configuration or a nested configuration."""
        fields = vars(config or self.config)
        for name in names:
            if (value := fields.get((config or self.config).attribute_map.get(name, name))) is not None:
                return value
        inside = (value for value in fields.values() if isinstance(value, PretrainedConfig))
        return next((found for each in inside if (found := self._find(*names, config=each)) is not None), None)

    def _normal(self, *shape: int) -> np.ndarray:
        return self.draw.standard_normal(shape, np.float32)

    def _ids(self, shape: tuple[int, ...]) -> np.ndarray:
        found = self._find("vocab_size", "text_vocab_size", "src_vocab_size", "codebook_size")
        most = min(each for each in (found, LAST) if isinstance(each, int))
        free = [each for each in range(FIRST, most) if each not in self.special] or [0]
        return self.draw.choice(np.array(free), shape)

    def _rows(self) -> Iterator[tuple[int, ...]]:
        yield self.batch, self.length
        for name in ("num_codebooks", "num_channels", "n_codebooks"):
            if books := self._find(name):
                yield self.batch * books, self.length
                yield self.batch, self.length, books
                yield self.batch, self.length, books + 1

    def _mask(self, shape: tuple[int, ...]) -> Arrays:
        mask = np.ones(shape[:2], np.int64)
        mask[-1, -2:] = 0
        return {"attention_mask": mask} if "attention_mask" in self.names and len(shape) == 2 else {}

    def _beside(self) -> Arrays:
        """Return inputs that accompany the main input, such as the decoder's tokens."""
        found: Arrays = {}
        shape = (self.batch, self.length)
        if "decoder_input_ids" in self.names and (self.config.is_encoder_decoder or self.main != "input_ids"):
            found["decoder_input_ids"] = self._ids((self.batch, max(self.length - 2, 1)))
        if "noise" in self.names and isinstance(size := self._find("image_size"), int):
            found["noise"] = self.draw.random((self.batch, (size // self._find("patch_size")) ** 2), np.float32)
        if self.main == "input_ids":
            if "bbox" in self.names:
                corners = np.sort(self.draw.integers(0, EDGE, (*shape, 2, 2)), axis=2)
                found["bbox"] = corners.reshape(*shape, 4)
            if "token_type_ids" in self.names and (self._find("type_vocab_size") or 0) > 1:
                found["token_type_ids"] = self.draw.integers(0, 2, shape)
            if "lang_ids" in self.names:
                found["lang_ids"] = np.zeros(self.batch, np.int64)
        return found

    def _images(self) -> Iterator[Arrays]:
        channels = self._find("num_channels", "in_channels", "in_chans", "in_channel") or 3
        size = self._find("image_size", "img_size") or 64
        height, width = size if isinstance(size, list | tuple) else (size, size)
        frames = self._find("num_frames") or 2
        aspects = {"aspect_ratio_ids": np.ones((self.batch, 1), np.int64)} if "aspect_ratio_ids" in self.names else {}
        if aspects:
            tiles = self._find("max_num_tiles")
            aspects["aspect_ratio_mask"] = np.ones((self.batch, 1, tiles), np.int64)
            yield aspects | {"pixel_values": self._normal(self.batch, 1, tiles, channels, height, width)}
        shapes = ((channels, height, width), (channels, 64, 64), (frames, channels, height, width))
        for shape in (*shapes, (1, channels, height, width)):
            images = {"pixel_values": self._normal(self.batch, *shape)}
            if "image_sizes" in self.names:
                yield images | {"image_sizes": np.array([shape[-2:]] * self.batch)}
            if "pixel_attention_mask" in self.names:
                yield images | {"pixel_attention_mask": np.ones((self.batch, *shape[:-3], *shape[-2:]), np.int64)}
            yield images
        yield from self._patches(channels)

    def _patches(self, channels: int) -> Iterator[Arrays]:
        """Yield images as 16 patches, from a grid of 4 × 4."""
        patch = self._find("patch_size")
        if not isinstance(patch, int):
            return
        grid = np.array([[4, 4]] * self.batch)
        row = channels * patch * patch
        flat = self._normal(self.batch, 16, row)
        ones = np.ones((self.batch, 16), np.int64)
        yield {"pixel_values": flat, "pixel_attention_mask": ones, "spatial_shapes": grid}
        row *= self._find("temporal_patch_size") or 1
        grids = np.array([[1, 4, 4]] * self.batch)
        yield {"pixel_values": self._normal(self.batch * 16, row), "image_grid_thw": grids}
        yield {"pixel_values": self._normal(self.batch * 16, channels, patch, patch), "image_grid_hws": grid}

    def _sounds(self) -> Iterator[tuple[int, ...]]:
        names = ("feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim")
        bins = self._find(*names) or 80
        frames = [2 * (self._find("max_source_positions") or 32), self._find("max_length") or 32, 64, 3000]
        if self.main in ("input_values", "inputs"):
            yield self.batch, SAMPLES
        for count, features in itertools.product(dict.fromkeys(frames), (bins, 2 * bins, 4 * bins, 80)):
            layouts = [(self.batch, features, count), (self.batch, count, features)]
            yield from layouts[::-1] if self.main == "input_values" else layouts
        yield self.batch, SAMPLES
        yield self.batch, 1, SAMPLES

    def _with_features(self) -> Iterator[Arrays]:
        """Yield inputs with an image or a sound. The text starts with one placeholder token for each feature vector, or
        consists of one random token for each feature vector."""
        for name, (method, tokens) in FEATURES.items():
            if name not in self.names or (extract := self._method(method)) is None:
                continue
            for layout in self._images() if name == "pixel_values" else self._features():
                try:
                    with torch.no_grad():
                        takes = inspect.signature(extract).parameters
                        given = {key: value for key, value in tensors(layout).items() if key in takes}
                        count = _rows_of(extract(**given)) // self.batch
                except Exception:  # noqa: BLE001 - the next layout is tried
                    continue
                if (token := self._find(*tokens)) is not None:
                    ids = np.concatenate([np.full((self.batch, count), token), self._text()["input_ids"]], axis=1)
                    types = (ids == token).astype(np.int64)
                    named = {each: types for each in ("mm_token_type_ids", "token_type_ids") if each in self.names}
                    yield layout | {"input_ids": ids} | named | self._mask(ids.shape)
                    yield layout | {"input_ids": ids} | self._mask(ids.shape)
                yield layout | {"input_ids": self._ids((self.batch, count))}

    def _method(self, name: str) -> Any:
        modules: Iterable[Any] = getattr(self.model, "modules", list)()  # a function has no modules
        return next((getattr(each, name) for each in modules if hasattr(each, name)), None)

    def _text(self) -> Arrays:
        return {"input_ids": self._ids((self.batch, self.length))} if "input_ids" in self.names else {}

    def _features(self) -> Iterator[Arrays]:
        for shape in self._sounds():
            yield {"input_features": self._normal(*shape)}
            for name in ("input_features_mask", "feature_attention_mask", "attention_mask"):
                yield {"input_features": self._normal(*shape), name: np.ones((self.batch, shape[-1]), np.int64)}


def _rows_of(features: Any) -> int:
    for name in ("pooler_output", "last_hidden_state"):
        if getattr(features, name, None) is not None:
            features = getattr(features, name)
            break
    if isinstance(features, list | tuple):
        return sum(_rows_of(each) for each in features)
    return features.numel() // features.shape[-1]
