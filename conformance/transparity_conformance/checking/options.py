"""The options of `transparity check`, and rules for their combinations. This file has few imports, so it loads fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transparity.errors import TransparityError, UsageError
from transparity.presets import preset as preset_called
from transparity.text import reason, safe
from transparity_conformance.running.artefacts import HUB, runtime_of

if TYPE_CHECKING:
    from transparity_conformance.report.report import Report


@dataclass(frozen=True)
class Options:
    port: str | None = None
    command: str | None = None
    preset: Sequence[str] | None = None
    config: Path | None = None
    checkpoint: Path | None = None
    family: Sequence[str] | None = None
    head: str | None = None
    by_layer: bool = False
    layers: str | None = None
    length: Sequence[int] | None = None
    adapter: Path | None = None
    audit: bool | None = None
    quick: bool = False
    changes: Sequence[str] | None = None
    """Changes of fields in the config.json of the family's small model, as `name=value`."""
    ranks: int = 1
    dtype: str = "float32"
    logits_only: bool = False
    timeout: float | None = None
    budget: float | None = None
    sections: Sequence[str] = ()
    """The optional sections to write into the bundle for a program."""
    located: Callable[[Report], None] = lambda report: None
    """A function that gets the report on a wrong port before the search for causes."""
    against: Sequence[str] | None = None
    """Other implementations with which to compare the port."""
    inputs: Path | None = None

    @property
    def spec(self) -> str:
        assert self.port is not None
        return self.port

    def named(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    @property
    def is_small(self) -> bool:
        """Return whether the checker chooses the sizes of all models and prompts, which are then small."""
        is_chosen = self.config is not None if self.against else self.config is None and not self.length
        return is_chosen and self.checkpoint is None and not self.changes

    @property
    def given(self) -> set[str]:
        given = {f"--{each.name.replace('_', '-')}": getattr(self, each.name) for each in fields(self)}
        given |= {"--by-layer": self.by_layer or self.layers, "--ranks": self.ranks > 1, "--set": self.changes}
        given |= {"sections": self.sections, "PORT": self.port, "ARTEFACT": runtime_of(self.port), "check": True}
        return {name for name, value in given.items() if value}

    def check_together(self) -> None:
        """Raise `UsageError` if the options break a rule, or if a preset is unknown."""
        flags, given = " and ".join(f"--{name}" for name in self.sections), self.given
        for rule in RULES if given.isdisjoint(("--against", "--inputs")) else RULES_OF_AGAINST:
            if rule.is_broken(given):
                raise UsageError(rule.says.format(port=safe(self.port or ""), flags=flags))
        for name in self.preset or ():
            if name.endswith(".json"):
                raise UsageError(f"{name} is not the name of a preset; give a configuration file with --config.")
            preset_called(name)


@dataclass(frozen=True)
class OptionRule:
    """A rule for an option, and the message for commands that break the rule."""

    option: str
    says: str
    excludes: str = ""
    """Options that must be absent, separated by spaces."""
    needs: str = ""
    """Options of which at least one must be present, separated by spaces."""

    def is_broken(self, given: set[str]) -> bool:
        lacks = bool(self.needs) and given.isdisjoint(self.needs.split())
        return self.option in given and (lacks or not given.isdisjoint(self.excludes.split()))


OF_BY_LAYER = """--by-layer and --layers check each layer of a checkpoint as a model; give --checkpoint FOLDER and a \
function load(folder) as the PORT, without --adapter."""
OF_WHOLE = "--by-layer needs a function load(folder) as the PORT; an artifact contains the weights of all layers."
OF_OWN = "{port} contains its weights; give the folder of the original checkpoint with --checkpoint FOLDER."
OF_LENGTH = """--length needs a model with a large max_length; give --checkpoint FOLDER, --config FILE, or \
--family NAME --set FIELD=N with the family's field for max_length."""
OF_CHECKPOINT = "--checkpoint cannot be combined with --preset, --config, --family or --command; leave out the others."
OF_FAMILY = "--family cannot be combined with --preset, --config or --command; leave out the others."
OF_ADAPTER = (
    "--adapter cannot be combined with --command, which reads its weights from the bundle; leave out one of the two."
)
OF_PROMPTS = (
    "--length cannot be combined with --command, which reads its prompts from the bundle; leave out one of them."
)
OF_HEAD = "--head needs --checkpoint or --family; a configuration has its own field `head`."
EITHER = "check needs either a PORT or --command; give exactly one of the two."
OF_AUDIT = "--audit builds a PORT many times, but a --command runs only once; leave out one of the two."
OF_QUICK = "--quick compares only the forward pass of a PORT; leave out --command, --audit and --length."
OF_SECTIONS = "{flags} can be used only with --command; by default, a check of a PORT also compares its methods."
OF_MODELS = "{} needs a PORT that is a model in Python{}; {{port}} is an artifact{}."

OF_AGAINST = """--against REFERENCE needs a PORT, and allows only --config, --checkpoint, --inputs, --dtype, \
--timeout, --budget and the options of reports; leave out the others."""
OF_THEIR_MODEL = """--against REFERENCE takes a model from --config FILE or --checkpoint FOLDER; leave out \
--family, --preset and --set."""
ALONE = "--preset --family --set --head --command --adapter --audit --quick --by-layer --length --ranks --logits-only"

RULES_OF_AGAINST = (
    OptionRule("--against", OF_THEIR_MODEL, "--family --preset --set"),
    OptionRule("--against", OF_AGAINST, f"{ALONE} sections", needs="PORT"),
    OptionRule("--inputs", "--inputs needs --against REFERENCE; add it, or leave out --inputs.", needs="--against"),
)
"""The rules if the reference is another implementation."""

RULES = (
    OptionRule("--by-layer", OF_BY_LAYER, "--adapter", needs="--checkpoint"),
    OptionRule("--by-layer", OF_WHOLE, "ARTEFACT"),
    OptionRule("--length", OF_PROMPTS, "--command"),
    OptionRule("--length", OF_LENGTH, needs="--checkpoint --config --set"),
    OptionRule("--checkpoint", OF_CHECKPOINT, "--preset --config --command --family"),
    OptionRule("--family", OF_FAMILY, "--preset --config --command"),
    OptionRule("--adapter", OF_ADAPTER, "--command"),
    OptionRule("--head", OF_HEAD, needs="--checkpoint --family"),
    OptionRule("--set", "--set changes fields of a family's small model; add --family NAME.", needs="--family"),
    OptionRule("check", EITHER, needs="PORT --command"),
    OptionRule("PORT", EITHER, "--command"),
    OptionRule("--audit", OF_AUDIT, "--command"),
    OptionRule("--quick", OF_QUICK, "--command --audit --length"),
    OptionRule("sections", OF_SECTIONS, "PORT"),
    OptionRule("--length", OF_MODELS.format("--length", "", ""), "ARTEFACT"),
    OptionRule("--ranks", OF_MODELS.format("--ranks", ", or a --command", ""), "ARTEFACT"),
    OptionRule("--adapter", OF_MODELS.format("--adapter", "", " with its own weights"), "ARTEFACT"),
    OptionRule("ARTEFACT", OF_OWN, needs="--checkpoint"),
)


def one_sentence(error: BaseException) -> str:
    """Return the message of the error that ended a check, followed by the error's notes."""
    known = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, KeyboardInterrupt):
        return f"Interrupted before a verdict was reached.{known}"
    if isinstance(error, TransparityError):
        return f"{error}{known}"
    return f"There is not enough memory ({reason(error)}); choose smaller sizes or a machine with more memory."


def options_of(given: Mapping[str, Any], located: Callable[[Report], None]) -> Options:
    """Make options from the arguments of the command; raise `UsageError` if the options break a rule."""
    own = {each.name: given[each.name] for each in fields(Options) if each.name in given}
    own["sections"] = [name for name, is_asked in given["sections"].items() if is_asked]
    names = ("port", "checkpoint", "preset", "config", "family", "against", "inputs")
    own["checkpoint"] = checkpoint_of(*(own[name] for name in names))
    asked = Options(**own, logits_only=not given["taps"], located=located)
    asked.check_together()
    return asked


def checkpoint_of(port: str | None, checkpoint: Path | None, *others: Any) -> Path | None:
    runtime = runtime_of(port)
    if checkpoint is not None or port is None or runtime is not HUB or any(others):
        return checkpoint
    return Path(port)
