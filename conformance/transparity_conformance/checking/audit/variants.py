"""Variants of a model that differ in one field of config.json."""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from transparity.config import FIELD_TYPES, TransformerConfig
from transparity.errors import ConfigError, TransparityError
from transparity.text import VALUE, safe
from transparity_conformance.checkpoints.exporting import drafted, explicit, read_beside, written
from transparity_conformance.checkpoints.importing import family_called
from transparity_conformance.checkpoints.tables.codecs import TOKENS, Family
from transparity_conformance.checkpoints.tables.kinds import full_attention_every
from transparity_conformance.oracle.reach.features import OPERATIONS, is_choice
from transparity_conformance.report.audit import ABSENT

NUMBERS: dict[type, tuple[str, ...]] = {
    float: ("*10", "/10", "*2", "/2", "+1", "-1", "off"),
    int: ("+1", "*2", "/2", "-1", "off"),
}
"""Operations that change a number, in the order in which the audit tries them."""


def candidates(config: TransformerConfig) -> Iterator[list[TransformerConfig]]:
    """Yield a list of alternative configurations for each change; no configuration occurs twice."""
    fields = dataclasses.fields(config)
    alone = [[{field.name: value} for value in values] for field in fields for values in _values(config, field)]
    seen: set[TransformerConfig | None] = {None}
    for alternatives in [*alone, *([changes] for changes in _together(config))]:
        made = [_replaced(config, changes) for changes in alternatives]
        new = [each for each in dict.fromkeys(made) if each is not None and each not in seen]
        seen.update(new)
        if new:
            yield new


def _values(config: TransformerConfig, field: dataclasses.Field[Any]) -> Iterator[list[Any]]:
    """Yield lists of values to which the audit changes a field; one value of each list suffices. Each option of a
    `Literal` has its own list, and all values of a number share one list."""
    value, kind = getattr(config, field.name), FIELD_TYPES[field.name]
    if is_choice(field.name):
        yield from ([choice] for choice in get_args(kind) if choice != value)
    elif kind is bool:
        yield [not value]
    elif isinstance(value, int | float):
        tried = [each for each in field.metadata.get("tried", ()) if each is not None]
        yield [OPERATIONS[name](value) for name in NUMBERS[type(value)]] + tried
    elif value is None:
        yield [each for each in reversed(field.metadata.get("tried", ())) if each is not None]


def _together(config: TransformerConfig) -> Iterator[dict[str, Any]]:
    yield {"embed_dim": 2 * config.embed_dim, "feed_forward_dim": 2 * config.feed_forward_dim}
    yield {"rotary_scaling": "linear", "rotary_factor": 3.0}
    # In 13 positions, the fastest angle makes 13 / 2π (about 2.07) turns, which must lie between both limits.
    llama3 = {"rotary_factor": 3.0, "rotary_slow_turns": 1.5, "rotary_fast_turns": 2.5}
    yield {"rotary_scaling": "llama3", **llama3, "rotary_original_length": 13}
    yield {"attention_head_dim": config.head_dim + 2}
    yield {"num_key_value_heads": 1 if config.key_value_heads > 1 else config.num_heads}
    yield {"sliding_window": 3, **full_attention_every(2)}
    yield {"sliding_window": None, "layer_types": (), "layer_overrides": {}}
    yield {"layer_types": config.layer_types[::-1]}
    attention = dict.fromkeys(("qkv_bias", "output_bias"), not config.qkv_bias)
    yield attention
    yield {**attention, "feed_forward_bias": not config.feed_forward_bias}
    yield {"tied_head": not config.tied_head, "head_scale": "none" if config.tied_head else "embed_dim"}
    yield {"norm_position": "post", "final_norm": False}
    if config.source_vocab_size is not None and config.source_vocab_size == config.target_vocab_size:
        yield dict.fromkeys(("target_vocab_size", "source_vocab_size"), config.vocab_size + 1)
    if config.pad_id is not None:
        counted = {"position_offset": config.position_offset + 3, "max_length": config.max_length - 3}
        yield {"pad_id": config.pad_id + 3, **counted}
    for activation in get_args(FIELD_TYPES["activation"]):
        yield {"gated": not config.gated, "activation": activation}


