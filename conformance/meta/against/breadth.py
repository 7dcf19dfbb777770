"""The pool `breadth`: how many model classes of the library transformers can be a reference.

Each class is built small from its default configuration, in a process with limited time and memory. The float32 and
float64 outputs must agree. Then a copy of the class's file is checked against the class. Any verdict except `agrees`
is a false alarm.
"""

import argparse
import copy
import multiprocessing
import re
import resource
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils._pytree import tree_leaves

from meta.against.classes import KINDS, classes, configured, exists
from meta.against.copies import copied
from meta.alone import alone
from meta.trial import Answer, Measure, Trial
from transparity_conformance import check
from transparity_conformance.against.reference import exactly
from transparity_conformance.against.small.build import build
from transparity_conformance.against.small.inputs import example_inputs
from transparity_conformance.report.report import Report
from transparity_conformance.running.loading import load_file

SECONDS, BYTES = 120, 12 << 30

SEARCH = 5.0
"""The seconds for explaining a false alarm."""

TOLERANCE = 1e-4
"""The largest permitted error of float32, relative to the largest number in the float64 output."""

STAGES = ("listed", "exists", "builds", "runs", "exact", "agrees")
"""The stages of a class. `exact`: float32 and float64 agree. `agrees`: the checker accepts a copy of the file."""


def outputs(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [x for x in tree_leaves(dict(model(**inputs))) if isinstance(x, torch.Tensor) and x.is_floating_point()]


def measured(model_type: str, name: str) -> Iterator[dict[str, Any]]:
    """Run the stages of one class; after each stage, yield the name of this stage and all figures so far."""
    answer: dict[str, Any] = {"stage": "exists", "reason": ""}
    yield answer
    model = build(configured(model_type, name), getattr(transformers, name))
    called = copy.deepcopy(model)  # a call may change weights
    inputs = {key: torch.from_numpy(value) for key, value in example_inputs(called).items()}
    parameters = sum(each.numel() for each in model.parameters())
    answer |= {"stage": "builds", "parameters": parameters, "inputs": list(inputs)}
    yield answer
    narrow = outputs(called, inputs)
    answer |= {"stage": "runs"}
    yield answer
    exact = copy.deepcopy(model).double()
    with exactly():
        wide = outputs(exact, {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()})
    errors = [_error(*pair, inputs.get("attention_mask")) for pair in zip(narrow, wide, strict=True)]
    if any(each.dtype != torch.float64 for each in wide):
        raise ArithmeticError("an output of the float64 run is not float64")
    if not errors or not max(errors) < TOLERANCE:
        raise ArithmeticError(f"float32 differs from float64 by {max(errors, default=0.0):.1e}")
    answer |= {"stage": "exact", "error": max(errors)}
    yield answer
    begun = time.monotonic()
    report = copy_checked(model)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # in megabytes
    answer |= {"checked": round(time.monotonic() - begun, 1), "memory": memory}
    if report.verdict != "agrees":
        worst = max(report.measured, key=lambda each: each.error / each.budget)
        raise AssertionError(f"{report.verdict}: {worst.error:.1e} of {worst.budget:.1e} on {worst.probe}")
    yield answer | {"stage": "agrees"}


def copy_checked(model: Any) -> Report:
    made: Any = type(model)
    with tempfile.TemporaryDirectory() as folder:
        port = getattr(load_file(copied(made, Path(folder))), made.__name__)(copy.deepcopy(model.config)).eval()
        port.load_state_dict(model.state_dict())
        return check(port, against=model, budget=SEARCH)


def _error(narrow: torch.Tensor, wide: torch.Tensor, mask: torch.Tensor | None) -> float:
    if mask is not None and wide.shape[:2] == mask.shape:  # outputs at padding are undefined
        narrow, wide = narrow[mask > 0], wide[mask > 0]
    if not wide.isfinite().all() or wide.numel() == 0:
        return float("inf")
    return float((narrow - wide).abs().max() / wide.abs().max().clamp(min=1e-30))


def staged(model_type: str, name: str) -> Iterator[dict[str, Any]]:
    """Yield the results of `measured`; if a stage raises an exception, also yield this stage and the exception's
    message."""
    answer: dict[str, Any] = {}
    try:
        for answer in measured(model_type, name):
            yield answer
    except Exception as error:  # noqa: BLE001 - any failure of a class is its answer
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error
        frames = traceback.extract_tb(error.__traceback__)
        if answer.get("stage") == "exists" and any(each.name == "example_inputs" for each in frames):
            answer |= {"stage": "builds"}
        elif answer.get("stage") == "exists" and not exists(model_type, name):
            answer |= {"stage": "listed"}
        frame = next((each for each in reversed(frames) if "modeling_" in each.filename), frames[-1])
        text = re.sub(r"\s+", " ", str(error))[:160]
        yield answer | {"reason": f"{type(error).__name__}: {text} ({Path(frame.filename).name}:{frame.lineno})"}


def answer_of(model_type: str, name: str) -> dict[str, Any]:
    fork = multiprocessing.get_context("fork")
    answer, why = alone(fork, SECONDS, staged, model_type, name, memory=BYTES)
    answer = answer or {"stage": "listed", "reason": ""}
    if answer["stage"] != STAGES[-1] and not answer["reason"]:
        answer["reason"] = why or "killed"
    return dict(answer)


def trials(options: argparse.Namespace) -> list[Trial]:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    torch.set_num_threads(1)
    transformers.LlamaForCausalLM  # noqa: B018 - imports what all processes need
    return [
        Trial(f"{kind} {model_type} {name}", partial(answer_of, model_type, name), kind)
        for kind, model_type, name in classes()
    ]


def _reached(stage: str, first: str = STAGES[0]) -> Callable[[Trial, Answer], bool | None]:
    def judge(_: Trial, answer: Answer) -> bool | None:
        passed = STAGES.index(answer["stage"])
        return passed >= STAGES.index(stage) if passed >= STAGES.index(first) else None

    return judge


MEASURES = (
    *(Measure(f"{kind}: {stage}", _reached(stage), kind=kind) for kind in KINDS for stage in STAGES[1:]),
    *(Measure(f"{kind}: agree, if they build", _reached("agrees", "builds"), kind=kind) for kind in KINDS),
)
