"""Loaders for other people's code: each subject has `load(folder)` or `build(config, parameters)`."""

from __future__ import annotations

from collections.abc import Mapping


def renamed(name: str, names: Mapping[str, str]) -> str:
    """Return the name of a parameter with each of our parts in `names` replaced by theirs, in order."""
    for ours, theirs in names.items():
        name = name.replace(ours, theirs)
    return name
