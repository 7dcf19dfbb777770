"""`check PORT --against REFERENCE`: a report on a port, held to another implementation."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transparity.errors import TransparityError, shown
from transparity_conformance.against.compare import compared
from transparity_conformance.against.probes import named_inputs, probes_of, read_inputs, taken
from transparity_conformance.against.reference import Inputs, Reference
from transparity_conformance.against.references.kinds import reference_of
from transparity_conformance.against.references.weights import fill
from transparity_conformance.capabilities.port_calls import PortError, call_port, signature_of
from transparity_conformance.diagnosis.judge import Progress, ignore_progress
from transparity_conformance.diagnosis.search.clock import BUDGET, Clock
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.report.coverage import Coverage
from transparity_conformance.report.report import Measured, Report
from transparity_conformance.running.forward import called_by_its_names, required_arguments
from transparity_conformance.running.loading import UsageError, load_port
from transparity_conformance.running.process.isolation import isolated_build
from transparity_conformance.running.process.running import RemotePort, listen_once

TRANSFORMERS = "transformers"
"""The reference that a config.json alone names."""


@dataclass(frozen=True)
class Request:
    """The options of `check --against`."""

    port: str
    against: str
    config: Path | None = None
    checkpoint: Path | None = None
    inputs: Path | None = None
    dtype: str = "float32"
    timeout: float | None = None
    budget: float = BUDGET


def check_against(asked: Request, progress: Progress = ignore_progress) -> Report:
    """Check a port, in a process of its own, against another implementation."""
    # the process loads the port while the reference is made
    with (
        contextlib.closing(isolated_build(asked.port, asked.timeout)) as build,
        _opened(asked) as (reference, folder),
    ):
        given = _given_to(build, asked.port, folder)
        probes = probes_of(reference.model) if asked.inputs is None else read_inputs(asked.inputs)
        forward = build.model(given[0]) if given else build.model(None, reference.weights)
        notes = [] if forward.is_filled else _filled(reference, forward, probes, progress)
        report = _report(reference, forward, probes, asked.port, asked.budget, progress)
        return dataclasses.replace(report, notes=(*notes, *report.notes))


def _filled(reference: Reference, forward: Any, probes: Mapping[str, Inputs], progress: Progress) -> list[str]:
    """Fill the tensors of a port that have other names; return notes."""
    progress("looking for the reference's tensors in the port", 0, 1)
    inputs = max(probes.values(), key=lambda each: next(iter(each.values())).shape[:1] > (1,))
    listen = functools.partial(_listened, forward, inputs)
    return fill(reference.program(inputs), reference.dtype, reference.learned, forward, lambda: listen()[1])


def compare_modules(
    port: Any,
    against: Any,
    inputs: Sequence[Inputs] | None = None,
    *,
    dtype: str = "float32",
    budget: float = BUDGET,
    name: str = "port",
    progress: Progress | None = None,
) -> Report:
    """Check a module or a function in this process against another one, which has the same weights."""
    reference = reference_of(getattr(against, "__qualname__", type(against).__qualname__), against, dtype)
    probes = probes_of(against) if inputs is None else named_inputs(inputs, "the call")
    forward = call_port(called_by_its_names, port)
    return _report(reference, forward, probes, name, budget, progress or ignore_progress)


@contextlib.contextmanager
def _opened(asked: Request) -> Iterator[tuple[Reference, Path | None]]:
    """The reference, and the folder that a loader is given: the user's, or one that a small model was saved in."""
    if asked.config is not None and asked.checkpoint is not None:
        raise UsageError("--config makes a small model and --checkpoint names one; give one of the two.")
    with tempfile.TemporaryDirectory(prefix="transparity-") as root, _quiet():
        folder = asked.checkpoint
        if asked.config is not None:
            from transparity_conformance.against.small.build import build, read_config

            folder = Path(root) / "model"
            small: Any = build(read_config(asked.config))
            small.save_pretrained(folder)
        model = from_transformers(folder) if asked.against == TRANSFORMERS else _from_file(asked.against, folder)
        yield reference_of(_title(asked, model), model, asked.dtype), folder


