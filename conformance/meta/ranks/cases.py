"""Correct sharded ports, and mistakes of sharding with the cause that the checker must name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from meta.pool.bug import rows
from transparity.config import TransformerConfig, full_attention_every
from transparity.presets import preset
from transparity_conformance.oracle.cases import CASES

HERE = Path(__file__).parent

_LLAMA = dataclasses.replace(CASES["llama"], rotary_scaling="none", rotary_factor=1.0)

CONFIGS: dict[str, TransformerConfig] = {
    "notes-lm": preset("notes-lm"),
    "llama": _LLAMA,
    "one-key-head": dataclasses.replace(_LLAMA, num_key_value_heads=1),
    "windows": dataclasses.replace(_LLAMA, sliding_window=4, **full_attention_every(2)),
    "alibi": CASES["bloom"],
    "relative": dataclasses.replace(preset("notes-lm"), positions="relative"),
}


@dataclass(frozen=True)
class Case:
    """A sharded port, its configuration, and the id of its mistake; without an id it is correct."""

    port: str
    config: str
    ranks: int
    cause: str = ""
    file: str = "by_hand.py"

    @property
    def spec(self) -> str:
        return f"{HERE / self.file}:{self.port}"

    def __str__(self) -> str:
        return f"{self.file}:{self.port}, {self.config}, {self.ranks} ranks"


RIGHT = tuple(
    Case(row["port"], config, ranks)
    for ranks in (2, 4, 3)
    for row in rows(HERE / "cases.toml", "right")
    for config in row["configs"]
    if ranks != 3 or row["port"] in ("tensor", "columns", "stages", "rows")
)

WRONG = tuple(Case(ranks=ranks, **row) for ranks in (2, 4) for row in rows(HERE / "cases.toml", "mistake"))
