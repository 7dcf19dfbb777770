"""SmolLM3 (Hugging Face 2025): Llama with layers that have no positions (NoPE, Yang et al. 2025)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from transparity.config import FULL, SLIDING, TransformerConfig
from transparity.errors import is_whole
from transparity_conformance.checkpoints.families import llama
from transparity_conformance.checkpoints.fields import Fields, by_kind, flag, layer_kinds, layers, whole, wrong

NO_POSITIONS = "_without_positions"
"""What the kind of a layer without positions ends with."""


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    found = llama.LLAMA.configure(fields, names)
    rotated, types = _rotated(fields), fields["layer_types"]
    window = fields["sliding_window"] if flag(fields, "use_sliding_window") else None
    if types is None:
        types = [FULL if window is None or turned else SLIDING for turned in rotated]
    if not isinstance(types, list) or len(types) != len(rotated) or not set(types) <= {SLIDING, FULL}:
        raise wrong("layer_types", types, f"{SLIDING} or {FULL} for each of {len(rotated)} layers")
    if window is None and SLIDING in types:
        raise wrong("use_sliding_window", fields["use_sliding_window"], "true and a sliding_window, by layer_types")
    kinds = [kind if turned else kind + NO_POSITIONS for kind, turned in zip(types, rotated, strict=True)]
    facts = {
        f"{kind}{ends}": {"sliding_window": own, "positions": positions}
        for kind, own in ((SLIDING, window), (FULL, None))
        for ends, positions in (("", "rotary"), (NO_POSITIONS, "none"))
    }
    return found | by_kind(kinds, facts)


def _rotated(fields: Fields) -> list[bool]:
    """Whether each layer has positions."""
    given, count = fields["no_rope_layers"], layers(fields)
    if given is None:
        every = whole(fields, "no_rope_layer_interval")
        return [(i + 1) % every != 0 for i in range(count)]
    if not isinstance(given, list) or len(given) < count or not all(is_whole(each, 0) for each in given):
        raise wrong("no_rope_layers", given, f"1 (with positions) or 0 (without) for each of {count} layers")
    return [bool(each) for each in given[:count]]


def _write(config: TransformerConfig) -> dict[str, Any]:
    own = [config.for_layer("decoder", i) for i in range(config.num_decoder_layers)]
    windows = [each.sliding_window for each in own if each.sliding_window is not None]
    return llama.LLAMA.write(config) | {
        "no_rope_layers": [int(each.positions == "rotary") for each in own],
        "layer_types": layer_kinds(config),
        "use_sliding_window": bool(windows),
        "sliding_window": windows[0] if windows else None,
    }


READS = ("no_rope_layers", "no_rope_layer_interval", "layer_types", "use_sliding_window", "sliding_window")

SMOLLM3 = dataclasses.replace(
    llama.LLAMA,
    configure=_configure,
    write=_write,
    model="SmolLM3ForCausalLM",
    reads=(*llama.LLAMA.reads, *READS),
    defaults={**llama.LLAMA.defaults}
    | {"max_position_embeddings": 32_768, "num_key_value_heads": 4, "tie_word_embeddings": True}
    | {"rope_theta": 2_000_000.0, "pad_token_id": 128_004, "bos_token_id": 128_000, "eos_token_id": 128_001}
    | dict.fromkeys(READS)
    | {"no_rope_layer_interval": 4, "use_sliding_window": False},
)

FAMILIES = {"smollm3": SMOLLM3}
