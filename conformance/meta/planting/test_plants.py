from collections.abc import Sequence
from contextlib import ExitStack

import pytest
from hypothesis import strategies

from meta.planting.planted import DRAWN, PLANTS, REFERENCE_COLUMN, Plant, as_reference, caught, file_path, planted
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import probes_of
from transparity_conformance.report.agreement.matrix import fold
from transparity_conformance.suite import test_drawn
from transparity_conformance.suite.claims import all_claims
from transparity_conformance.suite.plugin import Ledger

COMPILED = "transparity_flax"
"""The JAX column, whose tests are slow, because XLA compiles every shape again for each planted fault."""


@pytest.mark.parametrize("plant", [plant for plant in PLANTS if plant.column != COMPILED], ids=str)
def test_the_claim_catches_what_is_planted_for_it(plant: Plant) -> None:
    assert_caught(plant, plant.caught_by)


@pytest.mark.parametrize("plant", [plant for plant in PLANTS if plant.column == COMPILED], ids=str)
def test_one_claim_catches_what_is_planted_where_shapes_are_compiled(plant: Plant) -> None:
    assert_caught(plant, plant.caught_by[:1])


def assert_caught(plant: Plant, asked: Sequence[str]) -> None:
    with ExitStack() as stack:
        build = stack.enter_context(planted(plant.column, plant.file, plant.source()))
        if plant.column == REFERENCE_COLUMN:
            stack.enter_context(as_reference(build))
        slept_through = [name for name in asked if not caught(name, build)]
    assert not slept_through, f"no failure for {plant} in {', '.join(slept_through)}"


def test_every_claim_has_a_fault_planted_for_it_and_each_fault_its_line() -> None:
    assert {name for plant in PLANTS for name in plant.caught_by} == {DRAWN, *all_claims()}
    assert len({str(plant) for plant in PLANTS}) == len(PLANTS)
    for plant in PLANTS:
        plant.source()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, claim in all_claims().items() if claim.full])
def test_a_claim_in_full_catches_a_fault(name: str) -> None:
    plant = next(plant for plant in PLANTS if name in plant.caught_by and plant.column == "transparity_pytorch")
    with planted(plant.column, plant.file, plant.source()) as build:
        assert caught(name, build, in_full=True)


@pytest.mark.parametrize("column", ["transparity_pytorch", "transparity_flax", "transparity_numpy"])
def test_a_column_planted_without_a_mistake_is_right(column: str) -> None:
    with planted(column, "mixers.attention", file_path(column, "mixers.attention").read_text()) as build:
        assert not caught("attention.weights_sum_to_one", build)
        assert not caught("metamorphic.future_tokens_have_no_effect", build)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("column", ["transparity_pytorch", "transparity_flax"])
def test_ranks_planted_without_a_mistake_are_right(column: str) -> None:
    text = file_path(column, "parallel.sharding").read_text()
    with planted(column, "parallel.sharding", text) as build:
        assert not caught("sharding.forward", build)


def test_a_drawn_disagreement_reaches_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that evidence reaches the agreement matrix even if its test fails."""
    plant = next(plant for plant in PLANTS if str(plant) == "transparity_pytorch-head-unscaled")
    ledger, inputs = Ledger(), probes_of(CASES["t5"], "t5")["mixed"].inputs
    monkeypatch.setattr(test_drawn, "models", lambda: strategies.just((CASES["t5"], 0, inputs)))
    with planted(plant.column, plant.file, plant.source()) as build:
        monkeypatch.setattr(test_drawn, "backend", lambda name: build)
        with pytest.raises(AssertionError, match=r"drawn\.configurations, pytorch"):
            test_drawn.test_drawn_configurations_agree("pytorch", "quick", ledger)
    assert fold(ledger.evidence).verdict == "diverges"
