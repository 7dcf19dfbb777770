"""The command `transparity`: is a port right and, if not, where and why?

Exit codes: 0 agrees, 1 diverges, 2 bad usage or bad input, 3 inconclusive. Of several presets the worst counts.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transparity.errors import TransparityError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from transparity.config import TransformerConfig
    from transparity_conformance.checkpoints.importing import Checkpoint
    from transparity_conformance.diagnosis.judge import Progress
    from transparity_conformance.oracle.oracle import Arrays
    from transparity_conformance.report.report import Report

BAD_INPUT = 2
WORST_FIRST = (1, 3, 0)
"""Of the exit codes of several reports."""

TIMEOUT = 300.0
"""Seconds that a program has for a bundle."""

PATIENCE = 2.0
"""Seconds after which what takes longer gets a bar."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _say_version(asked: bool) -> None:
    if asked:
        from transparity import __version__

        typer.echo(__version__)
        raise typer.Exit


class Dtype(StrEnum):
    """The precision that a port computes in."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Head(StrEnum):
    """What comes out of a lone encoder."""

    hidden = "hidden"
    pooled = "pooled"


JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the reports as JSON.")]
HtmlFile = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the reports as one page.")]
Taps = Annotated[bool, typer.Option("--taps/--logits-only", help="Compare what the port shows, or its logits alone.")]
Gradients = Annotated[
    bool, typer.Option("--gradients", help="In the bundle: targets, and what a loss and gradients are to be called.")
]
Steps = Annotated[bool, typer.Option("--steps", help="In the bundle: the chunks in which a port with a cache decodes.")]
HeadChoice = Annotated[
    Head | None,
    typer.Option("--head", help="What comes out of a lone encoder; pooled, where the checkpoint has a pooler."),
]
Precision = Annotated[
    Dtype, typer.Option("--dtype", help='What the port computes in; a PORT is told it if its build takes dtype="…".')
]


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    """Is your port of a transformer right and, if not, where and why?"""


@app.command()
def presets() -> None:
    """List the source systems, and what each does otherwise than the paper."""
    from transparity.presets import PRESETS, departures

    for name, system in PRESETS.items():
        differs = "; ".join(departures(system.config)) or "nothing"
        _say(f"{name}  (document {system.document})")
        _say(f"as printed; differs from the paper in: {differs}", indent=4)
        if system.decided:
            _say(f"decided: {system.decided}", indent=4)


@app.command()
def describe(preset: Annotated[str, typer.Argument(metavar="PRESET", help="Its name, or a JSON file.")]) -> None:
    """Show the parameters, the taps, and a diagram of the architecture (Mermaid)."""
    with _sentences():
        from transparity_conformance.report.describe import mermaid, parameters_table, taps_table

        config = _named(preset, resized=False)
        _print(parameters_table(config))
        _print(taps_table(config))
        typer.echo(mermaid(config), nl=False)


@app.command()
def check(
    port: Annotated[
        str | None,
        typer.Argument(metavar="PORT", help="path/to/file.py:build or package.module:build.", show_default=False),
    ] = None,
    preset: Annotated[
        list[str] | None, typer.Option("--preset", metavar="NAME", help="Again for more; all, if none is given.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Any other configuration, as JSON.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="FOLDER", help="A hub's checkpoint, imported; with its own weights."),
    ] = None,
    head: HeadChoice = None,
    taps: Taps = True,
    dtype: Precision = Dtype.float32,
    command: Annotated[
        str | None,
        typer.Option(
            "--command",
            metavar='"…"',
            help="Instead of PORT, a program in any language: it is given a bundle, and writes actual.safetensors. "
            "{bundle} and {actual} stand for the two paths, which otherwise come last.",
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="For --command; 300, if not given.")
    ] = None,
    gradients: Gradients = False,
    steps: Steps = False,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
) -> None:
    """Check a port: at the probe size of every preset, or of those that are named."""
    with _sentences():
        if (port is None) == (command is None):
            raise UsageError("check takes either a PORT or --command; give one of the two.")
        if (sections := _sections(gradients, steps)) and command is None:
            raise UsageError("--gradients and --steps are for --command; what a PORT offers is compared without them.")
        if timeout is not None and command is None:
            raise UsageError("--timeout is for --command; a PORT runs in this very process, and nothing ends it.")
        if checkpoint is not None and (preset or config is not None or command is not None):
            raise UsageError(
                "--checkpoint goes with a PORT, and not with --preset, --config or --command; give it alone."
            )
        if head is not None and checkpoint is None:
            raise UsageError("--head is for --checkpoint; a configuration says by itself what comes out.")
        _check_writable(json_file, html_file)
        one = _checker(port, command, logits_only=not taps, dtype=dtype, timeout=timeout or TIMEOUT, sections=sections)
        if checkpoint is None:
            systems = list(_systems(preset or [], config))
        else:
            imported = _imported(checkpoint, head)
            one = functools.partial(one, parameters=imported.parameters)
            systems = [(imported.model_type, imported.config)]
    reports, complaints = [], {}
    for name, system in systems:
        try:
            with _progress() as heard:
                report = one(name, system, heard)
        except TransparityError as error:
            complaints[name] = str(error)
            continue
        reports.append(report)
        _show(report)
    for sentence in dict.fromkeys(complaints.values()):
        names = ", ".join(name for name, said in complaints.items() if said == sentence)
        _complain(f"{names}: {sentence}" if len(systems) > 1 else sentence)
    _finish(reports, json_file, html_file, failed=bool(complaints))


@app.command()
def export(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="Its name, or a JSON file.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is made, or empty, or a bundle.")],
    dtype: Precision = Dtype.float32,
    gradients: Gradients = False,
    steps: Steps = False,
) -> None:
    """Write a bundle: the check of a preset at its probe size, for a port in any language."""
    with _sentences():
        from transparity_conformance.ports.bundle.bundle import export_bundle
        from transparity_conformance.ports.bundle.sections import described

        config = _named(preset, resized=True)
        sections = _sections(gradients, steps)
        bundle = export_bundle(config, folder, name=_name_of(preset), dtype=dtype, sections=sections)
        _say(f"{folder}: {len(bundle.probes)} probes of {bundle.name} ({', '.join(bundle.probes)})")
        for section in bundle.sections:
            _say(f"{section}: {described(section, bundle.probes, bundle.dtype)['for']}", indent=4)


@app.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="config.json and safetensors, as a hub keeps them.")],
    into: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is empty, or is made.")],
    head: HeadChoice = None,
) -> None:
    """Write a checkpoint of a known family as a configuration and parameters of ours."""
    with _sentences():
        from transparity_conformance.checkpoints.importing import import_checkpoint, save_checkpoint

        checkpoint = import_checkpoint(folder, head)
        save_checkpoint(checkpoint, into)
        _say_imported(checkpoint, into)


@app.command()
def compare(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A folder that `transparity export` wrote.")],
    actual: Annotated[Path, typer.Argument(metavar="ACTUAL", help="What the port wrote of it, as safetensors.")],
    taps: Taps = True,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
) -> None:
    """Say whether what a port wrote of a bundle is right."""
    with _sentences():
        from transparity_conformance.ports.bundle.bundle import judge_bundle, read_actual, read_bundle

        _check_writable(json_file, html_file)
        with _progress() as heard:
            heard("reading the bundle", 0, 1)
            read = read_bundle(bundle)
            said = read_actual(actual, read)
            report = judge_bundle(read, said, logits_only=not taps, progress=heard)
        _show(report)
        _finish([report], json_file, html_file)


def main() -> None:
    """The entry point."""
    try:
        app()
    except Exception:  # noqa: BLE001 - a fault of ours is no verdict, and Python would end with 1
        traceback.print_exc()
        sys.exit(BAD_INPUT)


class UsageError(TransparityError):
    """The command was given what does not go together."""


def _checker(
    port: str | None, command: str | None, *, logits_only: bool, dtype: str, timeout: float, sections: Sequence[str]
) -> Callable[..., Report]:
    """The check of one system: of a function that is loaded here, or of a program."""
    if command is not None:
        from transparity_conformance.ports.command import check_command

        asked: dict[str, Any] = {"dtype": dtype, "logits_only": logits_only, "timeout": timeout, "sections": sections}
        return lambda name, config, heard: check_command(command, name, config, **asked, progress=heard)
    from transparity_conformance.ports.check import PortError
    from transparity_conformance.ports.check import check as check_port
    from transparity_conformance.ports.loading import load_port

    assert port is not None
    build = load_port(port)

    def one(name: str, config: TransformerConfig, heard: Progress, parameters: Arrays | None = None) -> Report:
        system: dict[str, Any] = {"config": config} if name == "config" else {"preset": name}
        if parameters is not None:
            system = {"config": config, "preset": name, "parameters": parameters}
        try:
            return check_port(build, **system, dtype=dtype, logits_only=logits_only, progress=heard)
        except SystemExit as end:  # whose code would be taken for a verdict
            raise PortError(f"The port ended the process with sys.exit({end.code!r}).") from None

    return one


def _sections(gradients: bool, steps: bool) -> list[str]:
    """Those of a bundle that were asked for."""
    return [section for section, wanted in (("gradients", gradients), ("steps", steps)) if wanted]


def _systems(names: Sequence[str], config: Path | None) -> Iterator[tuple[str, TransformerConfig]]:
    """What is checked: the presets that are named, a configuration, or all presets."""
    from transparity.presets import PRESETS, preset

    for name in names:
        if _name_of(name) == "config":
            raise UsageError(f"{name} is no preset; a configuration is given by --config.")
    for name in dict.fromkeys(names or (() if config else PRESETS)):
        yield name, preset(name).resized()
    if config is not None:
        yield "config", _read_config(config)


def _imported(folder: Path, head: str | None) -> Checkpoint:
    """A checkpoint; what was not taken over is said."""
    from transparity_conformance.checkpoints.importing import import_checkpoint

    checkpoint = import_checkpoint(folder, head)
    _say_imported(checkpoint, folder)
    return checkpoint


def _say_imported(checkpoint: Checkpoint, folder: Path) -> None:
    count = sum(value.size for value in checkpoint.parameters.values())
    _say(f"{folder}: {checkpoint.model_type}, {checkpoint.config.architecture}, {count:,} parameters")
    for remark in checkpoint.remarks:
        _say(remark, indent=4)


def _named(name: str, *, resized: bool) -> TransformerConfig:
    """The configuration of a preset, or in a file."""
    from transparity.presets import PRESETS, preset

    if _name_of(name) == "config":
        return _read_config(Path(name))
    if name not in PRESETS and Path(name).exists():
        raise UsageError(f"{name} is no preset, and a configuration is a path that ends in .json.")
    return preset(name).resized() if resized else preset(name)


def _name_of(name: str) -> str:
    return "config" if name.endswith(".json") else name


def _read_config(path: Path) -> TransformerConfig:
    from transparity_conformance.ports.bundle.bundle import read_config

    return read_config(path)


def _finish(reports: Sequence[Report], json_file: Path | None, html_file: Path | None, *, failed: bool = False) -> None:
    """Write what was asked for, and end with the worst of the exit codes."""
    with _sentences():
        from transparity_conformance.report.files import write_reports

        write_reports(reports, json_file, html_file)
    codes = {report.exit_code for report in reports}
    raise typer.Exit(BAD_INPUT if failed else next(code for code in WORST_FIRST if code in codes))


def _write(path: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None


def _check_writable(*paths: Path | None) -> None:
    """Say it before the work and not behind it."""
    for path in paths:
        if path is None:
            continue
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise UsageError(f"{path} cannot be written: it is a folder, or there is no folder to put it in.")
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise UsageError(f"{path} cannot be written: permission denied.")


@contextmanager
def _sentences() -> Iterator[None]:
    """A user's mistake is answered with one sentence and the exit code 2."""
    try:
        yield
    except TransparityError as error:
        _complain(str(error))
        raise typer.Exit(BAD_INPUT) from None


def _complain(sentence: str) -> None:
    typer.echo(sentence.encode("utf-8", "backslashreplace").decode(), err=True)


def _show(report: Report) -> None:
    from transparity_conformance.report.check.terminal import table

    _print(table(report))


def _print(what: RenderableType) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console.print(what)


def _say(line: str, indent: int = 0) -> None:
    from rich.padding import Padding
    from rich.text import Text

    _print(Padding(Text(line), (0, 0, 0, indent), expand=False))


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar, on a terminal, for what takes longer than a moment."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    bar = Bar(console=console, transient=True)
    task = bar.add_task("", total=None)
    began = time.monotonic()

    def heard(says: str, done: int, of: int) -> None:
        if not bar.live.is_started and console.is_terminal and time.monotonic() - began > PATIENCE:
            bar.start()
        bar.update(task, description=says, completed=done, total=of)

    try:
        yield heard
    finally:
        if bar.live.is_started:
            bar.stop()


if __name__ == "__main__":
    main()
