"""Right placements, and mistakes of sharding, each with the cause that the checker has to name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

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
    """A sharded port on a configuration, and the id of its mistake; without one it is right."""

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


_PLANS = {
    "tensor": "notes-lm llama one-key-head windows alibi relative",
    "tensor_taps": "notes-lm llama",
    "columns": "notes-lm llama relative",
    "padded": "notes-lm alibi",
    "sequence": "notes-lm one-key-head alibi",
    "stages": "notes-lm windows alibi",
    "everywhere": "llama",
    "rows": "notes-lm windows relative",
}
"""The configurations of each plan."""
_LEARNING = ("tensor", "columns", "padded", "sequence", "rows", "dropping")
_PLANS |= {f"{plan}_learning": "notes-lm" for plan in _LEARNING}

RIGHT = tuple(
    Case(plan, config, ranks)
    for ranks in (2, 4, 3)
    for plan, configs in _PLANS.items()
    for config in configs.split()
    if ranks != 3 or plan in ("tensor", "columns", "stages", "rows")
)

_MISTAKES = (
    ("tensor__bias", "notes-lm", "bias-on-every-rank"),
    ("tensor__bias_down", "alibi", "bias-on-every-rank"),
    ("tensor_taps__bias", "notes-lm", "bias-on-every-rank"),
    ("tensor__fused", "notes-lm", "fused-cut-across"),
    ("tensor__fused", "alibi", "fused-cut-across"),
    ("tensor__fused", "llama", "fused-cut-across"),
    ("tensor__fused_gate", "llama", "fused-cut-across"),
    ("tensor__heads", "alibi", "heads-by-rank"),
    ("tensor__slopes", "alibi", "heads-by-rank"),
    ("tensor__heads", "relative", "heads-by-rank"),
    ("tensor__twice", "llama", "reduced-twice"),
    ("tensor_taps__not_reduced", "notes-lm", "not-reduced"),
    ("tensor__not_reduced", "notes-lm", "not-reduced"),
    ("stages__layer_weights", "notes-lm", "layers-by-stage"),
    ("everywhere__layer_weights", "llama", "layers-by-stage"),
    ("stages__layer_windows", "windows", "layers-by-stage"),
    ("padded_learning__padded_loss", "notes-lm", "vocabulary-padded"),
    ("rows_learning__mean_of_means", "notes-lm", "loss-per-rank"),
    ("rows_learning__not_summed", "notes-lm", "gradient-not-reduced"),
    ("sequence_learning__norms", "notes-lm", "gradient-not-reduced"),
    ("tensor_learning__bias_share", "notes-lm", "gradient-of-replicas"),
    ("tensor_learning__norm_of_shards", "notes-lm", "clip-norm-of-ranks"),
    ("tensor_learning__norm_of_replicas", "notes-lm", "clip-norm-of-ranks"),
    ("dropping_learning__same_seed", "notes-lm", "dropout-seed-shared"),
    ("dropping_learning__replicas", "notes-lm", "dropout-on-replicas"),
)

WRONG = tuple(Case(port, config, ranks, cause) for ranks in (2, 4) for port, config, cause in _MISTAKES)
