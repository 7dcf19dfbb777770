"""The command `transparity`: check whether a port is right and, if not, which line is wrong and why.

The exit code is 0 if the port agrees and 1 if the port diverges. The exit code is 2 for wrong usage or input, and 3 if
the result is inconclusive. Commands import most of their code when they run, so that `--help` appears at once.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import shlex
import signal
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from transparity.errors import TransparityError, UsageError
from transparity.text import describe_error, reason, safe
from transparity_conformance.report.files import STANDARD_OUTPUT, check_writable, write_json, write_reports, write_text
from transparity_conformance.report.terminal import print_line, print_text, progress_bar
from transparity_conformance.threads import one_thread_from_the_start

if TYPE_CHECKING:
    from transparity_conformance.checking.options import Options
    from transparity_conformance.checking.systems import System
    from transparity_conformance.checkpoints.importing import Checkpoint
    from transparity_conformance.report.report import Report

BAD_INPUT, INCONCLUSIVE = 2, 3
EXIT_CODES = (0, 1, BAD_INPUT, INCONCLUSIVE)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class Dtype(StrEnum):
    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Head(StrEnum):
    hidden = "hidden"
    pooled = "pooled"
    logits = "logits"
    classes = "classes"


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from transparity import __version__

        typer.echo(__version__)
        raise typer.Exit


EPILOG = (
    "Example: transparity check my.py:load --family llama. Exit codes: 0 the port agrees, 1 it diverges, 2 the check "
    "could not run, 3 too little was compared."
)


OPTIONS: dict[str, Any] = tomllib.loads(files(__package__).joinpath("options.toml").read_text(encoding="utf-8"))

SECTIONS: dict[str, str] = OPTIONS.pop("sections")
"""The options for capabilities, each with the result that the option adds to a check."""


def _listed(command: Callable[..., None]) -> Callable[..., None]:
    """Annotate every parameter of a command with the parameter's row of options.toml, and replace `**sections` by a
    flag for each section."""
    rows = OPTIONS["every"] | OPTIONS[command.__name__.rstrip("_")]
    adds = "With --command: also compare" if command.__name__ == "check" else "Also ask for"
    signature, parameters = inspect.signature(command, eval_str=True), list[inspect.Parameter]()
    for each in signature.parameters.values():
        if each.kind is not each.VAR_KEYWORD:
            parameters.append(each.replace(annotation=Annotated[each.annotation, _option(**rows[each.name])]))
            continue
        for name, what in SECTIONS.items():
            kind = Annotated[bool, _option(f"--{name}", help=f"{adds} {what}.")]
            parameters.append(inspect.Parameter(name, each.KEYWORD_ONLY, default=False, annotation=kind))
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def _option(flag: str | None = None, **settings: Any) -> Any:
    return typer.Argument(show_default=False, **settings) if flag is None else typer.Option(flag, **settings)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Check whether a port of a transformer is right and, if not, where it is wrong and why."""


@app.command(epilog=EPILOG)
@_listed
def check(
    port: str | None = None,
    preset: list[str] | None = None,
    config: Path | None = None,
    checkpoint: Path | None = None,
    family: list[str] | None = None,
    changes: list[str] | None = None,
    head: Head | None = None,
    taps: bool = True,
    dtype: Dtype = Dtype.float32,
    command: str | None = None,
    timeout: float | None = None,
    budget: float | None = None,
    audit: bool | None = None,
    quick: bool = False,
    adapter: Path | None = None,
    by_layer: bool = False,
    layers: str | None = None,
    length: list[int] | None = None,
    ranks: int = 1,
    against: list[str] | None = None,
    inputs: Path | None = None,
    json_file: Path | None = None,
    html_file: Path | None = None,
    markdown_file: Path | None = None,
    verbose: bool = False,
    **sections: bool,
) -> None:
    """Check whether a port is right and, if not, which line is wrong."""
    given = dict(locals())
    with (screen := TerminalOutput(verbose, json_file, html_file, markdown_file)).answering():
        from transparity_conformance.checking.options import options_of

        asked = options_of(given, screen.locate)
        with one_thread_from_the_start() if asked.is_small and not command else contextlib.nullcontext():
            reports, errors = ([_compared(asked, screen)], NO_ERRORS) if against else _checked(asked, screen)
    screen.end(reports, errors, weights=asked.checkpoint)


def _checked(asked: Options, screen: TerminalOutput) -> tuple[list[Report], Mapping[str, list[str]]]:
    from transparity_conformance.cache import keeping
    from transparity_conformance.checking import checkers

    named = checkers.named_systems(asked)  # before the port is imported
    chosen = checkers.chosen_systems(run := checkers.checker(asked), asked, named, _imported)
    announced = screen.announced(chosen, asked.port or asked.command)
    with keeping():
        return checkers.check_all(run, announced, screen.progress, screen.show)


