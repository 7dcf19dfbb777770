"""The independent port with bugs, imported from edited copies of its files."""

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
"""The files of the port; each file imports only earlier files."""

Build = Callable[..., Callable[..., Any]]


def _further() -> dict[str, TransformerConfig]:
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
    return TransformerConfig(**{**{name: getattr(config, name) for name in config.__dataclass_fields__}, **fields})


CASES: dict[str, TransformerConfig] = {name: preset(name).resized() for name in PRESETS} | _further() | dict(MODELS)
"""The configurations for bugs of the independent port."""


@functools.cache
def pool() -> dict[str, Bug]:
    return {bug.id: bug for bug in read_folder(META / "independent/bugs")}


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="planted-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sys.path.insert(0, str(folder))
    return folder


@functools.lru_cache(maxsize=256)
def modules_with(bugs: tuple[Bug, ...]) -> Any:
    """Return the module `port` from a copy of the independent port with all bugs."""
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
    """Return `build(config, parameters, dtype="float32")` of the port with bugs, which are rows of the pool or their
    ids. With `taps`, the port returns all of its taps instead of only its logits. `offers` is the capability that the
    port offers besides its forward pass, or `all`."""
    module = modules_with(tuple(pool()[bug] if isinstance(bug, str) else bug for bug in bugs))
    made = type("Built", (module.Port if offers else module.Model,), {"taps": taps})
    if offers in ("", "all"):
        return lambda config, parameters, dtype="float32": made(config, parameters, dtype)

    def build(config: TransformerConfig, parameters: Any, dtype: str = "float32") -> Offering:
        port = made(config, parameters, dtype)
        return Offering(port, **{offers: getattr(port, offers)})

    return build


class Offering:
    def __init__(self, forward: Callable[..., Any], **offers: Any) -> None:
        self.forward = forward
        vars(self).update(offers)

    def __call__(self, **inputs: Any) -> Any:
        return self.forward(**inputs)


@functools.cache
def probes_called(case: str) -> dict[str, Probe]:
    return dict(probes_of(CASES[case], case))


@functools.lru_cache(maxsize=512)
def logits_with(case: str, bugs: tuple[Bug, ...], dtype: str = "float64") -> dict[str, np.ndarray]:
    """Return the logits for all probes of a case; empty if the port raises."""
    build = port_with(*bugs)
    try:
        return {
            name: np.asarray(build(probe.config, probe.parameters, dtype)(**probe.inputs)["logits"]).astype(np.float64)
            for name, probe in probes_called(case).items()
        }
    except (IndexError, RuntimeError, ValueError):
        return {}


def differ(case: str, one: tuple[Bug, ...], other: tuple[Bug, ...]) -> bool:
    """Return whether the float64 logits of two ports differ by more than float32 rounding on any probe."""
    first, second = (logits_with(case, bugs) for bugs in (one, other))
    return bool(first and second) and any(
        first[name].shape != second[name].shape
        or not (np.abs(first[name] - second[name]) <= probe.oracle.budget("logits", "float32")).all()
        for name, probe in probes_called(case).items()
    )


def all_act(case: str, bugs: tuple[Bug, ...]) -> bool:
    if len(bugs) == 1:
        return differ(case, (), bugs)
    others = (tuple(bug for bug in bugs if bug is not one) for one in bugs)
    return all(differ(case, (), (bug,)) for bug in bugs) and all(differ(case, bugs, rest) for rest in others)


def is_right(case: str, bugs: tuple[Bug, ...]) -> bool:
    """Return whether the float32 logits are within the oracle's budget on every probe. The checker takes no part in
    this comparison."""
    found = logits_with(case, bugs, "float32")
    for name, probe in probes_called(case).items():
        expected = probe.oracle.expected["logits"]
        error = difference(where_no_convention_decides(probe, "logits", found[name], expected), expected)
        if not error <= probe.oracle.budget("logits", "float32"):
            return False
    return True
