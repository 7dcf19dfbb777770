"""Write docs/faults.md: every fault of the catalogue with an example.

`python docs/faults.py` writes the page; tests/project/test_pages.py holds it to the catalogue.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

from transparity.taps import tap_shapes
from transparity_conformance.capabilities import faults as of_capabilities
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.diagnosis.fault import Fault
from transparity_conformance.diagnosis.faults import faults_at, whole_model
from transparity_conformance.oracle.cases import CASES

PAGE = Path(__file__).with_name("faults.md")

INTRODUCTION = """# Faults

The checker knows these faults by name. Each can be put into the reference, at one place, in one stack or everywhere.
Most have several variants (`mask-value`: −1e9, −1e4, 0, added instead of replaced …); numbers in them are fitted. A
port with any other fault still diverges, at the right place; only its cause has no name.

`python docs/faults.py` writes this page. To add a fault, see [CONTRIBUTING.md](../CONTRIBUTING.md).
"""


def of_the_forward_pass() -> Iterator[Fault]:
    """Yield every fault at every tap of every kind of model."""
    for config in CASES.values():
        for site in tap_shapes(config, 1, **dict.fromkeys(config.input_names, 3)):
            yield from faults_at(config, site)
        yield from (hypothesis.fault for hypothesis in whole_model(config))


def of_the_capability(name: str) -> Iterator[SimulatedFault]:
    """Yield every fault in a file of `capabilities/faults/`."""
    module = importlib.import_module(f"{of_capabilities.__name__}.{name}")
    for constant in vars(module).values():
        if isinstance(constant, tuple):
            yield from (entry for entry in constant if isinstance(entry, SimulatedFault))


def catalogue() -> dict[str, dict[str, str]]:
    """Return the sections of the page; in each, an example of every fault by its id."""
    names = [module.name for module in pkgutil.iter_modules(of_capabilities.__path__)]
    sections = {name.replace("_", " ").capitalize(): _examples(of_the_capability(name)) for name in names}
    return {"The forward pass": _examples(of_the_forward_pass()), **sections}


def _examples(faults: Iterator[Fault] | Iterator[SimulatedFault]) -> dict[str, str]:
    """Return the first sentence of each id."""
    examples: dict[str, str] = {}
    for fault in faults:
        sentence = fault.description if isinstance(fault, Fault) else fault.says
        examples.setdefault(fault.id, sentence)
    return examples


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for title, examples in catalogue().items():
        rows = "\n".join(f"| `{name}` | {examples[name]} |" for name in sorted(examples))
        parts.append(f"## {title}\n\n| fault | for example |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
