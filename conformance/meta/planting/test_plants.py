"""Every claim catches the mistake that is planted for it: a check that cannot fail shows nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from meta.planting.planted import DRAWN, REFERENCE_COLUMN, as_reference, caught, file_path, planted
from meta.planting.plants import PLANTS, Plant
from transparity_conformance.suite.claims import all_claims

COMPILED = "transparity_flax"
"""XLA compiles each shape of a plant in this column; all claims have the same mistake in PyTorch, too."""


@pytest.mark.sampled(20)
@pytest.mark.parametrize("plant", [plant for plant in PLANTS if plant.column != COMPILED], ids=str)
def test_the_claim_catches_what_is_planted_for_it(plant: Plant) -> None:
    assert_caught(plant, plant.caught_by)


@pytest.mark.sampled(96)
@pytest.mark.parametrize("plant", [plant for plant in PLANTS if plant.column == COMPILED], ids=str)
def test_one_claim_catches_what_is_planted_where_shapes_are_compiled(plant: Plant) -> None:
    assert_caught(plant, plant.caught_by[:1])


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_a_plant_has_its_line(plant: Plant) -> None:
    assert plant.line in file_path(plant.column, plant.file).read_text()


def assert_caught(plant: Plant, asked: Sequence[str]) -> None:
    """Assert that each of the claims `asked` fails for the planted column."""
    text = file_path(plant.column, plant.file).read_text()
    with ExitStack() as stack:
        build = stack.enter_context(planted(plant.column, plant.file, text.replace(plant.line, plant.becomes)))
        if plant.column == REFERENCE_COLUMN:
            stack.enter_context(as_reference(build))
        slept_through = [name for name in asked if not caught(name, build)]
    assert not slept_through, f"{plant} went unnoticed by {', '.join(slept_through)}"


def test_every_claim_has_a_fault_planted_for_it() -> None:
    planted_for = {name for plant in PLANTS for name in plant.caught_by}
    assert planted_for == {DRAWN, *all_claims()}


@pytest.mark.sampled(9)
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, claim in all_claims().items() if claim.full])
def test_a_claim_in_full_catches_a_fault(name: str) -> None:
    plant = next(plant for plant in PLANTS if name in plant.caught_by and plant.column == "transparity_pytorch")
    text = file_path(plant.column, plant.file).read_text()
    with planted(plant.column, plant.file, text.replace(plant.line, plant.becomes)) as build:
        assert caught(name, build, in_full=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("column", ["transparity_pytorch", "transparity_flax", "transparity_numpy"])
def test_a_column_planted_without_a_mistake_is_right(column: str) -> None:
    text = file_path(column, "attention").read_text()
    with planted(column, "attention", text) as build:
        assert not caught("attention.weights_sum_to_one", build)
        assert not caught("metamorphic.future_tokens_have_no_effect", build)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("column", ["transparity_pytorch", "transparity_flax"])
def test_ranks_planted_without_a_mistake_are_right(column: str) -> None:
    text = file_path(column, "parallel.sharding").read_text()
    with planted(column, "parallel.sharding", text) as build:
        assert not caught("sharding.forward", build)
