"""Compare a port with another implementation (`check PORT --against REFERENCE`), and return a report."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transparity.errors import TransparityError, UsageError, shown
from transparity_conformance.against.probes import (
    Answer,
    Source,
    is_configured,
    is_of_features,
    is_only_text,
    length_of,
    probes_of,
    read_inputs,
    source_of,
    taken,
    undrawn,
)
from transparity_conformance.against.reference import Inputs, Reference, RefusedError, copied, shrink, stored_in
from transparity_conformance.against.references.kinds import reference_of
from transparity_conformance.against.references.weights import Paired, paired
from transparity_conformance.against.ways import calls
from transparity_conformance.against.ways.catalogue import with_names
from transparity_conformance.against.ways.gradients import compare_gradients
from transparity_conformance.against.ways.results import compare_results
from transparity_conformance.against.ways.way import Sides, compare_third
from transparity_conformance.capabilities.port_calls import PortCallError, PortError, call_port, signature_of
from transparity_conformance.diagnosis.judge import Progress, ignore_progress
from transparity_conformance.oracle.budgets import RULES
from transparity_conformance.report.parts import Coverage
from transparity_conformance.report.report import (
    EARLIER,
    CapabilityResult,
    Measured,
    Report,
    not_compared,
    with_capabilities,
)
from transparity_conformance.running.forward import add_tensors, called_by_its_names, filled_by_name, required_arguments
from transparity_conformance.running.frameworks.modules import bound, varied
from transparity_conformance.running.inputs import is_instance
from transparity_conformance.running.loading import load_port, read_with, require
from transparity_conformance.running.process.isolation import isolated_build
from transparity_conformance.running.process.running import listen_in_full

Make = Callable[[Path | None, Mapping[str, np.ndarray]], Callable[..., Any]]
"""A function (model folder, the reference's tensors by name) → the port's forward pass."""

TRANSFORMERS = "transformers"
"""The value of `--against` that selects the `transformers` model of the given `--config` or `--checkpoint`."""


@dataclass(frozen=True)
class Request:
    """The arguments of `check` if the reference is another implementation."""

    port: Any
    """The port: `file.py:load`, `file.py:Model`, or a Python object (a loader, a class, a module or a function)."""
    against: Any
    """The reference (a file or an object as for `port`, or `transformers`), or a list of two references."""
    config: Any = None
    checkpoint: Any = None
    inputs: str | Path | Sequence[Inputs] | None = None
    dtype: str = "float32"
    timeout: float | None = None
    budget: float | None = None
    name: str = ""


def check_against(asked: Request, progress: Progress = ignore_progress) -> Report:
    """Check a port against one or two references. A port that is a file runs in a separate process."""
    if asked.dtype not in RULES:
        raise UsageError(f"dtype is {shown(asked.dtype)}; expected one of {', '.join(RULES)}.")
    first, *others = asked.against if isinstance(asked.against, list | tuple) else [asked.against]
    if others[1:]:
        raise UsageError(f"--against was given {len(others) + 1} times; expected one or two references.")
    asked = dataclasses.replace(asked, against=first)
    reads_folder = asked.config is not None or asked.checkpoint is not None or first == "transformers"
    for package in ("transformers", "torch") if reads_folder else ("torch",):
        require("--against", package)
    with contextlib.ExitStack() as stack:
        # The ports' processes load the ports while this process builds the reference.
        make = stack.enter_context(_made_by(asked))
        thirds = [dataclasses.replace(asked, port=each, name=_name_of(each)) for each in others]
        making = [stack.enter_context(_made_by(third)) for third in thirds]
        reference, folder = stack.enter_context(_opened(asked))
        if asked.inputs is None:
            source = source_of(reference.model)
            probes, refused = probes_of(source)
        else:
            source, (probes, refused) = None, (read_inputs(asked.inputs), [])
        port = FilledPort(make, reference, folder, probes)
        small = functools.partial(_small, asked, port, progress) if _can_shrink(asked, port) else None
        sides = Sides(reference, port, asked.budget, progress, small)
        report, answers = _report(sides, probes, source, asked)
        report = dataclasses.replace(
            report, notes=(*port.notes, *report.notes), not_compared=(*report.not_compared, *refused)
        )
        report = with_names(report, folder, answers, asked.budget, progress)
        for third, other in zip(thirds, making, strict=True):
            port = FilledPort(other, reference, folder, probes)
            found = compare_third(sides, answers, port, third.name)
            notes = (f"{third.name}: {note}" for note in port.notes)
            report = dataclasses.replace(report, third=found, notes=(*report.notes, *notes))
        return report


def _name_of(given: Any) -> str:
    return given if isinstance(given, str) else str(getattr(given, "__qualname__", type(given).__qualname__))


@contextlib.contextmanager
def _made_by(asked: Request) -> Iterator[Make]:
    if asked.port == TRANSFORMERS:
        yield lambda folder, _: called_by_its_names(from_transformers(folder))
        return
    if not isinstance(asked.port, str):
        yield functools.partial(_made_here, asked)
        return
    with contextlib.closing(isolated_build(asked.port, asked.timeout)) as build:

        def make(folder: Path | None, weights: Mapping[str, np.ndarray]) -> Callable[..., Any]:
            given = _given_to(build, asked.port, folder)
            return build.model(given[0]) if given else build.model(None, weights)

        yield make


@dataclass
class FilledPort:
    """Builds the port, fills it with the reference's weights, and returns its forward pass. The names of the port's
    tensors may differ from the reference's names."""

    make: Make
    reference: Reference
    folder: Path | None
    probes: Mapping[str, Inputs]
    found: Paired | None = None

    @property
    def notes(self) -> list[str]:
        return self.found.notes if self.found else []

    def __call__(self) -> Callable[..., Any]:
        forward, reference = self.make(self.folder, self.reference.weights), self.reference
        if getattr(forward, "is_filled", True):
            return forward
        if self.found is None:
            inputs = max(self.probes.values(), key=lambda each: next(iter(each.values())).shape[:1] > (1,))
            listen = functools.partial(listen_in_full, forward, "", **inputs)
            program = reference.program(inputs)
            self.found = paired(program, reference.dtype, reference.learned, forward, lambda: listen()[1])
        self.found.fill(reference.learned, forward)
        return forward


def _made_here(asked: Request, folder: Path | None, weights: Mapping[str, np.ndarray]) -> Callable[..., Any]:
    port, is_filled = asked.port, True
    if _is_maker(port, folder):
        port, is_given = _called(port, asked.name, folder)
        is_filled = is_given or filled_by_name(port, weights)
    elif is_instance(port, "torch.nn", "Module"):
        with contextlib.suppress(Exception):  # If the module cannot be copied, call the module itself.
            port = copied(port)
    port = call_port(bound, port)
    made: Any = call_port(called_by_its_names, port)
    made.is_filled = is_filled
    if not is_filled:
        add_tensors(made, port)
    return made


def _is_maker(given: Any, folder: Path | None) -> bool:
    return inspect.isclass(given) or (inspect.isroutine(given) and folder is not None)


@contextlib.contextmanager
def _opened(asked: Request) -> Iterator[tuple[Reference, Path | None]]:
    """Yield the reference, and the model folder or None. If the request has a configuration, write a small model
    into the folder."""
    if asked.config is not None and asked.checkpoint is not None:
        raise UsageError("--config and --checkpoint were both given, but each names a model; give only one of them.")
    with tempfile.TemporaryDirectory(prefix="transparity-") as root, contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):
            from transformers import logging

            stack.callback(logging.set_verbosity, logging.get_verbosity())
            logging.set_verbosity_error()
            logging.disable_progress_bar()
        folder = None if asked.checkpoint is None else Path(asked.checkpoint)
        if asked.config is not None:
            from transparity_conformance.against.small.build import build, read_config

            folder = Path(root) / "model"
            small: Any = build(read_config(asked.config))
            small.save_pretrained(folder)
        model = from_transformers(folder) if asked.against == TRANSFORMERS else _model_of(asked.against, folder)
        if model is asked.against and is_instance(model, "torch.nn", "Module"):
            with contextlib.suppress(Exception):  # If the module cannot be copied, call the module itself.
                model = copied(model)
        is_theirs = asked.against == TRANSFORMERS
        title = f"{TRANSFORMERS} {type(model).__name__}" if is_theirs else _name_of(asked.against)
        reference = reference_of(title, model, asked.dtype)
        _configure(reference.model, folder)
        yield reference, folder


