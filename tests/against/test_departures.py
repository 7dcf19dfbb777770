from types import SimpleNamespace
from typing import Any

from transparity_conformance.against.departures import Departure, Departures


def test_edits_are_tried_in_the_layers_of_each_type() -> None:
    steps = [SimpleNamespace(module=f"model.layers.{layer}.self_attn") for layer in range(4)]
    comparer: Any = SimpleNamespace(program=SimpleNamespace(steps=steps))
    search: Any = None
    departures = Departures(comparer, search, layer_types=("full", "sliding", "full", "sliding"))
    everywhere: Any = [Departure(departures, 0, comparer.program.steps[0], None, steps=[0, 1, 2, 3])]
    found = [[each.steps for each in tried] for tried in departures.in_one_type(everywhere)]
    assert found == [[[0, 2]], [[1, 3]]]
