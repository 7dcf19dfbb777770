"""Standalone copies of transformers' modeling files, and functions that run a copy and its original."""

import inspect
import itertools
import re
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from meta.against.classes import TABLES, configured
from transparity_conformance.against.probes import probes_of, source_of
from transparity_conformance.against.small.build import build
from transparity_conformance.against.small.inputs import tensors
from transparity_conformance.running.inputs import answer_in

FAMILIES: dict[str, str] = TABLES["families"]
"""The copied class by model type; our checkpoint reader does not know these types."""

CALLS = ("2 × 11", "1 × 33", "batch of 1", "batch of 2", "3 × 11, padded on the left")
"""The inputs on which mistakes are tried: tokens, images (`batch of …`), and padded rows if the model takes a mask."""

LOAD = '''


def load(folder):
    """Load the model of a folder in float32."""
    from transformers import AutoConfig

    {name}.is_custom_code = classmethod(lambda cls: False)  # rename and pack weights as for the library's class
    config = AutoConfig.from_pretrained(folder)
    model = {name}.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"{experts}
    )
    return model.eval()
'''
"""The code at the end of a port."""
_numbers = itertools.count()


def model_class(family: str) -> Any:
    return getattr(transformers, FAMILIES[family])


def small(family: str) -> Any:
    return build(configured(family), model_class(family))


def calls_of(model: Any) -> dict[str, dict[str, Tensor]]:
    return {name: tensors(inputs) for name, inputs in probes_of(source_of(model))[0].items() if name in CALLS}


def copied(model: Any, folder: Path, changed_text: str | None = None) -> Path:
    path = folder / "port.py"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(standalone(model) if changed_text is None else changed_text)
    return path


def standalone(model: Any) -> str:
    """Return a port's source: `model`'s modeling file with absolute imports, and `load`."""
    source = Path(inspect.getsourcefile(model) or "").read_text()
    package = model.__module__.split(".")[:-1]

    def absolute(match: re.Match[str]) -> str:
        base = package[: len(package) + 1 - len(match[2])]
        return f"{match[1]}from {'.'.join([*base, *filter(None, [match[3]])])} import"

    text = re.sub(r"(?m)^(\s*)from (\.+)([\w.]*) import", absolute, source)
    experts = ', experts_implementation="eager"' if "@use_experts_implementation" in text else ""
    return text.rstrip() + LOAD.format(name=model.__name__, experts=experts)


def loaded(text: str, folder: Path, **names: object) -> Any:
    """Run a port's source, in which `names` are already defined; return the model that it loads from a folder."""
    module = types.ModuleType(f"port_{next(_numbers)}")
    module.__dict__.update(names)
    sys.modules[module.__name__] = module
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:  # transformers reads the source file of a class
        file.write(text)
        file.flush()
        module.__file__ = file.name
        try:
            exec(compile(text, file.name, "exec"), module.__dict__)
            return module.load(folder)
        finally:
            del sys.modules[module.__name__]


def outputs(model: Any, calls: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the output of each call, without padded positions."""
    found = {}
    with torch.no_grad():
        for name, call in calls.items():
            caches = "use_cache" in inspect.signature(model.forward).parameters
            first = answer_in(model(**call, **({"use_cache": False} if caches else {})))
            mask = call.get("attention_mask")
            kept = mask is not None and first.shape[:2] == mask.shape
            found[name] = first[mask.bool()] if kept else first  # type: ignore[union-attr]
    return found


def difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the largest error of each call, relative to the largest expected number."""
    return {
        name: float((found[name] - right).abs().max() / right.abs().max())
        if found[name].shape == right.shape
        else float("inf")
        for name, right in expected.items()
    }
