"""All kinds of edits, in the order in which they are tried at a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from transparity_conformance.against.edits.edit import At, Context, Edit
from transparity_conformance.against.edits.fitted import roundings, scales
from transparity_conformance.against.edits.functions import functions
from transparity_conformance.against.edits.masks import masks
from transparity_conformance.against.edits.numbers import numbers
from transparity_conformance.against.edits.operands import operands
from transparity_conformance.against.edits.orders import orders
from transparity_conformance.against.edits.parameters import layers, parameters, uses
from transparity_conformance.against.edits.segments import operands_alone, segments, steps_before

Maker = Callable[[At, Context], Iterator[Edit]]

SIMPLE: tuple[Maker, ...] = (numbers, functions, operands_alone, segments, steps_before, parameters, layers, masks)

LATER: tuple[Maker, ...] = (orders, uses, operands, scales, roundings)
"""Edits that are numerous at each step, or whose numbers come from the port, and that are therefore tried later."""
