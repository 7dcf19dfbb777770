"""Configurations of transformers made small: each field that says a size shrinks, and what goes together still does."""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from transformers import PretrainedConfig

KINDS = (
    ("keep", r"kernel|strides?$|padding|dilation|_bins|buckets|ignore|type_vocab|loss|merge|^chunk_size_feed|expand|mult$"),
    ("vocabulary", r"vocab|^codebook_size$|^num_embeddings$"),
    ("token", r"_token_(id|index)$|^_pad_token_id$|^(boi|eoi|im|tag|subs|codec)_\w*(id|index)$|^vocab_offset$"),
    ("group", r"^n_group$|^num_expert_group$"),
    ("chosen", r"experts_per_tok|moe_topk$|moe_top_k$|moe_k$|^topk_group$|^top_k$"),
    ("experts", r"experts$|^expert_num$|^zero_expert_num$"),
    ("picked", r"index_topk|topk_blocks"),
    ("head", r"head_dim$|_head_dim_|head_size$|^d_kv$|kv_channels$|dim_head$|^d_head$|_d_head$|headdim$|^rotary_dim$"),
    ("heads", r"heads?$|^n_heads?_|heads_per_(stage|layer)$|mamba_n_?groups$|^n_groups$|query_groups$"),
    ("positions", r"max_position|^n_positions$|^n_ctx$|max_\w*positions$|^block_size$|max_seq_len|max_sequence_length"),
    ("window", r"window|attention_chunk_size|^local_attention$|^chunk_size$|mamba_chunk_size|^context_size$|floor_scale"),
    ("image", r"^(\w*_)?(image|img|crop|spec)_size$"),
    ("patch", r"^patch_size$"),
    ("head_layers", r"^first_k_dense|^num_dense_layers$|^max_window_layers$|^num_first_\w+_layers$"),
    ("tail_layers", r"^num_kv_shared_layers$|^num_last_\w+_layers$"),
    ("period", r"layer_period$|interval$|(attention|attn)_frequency$|sparse_step$|every_n_layers$|window_pattern$"),
    ("index", r"_layer(_id|_index)?$"),
    ("indices", r"(idxs|indexes|indices|layer_ids)$"),
    ("layers", r"layers?$|^(enc_|dec_)?depths?$|blocks(_per_stage)?$|repeats$"),
    ("width", r"(size|sizes|dim|dims|channels|width|rank|state|d_model|n_embd|d_ff|n_inner|filters|dim_per_stage|d_ssm)$"),
)
"""Kinds of fields and their names; the first that matches counts."""

VOCABULARY, WINDOW, POSITIONS, EXPERTS, HEAD, MOST_LAYERS = 131, 8, 64, 8, 16, 8

PRIMARY = ("hidden_size", "d_model", "n_embd", "embed_dim", "hidden_dim", "dim", "emb_dim")


def kind_of(name: str) -> str:
    """Return what a field says the size of, or an empty string."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "")


def made_small(config: PretrainedConfig) -> PretrainedConfig:
    """Return a copy whose sizes are small and in the proportions of `config`."""
    small = copy.deepcopy(config)
    nodes = list(_nodes(small, set()))
    tokens: dict[int, int] = {}
    hidden: dict[int, int] = {}
    scales = [_Node(node, hidden) for node in nodes]
    largest = next((each.factor for each in scales if each.width), Fraction(1))
    for each in scales:
        each.shrink(hidden, tokens, largest)
    small._attn_implementation = "eager"
    small._experts_implementation = "batched_mm"
    small.dtype = None
    for node in nodes:
        if vars(node).get("use_cache"):
            node.use_cache = False
    if small.num_labels and small.num_labels > 7:
        small.num_labels = 7
    return small


def _nodes(config: PretrainedConfig, seen: set[int]) -> Iterator[PretrainedConfig]:
    if id(config) not in seen:
        seen.add(id(config))
        yield config
        for value in vars(config).values():
            if isinstance(value, PretrainedConfig):
                yield from _nodes(value, seen)


def is_size(value: Any) -> bool:
    """Return whether a value is a positive integer."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _flat(value: Any) -> list[int]:
    if isinstance(value, list | tuple):
        return [number for each in value for number in _flat(each)]
    return [value] if is_size(value) else []


def _mapped(value: Any, function: Callable[[int], int]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_mapped(each, function) for each in value)
    return function(value) if is_size(value) else value


