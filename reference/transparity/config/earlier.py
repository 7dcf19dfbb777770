"""Names of fields and values in files of earlier versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = {
    "router_correction": "router_score_bias",
    "router_groups_chosen": "topk_groups",
    "router_normalized": "normalize_topk",
    "query_rank": "q_lora_rank",
    "key_value_rank": "kv_lora_rank",
    "time_step_least": "time_step_min",
    "time_step_most": "time_step_max",
    "rotary_low_frequency": "rotary_slow_turns",
    "rotary_high_frequency": "rotary_fast_turns",
}
"""Old names of fields, each with the current name."""

VALUES = {"norm_position": {"both": "sandwich", "branch": "post-branch"}, "window_kind": {"chunks": "chunked"}}
"""Old names of values, each with the current name, by field."""


def renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Rename old fields and values.

    If the old and the new name of a field both occur, keep both: a later check rejects the old name.
    """
    found = {}
    for name, value in fields.items():
        current = FIELDS.get(name, name)
        found[name if current in fields else current] = value
    for name, values in VALUES.items():
        if isinstance(value := found.get(name), str):
            found[name] = values.get(value, value)
    if isinstance(kinds := found.get("layer_overrides"), Mapping):
        found["layer_overrides"] = {
            kind: renamed(changed) if isinstance(changed, Mapping) else changed for kind, changed in kinds.items()
        }
    return found
