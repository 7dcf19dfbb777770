"""Make random inputs for a `transformers` model, by the argument names of its `forward`."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig

from transparity_conformance.against.small.fields import kind_of, sizes
from transparity_conformance.against.small.media import MEDIA, Layouts, Medium
from transparity_conformance.against.small.sizes import configs_in
from transparity_conformance.running.forward import called_by_its_names

Arrays = dict[str, np.ndarray]

FIRST, LAST = 3, 111
"""The range of token ids."""

LONG = 3000
"""The number of frames in 30 seconds of sound, which some models require."""

LEAD = 4
"""The number of tokens before the first placeholder token, so that padding on the left hides no placeholder."""

EDGE = 32
"""The width and height of a page, which contains the boxes of words."""

MAIN = ("input_ids", *(each.argument for each in MEDIA), "input_values", "inputs")


Places = dict[str, int]
"""For each input that accompanies text, the number of the layout that a model accepts; -1 if it accepts none."""


def example_inputs(model: Any, length: int = 11, batch: int = 2, seed: int = 0, places: Places | None = None) -> Arrays:
    """Return random arrays that the model accepts, after trying several layouts; the main input comes first. A decoder
    with an encoder gets two tokens fewer than `length`. The last two tokens of the last row are padding if the model
    takes a mask. Layouts in `places` are the only ones that are tried; layouts that the model accepts are added."""
    failure: Exception = TypeError(f"The {type(model).__name__} accepts none of {', '.join(MAIN)}")
    made = _Inputs(model, length, batch, seed, {} if places is None else places)
    for number, inputs in enumerate(made.candidates()):
        if (error := error_on(model, inputs)) is None:
            made.places |= made.tried | dict.fromkeys(made.useless, -1)
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


@dataclass(frozen=True)
class Layout:
    """Images, videos or sounds that a model accepts, with the number of feature vectors of each row."""

    number: int
    arrays: Arrays
    counts: list[int]


class _Inputs:
    def __init__(self, model: Any, length: int, batch: int, seed: int, places: Places) -> None:
        self.model, self.config, self.length, self.batch, self.seed = model, model.config, length, batch, seed
        self.draw, self.places, self.tried = np.random.default_rng(seed), places, Places()
        self.useless = set[str]()
        self.names = inspect.signature(getattr(model, "forward", model)).parameters
        values = [item for each in configs_in(self.config, set()) for item in vars(each).items()]
        self.special = {token for name, value in values if kind_of(name) == "token" for token in sizes(value)}
        main = model.main_input_name
        self.main = main if main in self.names else next((name for name in MAIN if name in self.names), "")
        self.layouts = Layouts(self._find, self.names, batch, self.draw)

    def candidates(self) -> Iterator[Arrays]:
        beside = self._beside()
        if "input_ids" in self.names:
            yield from self._with_media()
        if self.main == "input_ids":
            boxes = [{"bbox": np.divide(beside["bbox"], EDGE, dtype=np.float32)}] if "bbox" in beside else []
            has_images = "pixel_values" in self.names and self._method(MEDIA[0].method) is None
            images = [*self.layouts.images(), {}] if has_images else [{}]  # without placeholder tokens in the text
            for shape, form, image in itertools.product(self._rows(), [*boxes, {}], images):
                ids = {"input_ids": self._ids(shape)}
                yield ids | image | beside | form | self._mask(shape)
                yield ids | image | beside | form
        elif self.main == "inputs":
            yield {self.main: self._ids((self.batch, self.length))}
        if self.main in ("pixel_values", "pixel_values_videos", "inputs"):
            for layout in self.layouts.images():
                layout[self.main] = layout.pop("pixel_values")
                yield layout | self._text() | beside
                yield layout | beside
        if self.main in ("input_features", "input_values", "inputs"):
            for shape in self.layouts.sounds(self.main, LONG):
                yield {self.main: self.layouts.normal(*shape)} | beside

    def _find(self, *names: str, config: PretrainedConfig | None = None) -> Any:
        """Return the first field of `names` in the configuration or a nested configuration."""
        fields = vars(config or self.config)
        for name in names:
            if (value := fields.get((config or self.config).attribute_map.get(name, name))) is not None:
                return value
        inside = (value for value in fields.values() if isinstance(value, PretrainedConfig))
        return next((found for each in inside if (found := self._find(*names, config=each)) is not None), None)

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

    def _with_media(self) -> Iterator[Arrays]:
        """Yield texts with images, videos and sounds: with all of them, or with one of them, depending on the seed. A
        text has one placeholder token for each feature vector, or consists of one random token for each feature
        vector."""
        media = [each for each in MEDIA if each.argument in self.names]
        rest = {each: self._extracted(each) for each in media}
        ways = {each: [found] for each in media if (found := next(rest[each], None)) is not None}
        choices = [[*ways], *([each] for each in ways)][: len(ways) ** 2]
        for place in range(len(choices)):
            chosen = choices[(self.seed + place) % len(choices)]
            firsts = {each: ways[each][0] for each in chosen}
            yield from self._texts(firsts)
            for each in chosen:
                ways[each] += rest[each]
                for layout in ways[each][1:]:
                    yield from self._texts({**firsts, each: layout})
            self.useless |= {each.argument for each in chosen if len(chosen) == 1}

    def _extracted(self, medium: Medium) -> Iterator[Layout]:
        """Yield the layouts that the model accepts."""
        known = self.places.get(medium.argument)
        if (extract := self._method(medium.method)) is None or known == -1:
            return
        takes, place = inspect.signature(extract).parameters, -1
        passes_on = any(each.kind is each.VAR_KEYWORD for each in takes.values())
        for number, layout in enumerate(self.layouts.of(medium)):
            if known not in (None, number):
                continue
            try:
                given = {key: value for key, value in layout.items() if passes_on or key in takes}
                with torch.no_grad():
                    counts = _counts(extract(**tensors(given)), layout, self.batch)
            except Exception:  # noqa: BLE001 - the next layout is tried
                continue
            place = number
            yield Layout(number, layout, counts)
        self.useless |= {medium.argument} if place < 0 else set()

    def _texts(self, found: Mapping[Medium, Layout]) -> Iterator[Arrays]:
        self.tried = {medium.argument: layout.number for medium, layout in found.items()}
        given = {name: value for layout in found.values() for name, value in layout.arrays.items()}
        tokens = {medium: self._find(*medium.tokens) for medium in found}
        if all(token is not None for token in tokens.values()):
            longest = max(map(sum, zip(*(layout.counts for layout in found.values()), strict=True)))
            ids = self._ids((self.batch, LEAD + longest + len(found) - 1 + self.length))
            types = np.zeros_like(ids)
            ends = [LEAD] * self.batch
            for medium, layout in found.items():
                for row, count in enumerate(layout.counts):
                    span = slice(ends[row], ends[row] + count)
                    ids[row, span], types[row, span] = tokens[medium], medium.type
                    ends[row] += count + 1
            named = {each: types for each in ("mm_token_type_ids",) if each in self.names}
            named |= {each: np.minimum(types, 1) for each in ("token_type_ids",) if each in self.names}
            yield {"input_ids": ids} | given | named | self._mask(ids.shape)
            yield {"input_ids": ids} | given | self._mask(ids.shape)
        counts = next(iter(found.values())).counts
        if len(found) == 1 and len({*counts}) == 1:
            yield given | {"input_ids": self._ids((self.batch, counts[0]))}

    def _method(self, name: str) -> Any:
        modules: Iterable[Any] = getattr(self.model, "modules", list)()  # a function has no modules
        return next((getattr(each, name) for each in modules if hasattr(each, name)), None)

    def _text(self) -> Arrays:
        return {"input_ids": self._ids((self.batch, self.length))} if "input_ids" in self.names else {}


def _counts(features: Any, layout: Arrays, batch: int) -> list[int]:
    """Return the number of feature vectors of each row. If the features are not divided, divide them in the proportion
    of the patches."""
    for name in ("pooler_output", "last_hidden_state"):
        if getattr(features, name, None) is not None:
            features = getattr(features, name)
            break
    if isinstance(features, list | tuple) and len(features) % batch == 0:
        counts = [each.numel() // each.shape[-1] for each in features]
        each = len(counts) // batch
        return [sum(counts[row * each : (row + 1) * each]) for row in range(batch)]
    total = (
        sum(each.numel() // each.shape[-1] for each in features)
        if isinstance(features, list | tuple)
        else (features.numel() // features.shape[-1])
    )
    grids = next((value for name, value in layout.items() if "grid" in name or name == "spatial_shapes"), None)
    patches = np.ones(batch, int) if grids is None else grids.prod(axis=-1)
    return [int(each) for each in total * patches // patches.sum()]