def _compared(asked: Options, screen: TerminalOutput) -> Report:
    from transparity_conformance.against.check import Request, check_against

    names = ("against", "config", "checkpoint", "inputs", "dtype", "timeout", "budget")
    request = Request(asked.spec, **asked.named(*names))
    screen.about = f"{safe(asked.spec)} against {safe(' and '.join(request.against))}"
    with screen.progress() as progress:
        return check_against(request, progress)


@app.command()
def presets() -> None:
    """List the presets, with their differences from "Attention Is All You Need"."""
    from transparity.presets import PRESETS, departures

    for name, system in PRESETS.items():
        differs = "; ".join(departures(system.config)) or "nothing"
        print_line(f"{name}  (document {system.document})")
        print_line(f'the values of the document; differences from "Attention Is All You Need": {differs}', indent=4)
        if system.decided:
            print_line(f"our decisions where the document is silent: {system.decided}", indent=4)


@app.command()
@_listed
def describe(
    preset: str | None = None,
    fields: bool = False,
    json_file: Path | None = None,
) -> None:
    """List the parameters and the activations of a model."""
    with _one_sentence():
        if (preset is None) != fields:
            raise UsageError("describe needs either a PRESET or --fields; give exactly one of the two.")
        from transparity_conformance.checking.systems import named_config
        from transparity_conformance.report.fields import as_rows, described, lines, parameters_table, taps_table

        config = None if preset is None else named_config(preset, resized=False)
        if json_file is not None:
            write_json(json_file, as_rows() if config is None else described(config))
        elif config is None:
            for values, meaning in lines():
                print_line(values)
                print_line(meaning, indent=4)
        else:
            print_text(parameters_table(config))
            print_text(taps_table(config))


@app.command()
@_listed
def explain(
    cause: str | None = None,
) -> None:
    """Explain a cause: the right behavior, and the code to check."""
    from transparity_conformance.report.causes import meaning, meanings, page_of

    with _one_sentence():
        if cause is None:
            for name in meanings():
                print_line(name)
            return
        from transparity_conformance.report.check.terminal import named

        found = meaning(cause)
        hidden = [("does not show with", found.hidden)] * bool(found.hidden)
        rows = [("right", found.right), ("where to look", found.look), *hidden]
        print_line(f"{cause}: {found.title}")
        print_text(named(rows))
        width = max(len(name) for name, _ in rows) + 3
        for name, link in (("page", page_of(cause)), *(("seen in", link) for link in found.links())):
            typer.echo(f"{name:<{width}}{link}")  # do not wrap links


@app.command()
@_listed
def adapt(
    port: str,
    preset: str | None = None,
    config: Path | None = None,
    family: str | None = None,
    out: Path | None = None,
    timeout: float | None = None,
    budget: float | None = None,
) -> None:
    """Write an adapter, which maps the tensors of a model to our parameters."""
    with _one_sentence():
        from transparity_conformance.checking.adapting import adapt_port

        out = None if out == Path("-") else out
        with progress_bar() as progress:
            text, lines, code = adapt_port(port, preset, config, family, out, timeout, budget, progress)
        if out is None:
            typer.echo(text, nl=False)
        with _for_people(Path("-")) if out is None else contextlib.nullcontext():
            for line in lines:
                print_line(line)
    raise typer.Exit(code)


@app.command()
@_listed
def export(
    preset: str | None = None,
    folder: Path | None = None,
    family: str | None = None,
    as_hub: Path | None = None,
    checkpoint: Path | None = None,
    head: Head | None = None,
    by_layer: bool = False,
    layers: str | None = None,
    dtype: Dtype = Dtype.float32,
    **sections: bool,
) -> None:
    """Write a bundle, which is a folder for checking a port in any language."""
    with _one_sentence():
        if checkpoint is not None or by_layer or layers is not None or head is not None:
            others = bool(folder or family or as_hub or any(sections.values()))
            _export_checkpoint(checkpoint, preset, head, layers, dtype, by_layer=by_layer, others=others)
            return
        if family is not None or as_hub is not None:
            _export_hub(family, as_hub, is_bundle=bool(preset or folder or any(sections.values())))
            return
        from transparity_conformance.checking.systems import label, named_config
        from transparity_conformance.exchange.writing import export_bundle

        if preset is None or folder is None:
            raise UsageError("export needs a PRESET and a DIR, or --family and --as-hub; give one of the two pairs.")
        config = named_config(preset, resized=True)
        asked = [name for name in sections if sections[name]]
        bundle = export_bundle(config, folder, name=label(preset), dtype=dtype, sections=asked)
        print_line(f"{folder}: {len(bundle.probes)} probes of {bundle.name} ({', '.join(bundle.probes)})")
        for name, section in bundle.capabilities.items():
            print_line(f"{name}: {section.purpose}", indent=4)