def _replaced(config: TransformerConfig, changes: Mapping[str, Any]) -> TransformerConfig | None:
    try:
        other = dataclasses.replace(config, **changes)
    except ConfigError:
        return None
    return None if other == config else other


Fields = dict[str, Any]

DROPOUTS = ("dropout", "dropout_prob", "dropout_rate", "pdrop")
"""Endings of the names of dropout fields, which have no effect in evaluation mode."""


@dataclass(frozen=True, eq=False)
class Variant:
    name: str
    """The changed field of config.json, or the first of several changed fields."""
    value: str
    """The new value as JSON, or `absent`. If the rotary fields are in the form of another version of transformers, the
    text also names this form."""
    config: TransformerConfig
    before: TransformerConfig
    was: str = ""
    """The value of the field in `before`."""
    fields: Fields | None = None
    """The fields of the changed config.json; None if the exporter writes the right config.json for `config`."""
    must_show: bool = True
    """Whether the audit uses the variant only if `before` and `config` have different logits."""


Write = Callable[[TransformerConfig], Fields | None]
"""A function that returns the config.json of a configuration; None if the family cannot express the configuration."""

Changed = list[Variant]
"""Variants that make the same change. The audit uses the first two variants that change the logits."""


def variants_of(model_type: str | None, config: TransformerConfig) -> Iterator[Changed]:
    """Yield variants of a small model: changes of a family's config.json or, without a family, of `config`."""
    if model_type is None:
        yield from _changed(TransformerConfig.as_dict, TransformerConfig.as_dict, config)
        return
    family = family_called(model_type)
    write = functools.cache(functools.partial(written, model_type, family))
    base = write(config)
    assert base is not None, f"the family {model_type} cannot express the audited model"
    yield from _changed(functools.partial(drafted, model_type, family), write, config)
    for variant in (*_absent(family, config, base), *_forms(family, write, config), *_inert(family, config, base)):
        yield [variant]


def _changed(draft: Write, write: Write, config: TransformerConfig) -> Iterator[Changed]:
    """Yield variants with another value of a field, or of several fields that change together.

    `draft` returns the same fields as `write`, without testing whether the family can express the configuration.
    """
    base = write(config)
    assert base is not None
    every: list[tuple[frozenset[str], Changed]] = []
    known = [(config, base)]
    for made in candidates(config):
        by_names: dict[frozenset[str], Changed] = {}
        for other in made:
            if draft(other) in (None, *(each for _, each in known)):
                continue
            fields = write(other) or base
            if all(differing(each, fields) for _, each in known):  # different configurations may share a config.json
                names, variant = _nearest(known, other, fields)
                by_names.setdefault(frozenset(names), []).append(variant)
        # If the original value is an integer, a port may refuse fractions, so integers come first.
        is_other_kind = lambda each: type(json.loads(each.value)) is not type(json.loads(each.was))
        every += ((names, sorted(changed, key=is_other_kind)) for names, changed in by_names.items())
        known += [(each.config, write(each.config) or base) for changed in by_names.values() for each in changed[:1]]
    alone = [names for names, changed in every if changed[0].before is config]
    for each, changed in every:
        if changed[0].before is not config or not any(other < each for other in alone):
            yield changed


def _nearest(
    known: list[tuple[TransformerConfig, Fields]], config: TransformerConfig, fields: Fields
) -> tuple[list[str], Variant]:
    before, base = min(known, key=lambda each: len(differing(each[1], fields)))
    names = differing(base, fields)
    value, was = (json.dumps(each.get(names[0])) for each in (fields, base))
    return names, Variant(names[0], value, config, before, was)


