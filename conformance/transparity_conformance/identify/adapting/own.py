"""Check whether a port's loader stores each parameter in the tensor from which the model reads the parameter."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import in_every_layer
from transparity_conformance.diagnosis.walk import Impossible, under_hypothesis
from transparity_conformance.identify.adapting.hypotheses import Pool, texts_of, turned
from transparity_conformance.identify.adapting.layouts import HALVES, NEIGHBOURS
from transparity_conformance.running.adapters.notation import ABSENT, Lines, for_all_layers
from transparity_conformance.running.gradients import found_by_rows

ORDERS = {"H/2, 2, -1)": "neighbors (as in Meta's code)", "2, H/2, -1)": "halves"}
GIVEN = {"halves": "halves", "interleaved": "neighbors (as in Meta's code)"}


@dataclass(frozen=True)
class Misplaced:
    ours: str
    kept: str | None
    """The line of the tensor in which the loader stores the parameter, if any."""
    needed: str
    """The line of the tensor from which the model reads the parameter."""
    given: str

    @property
    def says(self) -> str:
        if self.kept is None:
            return (
                f"no tensor of your model has the values of {self.ours} in the folder; your model uses {self.needed} "
                "for this parameter"
            )
        names = [line.partition(".view(")[0] for line in (self.kept, self.needed)]
        orders = [
            next((ORDERS[each] for each in ORDERS if each in line), self.given) for line in (self.kept, self.needed)
        ]
        if names[0] == names[1] and orders[0] != orders[1]:
            return (
                f"the rows of your {names[0]} are in the order for a rotation of {orders[0]}, but your model rotates "
                f"{orders[1]}: permute the rows while loading"
            )
        if self.kept.replace(".T", "") == self.needed.replace(".T", ""):
            return f"your model reads {self.ours} from {self.needed}: transpose {self.kept} while loading"
        return f"{self.ours} is loaded into {self.kept}, but your model reads it from {self.needed}"


def misplaced(
    right: Lines, config: TransformerConfig, parameters: Mapping[str, np.ndarray], tensors: Mapping[str, np.ndarray]
) -> list[Misplaced]:
    """Return the parameters that the port's loader stores in other elements of `tensors` than the model reads. `right`
    maps parameters to the lines that the model reads; `parameters` has the values that the loader received."""
    pool, given = Pool(tensors, config), GIVEN[config.rope_layout]
    read = {name: line for name, line in right.items() if line != ABSENT}
    wrong = {name: line for name, line in read.items() if not _contains(line, parameters[name], pool)}
    if not wrong or not found_by_rows(parameters, tensors):
        return []
    own = {name: _kept(name, config, parameters[name], pool) for name in wrong}
    needed = for_all_layers(right, pool.shapes)
    kept = for_all_layers({name: line for name, line in own.items() if line is not None}, pool.shapes)
    found: list[Misplaced] = []
    for name, line in wrong.items():
        general = in_every_layer(name)
        alike = [each for each in right if in_every_layer(each) == general]
        if general != name and general in needed and general in kept and all(each in wrong for each in alike):
            if name == alike[0]:
                found.append(Misplaced(general, kept[general], needed[general], given))
        else:
            found.append(Misplaced(name, own[name], line, given))
    return found


def _kept(name: str, config: TransformerConfig, expected: np.ndarray, pool: Pool) -> str | None:
    is_turned = config.positions == "rotary" and ".self_attention." in name and config.head_dim % 2 == 0
    orders = (NEIGHBOURS, HALVES) if is_turned and (".query" in name or ".key" in name) else ()
    for shapes in pool.free(name):
        for text in texts_of(name, config, shapes):
            for line in (text, *(turned(text, steps, name) for steps in orders)):
                with contextlib.suppress(Impossible), under_hypothesis():
                    if line != ABSENT and _contains(line, expected, pool):
                        return line
    return None


def _contains(line: str, expected: np.ndarray, pool: Pool) -> bool:
    return np.array_equal(pool.numbers(line, expected.shape), expected)