def _title(asked: Request, model: Any) -> str:
    return f"{TRANSFORMERS} {type(model).__name__}" if asked.against == TRANSFORMERS else asked.against


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars and hints of transformers."""
    try:
        import transformers
    except ImportError:
        yield
        return
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def from_transformers(folder: Path | None) -> Any:
    """Return the model of a folder, by the class that its config.json names."""
    if folder is None:
        raise UsageError(
            "--against transformers needs a configuration; add --config config.json or --checkpoint FOLDER."
        )
    import torch

    from transparity_conformance.against.small.build import class_of, read_config

    config = read_config(folder)
    made: Any = class_of(config)
    named = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
    try:
        model: Any = made.from_pretrained(str(folder), **named)
        if "set_experts_implementation" in dir(model):
            model.set_experts_implementation("eager")
    except (ValueError, OSError, RuntimeError) as error:
        raise TransparityError(f"{folder} cannot be loaded by transformers: {shown(str(error))}.") from error
    return model


def _given_to(make: Callable[..., Any], spec: str, folder: Path | None) -> list[str]:
    """The folder for a loader; nothing for what makes a module."""
    if required_arguments(signature_of(make)) != 1:
        return []
    if folder is None:
        raise UsageError(f"{spec} takes a folder, and there is none; add --config config.json or --checkpoint FOLDER.")
    return [str(folder)]


def _from_file(spec: str, folder: Path | None) -> Any:
    """The model that `file.py:load` or `file.py:Model` makes."""
    import torch

    make = load_port(spec)
    torch.manual_seed(0)
    return call_port(make, *_given_to(make, spec, folder))


def _report(
    reference: Reference,
    forward: Callable[..., Any],
    probes: Mapping[str, Inputs],
    name: str,
    budget: float,
    progress: Progress,
) -> Report:
    """Compare a port's forward pass with a reference, and report."""
    signature = signature_of(forward)
    given, left_out = taken(probes, signature)
    call = functools.partial(_answered, forward)
    outcome = compared(reference, call, functools.partial(_listened, forward), given, Clock(budget), progress)
    measured = [
        Measured("answer", each.probe, each.error, each.budget, each.error, each.budget) for each in outcome.answers
    ]
    is_judged = all(math.isfinite(each.budget) for each in outcome.answers) and bool(outcome.answers)
    verdict = "diverges" if outcome.wrong and is_judged else "agrees" if is_judged else "inconclusive"
    return Report(
        preset=reference.name,
        verdict=verdict,  # type: ignore[arg-type]
        first_divergence=outcome.faults[0].where if outcome.faults else None,
        faults=tuple(outcome.faults),
        measured=tuple(measured),
        not_compared=tuple(left_out),
        notes=tuple(outcome.notes),
        dtype=reference.dtype,
        port=name,
        coverage=_coverage(given),
    )


def _answered(forward: Callable[..., Any], inputs: Inputs) -> np.ndarray:
    answer = call_port(as_numbers, call_port(forward, **inputs))
    if answer.dtype.kind not in "fiu":
        raise PortError(f"The port returned {shown(answer)}; expected an array of numbers.")
    return np.asarray(answer, np.float64)


def _listened(forward: Callable[..., Any], inputs: Inputs) -> Any:
    if isinstance(forward, RemotePort):
        answer, operations = forward.listened("", whole_numbers=True, **inputs)
    else:
        answer, operations = call_port(listen_once, forward, (), inputs, whole_numbers=True)
    return np.asarray(as_numbers(answer), np.float64), operations


def _coverage(probes: Mapping[str, Inputs]) -> Coverage:
    whole = [
        each for inputs in probes.values() for each in inputs.values() if each.dtype.kind in "iu" and each.ndim == 2
    ]
    lengths = {each.shape[1] for each in whole}
    batches = {next(iter(each.values())).shape[0] for each in probes.values()}
    return Coverage(lengths=tuple(sorted(lengths)), batches=tuple(sorted(batches)))
