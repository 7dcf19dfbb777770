"""The check: is a port right and, if not, where and why?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.probes import Probe
from transparity_conformance.verdict import Report

Port = Callable[[TransformerConfig, dict[str, np.ndarray]], Callable[..., Any]]
"""`build(config, parameters)` → `forward(source=…, target=…)` or `forward(tokens=…)`."""

Progress = Callable[[str, int, int], None]
"""Hears what is being done, how many steps are done, and of how many."""

Actual = Mapping[str, Mapping[str, np.ndarray]]
"""What a port said: by probe, by tap."""


def check(
    build: Port,
    preset: str | None = None,
    *,
    config: TransformerConfig | None = None,
    dtype: str = "float32",
    logits_only: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Check a port against the reference, at the preset's probe size or for any `config`."""
    raise NotImplementedError


def judge(
    name: str,
    probes: Mapping[str, Probe],
    actual: Actual,
    *,
    dtype: str = "float32",
    logits_only: bool = False,
    progress: Progress | None = None,
    not_compared: tuple[str, ...] = (),
) -> Report:
    """The verdict on what a port said of `probes`, however it was run: here, elsewhere, or last week."""
    raise NotImplementedError
