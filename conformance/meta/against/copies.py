"""Standalone copies of transformers' modeling files, and functions that run a copy and its original."""

from __future__ import annotations

import ast
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
"""The inputs on which a mistake must be visible: a batch, a long row, images, and padding if possible."""

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
    return {name: tensors(inputs) for name, inputs in probes_of(source_of(model)).items() if name in CALLS}


def copied(model: Any, folder: Path, changed_text: str | None = None) -> Path:
    """Write `port.py` into `folder`, with the part of a modeling file that the class needs; return its path."""
    path = folder / "port.py"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(standalone(model) if changed_text is None else changed_text)
    return path


def standalone(model: Any) -> str:
    """Return a port's source: the part of `model`'s modeling file that the model needs, and `load`."""
    source = Path(inspect.getsourcefile(model) or "").read_text()
    package = model.__module__.split(".")[:-1]

    def absolute(match: re.Match[str]) -> str:
        base = package[: len(package) + 1 - len(match[2])]
        return f"{match[1]}from {'.'.join([*base, *filter(None, [match[3]])])} import"

    text = re.sub(r"(?m)^(\s*)from (\.+)([\w.]*) import", absolute, _needed(source, model.__name__))
    experts = ', experts_implementation="eager"' if "@use_experts_implementation" in text else ""
    return text.rstrip() + LOAD.format(name=model.__name__, experts=experts)


def _needed(source: str, name: str) -> str:
    tree = ast.parse(source)
    parts = {part.name: part for part in tree.body if isinstance(part, ast.ClassDef | ast.FunctionDef)}
    others = [part for part in tree.body if part not in parts.values()]
    used, new = set[str](), {name} | {word for part in others for word in _names(part)}
    while new:
        used |= new
        new = {word for known in new if known in parts for word in _names(parts[known])} - used
    dropped: list[ast.stmt] = [part for known, part in parts.items() if known not in used]
    dropped += [part for part in others if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "__all__"]
    lines: list[str | None] = list(source.splitlines())
    for part in dropped:
        first = min([part.lineno, *(each.lineno for each in getattr(part, "decorator_list", []))])
        lines[first - 1 : part.end_lineno] = [None] * ((part.end_lineno or first) - first + 1)
    text = "\n".join(line for line in lines if line is not None)
    return re.sub(r"\n{4,}", "\n\n\n", re.sub(r"\A(#.*\n)+", "", text)).lstrip()


def _names(part: ast.AST) -> set[str]:
    if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "__all__":
        return set()
    return {node.id for node in ast.walk(part) if isinstance(node, ast.Name)} | {
        word
        for node in ast.walk(part)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in re.findall(r"\A\w+\Z", node.value)
    }


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
