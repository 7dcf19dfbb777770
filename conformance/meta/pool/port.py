"""The independent port with bugs in its text: a copy of its files, written to a folder and imported from there."""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from meta.pool.bug import META, Bug, View, read_folder, text_of
from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity_conformance.oracle.cases import MODELS
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.oracle.undetermined import judged as where_no_convention_decides
from transparity_conformance.report.comparison import difference

VIEWS: tuple[View, ...] = get_args(View)

FILES = tuple(META / "independent" / name for name in ("positions.py", "model.py", "port.py"))
"""The text of the port; each file imports the ones before it."""

Build = Callable[..., Callable[..., Any]]


def _further() -> dict[str, TransformerConfig]:
    """Return configurations for what no preset has: batch statistics, a mask whose order matters, a single encoder."""
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        "batch-norm": ("notes-attention", {"norm": "batch"}),
        "weak-mask": ("translation", {"mask_value": -3.0, "target_mask": "causal-and-padding"}),
        "lone-encoder": (
            "translation",
            {"architecture": "encoder", "target_vocab_size": None, "final_norm": True, "mask_order": "after-scale"},
        ),
    }
    return {case: changed(preset(name).resized(), fields) for case, (name, fields) in changes.items()}


def changed(config: TransformerConfig, fields: Mapping[str, Any]) -> TransformerConfig:
    """Return the configuration with other fields."""
    return TransformerConfig(**{**{name: getattr(config, name) for name in config.__dataclass_fields__}, **fields})


CASES: dict[str, TransformerConfig] = {name: preset(name).resized() for name in PRESETS} | _further() | dict(MODELS)
"""The configurations in which bugs of the independent port are tested."""


@functools.cache
def pool() -> dict[str, Bug]:
    """Return the bugs of the independent port and its right variants, by id."""
    return {bug.id: bug for bug in read_folder(META / "independent/bugs")}


@functools.cache
def _folder() -> Path:
    """Return a folder that modules are imported from; it is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="planted-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sys.path.insert(0, str(folder))
    return folder


@functools.lru_cache(maxsize=256)
def modules_with(bugs: tuple[Bug, ...]) -> Any:
    """Return the module `port` of a copy of the independent port that has all bugs; its lines keep their files."""
    texts = {path.name: text_of(path, [bug for bug in bugs if bug.path == path]) for path in FILES}
    name = f"planted_{hashlib.sha256(repr(texts).encode()).hexdigest()[:16]}"
    folder = _folder() / name
    if not folder.exists():
        folder.mkdir()
        for file, text in {"__init__.py": "", **texts}.items():
            (folder / file).write_text(text.replace("meta.independent.", f"{name}."), encoding="utf-8")
        importlib.invalidate_caches()
    return importlib.import_module(f"{name}.port")


def port_with(*bugs: Bug | str, taps: bool = True, offers: str = "") -> Build:
    """`build(config, parameters, dtype="float32")` of the port with bugs in it.

    Args:
        bugs: Rows, or their ids in the pool.
        taps: It returns all of its taps, not only its logits.
        offers: The capability that it offers besides its forward pass; `all`: every one.
    """
    module = modules_with(tuple(pool()[bug] if isinstance(bug, str) else bug for bug in bugs))
    base = module.Port if offers else module.Model
    made = type("Built", (base,), {"taps": taps})
    if offers in ("", "all"):
        return lambda config, parameters, dtype="float32": made(config, parameters, dtype)
    return lambda config, parameters, dtype="float32": Offering(made(config, parameters, dtype), offers)


class Offering:
    """A port's forward pass and one of its capabilities."""

    def __init__(self, port: Any, name: str) -> None:
        self.port = port
        setattr(self, name, getattr(port, name))

    def __call__(self, **inputs: Any) -> Any:
        return self.port(**inputs)


@functools.cache
def probes_called(case: str) -> dict[str, Probe]:
    """Return the probes that a check of the case uses."""
    return dict(probes_of(CASES[case], case))


@functools.lru_cache(maxsize=512)
def logits_with(case: str, bugs: tuple[Bug, ...], dtype: str = "float64") -> dict[str, np.ndarray]:
    """Return the logits on all probes of a case; empty if the port raises."""
    build = port_with(*bugs)
    try:
        return {
            name: np.asarray(build(probe.config, probe.parameters, dtype)(**probe.inputs)["logits"]).astype(np.float64)
            for name, probe in probes_called(case).items()
        }
    except (IndexError, RuntimeError, ValueError):
        return {}


def differ(case: str, one: tuple[Bug, ...], other: tuple[Bug, ...]) -> bool:
    """Return whether the logits of two ports differ by more than float32 rounds on some probe, computed in float64."""
    first, second = (logits_with(case, bugs) for bugs in (one, other))
    return bool(first and second) and any(
        first[name].shape != second[name].shape
        or not (np.abs(first[name] - second[name]) <= probe.oracle.budget("logits", "float32")).all()
        for name, probe in probes_called(case).items()
    )


def all_act(case: str, bugs: tuple[Bug, ...]) -> bool:
    """Return whether each bug changes both the right port and the port with the other bugs."""
    if len(bugs) == 1:
        return differ(case, (), bugs)
    others = (tuple(bug for bug in bugs if bug is not one) for one in bugs)
    return all(differ(case, (), (bug,)) for bug in bugs) and all(differ(case, bugs, rest) for rest in others)


def is_right(case: str, bugs: tuple[Bug, ...], dtype: str = "float32") -> bool:
    """Return whether the port is right by the oracle's budget, not by the checker."""
    found = logits_with(case, bugs, dtype)
    for name, probe in probes_called(case).items():
        expected = probe.oracle.expected["logits"]
        error = difference(where_no_convention_decides(probe, "logits", found[name], expected), expected)
        if not error <= probe.oracle.budget("logits", dtype):
            return False
    return True