def _can_shrink(asked: Request, port: FilledPort) -> bool:
    """Return whether the checker gives the weights to both implementations, or can copy them into a module."""
    if asked.config is not None or port.folder is not None:
        return asked.config is not None
    is_given = isinstance(asked.port, str) or inspect.isclass(asked.port)
    modules = [port.reference.model, *([] if is_given else [asked.port])]
    return all(is_instance(each, "torch.nn", "Module") for each in modules)


@contextlib.contextmanager
def _small(asked: Request, port: FilledPort, progress: Progress) -> Iterator[Sides]:
    """Yield both implementations with small weights."""
    if port.folder is None:
        is_module = is_instance(asked.against, "torch.nn", "Module")
        # The first call may change a module's weights; `asked.against` has not been called.
        original = asked.against if is_module else port.reference.model
        reference = reference_of(port.reference.name, shrink(copied(original)), asked.dtype)
        filled = dataclasses.replace(port, make=_filling(asked, port, reference), reference=reference)
        yield Sides(reference, filled, asked.budget, progress)
        return
    with tempfile.TemporaryDirectory(prefix="transparity-") as root:
        model: Any = shrink(from_transformers(port.folder))
        model.save_pretrained(root)
        with _opened(dataclasses.replace(asked, config=None, checkpoint=root)) as (reference, folder):
            small = dataclasses.replace(port, reference=reference, folder=folder)
            yield Sides(reference, small, asked.budget, progress)


