"""Every claim catches the mistake that is planted for it: a check that cannot fail shows nothing."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from meta.planting import REFERENCE_COLUMN, as_reference, column_path, harness_beside, planted
from meta.plants import PLANTS, Plant
from transparity.config import TransformerConfig
from transparity.protocol import Backend
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.strategies import models
from transparity_conformance.report.comparison import Subject
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import all_claims
from transparity_conformance.suite.test_drawn import EXAMPLES, drawn_evidence

DRAWN = "drawn.configurations"


def caught(name: str, build: Backend, dtype: str | None = None) -> bool:
    """Whether the claim `name` fails for `build`, by its evidence or by an error: in float32 where it is made in it.

    Uncompiled: what is planted is read anew, and compiled anew it would take a minute.
    """
    if name == DRAWN:
        return drawn_catches(build)
    claim = all_claims()[name]
    if dtype is None:
        dtype = "float32" if "float32" in claim.dtypes and build.name != "numpy" else claim.dtypes[0]
    try:
        parts = harness_beside(build)
        with parts.pinned():
            return not all(item.agrees for item in claim.check(Bench(Subject(build.name, dtype), build, parts)))
    except Exception:  # noqa: BLE001 - whatever a mistake raises, the claim's test fails
        return True


def drawn_catches(build: Backend) -> bool:
    """Whether some drawn configuration shows a disagreement."""

    @settings(
        max_examples=EXAMPLES.get(build.name, (60, 200))[1],
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(models())
    def agree(model: tuple[TransformerConfig, int, Arrays]) -> None:
        assert all(item.agrees for item in drawn_evidence(build, *model, mode="eager"))

    try:
        agree()
    except Exception:  # noqa: BLE001
        return True
    return False


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_the_claim_catches_what_is_planted_for_it(plant: Plant) -> None:
    text = (column_path(plant.column) / f"{plant.file}.py").read_text()
    assert plant.line in text, f"{plant.column}/{plant.file}.py has no line {plant.line!r}"
    # Where XLA compiles each shape, one claim has to catch it; that the others do, the same mistake in PyTorch shows.
    asked = plant.caught_by[:1] if plant.column == "transparity_flax" else plant.caught_by
    with ExitStack() as stack:
        build = stack.enter_context(planted(plant.column, plant.file, text.replace(plant.line, plant.becomes)))
        if plant.column == REFERENCE_COLUMN:
            stack.enter_context(as_reference(build))
        slept_through = [name for name in asked if not caught(name, build)]
    assert not slept_through, f"{plant} went unnoticed by {', '.join(slept_through)}"


def test_every_claim_of_the_quick_suite_has_a_mistake_planted_for_it() -> None:
    planted_for = {name for plant in PLANTS for name in plant.caught_by}
    assert {name for name, claim in all_claims().items() if claim.quick} - planted_for == set()


@pytest.mark.parametrize("column", ["transparity_pytorch", "transparity_flax", "transparity_numpy"])
def test_a_column_planted_without_a_mistake_is_right(column: str) -> None:
    text = (column_path(column) / "attention.py").read_text()
    with planted(column, "attention", text) as build:
        assert not caught("attention.rows_of_weights_sum_to_one", build)
        assert not caught("metamorphic.future_tokens_do_not_matter", build)
