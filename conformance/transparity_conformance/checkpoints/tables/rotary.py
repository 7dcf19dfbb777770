"""Rotary positions in config.json: the base, the scaling, and the part of a head that rotates."""

import math
from collections.abc import Mapping
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import is_number
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.rows import FieldRow, Fields

ORIGINAL = "original_max_position_embeddings"

ROTARY = ("rope_scaling", "rope_parameters", "partial_rotary_factor", ORIGINAL)
"""Rotary fields of config.json that every `rope` row of a TOML table reads, in addition to `rope_theta`."""

FACTOR = row.one_field("number", "factor", "rotary_factor")
LENGTH = row.one_field("rename", ORIGINAL, "rotary_original_length")

KEYS: dict[str, tuple[FieldRow, ...]] = {
    "default": (),
    "linear": (FACTOR,),
    "llama3": (
        FACTOR,
        row.one_field("number", "low_freq_factor", "rotary_slow_turns"),
        row.one_field("number", "high_freq_factor", "rotary_fast_turns"),
        LENGTH,
    ),
    "yarn": (
        FACTOR,
        LENGTH,
        row.one_field("number", "beta_fast", "rotary_fast_turns", default=32.0),
        row.one_field("number", "beta_slow", "rotary_slow_turns", default=1.0),
        row.one_field("flag", "truncate", "rotary_truncate", default=True),
    ),
    "longrope": (
        row.one_field("whole", ORIGINAL, "rotary_original_length"),
        row.one_field("numbers", "short_factor", "rotary_short_factors"),
        row.one_field("numbers", "long_factor", "rotary_long_factors"),
    ),
}
"""The keys of each kind of scaling; a key without a default is required."""

OTHER_KEYS = {"yarn": ("attention_factor", "mscale", "mscale_all_dim"), "longrope": ("attention_factor", "factor")}
"""More keys of a kind of scaling, from which the attention factor is computed."""

NOT_READ = ("dynamic", "proportional")
"""The rope types of `transformers` that the reference does not compute."""

KEYS_OF_ALL = ("rope_theta", "rope_type", "type", "partial_rotary_factor", ORIGINAL)
"""The keys that may occur with every kind of scaling."""

SCALING: dict[str, Any] = {
    "rotary_scaling": "none",
    "rotary_factor": 1.0,
    "rotary_slow_turns": 1.0,
    "rotary_fast_turns": 4.0,
    "rotary_original_length": 8192,
    "rotary_truncate": True,
    "rotary_attention_factor": 1.0,
    "rotary_short_factors": (),
    "rotary_long_factors": (),
}
"""The `TransformerConfig` fields about rotary scaling, with the values that mean no scaling."""


def read_rotary(fields: Fields, head_dim: int | None = None) -> dict[str, Any]:
    """Convert the rotary fields of `transformers` 4 (`rope_theta`, `rope_scaling`) or 5 (`rope_parameters`). `head_dim`
    is the number of features per head; None if the family always rotates whole heads."""
    name, kind, given = _rotary_given(fields)
    found = {"rope_layout": "halves", "positions": "rotary", "rope_theta": row.as_number(given, "rope_theta")}
    found |= _rotated_part(given.get("partial_rotary_factor", fields.get("partial_rotary_factor")), head_dim)
    needed = [each.name for each in KEYS[kind] if not each.defaults]
    known = (*KEYS_OF_ALL, *(each.name for each in KEYS[kind]), *OTHER_KEYS.get(kind, ()))
    if unknown := [key for key in given if key not in known]:
        raise row.wrong(f"{name}.{unknown[0]}", given[unknown[0]], f"no such key, because the rope_type is {kind}")
    if ORIGINAL in needed:
        outside = fields.get(ORIGINAL)
        given = {ORIGINAL: fields["max_position_embeddings"]} | given | ({} if outside is None else {ORIGINAL: outside})
    for key in needed:
        if key not in given:
            raise CheckpointError(f"{name} has no {key}; expected the key, because the rope_type is {kind!r}.")
    given |= {"max_position_embeddings": fields["max_position_embeddings"]}
    return found | _read_scaling(kind, given)


def rotary_by_kind(fields: Fields, own: Mapping[str, Fields]) -> dict[str, dict[str, Any]]:
    """Return the rotary base and scaling of each kind of layer. `own` maps a kind to its own config.json fields."""
    given = fields["rope_parameters"] or {}
    if not isinstance(given, dict) or not set(given) <= set(own):
        raise row.wrong("rope_parameters", given, f"an object for each of {' and '.join(own)}")
    found = {kind: SCALING | read_rotary({**fields, **own[kind], "rope_parameters": given.get(kind)}) for kind in own}
    return {kind: {name: each[name] for name in ("rope_theta", *SCALING)} for kind, each in found.items()}


