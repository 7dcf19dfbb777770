"""Loaders for other people's code: each subject has `load(folder)` or `build(config, parameters)`."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def tables(subject: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(f"{subject}.toml").read_text(encoding="utf-8"))


def renamed(name: str, names: Mapping[str, str]) -> str:
    """Return the name of a parameter in which each key of `names` is replaced by its value, one after another."""
    for ours, theirs in names.items():
        name = name.replace(ours, theirs)
    return name
