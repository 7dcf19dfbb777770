from typing import Any, cast

import numpy as np
import pytest

from meta.ranks.measure import CONFIGS, WRONG, Case, started
from transparity.taps import tap_shapes
from transparity_conformance.capabilities.faults import OF_TWO_RANKS, loss_faults, optimizer_faults
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.capabilities.sharding import ALONE, Placement, Sharding, join, read_placements, split
from transparity_conformance.catalogue import faults_at, sharding
from transparity_conformance.checking.calls import Ran, ReachedCalls, run_all
from transparity_conformance.checking.stages.forms import LOGITS, PARTS, AnswerForm, in_form
from transparity_conformance.checking.stages.ranks import against_one
from transparity_conformance.checking.systems import divisible
from transparity_conformance.diagnosis.judge import ignore_progress, judge
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.probes import probes, probes_of
from transparity_conformance.running.process.isolation import IsolatedBuild, RemotePort
from transparity_conformance.running.process.joining import Whole
from transparity_conformance.running.process.ranks import ProcessGroup, group_of
from transparity_conformance.running.process.running import sharding_of
from transparity_conformance.running.process.wire import Handle


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


PROBES = {
    name: {key: probe for key, probe in probes_of(divisible(CONFIGS[name], 2), name).items() if key in ("mixed", "one")}
    for name in ("gpt2", "llama", "olmo2")
}


def beside_one(build: IsolatedBuild, case: Case) -> str:
    group = group_of(build)
    assert group is not None
    group.load(case.spec)
    return against_one(group, build, PROBES[case.config], "float32", True, ignore_progress).one_rank


@pytest.mark.parametrize(
    ("file", "config", "right_port", "wrong"),
    [
        ("dtensor.py", "llama", "build", "build_fused"),
        ("jax_mesh.py", "gpt2", "build", "build_bias"),
        ("by_hand.py", "olmo2", "tensor", "tensor__squares"),
    ],
)
def test_what_a_framework_shards_is_gathered_and_compared(file: str, config: str, right_port: str, wrong: str) -> None:
    right, faulty = (Case(port, config, 2, file=file) for port in (right_port, wrong))
    with started(right.spec, right.ranks) as build:
        assert beside_one(build, right) == "agrees"
        actual = run_all(build, PROBES[config], ignore_progress, logits_only=True).actual
        assert judge(config, PROBES[config], actual).verdict == "agrees"
        assert beside_one(build, faulty) == "diverges"


WHOLE = np.arange(24.0).reshape(2, 3, 4)


def placed(declared: Any, ranks: int = 2) -> Placement:
    return read_placements({"logits": declared}, ranks)["logits"]


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        ("replicated", [WHOLE, WHOLE]),
        ("partial", [WHOLE - 5, np.full(WHOLE.shape, 5.0)]),
        ("sharded:-1", [WHOLE[..., :2], WHOLE[..., 2:]]),
        ("sharded:0", [WHOLE[:1], WHOLE[1:]]),
        ("sharded:1", [WHOLE[:, :2], WHOLE[:, 2:]]),  # the shards have different sizes
        ("rank:-1", [None, WHOLE]),
        ("padded:-1", [np.pad(WHOLE, [(0, 0), (0, 0), (0, 3)])] * 2),
        ("sharded:-1 padded:-1", [WHOLE[..., :3], np.pad(WHOLE[..., 3:], [(0, 0), (0, 0), (0, 2)])]),
        ({"sharded": 2, "indices": [[0, 2], [1, 3]]}, [WHOLE[..., ::2], WHOLE[..., 1::2]]),
        ({"sharded": 2, "indices": [[0, 1, -1], [1, 2, 3]]}, [WHOLE[..., [0, 1, 3]], WHOLE[..., 1:]]),
    ],
    ids=str,
)
def test_values_that_are_placed_as_declared_are_joined(declared: Any, values: list[Any]) -> None:
    joined = join("logits", values, placed(declared), WHOLE.shape)
    np.testing.assert_array_equal(joined.value, WHOLE)
    assert joined.gap == 0