class _Node:
    """One configuration of the tree: its fields by kind, and by how much its heads and widths shrink."""

    def __init__(self, config: PretrainedConfig, hidden: dict[int, int]) -> None:
        self.config = config
        self.fields = {name: (kind_of(name), value) for name, value in vars(config).items() if not name.startswith("__")}
        spec = vars(config).get("_heterogeneity_spec")
        self.overrides: dict[int, dict[str, Any]] = spec.per_layer_overrides if spec else {}
        special = [value for each in self.overrides.values() for name, value in each.items() if kind_of(name) == "heads"]
        self.heads = _heads(set(_flat([*self.of("heads").values(), special])))
        count, self.width = self._first("num_attention_heads", "heads"), self._primary()
        self.count = count
        explicit = next((value for name, value in self.of("head").items() if name in ("head_dim", "d_kv", "kv_channels", "attention_head_dim") and is_size(value)), 0)
        dim = explicit or (self.width // count if count and self.width else 0)
        self.unit = Fraction(dim or HEAD, HEAD) if dim >= HEAD else Fraction(1)
        self.factor = Fraction(1)
        if self.width:
            new = self._small_width(count, dim, hidden)
            self.factor = Fraction(self.width, new)

    def of(self, kind: str) -> dict[str, Any]:
        """Return the fields of a kind."""
        return {name: value for name, (each, value) in self.fields.items() if each == kind}

    def _first(self, standard: str, kind: str) -> int:
        name = self.config.attribute_map.get(standard, standard)
        found = self.of(kind)
        values = [found[name]] if name in found else [*found.values()]
        return next((number for value in values for number in _flat(value)), 0)

    def _primary(self) -> int:
        stages = [value for name, (kind, value) in self.fields.items() if kind == "width" and isinstance(value, list | tuple)]
        name = self.config.attribute_map.get("hidden_size", "hidden_size")
        if isinstance(self.of("heads").get("num_heads", self.of("heads").get("num_attention_heads")), list | tuple):
            name = "embed_dim"
        names = (name, *PRIMARY)
        value = next((vars(self.config)[each] for each in names if vars(self.config).get(each)), stages[0] if stages else 0)
        return next(iter(_flat(value)), 0)

    def _small_width(self, count: int, dim: int, hidden: dict[int, int]) -> int:
        if self.width < 2 * HEAD:
            return hidden.setdefault(self.width, self.width)
        heads = self.heads.get(count, 4) if count else 4
        if self.width not in hidden:
            unit = HEAD if count and count * dim == self.width else HEAD + 8
            while heads * unit in hidden.values():
                unit += 8
            hidden[self.width] = heads * unit
        new = hidden[self.width]
        if count and count * dim == self.width:
            self.unit = Fraction(dim * heads, new)
        return new

    def shrink(self, hidden: dict[int, int], tokens: dict[int, int], factor: Fraction) -> None:
        """Set every field that says a size."""
        if self.factor == 1:
            self.factor = factor
        picks = self._picks()
        spec = vars(self.config).pop("_heterogeneity_spec", None)
        for name, (kind, value) in self.fields.items():
            new = self._new(kind, value, picks, hidden, tokens)
            if new != value:
                setattr(self.config, name, new)
        if "head_dim" in self.fields and self.fields["head_dim"][1] is None and self.width and self.count:
            self.config.head_dim = int(self.width / self.factor) // self.heads[self.count]
        self._products()
        self._rope()
        if spec is not None:
            self.config.per_layer_config = {
                place: {
                    name: self._new(kind_of(name), value, picks, hidden, tokens)
                    for name, value in self.overrides.get(old, {}).items()
                }
                for place, old in enumerate(picks[self._counts()[0]])
            }

    def _new(self, kind: str, value: Any, picks: dict[int, list[int]], hidden: dict[int, int], tokens: dict[int, int]) -> Any:
        if kind == "width":
            return _mapped(value, lambda each: hidden.get(each) or self._width(each))
        if kind == "token":
            return _mapped(value, lambda each: tokens.setdefault(each, VOCABULARY - 1 - len(tokens)) if each >= 64 else each)
        if kind in ("layers", "head_layers", "tail_layers", "index", "indices", "period") or self._is_per_layer(value):
            return self._layered(kind, value, picks)
        function = getattr(self, f"_{kind}", None)
        return _mapped(value, function) if function else value

    def _width(self, value: int) -> int:
        if value < 2 * HEAD:
            return value
        exact = value / self.factor
        return int(exact) if exact.denominator == 1 and exact % 4 == 0 else max(8, round(exact / 8) * 8)

    def _vocabulary(self, value: int) -> int:
        return min(value, VOCABULARY)

    def _positions(self, value: int) -> int:
        return min(value, POSITIONS)

    def _window(self, value: int) -> int:
        return min(value, WINDOW)

    def _experts(self, value: int) -> int:
        return min(value, EXPERTS if max([0, *_flat([*self.of("group").values()])]) > 1 else 4)

    def _group(self, value: int) -> int:
        return min(value, 4)

    def _chosen(self, value: int) -> int:
        return min(value, 2)

    def _picked(self, value: int) -> int:
        return min(value, 4)

    def _heads(self, value: int) -> int:
        return self.heads[value]

    def _head(self, value: int) -> int:
        return value if value <= 4 else max(4, 2 * round(value / self.unit / 2))

    def _image(self, value: int) -> int:
        return min(value, 64 if self._has_stages() else 4 * self._patch(value=max(_flat(self.of("patch").get("patch_size", 4)))))

    def _patch(self, value: int) -> int:
        return value if self._has_stages() else min(value, 4)

    def _has_stages(self) -> bool:
        return any(isinstance(value, list | tuple) and len(value) > 1 for value in (*self.of("layers").values(), *self.of("width").values()))

    def _products(self) -> None:
        """Keep heads times their size a multiple of the width where it was one."""
        for name, value in self.of("head").items():
            partner = next((each for each in self.of("heads") if _stem(each) == _stem(name)), None)
            if partner and is_size(value) and is_size(self.fields[partner][1]) and self.width:
                ratio = Fraction(value * self.fields[partner][1], self.width)
                new = ratio * Fraction(self.width) / self.factor / vars(self.config)[partner]
                if ratio.denominator == 1 and new.denominator == 1:
                    setattr(self.config, name, int(new))

    def _rope(self) -> None:
        """Cut what a rotary embedding says for each frequency to the small head."""
        for name in ("rope_parameters", "rope_scaling"):
            if isinstance(value := vars(self.config).get(name), dict):
                setattr(self.config, name, {key: self._rope_value(key, each, value) for key, each in value.items()})

    def _rope_value(self, key: str, value: Any, rope: dict[str, Any]) -> Any:
        if isinstance(value, dict):
            return {name: self._rope_value(name, each, value) for name, each in value.items()}
        if key in ("long_factor", "short_factor"):
            size = max(1, round(len(value) / self.unit))
            return [value[number * len(value) // size] for number in range(size)]
        if key == "mrope_section":
            return _shares(value, round(sum(value) / self.unit))
        if key == "original_max_position_embeddings" and rope.get("rope_type") in ("longrope", "dynamic"):
            return WINDOW
        return value

    def _is_per_layer(self, value: Any) -> bool:
        return isinstance(value, list | tuple) and len(value) > 2 and len(value) in self._counts()

    def _counts(self) -> list[int]:
        return [value for value in self.of("layers").values() if is_size(value)]

    def _picks(self) -> dict[int, list[int]]:
        """Return the layers that are kept, of each number of layers."""
        return {count: _picked(self._kinds(count)) for count in self._counts()}

    def _kinds(self, count: int) -> list[tuple[Any, ...]]:
        rows: list[list[Any]] = [[str(self.overrides.get(number)) for number in range(count)]]
        for kind, value in self.fields.values():
            if isinstance(value, list | tuple) and _is_indices(value, count) and kind in ("indices", "layers"):
                rows.append([number in value for number in range(count)])
            elif isinstance(value, list | tuple) and len(value) == count and len({str(each) for each in value}) <= 4:
                rows.append([str(each) for each in value])
            elif kind == "head_layers" and is_size(value):
                rows.append([number < value for number in range(count)])
            elif kind == "tail_layers" and is_size(value):
                rows.append([number >= count - value for number in range(count)])
            elif kind == "period" and is_size(value):
                rows.append([number % value for number in range(count)])
        return list(zip(*rows, strict=True))

    def _layered(self, kind: str, value: Any, picks: dict[int, list[int]]) -> Any:
        count = next(iter(picks), 0)
        kept = picks.get(count, [])
        if isinstance(value, list | tuple):
            if kind in ("indices", "layers") and count and _is_indices(value, count):
                return type(value)(new for new, old in enumerate(kept) if old in value) or type(value)([len(kept) - 1])
            if len(value) in picks and len(value) > 2:
                return type(value)(value[old] for old in picks[len(value)])
            return _mapped(value, lambda each: min(each, 2)) if kind == "layers" else value
        if kind == "layers" and is_size(value):
            return len(picks[value])
        if kind == "head_layers" and is_size(value):
            return sum(old < value for old in kept)
        if kind == "tail_layers" and is_size(value):
            return sum(old >= count - value for old in kept)
        if kind == "index" and isinstance(value, int) and kept:
            return min(max(value, -len(kept)), len(kept) - 1)
        return value


def _is_indices(value: Any, count: int) -> bool:
    numbers = list(value)
    return all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < count for each in numbers) and (
        numbers == sorted(set(numbers)) and bool(numbers) and (len(numbers) != count or max(numbers) > 1)
    )


def _picked(kinds: list[tuple[Any, ...]]) -> list[int]:
    """Return a beginning that has each kind of layer twice, or two layers of each kind."""
    wanted = {kind: min(2, count) for kind, count in Counter(kinds).items()}
    for length in range(2, min(len(kinds), MOST_LAYERS) + 1):
        found = Counter(kinds[:length])
        if all(found[kind] >= count for kind, count in wanted.items()):
            return list(range(length))
    if len(kinds) <= 2:
        return list(range(len(kinds)))
    places = {kind: [number for number, each in enumerate(kinds) if each == kind] for kind in wanted}
    return sorted(number for each in places.values() for number in (each * 2)[:2])


def _heads(counts: set[int]) -> dict[int, int]:
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


def _stem(name: str) -> str:
    """Return the name of a number or a size of heads without these words."""
    return "_".join(part for part in name.split("_") if part not in ("num", "n", "d", "head", "heads", "dim", "attention", "size"))


def _shares(parts: list[int], total: int) -> list[int]:
    """Return whole numbers in the proportions of `parts` that sum to `total`."""
    exact = [part * total / sum(parts) for part in parts]
    whole = [int(each) for each in exact]
    for place in sorted(range(len(parts)), key=lambda place: whole[place] - exact[place])[: total - sum(whole)]:
        whole[place] += 1
    return whole
