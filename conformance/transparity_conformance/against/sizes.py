"""Configurations of transformers made small: each field that says a size shrinks, and what goes together still does."""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from transformers import PretrainedConfig

KINDS = (
    ("keep", r"kernel|stride|padding|dilation|_bins|buckets|ignore|type_vocab|loss|merge|expand|mult$|feat_extract"),
    ("keep", r"^chunk_size_feed|^(feature_projection_)?input_dim$|^input_feat|^feature_size$|^(d_)?hash|^num_latents$"),
    ("filters", r"num_filters$"),
    ("codebook", r"^codebook_size$|^num_embeddings$"),
    ("token", r"_token_(id|index)$|^(boi|eoi|im|tag|subs|codec|image_pad)_\w*(id|index)$|^vocab_offset$"),
    ("vocabulary", r"vocab"),
    ("group", r"^n_group$|^num_expert_group$"),
    ("chosen", r"experts_per_tok|moe_topk$|moe_top_k$|moe_k$|^topk_group$|^top_k$"),
    ("experts", r"experts$|^expert_num$|^zero_expert_num$"),
    ("picked", r"index_topk|topk_blocks"),
    (
        "head",
        r"head_?dim$|head_size$|^d_kv$|kv_channels$|dim_head$|^d_head$|_d_head$|^rotary_dim$|^key_dim$|^query_pre_attn",
    ),
    ("heads", r"heads?$|^n_heads?_|heads_per_(stage|layer)$|mamba_n_?groups$|^n_groups$|^num_groups$|query_groups$"),
    (
        "positions",
        r"max_\w*position|^max_length$|^rel_extent$|^n_positions$|^n_ctx$|max_\w*positions$|^block_size$|max_seq_len|max_sequence_length",
    ),
    ("period", r"layer_period$|interval$|(attention|attn)_frequency$|sparse_step$|every_n_layers$|window_pattern$"),
    ("first", r"^first_k_dense|^num_dense_layers$|^max_window_layers$|^num_first_\w+_layers$"),
    ("last", r"^num_kv_shared_layers$|^num_last_\w+_layers$"),
    (
        "window",
        r"window|attention_chunk_size|^local_attention$|^chunk_size$|mamba_chunk_size|^context_size$|floor_scale|n_floor$",
    ),
    ("grid", r"^(image_seq_length|num_image_tokens|num_patches|num_position_embeddings)$"),
    ("pooled", r"^mm_tokens_per_image$"),
    ("image", r"^(\w*_)?(image|img|crop|spec)_size$"),
    ("patch", r"^patch_size$"),
    ("place", r"_layer(_id|_index)?$"),
    ("places", r"(idxs|indexes|indices|layer_ids)$"),
    ("depths", r"^(enc_|dec_)?depths?$|blocks(_per_stage)?$|repeats$|self_attends_per_block$"),
    ("layers", r"layers?$"),
    ("inner", r"intermediate|ffn|^d_ff$|^dff$|^dim_ff$|^n_inner$|^d_inner$|^mlp_dim$"),
    ("width", r"(size|sizes|dim|dims|channels|width|rank|state|d_model|n_embd|latents|upsample_groups)$"),
    ("width", r"dim_per_stage$|d_ssm$|hidden_size_\w+$|^dim_model_base$"),
)
"""Kinds of fields and their names; the first that matches counts."""

MOST = {
    "vocabulary": 131,
    "codebook": 32,
    "positions": 64,
    "window": 8,
    "group": 4,
    "chosen": 2,
    "picked": 4,
    "filters": 4,
    "grid": 16,
    "pooled": 4,
}
"""The largest small number of some kinds."""

HEAD, NARROWEST, PREFIX = 16, 32, 6
"""The size of a head, the narrowest width that shrinks, and how many layers may be kept for their order."""

SPECIAL = 111
"""Token ids from here on become ids in the small vocabulary that no text has."""

WIDTHS = ("hidden_size", "d_model", "n_embd", "embed_dim", "hidden_dim", "dim", "emb_dim")

DIMS = ("head_dim", "d_kv", "kv_channels", "attention_head_dim")


