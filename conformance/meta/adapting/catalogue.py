"""The ports by name, each with its configuration."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meta.adapting import arrays, decoders, encoders
from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity_conformance.checkpoints.examples import example_config

FILES = {name: module for module in (decoders, encoders, arrays) for name in module.PORTS}
"""The module of each port."""

_ROWS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))


def _config(name: str) -> TransformerConfig:
    """Return the configuration of a row: another row's, a preset's at probe size, or a family's, with changed
    fields."""
    fields = dict(_ROWS[name])
    if fields.pop("own_keys", False):  # heads do not share keys and values
        fields["num_key_value_heads"] = None
    like = fields.pop("like", "")
    if not like:
        return TransformerConfig(**fields)
    if like in _ROWS and like != name:
        return dataclasses.replace(_config(like), **fields)
    return dataclasses.replace(preset(like).resized() if like in PRESETS else example_config(like), **fields)


CONFIGS = {name: _config(name) for name in _ROWS if name in FILES}
GPT2, LLAMA, ALIKE = CONFIGS["nanogpt"], CONFIGS["hub-llama"], CONFIGS["to-kv"]
"""`ALIKE`: a Llama whose heads do not share keys and values."""

PORTS: dict[str, tuple[Callable[[TransformerConfig], Any], TransformerConfig]] = {
    name: (FILES[name].PORTS[name], config) for name, config in CONFIGS.items()
}
