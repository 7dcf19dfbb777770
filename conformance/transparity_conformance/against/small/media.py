"""Make random images, videos and sounds for a `transformers` model, in the layouts of its image processors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Find = Callable[..., Any]
"""Returns the first of several fields that a configuration has, or None."""

SAMPLES = 4000
"""The number of samples of raw audio."""

GRIDS = ((4, 8), (4, 4), (8, 4))
"""The patches (height, width) of the images in a batch. Images differ in size, and most are not square."""

FRAMES = "num_frames_per_video"
MERGED = ("image_merge_sizes", "video_merge_sizes")


@dataclass(frozen=True)
class Medium:
    """An input that can accompany text.

    Attributes:
        argument: the name of the input.
        method: the method that extracts features from the input.
        tokens: the fields that may contain the id of the placeholder token.
        type: the number of the medium in `mm_token_type_ids`.
        prefix: the first word in the names of the arguments that describe the input.
    """

    argument: str
    method: str
    tokens: tuple[str, ...]
    type: int
    prefix: str


MEDIA = (
    Medium("pixel_values", "get_image_features", ("image_token_id", "image_token_index", "media_token_id"), 1, "image"),
    Medium("pixel_values_videos", "get_video_features", ("video_token_id", "video_token_index"), 2, "video"),
    Medium("input_features", "get_audio_features", ("audio_token_id", "audio_token_index"), 3, "audio"),
)


class Layouts:
    """The layouts in which a model may expect a batch of images, videos or sounds.

    Attributes:
        find: a function that returns a field of the configuration.
        names: the names of the model's arguments.
        batch: the number of images, videos or sounds.
        draw: the source of random numbers.
    """

    def __init__(self, find: Find, names: Any, batch: int, draw: np.random.Generator) -> None:
        self.find, self.names, self.batch, self.draw = find, names, batch, draw
        self.channels = find("num_channels", "in_channels", "in_chans", "in_channel") or 3
        size = find("image_size", "img_size") or 64
        self.size = tuple(size) if isinstance(size, list | tuple) else (size, size)

    def normal(self, *shape: int) -> np.ndarray:
        return self.draw.standard_normal(shape, np.float32)

    def of(self, medium: Medium) -> Iterator[Arrays]:
        if medium.prefix == "audio":
            yield from self._features()
            return
        for layout in self.images() if medium.prefix == "image" else self._videos():
            layout[medium.argument] = layout.pop("pixel_values")
            yield {name.replace("image_", f"{medium.prefix}_"): value for name, value in layout.items()}

    def images(self) -> Iterator[Arrays]:
        height, width = self.size
        frames = self.find("num_frames") or 2
        if "aspect_ratio_ids" in self.names:
            tiles = self.find("max_num_tiles")
            aspects = {"aspect_ratio_ids": np.arange(self.batch)[:, None] % tiles + 1}
            aspects["aspect_ratio_mask"] = np.ones((self.batch, 1, tiles), np.int64)
            aspects["aspect_ratio_mask"][-1, :, tiles // 2 :] = 0
            yield aspects | {"pixel_values": self.normal(self.batch, 1, tiles, self.channels, height, width)}
        if (points := self.find("image_grid_pinpoints")) and "image_sizes" in self.names:
            yield self._tiles(points)
        shapes = ((self.channels, height, width), (self.channels, 64, 64), (frames, self.channels, height, width))
        for shape in (*shapes, (1, self.channels, height, width)):
            images = {"pixel_values": self.normal(self.batch, *shape)}
            if "image_sizes" in self.names:
                yield images | {"image_sizes": np.array([shape[-2:]] * self.batch)}
            if "pixel_attention_mask" in self.names:
                whole = np.ones((self.batch, *shape[:-3], *shape[-2:]), np.int64)
                half = whole.copy()
                half[-1, ..., shape[-1] // 2 :] = 0
                yield from (images | {"pixel_attention_mask": mask} for mask in (half, whole))
            yield images
        yield from self._patches(1)

    def _videos(self) -> Iterator[Arrays]:
        yield from self._patches(2)
        for layout in self._patches(1):
            yield layout | ({FRAMES: np.ones(self.batch, int)} if FRAMES in self.names else {})
        yield {"pixel_values": self.normal(self.batch, 2, self.channels, *self.size)}

    def _tiles(self, points: list[list[int]]) -> Arrays:
        """Return images that fill half of their tiles; a small copy of each image comes first."""
        from transformers.image_processing_utils import select_best_resolution

        sizes = [(high // 2, wide) if wide >= high else (high, wide // 2) for high, wide in points]
        images = [sizes[row % len(sizes)] for row in range(self.batch)]
        tile = self.size[0] * self.size[1]
        counts = [1 + int(np.prod(select_best_resolution(each, points))) // tile for each in images]
        pixels = self.normal(self.batch, max(counts), self.channels, *self.size)
        return {"pixel_values": pixels, "image_sizes": np.array(images)}

    def _patches(self, frames: int) -> Iterator[Arrays]:
        """Yield images as rows of patches, of a different number for each image."""
        patch = self.find("patch_size")
        if not isinstance(patch, int):
            return
        row = self.channels * patch * patch
        unit = self.find("pooling_kernel_size") or 4  # the sizes in `GRIDS` are multiples of 4
        grids = [tuple(size // 4 * unit for size in GRIDS[each % len(GRIDS)]) for each in range(self.batch)]
        counts = [high * wide for high, wide in grids]
        shown = (np.arange(max(counts)) < np.array(counts)[:, None]).astype(np.int64)
        padded = {"pixel_values": self.normal(self.batch, max(counts), row)}
        if "image_position_ids" in self.names:
            places = [[divmod(place, wide)[::-1] for place in range(high * wide)] for high, wide in grids]
            filled = [each + [(-1, -1)] * (max(counts) - len(each)) for each in places]
            yield padded | {"image_position_ids": np.array(filled)}
        yield padded | {"pixel_attention_mask": shown, "spatial_shapes": np.array(grids)}
        yield padded
        if "target_sizes" in self.names:
            packed = self.normal(1, self.channels, patch, patch * sum(counts))
            yield {"pixel_values": packed, "target_sizes": np.array(grids)}
        total, deep = frames * sum(counts), self.find("temporal_patch_size") or 1
        rows = [self.normal(total, row * deep), self.normal(total, self.channels, patch, patch)]
        timed = np.array([(frames, *each) for each in grids])
        sizes = {"image_merge_sizes": np.full(self.batch, frames)} if {*MERGED} & {*self.names} else {}
        for pixels, (name, grid) in itertools.product(rows, (("thw", timed), ("hw", np.array(grids)))):
            if {f"image_grid_{name}", f"video_grid_{name}"} & {*self.names}:
                yield {"pixel_values": pixels, f"image_grid_{name}": grid} | sizes

    def sounds(self, argument: str, *frames: int) -> Iterator[tuple[int, ...]]:
        """Yield the possible shapes of an input of sounds. With `frames`, also yield this number of frames, and raw
        audio."""
        names = ("feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim")
        bins = self.find(*names) or 80
        counts = [2 * (self.find("max_source_positions") or 32), self.find("max_length") or 32, 64, *frames]
        if argument in ("input_values", "inputs"):
            yield self.batch, SAMPLES
        for count, features in itertools.product(dict.fromkeys(counts), (bins, 2 * bins, 4 * bins, 80, 128)):
            layouts = [(self.batch, features, count), (self.batch, count, features)]
            yield from layouts[::-1] if argument == "input_values" else layouts
        if frames:
            yield self.batch, SAMPLES
            yield self.batch, 1, SAMPLES

    def _features(self) -> Iterator[Arrays]:
        masks = ("input_features_mask", "feature_attention_mask")
        for shape in self.sounds("input_features"):
            sounds = {"input_features": self.normal(*shape)}
            for name, length in itertools.product(masks, dict.fromkeys((shape[-1], shape[1]))):
                mask = np.ones((self.batch, length), bool if name == masks[0] else np.int64)
                shorter = mask.copy()
                shorter[1:, length // 2 :] = 0
                yield from (sounds | {name: each} for each in (shorter, mask) if name in self.names)
            yield sounds