def kind_of(name: str) -> str:
    """Return what a field says the size of, or an empty string."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "")


def made_small(config: PretrainedConfig, keep: Sequence[str] = ()) -> PretrainedConfig:
    """Return a copy whose sizes are small and in the proportions of `config`; the kinds `keep` are unchanged."""
    small = copy.deepcopy(config)
    configs, widths, tokens = list(_configs(small, set())), {}, {}
    nodes = [_Node(each, widths, tokens, keep) for each in configs]
    if "ratios" in keep:
        factor = 2 ** int(math.log2(min((each.factor for each in nodes if each.width), default=1)))
        widths = {width: width // factor for width in widths}
        nodes = [_Node(each, widths, tokens, keep) for each in configs]
    factor = next((each.factor for each in nodes if each.width), Fraction(1))
    for node in nodes:
        node.factor = node.factor if node.width else factor
        node.shrink()
    small._attn_implementation, small._experts_implementation, small.dtype = "eager", "batched_mm", None
    if small.num_labels and small.num_labels > 7:
        small.num_labels = 7
    return small


def _configs(config: PretrainedConfig, seen: set[int]) -> Iterator[PretrainedConfig]:
    if id(config) not in seen:
        seen.add(id(config))
        yield config
        for value in vars(config).values():
            if isinstance(value, PretrainedConfig):
                yield from _configs(value, seen)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_strings(value: Any) -> bool:
    return _is_list(value) and len(value) > 0 and all(isinstance(each, str) for each in value)


def _flat(value: Any) -> list[int]:
    if _is_list(value):
        return [number for each in value for number in _flat(each)]
    return [value] if _is_size(value) else []


def _mapped(value: Any, function: Callable[[int], int]) -> Any:
    if _is_list(value):
        return type(value)(_mapped(each, function) for each in value)
    return function(value) if _is_size(value) else value


class _Node:
    """One configuration of a tree: its fields by kind, which layers it keeps, and by how much its widths shrink."""

    def __init__(
        self, config: PretrainedConfig, widths: dict[int, int], tokens: dict[int, int], keep: Sequence[str]
    ) -> None:
        self.config, self.widths, self.tokens, self.keep = config, widths, tokens, keep
        self.fields = {
            name: (kind_of(name), value)
            for name, value in vars(config).items()
            if _is_list(value) or (isinstance(value, int) and not isinstance(value, bool))
        }
        spec = vars(config).get("_heterogeneity_spec")
        self.special: dict[int, dict[str, Any]] = spec.per_layer_overrides if spec else {}
        special = [item for each in self.special.values() for item in each.items() if kind_of(item[0]) == "heads"]
        counts: dict[str, set[int]] = {}
        for name, value in (*self.of("heads").items(), *special):
            counts.setdefault(_mixer(name), set()).update(_flat(value))
        self.heads = {mixer: _small_heads(each) for mixer, each in counts.items()}
        self.picks = {count: _picked(self._layers(count)) for count in self._counts()}
        self.width = self._width()
        self.unit, self.factor = self._scale()

    def of(self, kind: str) -> dict[str, Any]:
        """Return the fields of a kind."""
        return {name: value for name, (each, value) in self.fields.items() if each == kind}

    def _named(self, *names: str) -> int:
        """Return the first number of the first field that has one."""
        fields = (vars(self.config).get(self.config.attribute_map.get(name, name)) for name in names)
        return next((number for value in fields for number in _flat(value)), 0)

    def _width(self) -> int:
        names = [*WIDTHS, *(name for name, value in self.of("width").items() if _is_list(value))]
        lists = [value for value in self.of("heads").values() if _is_list(value)]
        if any(len(value) not in self.picks for value in lists):  # of stages, of which hidden_size is the last's width
            names.remove("hidden_size")
        width = 0 if "width" in self.keep else self._named(*names)
        return width if width >= NARROWEST else 0

    def _scale(self) -> tuple[Fraction, Fraction]:
        """Return by what sizes of heads and widths are divided."""
        count = self._named("num_attention_heads", *self.of("heads"))
        dim = self._named(*DIMS) or (self.width // count if count else 0)
        together = bool(count) and count * dim == self.width
        small_heads = self.heads.get("", {})
        splits = [each for each in self.of("heads").values() if _is_size(each) and each > 1 and self.width % each == 0]
        heads = math.lcm(*(small_heads[each] for each in (count, *splits) if each in small_heads))
        unit = dim if "head" in self.keep else HEAD if together else HEAD + 8
        if not count:
            heads, unit = 1, 32
        while heads * unit in self.widths.values() and self.width not in self.widths:
            unit += 8
        if not self.width:
            return Fraction(max(dim, HEAD), HEAD), Fraction(1)
        small = self.widths.setdefault(self.width, min(heads * unit, self.width))
        if together:
            return Fraction(dim * small_heads[count], small), Fraction(self.width, small)
        return Fraction(max(dim, HEAD), HEAD), Fraction(self.width, small)

    def shrink(self) -> None:
        """Set every field that says a size."""
        spec = vars(self.config).pop("_heterogeneity_spec", None)
        for name, (kind, value) in self.fields.items():
            new = value if kind in self.keep else self._new(name, value)
            if new != value:
                setattr(self.config, name, new)
        if vars(self.config).get("use_cache"):
            self.config.use_cache = False
        self._heads_and_sizes()
        self._rope()
        if spec is not None:
            self.config.per_layer_config = {
                place: {name: self._new(name, value) for name, value in self.special.get(old, {}).items()}
                for place, old in enumerate(next(iter(self.picks.values())))
            }

    def _new(self, name: str, value: Any) -> Any:
        kind = kind_of(name)
        if _is_list(value) and len(value) > 2 and len(value) in self.picks and not self._are_places(kind, value):
            return self._new_number(kind, name, type(value)(value[old] for old in self.picks[len(value)]))
        if kind in ("layers", "depths", "first", "last", "place", "places"):
            return self._new_layers(kind, value)
        return self._new_number(kind, name, value)

    def _new_number(self, kind: str, name: str, value: Any) -> Any:
        if kind in ("width", "inner") and max(_flat(value), default=0) < NARROWEST:
            return value
        function = {
            "width": lambda each: self.widths.get(each) or self._new_width(each),
            "inner": self._new_inner,
            "heads": lambda each: self.heads[_mixer(name)][each],
            "head": lambda each: each if each <= 4 else max(4, 2 * round(each / self.unit / 2)),
            "token": lambda each: each if each < SPECIAL else self.tokens.setdefault(each, 130 - len(self.tokens)),
            "experts": lambda each: min(each, 8 if max(_flat([*self.of("group").values()]), default=1) > 1 else 4),
            "image": self._new_image,
            "patch": lambda each: each if self._has_stages() else min(each, 4),
            "window": lambda each: min(each, 2 if self.of("patch") and each < 64 else 8),
        }.get(kind)
        return _mapped(value, function or (lambda each: min(each, MOST.get(kind, each))))

    def _new_inner(self, value: int) -> int:
        new = self._new_width(value)
        return new + 8 if new == self.widths.get(self.width) else new

    def _new_width(self, value: int) -> int:
        if value <= 4:
            return value
        exact = value / self.factor
        return int(exact) if exact.denominator == 1 and exact % 8 == 0 else max(8, round(exact / 8) * 8)

    def _new_image(self, value: int) -> int:
        patch = max(_flat([*self.of("patch").values()]), default=4)
        return min(value, 64 if self._has_stages() else 4 * min(patch, 4))

    def _has_stages(self) -> bool:
        """Return whether there are depths or widths of several stages."""
        lists = [*self.of("depths").values(), *self.of("width").values()]
        return any(_is_list(value) and len(value) > 1 for value in lists)

    def _heads_and_sizes(self) -> None:
        """Keep heads times their size what it was: a multiple of the width, or another width."""
        if "head_dim" in vars(self.config) and self.config.head_dim is None and self.width:
            count = self._named("num_attention_heads")
            self.config.head_dim = int(self.width / self.factor) // count if count else None
        if not any("expand" in name for name in self.fields):
            return
        for name, value in self.of("head").items():
            partner = next((each for each in self.of("heads") if _stem(each) == _stem(name)), "")
            if not self.width or not _is_size(value) or not _is_size(count := self.fields.get(partner, ("", 0))[1]):
                continue
            ratio, small = Fraction(value * count, self.width), vars(self.config)
            if ratio.denominator == 1 and (new := ratio * self.width / self.factor / small[partner]).denominator == 1:
                setattr(self.config, name, int(new))
            for other, width in self.of("width").items():
                if width == value * count and width not in self.widths:
                    setattr(self.config, other, small[name] * small[partner])

    def _rope(self) -> None:
        """Cut what a rotary embedding says of each frequency to the small head, and keep how much it is stretched."""
        for name in ("rope_parameters", "rope_scaling"):
            if isinstance(rope := vars(self.config).get(name), dict):
                setattr(self.config, name, {key: self._new_rope(key, each) for key, each in rope.items()})
                self._stretch(vars(self.config)[name])

    def _new_rope(self, key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._new_rope(name, each) for name, each in value.items()}
        if key in ("long_factor", "short_factor") and value:
            size = max(1, round(len(value) / self.unit))
            return [value[number * len(value) // size] for number in range(size)]
        return _shares(value, round(sum(value) / self.unit)) if key == "mrope_section" and value else value

    def _stretch(self, rope: dict[str, Any]) -> None:
        """Keep the longest sequence relative to the one before stretching, which is short if lengths choose factors."""
        longest, field = self.fields.get("max_position_embeddings", ("", 0))[1], "original_max_position_embeddings"
        before = rope.get(field) or self.fields.get(field, ("", 0))[1]
        short = rope.get("rope_type", rope.get("type")) in ("longrope", "dynamic")
        if _is_size(longest) and (before or short):
            new = MOST["window"] if short else before
            self.config.max_position_embeddings = new * longest // (before or longest)
            if rope.get(field):
                rope[field] = new
            if field in self.fields:
                setattr(self.config, field, new)

    def _counts(self) -> list[int]:
        """Return the numbers of layers, but not of stages, which are all kept."""
        stages = {len(value) for value in self.of("depths").values() if _is_list(value)}
        lists = [len(value) for name, (_, value) in self.fields.items() if "layer" in name and _is_strings(value)]
        counts = [*self.of("layers").values(), *self.of("depths").values(), *lists]
        return [count for count in counts if _is_size(count) and count not in stages]

    def _are_places(self, kind: str, value: Any) -> bool:
        return (
            kind in ("layers", "places") and _are_increasing(value) and (len(value) not in self.picks or max(value) > 1)
        )

    def _layers(self, count: int) -> list[tuple[Any, ...]]:
        """Return of what kind each of `count` layers is."""
        numbers = range(count)
        rows: list[list[Any]] = [[str(self.special.get(number)) for number in numbers]]
        for name, (kind, value) in self.fields.items():
            if _is_list(value) and kind in ("layers", "places") and _are_increasing(value) and max(value) > 1:
                rows.append([number in value for number in numbers])
            elif _is_list(value) and len(value) == count and len({str(each) for each in value}) <= 4:
                rows.append([str(each) for each in value])
            elif kind == "first" and _is_size(value):
                rows.append([number < value for number in numbers])
            elif kind == "last" and _is_size(value):
                rows.append([number >= count - value for number in numbers])
            elif (
                kind == "period"
                and _is_size(value)
                and not ("layer_types" in self.fields and re.search("att|window", name))
            ):
                rows.append([number % value for number in numbers])
        return list(zip(*rows, strict=True))

    def _new_layers(self, kind: str, value: Any) -> Any:
        count, kept = next(iter(self.picks.items()), (0, []))
        if _is_list(value):
            if kept and self._are_places(kind, value):
                return type(value)(new for new, old in enumerate(kept) if old in value) or type(value)([len(kept) - 1])
            return _mapped(value, lambda each: min(each, 2)) if kind == "depths" else value
        if kind in ("layers", "depths") and value in self.picks:
            return len(self.picks[value])
        if kind == "first" and _is_size(value):
            return sum(old < value for old in kept)
        if kind == "last" and _is_size(value):
            return sum(old >= count - value for old in kept)
        if kind == "place" and isinstance(value, int) and kept:
            return min(max(value, -len(kept)), len(kept) - 1)
        return value


def _are_increasing(value: Any) -> bool:
    numbers = [each for each in value if isinstance(each, int) and not isinstance(each, bool) and each >= 0]
    return (
        bool(numbers) and len(numbers) == len(value) and all(a < b for a, b in zip(numbers, numbers[1:], strict=False))
    )


def _picked(kinds: list[tuple[Any, ...]]) -> list[int]:
    """Return the first layers, or two layers of each kind if these are less."""
    wanted = dict.fromkeys(kinds, 2)
    for length in range(2, min(len(kinds), PREFIX) + 1):
        found = Counter(kinds[:length])
        if all(found[kind] >= count for kind, count in wanted.items()):
            return list(range(length))
    if len(kinds) <= 2:
        return list(range(len(kinds)))
    places = {kind: [number for number, each in enumerate(kinds) if each == kind] for kind in wanted}
    return sorted(number for each in places.values() for number in (each * 2)[:2])


def _small_heads(counts: set[int]) -> dict[int, int]:
    """Return small numbers of heads in the proportions of `counts`; one head stays one."""
    several = [count for count in counts if count > 1]
    if not several:
        return dict.fromkeys(counts, 1)
    divisor = math.gcd(*several)
    times = 4 if max(several) == divisor else 2 if min(several) == divisor else 1
    small = {count: count // divisor * times for count in several}
    while max(small.values()) > 16:
        small = {count: max(2, 2 * round(new / 4)) for count, new in small.items()}
    return {1: 1} | small


def _mixer(name: str) -> str:
    """Return which of the layer's mixers has these heads: an empty string for attention."""
    return next((each for each in ("mamba", "linear", "index", "ssm") if each in name), "")


def _stem(name: str) -> str:
    """Return the name of a number of heads, or of their size, without these words."""
    return re.sub(r"(^|_)(num|n|d|heads?|headdim|dim|attention|size)(?=_|$)", "", name).strip("_")


def _shares(parts: list[int], total: int) -> list[int]:
    """Return whole numbers in the proportions of `parts` that sum to `total`."""
    exact = [part * total / sum(parts) for part in parts]
    whole = [int(each) for each in exact]
    for place in sorted(range(len(parts)), key=lambda place: whole[place] - exact[place])[: total - sum(whole)]:
        whole[place] += 1
    return whole
