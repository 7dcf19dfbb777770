"""The optional sections of a bundle: what else a port may be held to, and which tensors it writes for that.

A section is described in the manifest: what it is for, what a port needs for it, and under `actual` every tensor that a
port may write beside its taps, with its shape.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transparity.errors import shown
from transparity.parameters import is_learned
from transparity_conformance.capabilities.gradients import why_no_gradients
from transparity_conformance.capabilities.incremental_decoding import ways, why_no_steps
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.oracle.derivatives import targets_of
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.ports.bundle.manifest import SECTIONS

Shapes = dict[str, tuple[int, ...]]
Probes = Mapping[str, Probe]


def in_order(sections: Collection[str]) -> tuple[str, ...]:
    """The sections, each once; raises `BundleError` for one that there is not."""
    for name in sections:
        if name not in SECTIONS:
            raise BundleError(f"There is no section {name!r} of a bundle; the sections are {', '.join(SECTIONS)}.")
    return tuple(name for name in SECTIONS if name in sections)


def described(section: str, probes: Probes, dtype: str) -> dict[str, Any]:
    """What the manifest says of a section, as plain JSON."""
    needs, purpose = _DESCRIPTIONS[section](probes, dtype)
    actual = {name: list(shape) for name, shape in asked(section, probes, dtype).items()}
    return {"for": purpose, **needs, "actual": actual}


def asked(section: str, probes: Probes, dtype: str) -> Shapes:
    """Every tensor that a port may write for a section, with its shape."""
    return _ASKED[section](probes, dtype)


def targets(probes: Probes) -> Arrays:
    """The targets (batch, length) of every probe, under the names that they have in a bundle."""
    return {f"{key}/targets": targets_of(probe.config, probe.inputs) for key, probe in probes.items()}


def gradient_names(probe: Probe, dtype: str) -> dict[str, str]:
    """`gradient.{parameter}` by parameter; none if none are compared."""
    if why_no_gradients(probe, dtype):
        return {}
    return {name: f"gradient.{name}" for name in probe.parameters if is_learned(name)}


def chunk_names(probe: Probe) -> dict[str, dict[str, int]]:
    """By way, `step.{way}.{i}` and how many tokens the i-th chunk has; none if none are compared."""
    if why_no_steps(probe.config):
        return {}
    length = probe.inputs[probe.config.input_names[-1]].shape[1]
    return {
        way: {f"step.{_one_word(way)}.{index}": size for index, size in enumerate(sizes)}
        for way, sizes in ways(length).items()
    }


def check_section(path: Path, section: str, said: Mapping[str, Any], probes: Probes, dtype: str) -> None:
    """Hold what a manifest says of a section to what the configuration and the probes make of it; what it is for may
    be said in other words."""
    purpose, expected = said.get("for"), described(section, probes, dtype)
    if not isinstance(purpose, str) or not purpose.isprintable():
        raise BundleError(f"{path} is not right: what the section {section} is for is {shown(purpose)}.")
    # As JSON, for 1, 1.0 and true are not the same there.
    if json.dumps({**said, "for": ""}, sort_keys=True) != json.dumps({**expected, "for": ""}, sort_keys=True):
        raise BundleError(
            f"{path} is not right: the section {section} is not that of the configuration and the probes."
        )


def check_targets(path: Path, said: Mapping[str, np.ndarray], probes: Probes) -> None:
    """Hold targets (batch, length) to the tokens of the probes: they are no others."""
    right = targets(probes)
    for name, value in said.items():
        if not np.array_equal(value, right[name]):
            raise BundleError(f"{path} is not right: {name} should be the tokens of the probe, one further.")


def _one_word(way: str) -> str:
    return way.replace(" ", "_")


def _gradients_asked(probes: Probes, dtype: str) -> Shapes:
    key, probe = next(iter(probes.items()))
    names = gradient_names(probe, dtype).items()
    losses: Shapes = {f"{other}/loss": () for other in probes}
    return losses | {f"{key}/{said}": probe.parameters[name].shape for name, said in names}


def _steps_asked(probes: Probes, dtype: str) -> Shapes:
    key, probe = next(iter(probes.items()))
    rows, words = len(probe.inputs[probe.config.input_names[-1]]), probe.config.vocab_size
    chunks = [chunk for way in chunk_names(probe).values() for chunk in way.items()]
    return {f"{key}/{name}": (rows, size, words) for name, size in chunks}


def _gradients_described(probes: Probes, dtype: str) -> tuple[dict[str, Any], str]:
    key, probe = next(iter(probes.items()))
    purpose = "the loss is the mean of -log softmax(logits)[target] over all targets that are not pad_id; "
    purpose += why_no_gradients(probe, dtype) or f"the gradients are those of {key}/loss by every parameter"
    return {"targets": {name: list(value.shape) for name, value in targets(probes).items()}}, purpose


def _steps_described(probes: Probes, dtype: str) -> tuple[dict[str, Any], str]:
    key, probe = next(iter(probes.items()))
    sizes = {_one_word(way): list(chunks.values()) for way, chunks in chunk_names(probe).items()}
    purpose = f"the logits of {key}, decoded with a cache in chunks of so many tokens, each way from the first token on"
    return {"ways": sizes}, why_no_steps(probe.config) or purpose


_ASKED: dict[str, Callable[[Probes, str], Shapes]] = {"gradients": _gradients_asked, "steps": _steps_asked}
_DESCRIPTIONS: dict[str, Callable[[Probes, str], tuple[dict[str, Any], str]]] = {
    "gradients": _gradients_described,
    "steps": _steps_described,
}
