"""The values of all ranks are joined by declared placements, which are verified; nothing is cut off silently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.capabilities.sharding import Placement, Sharding, join, read_placements, split
from transparity_conformance.listening.operation import Operation
from transparity_conformance.running.process.joining import Whole

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
    [
        ("replicated", [WHOLE, WHOLE + 2]),
        ({"sharded": 0, "indices": [[0, 1], [1]]}, [WHOLE, WHOLE[1:] + 2]),
    ],
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
        ("sharded:5", [WHOLE, WHOLE], "is declared sharded:5, but has only 3 axes"),
        ("padded:-1", [WHOLE[..., :2]] * 2, "has 2 entries on this axis; expected at least 4"),
        ({"sharded": 0, "indices": [[0], [2]]}, [WHOLE[:1], WHOLE[1:]], "No rank declares the entry 1"),
        ({"sharded": 0, "indices": [[0], [1, 2]]}, [WHOLE[:1], WHOLE[1:]], "1 entries of logits, but declares 2"),
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


def test_the_first_pattern_that_fits_counts_and_a_name_counts_before_patterns() -> None:
    declared = {"*.weight": "sharded:0", "head.*": "partial", "head.weight": "sharded:1"}
    sharding = Sharding(2, read_placements(declared, 2))
    assert [str(sharding.of(name)) for name in ("head.weight", "up.weight", "head.bias", "x")] == [
        "sharded:1",
        "sharded:0",
        "partial",
        "replicated",
    ]


@pytest.mark.parametrize("declared", ["replicated", "sharded:1", {"sharded": 2, "indices": [[3, 1], [0, 2]]}], ids=str)
def test_what_is_split_is_joined_again(declared: Any) -> None:
    placement = placed(declared)
    np.testing.assert_array_equal(join("x", split(WHOLE, placement, 2), placement, WHOLE.shape).value, WHOLE)


def test_only_operations_with_the_same_values_on_every_rank_are_whole() -> None:
    def recorded(shard: np.ndarray) -> list[Operation]:
        made = [("whole", WHOLE, ()), ("shard", shard, (0,)), ("summed", WHOLE.sum(0), (1,))]
        return [Operation(name, value, inputs, ()) for name, value, inputs in made]

    by_rank = [recorded(WHOLE[:1]), recorded(WHOLE[1:])]
    assert [(each.name, each.inputs) for each in Whole().of(0, by_rank)] == [("whole", ()), ("summed", (0,))]
    assert len(Whole().of(0, by_rank[:1])) == 3