def _filling(asked: Request, port: FilledPort, reference: Reference) -> Make:
    """Return a function that makes the port with the weights of `reference`. Raise `TransparityError` if a module keeps
    other weights, or tensors that it may have computed from its weights."""
    is_module = is_instance(asked.port, "torch.nn", "Module")
    for module in (port.reference.model, *([asked.port] if is_module else [])):
        if stored_in(module):
            raise TransparityError(f"{type(module).__name__} stores tensors that are no parameters or buffers")
        # A copy of such a module would compute with the weights of the original.
        if any("forward" in vars(part) for part in module.modules()):
            raise TransparityError(f"{type(module).__name__} stores a forward method in an instance")
    if not is_module:
        return port.make
    own = copied(asked.port)
    if not filled_by_name(own, reference.weights):
        raise TransparityError("the names or shapes of the tensors differ between the port and the reference")
    return functools.partial(_made_here, dataclasses.replace(asked, port=own))


def _configure(model: Any, folder: Path | None) -> None:
    """Set the model's configuration from the folder, so that inputs can be drawn without calling the model."""
    if folder is None or is_configured(model):
        return
    with contextlib.suppress(ImportError, TransparityError, AttributeError):  # `__slots__` may forbid new attributes
        from transparity_conformance.against.small.build import read_config

        model.config = read_config(folder)
        model.main_input_name = getattr(model, "main_input_name", "input_ids")


def from_transformers(folder: Path | None) -> Any:
    if folder is None:
        raise UsageError(
            "--against transformers needs a configuration; add --config config.json or --checkpoint FOLDER."
        )
    import torch

    from transparity_conformance.against.small.build import class_of, read_config

    made: Any = class_of(read_config(folder))
    named = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
    model = read_with(made.from_pretrained, f"{folder} cannot be read by transformers", str(folder), **named)
    if "set_experts_implementation" in dir(model):
        read_with(model.set_experts_implementation, f"{folder} cannot be read by transformers", "eager")
    return model


def _given_to(make: Callable[..., Any], spec: str, folder: Path | None) -> list[str]:
    if required_arguments(signature_of(make)) != 1:
        return []
    if folder is None:
        raise UsageError(f"{spec} needs a model folder; add --config config.json or --checkpoint FOLDER.")
    if not folder.is_dir():
        raise UsageError(f"--checkpoint is {folder}, which is not a folder; expected a folder with a config.json.")
    return [str(folder)]


def _model_of(given: Any, folder: Path | None) -> Any:
    import torch

    make = load_port(given, "reference") if isinstance(given, str) else given
    model = make
    if isinstance(given, str) or _is_maker(given, folder):
        torch.manual_seed(0)
        model, _ = _called(make, _name_of(given), folder)
        model = model if folder else varied(model)
    return model


def _called(make: Callable[..., Any], name: str, folder: Path | None) -> tuple[Any, bool]:
    given = _given_to(make, name, folder)
    try:
        return call_port(make, *given), bool(given)
    except PortCallError as error:
        raise PortError(f"{name} raised {error}.") from error.__cause__


