"""A sharded port's output is compared with its output on one rank, then with the reference; mistakes are named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meta.ranks.cases import CONFIGS, RIGHT, WRONG, Case
from meta.ranks.measure import checked, started
from transparity.taps import tap_shapes
from transparity_conformance.capabilities.faults.sharding import OF_TWO_RANKS, loss_faults, optimizer_faults
from transparity_conformance.capabilities.sharding import ALONE
from transparity_conformance.catalogue import faults_at, sharding
from transparity_conformance.checking.calls import run_all
from transparity_conformance.checking.stages.ranks import against_one
from transparity_conformance.checking.systems import divisible
from transparity_conformance.diagnosis.judge import ignore_progress, judge
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.probes import probes_of
from transparity_conformance.report.check.findings import sentence
from transparity_conformance.running.process.isolation import IsolatedBuild
from transparity_conformance.running.process.joining import Whole
from transparity_conformance.running.process.ranks import group_of


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[IsolatedBuild]:
    with started(RIGHT[0].spec, 2) as build:
        yield build


def test_the_verdict_says_that_it_is_the_ranks_doing(two_ranks: IsolatedBuild) -> None:
    report = checked(two_ranks, Case("tensor_taps__bias_down", "notes-lm", 2))
    said = sentence(report)
    assert said.startswith("The output on 2 ranks differs from the output on 1 rank by ")
    assert "the down bias is added on every rank (2 ×)" in said
    ranks = report.as_dict()["ranks"]
    assert (ranks["count"], ranks["one_rank"]) == (2, "diverges")
    assert ranks["placements"]["*.down.weight"] == "sharded:1"


def test_every_rank_is_listened_to(two_ranks: IsolatedBuild, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Counting(Whole):
        def of(self, number: int, by_rank: Any) -> list[Operation]:
            asked.append(len(by_rank))
            return super().of(number, by_rank)

    group = group_of(two_ranks)
    monkeypatch.setattr(group, "whole", Counting())
    assert checked(two_ranks, Case("tensor__bias_down", "notes-lm", 2)).verdict == "diverges"
    assert set(asked) == {2}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_sizes_of_probes_divide_among_the_ranks(ranks: int) -> None:
    for name, config in CONFIGS.items():
        sized = divisible(config, ranks)
        sizes = [sized.num_heads, sized.feed_forward_dim, sized.num_decoder_layers, sized.target_vocab_size]
        sizes += [sized.key_value_heads] if config.key_value_heads > 1 else []
        assert [size for size in sizes if size is None or size % ranks] == [], name
        assert sized.num_heads >= 2 * ranks


def test_every_fault_of_sharding_has_a_port_that_makes_it() -> None:
    made = {case.cause for case in WRONG}
    known = {fault.id for fault in OF_TWO_RANKS} | {"gradient-not-reduced", "gradient-of-replicas"}
    known |= {"dropout-seed-shared", "dropout-on-replicas", "ranks-differ", "replicas-differ"}
    for config in CONFIGS.values():
        sites = tap_shapes(divisible(config, 2), 1, tokens=3)
        known |= {fault.id for site in sites for fault in faults_at(divisible(config, 2), site, 2) if fault.of_ranks}
    assert known == made


def test_on_one_rank_there_is_no_fault_of_sharding() -> None:
    for config in CONFIGS.values():
        assert not [fault for site in tap_shapes(config, 1, tokens=3) for fault in sharding.faults(config, site, 1)]
    assert [*loss_faults(ALONE), *optimizer_faults(ALONE)] == []


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