@app.command()
@_listed
def fit(
    module: str,
    json_file: Path | None = None,
    timeout: float | None = None,
) -> None:
    """Find the configuration of a model, for `check --config`."""

    with _one_sentence(), _for_people(json_file):
        from transparity_conformance.identify.fitting.answer import sentences, unfinished
        from transparity_conformance.identify.fitting.fit import fit_port
        from transparity_conformance.identify.fitting.subject import FitError

        check_writable(json_file)
        try:
            found = fit_port(module, timeout)
        except FitError as error:
            text, note = unfinished(error)
            if json_file is not None:
                write_text(json_file, text)
                note = f'{json_file} has the fields that were found, and "?" for every other field. {note}'
            error.add_note(note)
            raise
        for sentence in sentences(found, safe(module)):
            print_line(sentence)
    with _one_sentence():
        write_text(json_file or STANDARD_OUTPUT, found.config.to_json())
    raise typer.Exit(0 if found.is_confirmed else INCONCLUSIVE)


@app.command("import")
@_listed
def import_(
    folder: Path,
    into: Path,
    head: Head | None = None,
) -> None:
    """Convert a checkpoint of a known family to our parameter names."""
    with _one_sentence():
        _imported(folder, head, into)


@app.command()
@_listed
def compare(
    bundle: Path,
    actual: Path,
    checkpoint: Path | None = None,
    taps: bool = True,
    json_file: Path | None = None,
    html_file: Path | None = None,
    markdown_file: Path | None = None,
    verbose: bool = False,
) -> None:
    """Compare the outputs of a port with the right outputs in a bundle."""
    screen = TerminalOutput(verbose, json_file, html_file, markdown_file)
    with screen.answering():
        from transparity_conformance.exchange import judging

        with screen.progress() as progress:
            progress("reading the bundle", 0, 1)
            reports = list(judging.compare(bundle, actual, checkpoint, progress, logits_only=not taps))
    screen.end(reports, weights=checkpoint)


def main() -> None:
    """Run the command, and exit with 0, 1, 2 or 3. Catch all exceptions, because an uncaught exception would exit with
    1, the code of a wrong port."""
    code = BAD_INPUT
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # the terminal's encoding may lack characters
                stream.reconfigure(errors="backslashreplace")
        for number in (signal.SIGTERM, signal.SIGHUP):  # treated like Ctrl-C, to stop processes of ports
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupt)
        ended = int(app(standalone_mode=False) or 0)
        if ended not in EXIT_CODES:
            raise KeyboardInterrupt  # typer's exit code for Ctrl-C is 130
        code = ended
    except (KeyboardInterrupt, typer.Abort):
        _complain("Interrupted before a verdict was reached.")
    except (BrokenPipeError, SystemExit):  # rich exits if the output's reader has closed the pipe
        pass
    except OSError as error:
        _complain(f"The operating system reports an error ({reason(error)}); fix the cause and try again.")
    except BaseException as error:  # noqa: BLE001 - a bug of the checker is not a verdict
        _complain_of_ours(error)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code if _flushed() else BAD_INPUT)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End the process as Ctrl-C does, even if the shell has turned off Ctrl-C for a background job."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


def _complain_of_ours(error: BaseException) -> None:
    if hasattr(error, "show"):  # typer's usage errors print their own message
        if isinstance(message := getattr(error, "message", None), str):
            error.message = message.removeprefix("Value error, ")  # type: ignore[attr-defined] # leaves one sentence
        with contextlib.suppress(OSError, ValueError):
            error.show()
        return
    failed, file = describe_error(error), ""
    with contextlib.suppress(OSError):
        number, file = tempfile.mkstemp(prefix="transparity-", suffix=".txt")
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as report:
            report.write(f"{shlex.join(sys.argv)}\n{''.join(traceback.format_exception(error))}")
    enclosed = f" and attach {file}, which has the traceback" if file else ""
    _complain(f"transparity itself failed ({failed}), so there is no verdict; please report this bug{enclosed}.")


def _flushed() -> bool:
    """Flush the output; return False if standard output is closed. Redirect closed streams to the null device, because
    Python flushes them again at exit."""
    complete = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            complete = complete and stream is not sys.stdout
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return complete


def _imported(folder: Path, head: str | None, into: Path | None = None) -> Checkpoint:
    from transparity_conformance.checkpoints.importing import import_checkpoint, save_checkpoint

    checkpoint = import_checkpoint(folder, head)
    if into is not None:
        save_checkpoint(checkpoint, into)
    count = sum(value.size for value in checkpoint.parameters.values())
    print_line(f"{into or folder}: {checkpoint.model_type}, {checkpoint.config.architecture}, {count:,} parameters")
    for remark in checkpoint.remarks:
        print_line(remark, indent=4)
    return checkpoint