def _rotary_given(fields: Fields) -> tuple[str, str, dict[str, Any]]:
    name = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    given = fields.get(name) or {}
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise row.wrong(name, given, "one JSON object with numbers, for all layers")
    given = {"rope_theta": fields["rope_theta"]} | given
    kind = given.get("rope_type", given.get("type", "default"))
    if not isinstance(kind, str) or kind not in KEYS:
        raise row.wrong(f"{name}.rope_type", kind, f"one of {', '.join(KEYS)}")
    return name, kind, given


def _rotated_part(share: Any, head_dim: int | None) -> dict[str, Any]:
    if share is None or (is_number(share) and share == 1):
        return {}
    if head_dim is None:
        raise row.wrong("partial_rotary_factor", share, "1, or null")
    if not is_number(share) or not 0 < share < 1:
        raise row.wrong("partial_rotary_factor", share, "a number greater than 0, at most 1")
    return {"rotary_dim": int(head_dim * share)}


def _yarn_factor(given: Fields) -> float:
    """Return YaRN's attention factor, 0.1 · ln(factor) + 1; with both `mscale` keys, `yarn_scale` of the first /
    `yarn_scale` of the second."""
    scales = [row.as_number(given, key) for key in ("mscale", "mscale_all_dim") if given.get(key)]
    return _ratio(row.as_number(given, "factor"), *(scales if len(scales) == 2 else (1.0, 0.0)))


def yarn_scale(factor: float, mscale: float) -> float:
    """Return YaRN's scale, 0.1 · mscale · ln(factor) + 1, with ln(factor) at least 0."""
    return 0.1 * mscale * math.log(max(factor, 1)) + 1


def _ratio(factor: float, mscale: float, mscale_all_dim: float) -> float:
    return yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all_dim)


def mscale_of(config: TransformerConfig, mscale_all_dim: float) -> float:
    """Return the `mscale` for which YaRN's attention factor is exactly the configuration's attention factor."""
    factor, right = config.rotary_factor, config.rotary_attention_factor
    found = (right * yarn_scale(factor, mscale_all_dim) - 1) / (0.1 * math.log(factor))
    return row.nearest(round(found, 6), found, right=lambda each: _ratio(factor, each, mscale_all_dim) == right)


def _longrope_factor(given: Fields) -> float:
    """Return LongRoPE's default attention factor, √(1 + ln(factor) / ln(original length)). The default of `factor` is
    the maximal length divided by the original length."""
    original, longer = row.as_whole(given, ORIGINAL), given.get("factor")
    longer = given["max_position_embeddings"] / original if longer is None else row.as_number(given, "factor")
    return 1.0 if longer <= 1 else math.sqrt(1 + math.log(longer) / math.log(original))


ATTENTION_FACTORS = {"yarn": _yarn_factor, "longrope": _longrope_factor}


def _read_scaling(kind: str, given: Fields) -> dict[str, Any]:
    """Convert the keys of a scaling. LongRoPE also needs `max_position_embeddings`."""
    usual = {key: value for each in KEYS[kind] for key, value in each.defaults.items() if given.get(key) is None}
    found: dict[str, Any] = {}
    for each in KEYS[kind]:
        found |= each.read({**given, **usual}, ())
    if kind in ATTENTION_FACTORS:
        is_given = given.get("attention_factor") is not None
        factor = row.as_number(given, "attention_factor") if is_given else ATTENTION_FACTORS[kind](given)
        found["rotary_attention_factor"] = factor
    return found | ({} if kind == "default" else {"rotary_scaling": kind})


def written_scaling(config: TransformerConfig) -> dict[str, Any]:
    kind = "default" if config.rotary_scaling == "none" else config.rotary_scaling
    values = {key: value for each in KEYS[kind] for key, value in each.write(config).items()}
    values |= {"attention_factor": config.rotary_attention_factor} if kind in ATTENTION_FACTORS else {}
    lists = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    return {"rope_type": kind} | lists


def write_rotary(config: TransformerConfig) -> dict[str, Any]:
    """Return the rotary fields in the forms of `transformers` 4 and 5; a published file has one of these two forms."""
    scaling = written_scaling(config)
    part = {} if config.rotated_dim == config.head_dim else {"partial_rotary_factor": _rotated_share(config)}
    return {
        "rope_theta": config.rope_theta,
        "rope_scaling": None if config.rotary_scaling == "none" else scaling,
        "rope_parameters": {"rope_theta": config.rope_theta} | scaling | part,
        **part,
    }


def _rotated_share(config: TransformerConfig) -> float:
    """Return a `partial_rotary_factor` such that `int(head_dim * factor)` is `rotary_dim`, despite rounding."""
    share = config.rotated_dim / config.head_dim
    return share if int(config.head_dim * share) == config.rotated_dim else math.nextafter(share, 1)
