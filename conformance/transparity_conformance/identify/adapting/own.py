"""Check a port's loader: does it store each parameter in the tensor from which the model reads this parameter?"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.taps import in_every_layer
from transparity_conformance.diagnosis.walk import Impossible, under_hypothesis
from transparity_conformance.identify.adapting.hypotheses import Pool, texts_of, turned
from transparity_conformance.running.adapters.notation import ABSENT, Lines, for_all_layers, parted

NEIGHBOURS, HALVES = ".view({}, H/2, 2, -1).permute(0, 2, 1, 3)", ".view({}, 2, H/2, -1).permute(0, 2, 1, 3)"
"""Steps that reorder rotated rows: from neighboring pairs (as in Meta's code) to halves, and from halves to pairs."""

ORDERS = {"H/2, 2, -1)": "neighbors (as in Meta's code)", "2, H/2, -1)": "halves"}
GIVEN = {"halves": "halves", "interleaved": "neighbors (as in Meta's code)"}
"""The order of the rotated rows that the port's loader receives, by `rope_layout`."""


@dataclass(frozen=True)
class Misplaced:
    """A parameter that the port's loader stores in another tensor, or in another order, than the model expects."""

    ours: str
    kept: str | None
    """The adapter's line for the tensor in which the loader stores the parameter; None if no tensor contains it."""
    needed: str
    """The adapter's line for the tensor from which the model reads the parameter."""
    given: str
    """The order of the rotated rows that the loader received."""

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
            return f"your {self.kept.replace('.T', '')} is transposed: your model needs the values in {self.needed}"
        return f"{self.ours} is loaded into {self.kept}, but your model computes it with {self.needed}"


def own_lines(
    config: TransformerConfig, parameters: Mapping[str, np.ndarray], tensors: Mapping[str, np.ndarray]
) -> dict[str, str | None]:
    """Return, for each parameter, the line that selects its values in the loaded tensors, or None without such a line.

    Args:
        parameters: the parameters that the port's loader received.
        tensors: the port's tensors after loading.
    """
    pool = Pool(tensors, config)
    return {name: _kept(name, shape, config, parameters, pool) for name, shape in parameter_shapes(config).items()}


def _kept(
    name: str, shape: tuple[int, ...], config: TransformerConfig, parameters: Mapping[str, np.ndarray], pool: Pool
) -> str | None:
    expected = np.asarray(parameters[name], np.float64)
    is_turned = config.positions == "rotary" and ".self_attention." in name and config.head_dim % 2 == 0
    orders = (NEIGHBOURS, HALVES) if is_turned and (".query" in name or ".key" in name) else ()
    for shapes in pool.free(name):
        for text in texts_of(name, config, shapes):
            for line in (text, *(turned(text, steps, name) for steps in orders)):
                with contextlib.suppress(Impossible), under_hypothesis():
                    if line != ABSENT and np.array_equal(pool.numbers(line, shape), expected):
                        return line
    return None


def misplaced(
    own: Mapping[str, str | None], right: Lines, config: TransformerConfig, tensors: Mapping[str, np.ndarray]
) -> list[Misplaced]:
    """Return the parameters that the loader stores in one tensor, but the model reads from another tensor.

    Args:
        own: for each parameter, the line for the tensor in which the loader stores it, or None.
        right: for each matched parameter, the line for the tensor from which the model reads it.
    """
    pool, given = Pool(tensors, config), GIVEN[config.rope_layout]
    wrong = {name: needed for name, needed in right.items() if needed != ABSENT and not _same(own[name], needed, pool)}
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


def _same(one: str | None, other: str, pool: Pool) -> bool:
    """Return whether two lines select the same elements of the same tensors."""
    if one is None:
        return False
    first, second = pool.selection(one), pool.selection(other)
    if parted(one, pool.shapes)[0] != parted(other, pool.shapes)[0]:
        return False
    size = sum(pool.tensors[name].size for name in first.names)
    mine, theirs = (np.arange(size) if each.index is None else each.index.ravel() for each in (first, second))
    return bool(np.array_equal(mine, theirs))
