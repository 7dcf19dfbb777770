"""The pages of configuration fields, parameters and activations."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from docs.site.pages import cell, table

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.presets import PRESETS
from transparity.taps import tap_shapes
from transparity_conformance.checkpoints.examples import EXAMPLES, example_config
from transparity_conformance.report.fields import as_rows

FIELDS = """# Configuration

The fields of [`TransformerConfig`](../columns.md#configuration). `transparity describe --fields` prints this table.
"""

PARAMETERS = """# Parameters

The parameters that a port receives. Matrices are (out, in), as in PyTorch. The shape is from the first model that has
the parameter, among the small versions of the presets and of the families. `{i}` is the number of a layer, from 0.
`transparity describe NAME` lists the parameters of one model.
"""

TAPS = """# Taps

Taps are named activations. The columns record them, a port may return them, and a report names the tap at which a fault
shows. They are listed in the order of the forward pass. The shape is from the first model that has the tap, with 2
rows, 5 source tokens and 7 target tokens. `{i}` is the number of a layer, from 0. `transparity describe NAME` lists the
taps of one model.
"""

Shapes = Mapping[str, tuple[int, ...]]


def pages() -> dict[str, str]:
    return {
        "reference/configuration.md": f"{FIELDS}\n{fields()}\n",
        "reference/parameters.md": f"{PARAMETERS}\n{_names('parameter', parameter_shapes)}\n",
        "reference/taps.md": f"{TAPS}\n{_names('tap', _tap_shapes)}\n",
    }


def systems() -> dict[str, TransformerConfig]:
    presets = {name: system.config.resized() for name, system in PRESETS.items()}
    return presets | {name: example_config(name) for name in EXAMPLES}


def fields() -> str:
    rows = [(f"`{row['name']}`", _values(row["values"]), _default(row), cell(row["meaning"])) for row in as_rows()]
    return table(("field", "values", "default", "meaning"), rows)


def _values(values: Any) -> str:
    return cell(values) if isinstance(values, str) else ", ".join(f"`{value}`" for value in values)


def _default(row: Mapping[str, Any]) -> str:
    return f"`{json.dumps(row['default'], ensure_ascii=False)}`" if "default" in row else "required"


def _tap_shapes(config: TransformerConfig) -> Shapes:
    lengths = {"source": 5, "target": 7, "tokens": 7, "pixels": config.max_length}
    return tap_shapes(config, 2, **{name: lengths[name] for name in config.input_names})


def _names(title: str, shapes: Callable[[TransformerConfig], Shapes]) -> str:
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for system, config in systems().items():
        for name, shape in shapes(config).items():
            found.setdefault(re.sub(r"layers\.\d+", "layers.{i}", name), {}).setdefault(system, shape)
    rows = [
        (f"`{name}`", f"{', '.join(map(str, next(iter(by.values()))))} (`{next(iter(by))}`)", _listed(list(by)))
        for name, by in found.items()
    ]
    return table((title, "shape", "in"), rows)


def _listed(names: list[str]) -> str:
    """Return up to four names and the number of further names, such as "`a`, `b`, `c`, `d` and 3 more"; `all` for all
    models."""
    if len(names) == len(systems()):
        return "all"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(f"`{name}`" for name in names[:4]) + more
