"""PyTorch's DTensor and JAX over processes: arrays that the framework shards are gathered by the framework."""

from __future__ import annotations

import pytest

from meta.ranks.measure import CONFIGS, Case, started
from transparity_conformance.checking.calls import run_all
from transparity_conformance.checking.stages.ranks import against_one
from transparity_conformance.checking.systems import divisible
from transparity_conformance.diagnosis.judge import ignore_progress, judge
from transparity_conformance.oracle.probes import probes_of
from transparity_conformance.running.process.isolation import IsolatedBuild
from transparity_conformance.running.process.ranks import group_of

CONFIG = divisible(CONFIGS["notes-lm"], 2)
PROBES = {key: probe for key, probe in probes_of(CONFIG, "notes-lm").items() if key in ("mixed", "one")}


def beside_one(build: IsolatedBuild, case: Case) -> str:
    """Compare the same code on one rank and on two."""
    group = group_of(build)
    assert group is not None
    group.load(case.spec)
    return against_one(group, build, PROBES, "float32", True, ignore_progress).one_rank


@pytest.mark.parametrize(("file", "wrong"), [("dtensor.py", "build_fused"), ("jax_mesh.py", "build_bias")])
def test_what_a_framework_shards_is_gathered_and_compared(file: str, wrong: str) -> None:
    right, faulty = (Case(port, "notes-lm", 2, file=file) for port in ("build", wrong))
    with started(right.spec, right.ranks) as build:
        assert beside_one(build, right) == "agrees"
        actual = run_all(build, PROBES, ignore_progress, logits_only=True).actual
        assert judge("notes-lm", PROBES, actual).verdict == "agrees"
        assert beside_one(build, faulty) == "diverges"