def differing(base: Fields, fields: Fields) -> list[str]:
    names = [name for name in {**base, **fields} if base.get(name) != fields.get(name)]
    # For example, `layer_types` follows from the number of layers.
    later = ("layer_types", "max_window_layers", "head_dim", "use_sliding_window", "rope_parameters")
    return sorted(names, key=lambda name: name in later)


def _absent(family: Family, config: TransformerConfig, base: Fields) -> Iterator[Variant]:
    for name in family.defaults:
        if name in TOKENS or name not in base:
            continue
        fields = {key: value for key, value in base.items() if key != name}
        if name in (base.get("rope_parameters") or {}):
            fields["rope_parameters"] = {key: v for key, v in base["rope_parameters"].items() if key != name}
        try:
            other = read_beside(family, config, fields)
            if name == "image_size":  # the default image size would give thousands of patches
                del fields["patch_size"]
                other = read_beside(family, config, fields)
        except TransparityError:
            continue
        yield Variant(name, ABSENT, other, config, fields=fields, must_show=False)


def _forms(family: Family, write: Write, config: TransformerConfig) -> Iterator[Variant]:
    """Yield variants of two rotary models. The rotary fields have the form of transformers 4 or 5, or an older form."""
    based = dataclasses.replace(config, rope_theta=10 * config.rope_theta)
    for other in (based, dataclasses.replace(config, rotary_scaling="linear", rotary_factor=3.0)):
        for name, value, fields in _forms_of(write(other) or {}):
            with contextlib.suppress(TransparityError):
                if explicit(read_beside(family, other, fields)) == explicit(other):
                    yield Variant(name, value, other, config, fields=fields)


def _forms_of(fields: Fields) -> Iterator[tuple[str, str, Fields]]:
    if not {"rope_parameters", "rope_scaling"} <= fields.keys():
        return
    four = {name: value for name, value in fields.items() if name != "rope_parameters"}
    five = {name: value for name, value in fields.items() if name not in ("rope_theta", "rope_scaling")}
    scaling = fields["rope_scaling"]
    name = "rope_scaling" if scaling else "rope_theta"
    old, new = (safe(json.dumps(fields[each]), 2 * VALUE) for each in (name, "rope_parameters"))
    yield name, f"{old} (without rope_parameters, as in transformers 4)", four
    yield "rope_parameters", f"{new} (without rope_theta and rope_scaling, as in transformers 5)", five
    # transformers 5 does not read the older form for families with one block for each kind of layer.
    if scaling and "rope_type" in fields["rope_parameters"]:
        older = {"type" if name == "rope_type" else name: value for name, value in scaling.items()}
        yield "rope_scaling", json.dumps(older), {**four, "rope_scaling": older}


def _inert(family: Family, config: TransformerConfig, base: Fields) -> Iterator[Variant]:
    """Yield variants that loaders often misread: dropout, a disabled sliding window, and Gemma's old GELU field."""
    dropped = {name: 0.5 for name in family.unneeded if name.endswith(DROPOUTS)}
    made = [(min(dropped), {**base, **dropped})] if dropped else []
    if "use_sliding_window" in base:
        bare = {name: value for name, value in base.items() if name != "layer_types"} | {"sliding_window": 3}
        made.append(("use_sliding_window", {**bare, "use_sliding_window": False, "max_window_layers": 0}))
        all_full = {"use_sliding_window": True, "max_window_layers": config.num_decoder_layers}
        made.append(("max_window_layers", {**bare, **all_full}))
    if "hidden_activation" in base:
        made.append(("hidden_act", {**base, "hidden_activation": None, "hidden_act": "gelu"}))
    for name, fields in made:
        with contextlib.suppress(TransparityError):  # the family does not read this form
            other = read_beside(family, config, fields)
            yield Variant(name, json.dumps(fields[name]), other, config, fields=fields, must_show=False)
