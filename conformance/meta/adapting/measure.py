"""The pool `adapting`: ports of the catalogue, which `adapt` must match without asking the user."""

from __future__ import annotations

import argparse
import functools
from dataclasses import dataclass
from typing import Any

from meta.adapting.catalogue import PORTS
from meta.trial import Measure
from transparity_conformance.checking.adapting import summary
from transparity_conformance.identify.adapting.adapt import Adapted, adapt


@functools.cache
def adapted(name: str) -> Adapted:
    make, config = PORTS[name]
    return adapt(make, config)


@dataclass(frozen=True)
class AdaptingTrial:
    """A trial: `adapt` matches one port of the catalogue."""

    name: str

    def __str__(self) -> str:
        return self.name

    def run(self) -> dict[str, Any]:
        lines, code = summary(adapted(self.name))
        return {"code": code, "says": f"{lines[0]}; {lines[-1]}"}


def trials(options: argparse.Namespace) -> list[AdaptingTrial]:
    return [*map(AdaptingTrial, PORTS)]


MEASURES = (Measure("matched without asking", lambda _, answer: answer["code"] == 0),)