@pytest.mark.parametrize(
    ("declared", "values"),
    [("replicated", [WHOLE, WHOLE + 2]), ({"sharded": 0, "indices": [[0, 1], [1]]}, [WHOLE, WHOLE[1:] + 2])],
    ids=str,
)
def test_replicas_that_differ_are_seen(declared: Any, values: list[Any]) -> None:
    joined = join("logits", values, placed(declared), WHOLE.shape)
    assert (joined.gap, joined.rank) == (2, 1)


@pytest.mark.parametrize(
    ("declared", "values", "says"),
    [
        ("replicated", [WHOLE[..., :2]] * 2, "declare placements = {'logits': 'sharded:-1'}"),
        ("replicated", [np.zeros((2, 3, 6))] * 2, "from 2 ranks has 6 entries on axis -1; expected 4"),
        ("sharded:-1", [np.zeros((2, 3, 3))] * 2, "declare placements = {'logits': 'sharded:-1 padded:-1'}"),
        ("replicated", [WHOLE, None], "Rank 1 of 2 returned no logits"),
        ("rank:0", [None, WHOLE], "is declared to be on rank 0, but this rank returned no value"),
        ("sharded:-1", [WHOLE, WHOLE[:1]], "Ranks 0 and 1 return logits of the shapes (2, 3, 4) and (1, 3, 4)"),
        ("sharded:5", [WHOLE, WHOLE], "is declared sharded:5, but its number of axes is 3"),
        ("padded:-1", [WHOLE[..., :2]] * 2, "has 2 entries on this axis; expected at least 4"),
        ({"sharded": 0, "indices": [[0], [2]]}, [WHOLE[:1], WHOLE[1:]], "No rank declares the index 1"),
        (
            {"sharded": 0, "indices": [[0], [1, 2]]},
            [WHOLE[:1], WHOLE[1:]],
            "entries of logits on rank 1 is 1; expected 2, the number of declared",
        ),
    ],
    ids=str,
)
def test_values_that_are_placed_otherwise_are_one_sentence(declared: Any, values: list[Any], says: str) -> None:
    with pytest.raises(PortError) as raised:
        join("logits", values, placed(declared), WHOLE.shape)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    "declared",
    [
        "shard",
        "",
        "sharded",
        "partial:2",
        "sharded:x",
        "rank:2",
        "partial replicated",
        3,
        {"indices": [[0], [1]]},
        {"rank": None},
    ],
    ids=str,
)
def test_what_is_no_placement_is_refused(declared: Any) -> None:
    with pytest.raises(PortError, match="placement of 'logits'"):
        placed(declared)


@pytest.mark.parametrize("declared", ["replicated", "sharded:1", {"sharded": 2, "indices": [[3, 1], [0, 2]]}], ids=str)
def test_what_is_split_is_joined_again(declared: Any) -> None:
    placement = placed(declared)
    np.testing.assert_array_equal(join("x", split(WHOLE, placement, 2), placement, WHOLE.shape).value, WHOLE)


def test_only_operations_with_the_same_values_on_every_rank_are_whole() -> None:
    def recorded(shard: np.ndarray) -> list[Operation]:
        made = [("whole", WHOLE, ()), ("shard", shard, (0,)), ("summed", WHOLE.sum(0), (1,))]
        return [Operation(name, value, inputs, ()) for name, value, inputs in made]

    by_rank = [recorded(WHOLE[:1]), recorded(WHOLE[1:])]
    assert [(each.name, each.inputs) for each in Whole().of(Handle(1, "port"), by_rank)] == [
        ("whole", ()),
        ("summed", (0,)),
    ]
    assert len(Whole().of(Handle(1, "port"), by_rank[:1])) == 3


def test_a_port_that_returns_another_form_keeps_its_placements() -> None:
    probe, placed = probes("notes-lm")["mixed"], Sharding(2)
    port = RemotePort(cast(ProcessGroup, None), Handle(1, "port"), probe.config, sharding=placed)
    ran = Ran({}, ReachedCalls(), {id(probe.parameters): port}, {})
    form = AnswerForm(PARTS[0], LOGITS, 0.0, 0.0, ((), ()))
    assert sharding_of(in_form(ran, form, {"mixed": probe}).forward) is placed
