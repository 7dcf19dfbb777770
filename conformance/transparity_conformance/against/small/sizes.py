"""Shrink configurations of `transformers` models without changing the relations between sizes."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from transformers import PretrainedConfig

from transparity_conformance.against.small.fields import (
    MOST,
    OF_LAYERS,
    Layers,
    fields_of,
    is_list,
    is_size,
    kind_of,
    mapped,
    of_kind,
    sizes,
)

HEAD, NARROWEST, HEADS, LABELS = 24, 32, 16, 7
"""The head size, the smallest shrunk width, and the largest numbers of heads and labels."""

SPECIAL = 111
"""Special tokens with at least this id get ids at the end of the small vocabulary; random texts do not use these
ids."""

WIDTHS = ("hidden_size", "d_model", "n_embd", "embed_dim", "hidden_dim", "dim", "emb_dim")

MIXERS = ("mamba", "linear", "index", "ssm")
"""Words in the names of fields that describe the heads of a mixer other than attention."""


def made_small(config: PretrainedConfig, keep: Sequence[str] = ()) -> PretrainedConfig:
    """Return a small copy of a configuration. The kinds of fields in `keep` (see `fields.KINDS`) stay unchanged."""
    small = copy.deepcopy(config)
    widths: dict[int, int] = {}
    tokens: dict[int, int] = {}
    images: dict[int, int] = {}
    configs = list(configs_in(small, set()))[::-1]  # the size of an image in a part decides about tiles in the whole
    parts = [_Part(each, widths, tokens, images, keep) for each in configs]
    if "ratios" in keep:
        factor = 2 ** int(math.log2(min((each.factor for each in parts if each.width), default=1)))
        widths = {width: width // factor for width in widths}
        parts = [_Part(each, widths, tokens, images, keep) for each in configs]
    default = next((each.factor for each in parts if each.width), Fraction(1))
    for part in parts:
        part.factor = part.factor if part.width else default
        part.shrink()
    small._attn_implementation, small._experts_implementation, small.dtype = "eager", "batched_mm", None
    vars(small).pop("quantization_config", None)
    small.num_labels = min(small.num_labels or 0, LABELS) or small.num_labels
    return small


def configs_in(config: PretrainedConfig, seen: set[int]) -> Iterator[PretrainedConfig]:
    if id(config) not in seen:
        seen.add(id(config))
        yield config
        for value in vars(config).values():
            if isinstance(value, PretrainedConfig):
                yield from configs_in(value, seen)


class _Part:
    """A configuration that shrinks; it may be nested in another configuration.

    Attributes:
        widths: a map from the widths in all configurations to small widths.
        tokens: a map from the ids of special tokens to ids in the small vocabulary.
        images: a map from the sizes of images in all configurations to small sizes.
        heads: for each mixer, a map from the original numbers of heads to the small numbers.
        width: the width of the residual stream, or 0 if the configuration has none.
        unit: the divisor of head sizes.
        factor: the divisor of widths.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        widths: dict[int, int],
        tokens: dict[int, int],
        images: dict[int, int],
        keep: Sequence[str],
    ) -> None:
        self.config, self.widths, self.tokens, self.images, self.keep = config, widths, tokens, images, keep
        self.fields = fields_of(vars(config))
        layered = vars(config).get("_heterogeneity_spec")
        self.special: dict[int, dict[str, Any]] = layered.per_layer_overrides if layered else {}
        self.layers = Layers(self.fields, self.special)
        special = [item for each in self.special.values() for item in each.items() if kind_of(item[0]) == "heads"]
        counts: dict[str, set[int]] = {"": set()}
        for name, value in (*self._of("heads").items(), *special):
            counts.setdefault(self._mixer(name), set()).update(sizes(value))
        self.heads = {mixer: _small_heads(each) for mixer, each in counts.items()}
        self.width = self._width()
        self.unit, self.factor = self._scale()

    def _of(self, kind: str) -> dict[str, Any]:
        return of_kind(self.fields, kind)

    def _mixer(self, name: str) -> str:
        """Return the mixer whose heads a field counts; empty for attention."""
        if name == "n_groups" and any(each.startswith("mamba") for each in self._of("heads")):
            return "mamba"
        return next((each for each in MIXERS if each in name), "")

    def _named(self, *names: str) -> int:
        values = (vars(self.config).get(self.config.attribute_map.get(name, name)) for name in names)
        return next((number for value in values for number in sizes(value)), 0)

    def _width(self) -> int:
        names = [*WIDTHS, *(name for name, value in self._of("width").items() if is_list(value))]
        lists = [value for value in self._of("heads").values() if is_list(value)]
        if any(len(each) not in self.layers.picks for each in lists):  # hidden_size is the width of the last stage
            names.remove("hidden_size")
        width = 0 if "width" in self.keep else self._named(*names)
        return width if width >= NARROWEST else 0

    def _scale(self) -> tuple[Fraction, Fraction]:
        count = self._named("num_attention_heads", *self._of("heads"))
        size = self._named("head_dim", "d_kv", "kv_channels", "attention_head_dim") or (
            self.width // count if count else 0
        )
        free = Fraction(max(size, HEAD), HEAD)
        if not self.width:
            return free, Fraction(1)
        are_together = count * size == self.width
        unit = size if "head" in self.keep else HEAD if are_together else HEAD + 8
        small = self.widths.get(self.width) or self._small_width(count, unit)
        self.widths[self.width] = small
        return Fraction(size * self.heads[""][count], small) if are_together else free, Fraction(self.width, small)

    def _small_width(self, count: int, unit: int) -> int:
        """Return a multiple of the head counts that differs from the other small widths, but is at most the original
        width."""
        counts = [count, *(each for each in self._of("heads").values() if is_size(each) and self.width % each == 0)]
        times = math.lcm(*(self.heads[""].get(each, 1) for each in counts))
        unit = unit if count else 2 * HEAD
        while times * unit in self.widths.values():
            unit += 8
        return min(times * unit, self.width)

    def shrink(self) -> None:
        layered = vars(self.config).pop("_heterogeneity_spec", None)
        for name, (kind, value) in self.fields.items():
            new = value if kind in self.keep else self._new(name, value)
            if new != value:
                setattr(self.config, name, new)
        if vars(self.config).get("use_cache"):
            self.config.use_cache = False
        if "head_dim" in vars(self.config) and self.config.head_dim is None and self.width:
            count = self._named("num_attention_heads")
            self.config.head_dim = int(self.width / self.factor) // count if count else None
        if any("expand" in name for name in self.fields):
            self._expand()
        for name in ("rope_parameters", "rope_scaling"):
            if isinstance(rope := vars(self.config).get(name), dict):
                setattr(self.config, name, self._new_rope(rope))
        self._cut_stages()
        if layered:
            self.config.per_layer_config = {
                new: {name: self._new(name, value) for name, value in self.special.get(old, {}).items()}
                for new, old in enumerate(self.layers.kept)
            }

    def _cut_stages(self) -> None:
        """Shorten the list of stages if each layer is a stage."""
        names, (_, layers) = vars(self.config).get("stage_names") or (), self.fields.get("num_hidden_layers", ("", 0))
        if len(names) == layers + 1 and names:
            returned = len(vars(self.config).get("_out_features") or names[:1])
            self.config.stage_names = names[: self.config.num_hidden_layers + 1]
            self.config._out_features = self.config.stage_names[-returned:]
            self.config._out_indices = list(range(len(self.config.stage_names)))[-returned:]

    def _new(self, name: str, value: Any) -> Any:
        kind = kind_of(name)
        if self.layers.is_pattern(name, value, self.layers.count):
            return type(value)(value[old % len(value)] for old in self.layers.kept)
        if self.layers.has_one_for_each(kind, value):
            value = self.layers.cut(value)
        elif kind in OF_LAYERS:
            return self.layers.new(kind, value)
        elif kind == "offset" and is_size(period := self.fields.get(name.replace("offset", "period"), ("", 0))[1]):
            return value * self.layers.new("period", period) // period
        if kind in ("width", "inner") and max(sizes(value), default=0) < NARROWEST:
            return value
        # The width may be that of the joined outputs of all chosen layers and of the last layer.
        for chosen in filter(is_list, self._of("places").values()) if kind == "width" and self.width else ():
            if value == self.width * (len(chosen) + 1):
                return self.widths[self.width] * (len(self.layers.new("places", chosen)) + 1)
        return mapped(value, lambda each: self._small(kind, self._mixer(name), each))

    def _small(self, kind: str, mixer: str, number: int) -> int:
        match kind:
            case "width":
                return self.widths.get(number) or self._divided(number)
            case "inner":
                new = self._divided(number)
                return new + 8 if new == self.widths.get(self.width) else new
            case "heads":
                return self.heads[mixer][number]
            case "head":
                return number if number <= 4 else max(4, 2 * round(number / self.unit / 2))
            case "token":
                free = MOST["vocabulary"] - 1 - len(self.tokens)
                return number if number < SPECIAL else self.tokens.setdefault(number, free)
            case "experts":
                return min(number, 8 if max(sizes([*self._of("group").values()]), default=1) > 1 else 4)
            case "patch":
                return number if self._has_stages() else min(number, 4)
            case "image":
                patch = max(sizes([*self._of("patch").values()]), default=4)
                new = min(number, 64 if self._has_stages() else 4 * min(patch, 4))
                return self.images.setdefault(number, new)
            case "tiled":
                image = next((each for each in self.images if number % each == 0), number)
                return number // image * self.images.get(image, number)
            case "window":
                return min(number, 2 if self._of("patch") and number < 64 else MOST["window"])
        return min(number, MOST.get(kind, number))

    def _divided(self, width: int) -> int:
        exact = width / self.factor
        if width <= 4 or (exact.denominator == 1 and exact % 8 == 0):
            return width if width <= 4 else int(exact)
        return max(8, round(exact / 8) * 8)

    def _has_stages(self) -> bool:
        lists = [*self._of("depths").values(), *self._of("width").values()]
        return any(is_list(value) and len(value) > 1 for value in lists)

    def _expand(self) -> None:
        """Restore the relation between widths and heads × head size, because shrinking may have broken the relation."""
        small = vars(self.config)
        for name, value in self._of("head").items():
            partner = next((each for each in self._of("heads") if _stem(each) == _stem(name)), "")
            count = self.fields.get(partner, ("", None))[1]
            if not self.width or not is_size(value) or not is_size(count):
                continue
            new = Fraction(value * count) / self.factor / small[partner]
            if value * count % self.width == 0 and new.denominator == 1:
                setattr(self.config, name, int(new))
            for other, width in self._of("width").items():
                if width == value * count and width not in self.widths:
                    setattr(self.config, other, small[name] * small[partner])

    def _new_rope(self, rope: dict[str, Any]) -> dict[str, Any]:
        new = {key: self._new_rope(value) if isinstance(value, dict) else value for key, value in rope.items()}
        for key in ("long_factor", "short_factor"):
            if numbers := rope.get(key):
                count = max(1, round(len(numbers) / self.unit))
                new[key] = [numbers[place * len(numbers) // count] for place in range(count)]
        if sections := rope.get("mrope_section"):
            new["mrope_section"] = _shares(sections, round(sum(sections) / self.unit))
        self._stretch(new)
        return new

    def _stretch(self, rope: dict[str, Any]) -> None:
        """Lower the length from which the model scales positions, so that the scaling also applies to short texts."""
        field = "original_max_position_embeddings"
        longest = self.fields.get("max_position_embeddings", ("", None))[1]
        before = rope.get(field) or self.fields.get(field, ("", None))[1]
        length_decides = rope.get("rope_type", rope.get("type")) in ("longrope", "dynamic")
        if is_size(longest) and (before or length_decides):
            new = MOST["window"] if length_decides else before
            self.config.max_position_embeddings = new * longest // (before or longest)
            if rope.get(field):
                rope[field] = new
            if field in self.fields:
                setattr(self.config, field, new)


def _small_heads(counts: set[int]) -> dict[int, int]:
    """Map head counts to small head counts in the same proportions, if possible; 1 stays 1."""
    several = [count for count in counts if count > 1]
    divisor = math.gcd(*several)
    times = 4 if divisor in (0, max(several, default=0)) else 2 if divisor in several else 1
    small = {count: count // divisor * times for count in several}
    while max(small.values(), default=0) > HEADS:
        small = {count: max(2, 2 * round(new / 4)) for count, new in small.items()}
    return {0: 1, 1: 1} | small


def _stem(name: str) -> str:
    return re.sub(r"(^|_)(num|n|d|heads?|headdim|dim|attention|size)(?=_|$)", "", name).strip("_")


def _shares(parts: list[int], total: int) -> list[int]:
    exact = [part * total / sum(parts) for part in parts]
    whole = [int(each) for each in exact]
    for place in sorted(range(len(parts)), key=lambda place: whole[place] - exact[place])[: total - sum(whole)]:
        whole[place] += 1
    return whole