def _report(
    sides: Sides, probes: Mapping[str, Inputs], source: Source | None, asked: Request
) -> tuple[Report, Sequence[Answer]]:
    reference = sides.reference
    signature = signature_of(sides.forward)
    given, left_out = taken(probes, signature, are_drawn=source is not None)
    takes_text = bool(given) and all(is_only_text(each) for each in given.values())
    if takes_text and source is not None and (text := source.of_text()) is not None:
        source, (given, others) = text, taken(probes_of(text)[0], signature)
        reasons = dict.fromkeys(each.partition(": ")[2] for each in left_out)
        left_out = [*(f"images or audio: {reason}" for reason in reasons if is_of_features(reason)), *others]
    if source is not None:
        further = source.arguments(signature)[0]
        drawn = {name for inputs in (*probes.values(), *further.values()) for name in inputs}
        left_out += undrawn(reference.model, drawn, signature)
    if given:
        reference.check(next(iter(given.values())))
    outcome = calls.explained_best(sides, sides.judged(given))
    measured = [
        Measured("answer", each.probe, error, each.budget, error, each.budget)
        for each in outcome.answers
        for error in [math.inf if each.is_misshapen else each.error]
    ]
    is_judged = all(math.isfinite(each.budget) for each in outcome.answers) and bool(outcome.answers)
    verdict = "diverges" if outcome.wrong and is_judged else "agrees" if is_judged else "inconclusive"
    report = Report(
        preset=reference.name,
        verdict=verdict,  # type: ignore[arg-type]
        first_divergence=outcome.faults[0].where if outcome.faults else None,
        faults=tuple(outcome.faults),
        measured=tuple(measured),
        not_compared=tuple(left_out),
        notes=tuple(outcome.notes),
        dtype=reference.dtype,
        port=asked.name or str(asked.port),
        reference=reference.name,
    )
    return with_ways(report, sides, given, source), outcome.answers


DRAWN: dict[str, Callable[[Sides, Source], CapabilityResult]] = {
    "other arguments": calls.compare_arguments,
    "other lengths and batches": calls.compare_sizes,
    "cached steps": calls.compare_steps,
}
"""The comparisons that draw new inputs, in the order in which they run."""

COMPARISONS: dict[str, Callable[[Sides, Mapping[str, Inputs]], CapabilityResult]] = {
    "other results": compare_results,
    "small weights": calls.compare_small_weights,
    "generation": calls.compare_generation,
    "losses": calls.compare_losses,
    "gradients": compare_gradients,
    "repeated calls": calls.compare_repeats,
}
"""The comparisons that reuse inputs. Repeated calls run last, to detect state from earlier comparisons in the port."""


def with_ways(report: Report, sides: Sides, probes: Mapping[str, Inputs], source: Source | None) -> Report:
    """Run the comparisons of `DRAWN` and `COMPARISONS` until one fails, and add their results to the report."""
    untested: tuple[str, ...] = ()
    for name in (*DRAWN, *COMPARISONS):
        if report.verdict != "agrees":
            reason = EARLIER if report.verdict == "diverges" else "no forward pass was compared"
            found = not_compared(f"{name}: {reason}")
        elif name in COMPARISONS:
            found = COMPARISONS[name](sides, probes)
        elif source is None:
            found = not_compared(f"{name}: not compared with --inputs, because the checker then draws no random inputs")
        else:
            try:
                found = DRAWN[name](sides, source)
            except RefusedError as error:  # the reference refuses a length that this comparison needs
                found = not_compared(f"{name}: {error}")
        report, untested = with_capabilities(report, found), untested + found.untested
    lengths = {length_of(each.inputs) for each in sides.called} - {0}
    shapes = (next(iter(each.inputs.values())).shape for each in sides.called)
    batches = {shape[0] for shape in shapes if shape}
    count = len(sides.called) + report.coverage.calls
    arrays = [value for each in sides.called for value in each.inputs.values()]
    images = {value.shape[-3:] for value in arrays if value.ndim >= calls.IMAGE and value.dtype.kind == "f"}
    shapes_of_images = tuple(" × ".join(map(str, shape)) for shape in sorted(images))
    coverage = Coverage(
        tuple(sorted(lengths)), (), tuple(sorted(batches)), count, untested=untested, images=shapes_of_images
    )
    verdict = "inconclusive" if untested and report.verdict == "agrees" else report.verdict
    return dataclasses.replace(report, verdict=verdict, coverage=coverage)
