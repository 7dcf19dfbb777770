"""The check of a port: whether the port is right and, if not, which line is wrong and why."""

import contextlib
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from transparity.config import TransformerConfig
from transparity.errors import UsageError
from transparity.presets import preset as preset_called
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.checking.audit.audit import audit_loader
from transparity_conformance.checking.stages import forward, offers, ranks, reach
from transparity_conformance.checking.stages.evidence import Arguments, Evidence
from transparity_conformance.checking.systems import divisible
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.diagnosis.judge import Actual, Located, Progress, ignore_progress, ignore_report
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.report.report import Report
from transparity_conformance.running.hub import loaded_here
from transparity_conformance.running.process.child import TIMEOUT
from transparity_conformance.running.process.isolation import isolated_build, spec_of
from transparity_conformance.running.process.ranks import ranks_of
from transparity_conformance.running.process.running import Port
from transparity_conformance.threads import one_thread

__all__ = ["Actual", "Port", "PortError", "Progress", "assert_conforms", "check"]


class Against(TypedDict, total=False):
    against: Any
    """A module, a loader, or a name as for `--against`; a list of two names adds a third implementation."""
    checkpoint: Any
    """A folder with weights that both implementations load. Without a folder, the checker makes a small model from
    `config`, the path of a config.json of `transformers`."""
    inputs: Any
    """A list of dicts of arrays by argument name, or a Python file that defines such a list."""


def check(
    build: Port | str,
    preset: str | None = None,
    *,
    family: str | None = None,
    config: Any = None,
    parameters: Arrays | None = None,
    dtype: str = "float32",
    logits_only: bool = False,
    progress: Progress | None = None,
    isolated: bool = False,
    timeout: float = TIMEOUT,
    budget: float | None = None,
    name: str | None = None,
    audit: bool | None = None,
    located: Located = ignore_report,
    ranks: int = 1,
    lengths: Sequence[int] = (),
    quick: bool = False,
    **other: Unpack[Against],
) -> Report:
    """Compare a port with the reference, or with the implementation `against`. Raise `PortError` if the port fails, and
    `TransparityError` for invalid options. On Ctrl-C after a divergence, raise `Interrupted` with a report.

    Args:
        build: `build(config, parameters)` that returns `forward(**tokens)`, `load(folder)`, or text `file.py:NAME`.
        preset, family: The name of a preset, which the checker makes small; the family whose folders a loader reads.
        config, parameters: Your own configuration instead of a preset; parameters instead of random parameters.
        dtype, logits_only, quick: The precision; whether to compare only logits; whether to run only the forward pass.
        isolated, ranks, timeout: Whether to use a separate process; the number of ranks; the seconds for each reply.
        budget, name, lengths: The seconds for each search for causes; the port's name; the lengths of long prompts.
        audit, progress, located: Whether ignored fields are errors; progress callback; callback for the first report.
    """
    if other:
        return _check_against(dict(locals()))
    its, system = _names(build, name, ranks), _system(preset, family, config, parameters, ranks)
    arguments = Arguments(*system, parameters, dtype, logits_only, budget, *its, tuple(lengths), audit, quick)
    is_small = config is None and parameters is None and not arguments.lengths
    with one_thread(is_small), _built_by(build, family, timeout, ranks, isolated=isolated, is_small=is_small) as port:
        return _report(Evidence(arguments, port, located, progress or ignore_progress))


def _names(build: Port | str, name: str | None, ranks: int) -> tuple[str, int]:
    return name or name_of(build), ranks if isinstance(build, str) else max(ranks, ranks_of(build))


ALONE: Mapping[str, Any] = {
    "preset": None,
    "family": None,
    "parameters": None,
    "logits_only": False,
    "audit": None,
    "ranks": 1,
    "lengths": (),
    "quick": False,
}
"""Options that cannot be combined with `against`, with their defaults."""


