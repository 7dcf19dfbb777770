"""Right ports: seeded combinations of styles, over presets, families, lengths and two precisions."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meta.independent.model import Model
from meta.independent.port import build_with
from meta.independent.styles import STYLES, fitting

LENGTHS = (11, 17, 33, 64, 100, 130, 257, 512)


@dataclass(frozen=True)
class RightPort:
    """One right port, and the configuration in which it is offered."""

    name: str
    config: Any
    styles: tuple[type, ...]
    dtype: str
    taps: bool

    @property
    def build(self) -> Callable[..., Any]:
        return build_with(*self.styles, base=Model, taps=self.taps)

    def __str__(self) -> str:
        styles = "+".join(style.__name__ for style in self.styles) or "plain"
        return f"{self.name} to {self.config.max_length}, {self.dtype}, {'taps' if self.taps else 'logits'}: {styles}"


def right_ports(configs: Mapping[str, Any], number: int, seed: int = 0) -> Iterator[RightPort]:
    """So many right ports; every style comes first by itself, then two to four together."""
    random_ = random.Random(seed)
    names, wanted = sorted(configs), list(STYLES)
    for i in range(number):
        name = random_.choice(names)
        config = dataclasses.replace(configs[name], max_length=random_.choice(LENGTHS))
        styles = fitting(config)
        alone = [style for style in wanted if style in styles]
        chosen = alone[:1] or compatible(random_.sample(styles, random_.randint(2, 4)))
        wanted = [style for style in wanted if style not in chosen]
        dtype = "bfloat16" if random_.random() < 0.3 else "float32"
        yield RightPort(name, config, tuple(chosen), dtype, taps=i % 3 == 0)


def compatible(styles: list[type]) -> list[type]:
    """The first of the styles, and those of the others that replace no method of an earlier one."""
    chosen: list[type] = []
    for style in styles:
        taken = {name for each in chosen for name in vars(each) if not name.startswith("__")} - {"prepare", "fits"}
        if not taken & set(vars(style)):
            chosen.append(style)
    return chosen