def _export_hub(family: str | None, folder: Path | None, *, is_bundle: bool) -> None:
    from transparity_conformance.checkpoints.examples import example_config
    from transparity_conformance.checkpoints.exporting import export_checkpoint
    from transparity_conformance.oracle.probes import probe_parameters

    if family is None or folder is None or is_bundle:
        raise UsageError("--family NAME and --as-hub DIR need each other; give both, without PRESET.")
    config = example_config(family)
    parameters = probe_parameters(config)
    export_checkpoint(family, config, parameters, folder)
    count = sum(value.size for value in parameters.values())
    print_line(f"{folder}: {family}, {config.architecture}, {count:,} parameters")


def _export_checkpoint(
    checkpoint: Path | None,
    folder: str | None,
    head: str | None,
    layers: str | None,
    dtype: str,
    *,
    by_layer: bool,
    others: bool,
) -> None:
    from transparity_conformance.checking.systems import layer_numbers
    from transparity_conformance.exchange.writing import export_for, export_pieces

    if checkpoint is None or folder is None or others:
        raise UsageError(
            "--checkpoint FOLDER needs a DIR, and allows only --head, --by-layer, --layers and --dtype; leave out the "
            "other options."
        )
    with progress_bar() as progress:
        options: dict[str, Any] = {"head": head, "dtype": dtype, "progress": progress}
        if not by_layer and layers is None:
            print_line(export_for(checkpoint, Path(folder), **options))
            return
        numbers = None if layers is None else layer_numbers(layers)
        for written in export_pieces(checkpoint, Path(folder), numbers, **options):
            print_line(written)


def _for_people(*files: Path | None) -> contextlib.AbstractContextManager[object]:
    if STANDARD_OUTPUT not in files:
        return contextlib.nullcontext()
    check_writable(STANDARD_OUTPUT)
    return contextlib.redirect_stdout(sys.stderr)


@contextlib.contextmanager
def _one_sentence() -> Iterator[None]:
    try:
        yield
    except (TransparityError, MemoryError) as error:
        from transparity_conformance.checking.options import one_sentence

        _complain(one_sentence(error))
        raise typer.Exit(BAD_INPUT) from None


def _complain(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error may be closed, too
        typer.echo(sentence.encode("utf-8", "backslashreplace").decode(), err=True)


NO_ERRORS: Mapping[str, list[str]] = {}


class TerminalOutput:
    """The output of a check in the terminal: a progress bar, which disappears, and the result. With several
    configurations, `show` prints a line about each verdict, and `end` prints the divergences."""

    def __init__(self, verbose: bool, *files: Path | None) -> None:
        self.verbose, self.files, self.about, self.systems = verbose, files, "", 0
        self.waiting: list[Report] = []

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Print an error of the user as one sentence. If a file is written to standard output, print everything else to
        standard error."""
        with _one_sentence(), _for_people(*self.files):
            check_writable(*self.files)
            yield

    def progress(self) -> contextlib.AbstractContextManager[Callable[[str, int, int], None]]:
        return progress_bar(lambda: self.about)

    def announced(self, systems: Iterable[System], port: str | None) -> Iterator[System]:
        for system in systems:
            self.about, self.systems = f"{safe(port or '')} on {system.name}", self.systems + 1
            self._list()
            yield system

    def locate(self, report: Report) -> None:
        """Show the first wrong activation and line beside the progress bar, before the search for causes starts."""
        from transparity_conformance.report.check.findings import located

        self.about = f"{safe(report.port)} {located(report)}"

    def show(self, report: Report) -> None:
        self.waiting.append(report)
        self._list()

    def _list(self) -> None:
        from transparity_conformance.report.check.terminal import one_line

        while self.systems > 1 and self.waiting:
            print_text(one_line(self.waiting.pop(0)))
            if sys.stdout is not None:
                sys.stdout.flush()

    def end(
        self, reports: Sequence[Report], errors: Mapping[str, list[str]] = NO_ERRORS, *, weights: Path | None = None
    ) -> NoReturn:
        """Print the results, write the requested files, and exit with the worst exit code."""
        with self.answering():
            from transparity_conformance.report.check.terminal import answers
            from transparity_conformance.report.report import VERBS

            worst = min(reports, key=lambda report: list(VERBS).index(report.verdict), default=None)
            code = BAD_INPUT if errors or worst is None else worst.exit_code
            failed = sum(map(len, errors.values()))
            print_text(answers(reports, code, failed=failed, verbose=self.verbose))
        for message, names in errors.items():  # no names if the message applies to all configurations
            _complain(message if len(names) == failed + len(reports) else f"{', '.join(names)}: {message}")
        with _one_sentence():
            write_reports(reports, *self.files, weights=weights)
        raise typer.Exit(code)