def _check_against(given: Mapping[str, Any]) -> Report:
    from transparity_conformance.against.check import Request, check_against  # a slow import that is rarely needed

    port, other = given["build"], given["other"]
    if unknown := sorted(other.keys() - Against.__annotations__.keys()):
        raise TypeError(f"check() got an unexpected keyword argument {unknown[0]!r}")
    if other.get("against") is None or any(given[name] != default for name, default in ALONE.items()):
        raise UsageError(
            "With against, check() takes only config, checkpoint, inputs, dtype, timeout, budget, isolated, name and "
            "progress; without against, leave out checkpoint and inputs."
        )
    name = given["name"] or name_of(port)
    if given["isolated"] and not isinstance(port, str):
        port = spec_of(port)
    shared = {key: given[key] for key in ("config", "dtype", "timeout", "budget")}
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")  # `one_thread` limits only libraries that are imported
    with one_thread(other.get("checkpoint") is None):
        return check_against(Request(port, name=name, **shared, **other), given["progress"] or ignore_progress)


def _report(evidence: Evidence) -> Report:
    with evidence.kept():
        for run, *conditions in STAGES:
            if all(is_met(evidence) for is_met in conditions):
                with evidence.stopwatch.timed(run.__name__.replace("_", " ")):
                    run(evidence)
    return replace(evidence.report, timing=evidence.stopwatch.stages)


def _system(
    preset: str | None, family: str | None, config: TransformerConfig | None, parameters: Arrays | None, ranks: int
) -> tuple[str | None, TransformerConfig | None]:
    is_own = config is not None or parameters is not None
    if family is not None:
        preset, config = preset or family, config or example_config(family)
    if ranks > 1 and preset is not None and not is_own:
        config = divisible(config or preset_called(preset), ranks)
    return preset, config


def _built_by(
    build: Port | str, family: str | None, timeout: float, ranks: int, *, isolated: bool, is_small: bool
) -> contextlib.AbstractContextManager[Port]:
    if isolated or ranks > 1 or isinstance(build, str):
        started = isolated_build(spec_of(build), timeout, ranks=ranks, is_small=is_small)
        return contextlib.closing(replace(started, model_type=family))
    assert not isinstance(build, str)
    return contextlib.nullcontext(build) if family is None else loaded_here(build, family)


STAGES: tuple[tuple[Callable[[Evidence], Any], ...], ...] = (
    (ranks.run_one_rank, Evidence.is_on_ranks),
    (forward.run_probes,),
    (forward.recognise_form,),
    (forward.listen, Evidence.has_logits, Evidence.is_steady, Evidence.shows_taps),
    (forward.judge_answers, Evidence.has_logits),
    (forward.find_unsteady_line, Evidence.has_logits, Evidence.is_unsteady, Evidence.shows_taps),
    (forward.build_again, Evidence.has_logits, Evidence.is_steady),
    (forward.name_form, lambda evidence: evidence.form is not None),
    (forward.end_forward_pass, Evidence.has_logits),
    (reach.leave_out_all, Evidence.has_logits, lambda evidence: evidence.arguments.quick),
    (forward.load_as_named, Evidence.is_whole, Evidence.has_logits, forward.is_copied),
    (reach.call_at_other_sizes, Evidence.is_whole, Evidence.has_logits),
    (forward.explain_at_other_size, Evidence.is_whole, forward.is_explained_at_other_size),
    (offers.compare_offers, Evidence.is_whole, Evidence.has_logits),
    (forward.find_line_of_step, Evidence.is_whole, Evidence.has_logits, Evidence.shows_taps),
    (ranks.judge_ranks, Evidence.is_on_ranks),
    (audit_loader, Evidence.is_whole),
)
"""The stages in order, each with its conditions. A stage runs only if all its conditions hold."""


def name_of(build: Any) -> str:
    """Return the name of a port in reports: the given text, or `module:name` of a function, of a class, or of an
    object's class."""
    if isinstance(build, str):
        return build
    while isinstance(build, functools.partial):
        build = build.func
    named = build if hasattr(build, "__qualname__") else type(build)
    return f"{named.__module__}:{named.__qualname__}"


def assert_conforms(build: Port | str, preset: str | None = None, **options: Any) -> Report:
    """Raise `AssertionError` unless the port agrees; the error message is the checker's report. An inconclusive check
    also fails. The default preset is `translation`; `options` are the arguments of `check`."""
    from transparity_conformance.report.check.terminal import as_text

    # In tracebacks, pytest hides this function.
    __tracebackhide__ = True
    is_chosen = any(options.get(name) is not None for name in ("config", "family", "against"))
    report = check(build, preset or (None if is_chosen else "translation"), **options)
    if report.verdict != "agrees":
        raise AssertionError(as_text([report]))
    return report
