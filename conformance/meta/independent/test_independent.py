"""The checker on a port that shares nothing with it: right styles agree, and faults are named by their own ids."""

from __future__ import annotations

import ast
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from meta.independent import model
from meta.independent.capability_faults import FAULTS, CapabilityFault
from meta.independent.measure import CONFIGS, capability_trial, changes_nothing, left_out, right_trial
from meta.independent.measure import uncatalogued_trial as unknown
from meta.independent.port import Port, build_with
from meta.independent.right_ports import RightPort, right_ports
from meta.independent.styles import STYLES
from meta.independent.uncatalogued import UncataloguedFault, uncatalogued_faults
from transparity_conformance import check
from transparity_conformance.capabilities.faults.beams import BEAM_FAULTS
from transparity_conformance.capabilities.faults.cache import CACHE_FAULTS
from transparity_conformance.capabilities.faults.generation import GREEDY_FAULTS, RAGGED_FAULTS
from transparity_conformance.capabilities.faults.loss import LOSS_FAULTS
from transparity_conformance.capabilities.faults.optimization import OPTIMIZER_FAULTS
from transparity_conformance.capabilities.faults.sampling import SAMPLING_FAULTS
from transparity_conformance.capabilities.table import ATTRIBUTES

CATALOGUE = (
    *LOSS_FAULTS,
    *GREEDY_FAULTS,
    *RAGGED_FAULTS,
    *SAMPLING_FAULTS,
    *BEAM_FAULTS,
    *CACHE_FAULTS,
    *OPTIMIZER_FAULTS,
)
OURS = ("transparity", "meta.attacks", "meta.independent.measure")


def sampled(of: Any, count: int) -> list[Any]:
    return random.Random(0).sample(list(of), count)


def test_the_port_imports_nothing_that_it_is_compared_with() -> None:
    folder = Path(model.__file__).parent
    for path in (each for each in folder.glob("*.py") if each.stem not in ("measure", "test_independent")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if name.startswith(OURS)], path.name


def test_every_catalogued_fault_of_a_capability_is_made() -> None:
    catalogued = {(fault.id, fault.says) for fault in CATALOGUE}  # some in several kinds of cache
    assert Counter(fault.id for fault in FAULTS) == Counter(id for id, _ in catalogued)


@pytest.mark.long
@pytest.mark.sampled(2)
@pytest.mark.parametrize("preset", ["notes-lm", "translation"])
def test_the_right_port_agrees_with_all_that_it_offers(preset: str) -> None:
    report = check(build_with(base=Port), preset=preset)
    assert report.verdict == "agrees"
    assert [says for says in report.not_compared if says.startswith(ATTRIBUTES)] == []


@pytest.mark.sampled(12)
@pytest.mark.parametrize("fault", sampled(FAULTS, 12), ids=str)
def test_a_fault_of_a_capability_is_named(fault: CapabilityFault) -> None:
    needed = {"": "notes-lm", "padding": "pre-norm", "rotary": "llama", "recurrence": "qwen3-next"}
    trial = capability_trial(fault, needed.get(fault.needs, "translation"))
    report = trial.run()
    assert trial.is_right(report), report.faults


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pre-norm", "cache-mask: not itself"),
        ("pre-norm", "cache-mask: from the first key"),
        ("pre-norm", "cache-mask: the step alone"),
        ("llama", "cache-position: one too high"),
        ("llama", "cache-position: queries from 0 again"),
        ("llama", "cache-position: keys kept unrotated"),
        ("t5", "beams-end: dropped at the end"),
        ("qwen3-next", "cache-state: the state from zeros"),
        ("qwen3-next", "cache-state: convolutions from zeros"),
        ("qwen3-next", "cache-state: nothing kept"),
    ],
)
def test_a_fault_is_named_in_every_kind_of_cache_and_loop(name: str, says: str) -> None:
    """A cache may hold the tokens so far alone, tables may be looked up, and each row may be searched by itself."""
    trial = capability_trial(next(fault for fault in FAULTS if str(fault) == says), name)
    report = trial.run()
    assert trial.is_right(report), report.faults


@pytest.mark.long
def test_what_is_left_out_changes_nothing() -> None:
    assert [f"{name}: {fault}" for name, fault in left_out() if not changes_nothing(name, fault)] == []


def test_what_acts_changes_something() -> None:
    """The comparison that finds no-ops sees a fault where there is one."""
    acting = [fault for fault in FAULTS if fault.needs in ("padding", "source")]
    assert acting
    assert not any(changes_nothing("pre-norm", fault) for fault in acting)


def test_there_are_thirty_styles() -> None:
    assert len(STYLES) >= 30


@pytest.mark.sampled(6)
@pytest.mark.parametrize("port", sampled(right_ports(CONFIGS, 500), 6), ids=str)
def test_a_right_port_agrees(port: RightPort) -> None:
    report = right_trial(port).run()
    assert report.verdict == "agrees", report.faults


@pytest.mark.long
@pytest.mark.parametrize("fault", sampled(uncatalogued_faults(CONFIGS, 300), 3), ids=str)
def test_an_uncatalogued_fault_is_found_and_not_named(fault: UncataloguedFault) -> None:
    trial = unknown(fault)
    report = trial.run()
    assert trial.is_right(report), report.faults
