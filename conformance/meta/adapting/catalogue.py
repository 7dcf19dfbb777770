"""The catalogue of ports for `adapt`, by name, and the configuration of each."""

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
"""Maps the name of a port to the module that defines it."""

_ROWS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))


def _config(name: str) -> TransformerConfig:
    """Return the configuration of a port in `catalogue.toml`.

    The row changes fields of a base: another row, a preset at probe size, or an example of a family.
    """
    fields = dict(_ROWS[name])
    if fields.pop("own_keys", False):
        fields["num_key_value_heads"] = None
    like = fields.pop("like", "")
    if not like:
        return TransformerConfig(**fields)
    if like in _ROWS and like != name:
        return dataclasses.replace(_config(like), **fields)
    return dataclasses.replace(preset(like).resized() if like in PRESETS else example_config(like), **fields)


CONFIGS = {name: _config(name) for name in _ROWS if name in FILES}
GPT2, LLAMA, ALIKE = CONFIGS["nanogpt"], CONFIGS["hub-llama"], CONFIGS["to-kv"]
"""`ALIKE` is a Llama with as many key and value heads as query heads."""

PORTS: dict[str, tuple[Callable[[TransformerConfig], Any], TransformerConfig]] = {
    name: (FILES[name].PORTS[name], config) for name, config in CONFIGS.items()
}
