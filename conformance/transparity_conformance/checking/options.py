"""The options of `transparity check` and their rules; no import is slow, so that a mistake has its answer at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transparity.errors import TransparityError, UsageError
from transparity.presets import preset as preset_called
from transparity.text import reason, safe
from transparity_conformance.diagnosis.search.clock import BUDGET
from transparity_conformance.running.artefacts import HUB, runtime_of

if TYPE_CHECKING:
    from transparity_conformance.report.report import Report


@dataclass(frozen=True)
class Options:
    """The options of `transparity check`."""

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
    """Other values for fields of the family's config.json, as `name=value`."""
    ranks: int = 1
    dtype: str = "float32"
    logits_only: bool = False
    timeout: float | None = None
    budget: float = BUDGET
    sections: Sequence[str] = ()
    """Sections of the bundle for a program."""
    located: Callable[[Report], None] = lambda report: None
    """Receives the report on a port that diverges before the search for causes."""

    @property
    def given(self) -> set[str]:
        """Return the names of the given options, as in `RULES`."""
        names = ("command", "preset", "config", "checkpoint", "family", "head", "length", "adapter", "audit", "quick")
        given = {f"--{name}": getattr(self, name) for name in names}
        given |= {"--by-layer": self.by_layer or self.layers, "--ranks": self.ranks > 1, "sections": self.sections}
        given |= {"--set": self.changes}
        given |= {"PORT": self.port, "ARTEFACT": runtime_of(self.port), "check": True}
        return {name for name, value in given.items() if value}

    def check_together(self) -> None:
        """Raise `UsageError` for options that exclude each other, and for an unknown preset."""
        flags = " and ".join(f"--{name}" for name in self.sections)
        for rule in RULES:
            if rule.is_broken(self.given):
                raise UsageError(rule.says.format(port=safe(self.port or ""), flags=flags))
        for name in self.preset or ():
            if name.endswith(".json"):
                raise UsageError(f"{name} is no preset; give a configuration by --config.")
            preset_called(name)


@dataclass(frozen=True)
class OptionRule:
    """An option with the options that it excludes or needs one of, separated by spaces."""

    option: str
    says: str
    excludes: str = ""
    needs: str = ""

    def is_broken(self, given: set[str]) -> bool:
        """Return whether the given options break the rule."""
        lacks = bool(self.needs) and given.isdisjoint(self.needs.split())
        return self.option in given and (lacks or not given.isdisjoint(self.excludes.split()))


OF_BY_LAYER = """--by-layer and --layers write each layer of a checkpoint as a model for the port's loader; \
give --checkpoint FOLDER and a PORT that is load(folder)."""
OF_WHOLE = "--by-layer is for a PORT that is load(folder); an artifact has its own weights, all at once."
OF_OWN = "{port} has its own weights; give the folder of its original checkpoint by --checkpoint FOLDER."
OF_LENGTH = """--length needs a longer max_length than a small model's: give --checkpoint FOLDER, --config FILE, \
or --family NAME --set FIELD=N with its name for max_length."""
OF_CHECKPOINT = "--checkpoint goes with a PORT only; leave out --preset, --config, --family and --command."
OF_FAMILY = "--family goes with a PORT only; leave out --preset, --config and --command."
OF_ADAPTER = "--adapter is for a PORT that makes a model; a --command reads its weights from the bundle."
OF_HEAD = "--head is for --checkpoint and --family; a configuration has a field `head` of its own."
EITHER = "check takes either a PORT or --command; give one of the two."
OF_AUDIT = "--audit builds a PORT many times, and a --command runs once; leave out one of the two."
OF_QUICK = "--quick compares only the forward pass of a PORT; leave out --command, --audit and --length."
OF_SECTIONS = "{flags} asks for more in a bundle, for --command; a PORT is compared in all that it offers."
OF_MODELS = "{} is for a PORT that makes a model{}; {{port}} is an artifact{}."

RULES = (
    OptionRule("--by-layer", OF_BY_LAYER, "--adapter", needs="--checkpoint"),
    OptionRule("--by-layer", OF_WHOLE, "ARTEFACT"),
    OptionRule("--length", "--length is for a PORT; a --command is given the prompts of its bundle.", "--command"),
    OptionRule("--length", OF_LENGTH, needs="--checkpoint --config --set"),
    OptionRule("--checkpoint", OF_CHECKPOINT, "--preset --config --command --family"),
    OptionRule("--family", OF_FAMILY, "--preset --config --command"),
    OptionRule("--adapter", OF_ADAPTER, "--command"),
    OptionRule("--head", OF_HEAD, needs="--checkpoint --family"),
    OptionRule("--set", "--set changes fields of a family's small model; name it by --family.", needs="--family"),
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
"""Options that exclude each other, or need another."""


def one_sentence(error: BaseException) -> str:
    """Return how a check ended early (Ctrl-C, an error, too little memory), and what is known of the port."""
    known = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, KeyboardInterrupt):
        return f"Interrupted before a verdict was reached.{known}"
    if isinstance(error, TransparityError):
        return f"{error}{known}"
    return f"There is not enough memory ({reason(error)}); choose smaller sizes, or a machine with more."


def checkpoint_of(port: str | None, checkpoint: Path | None, *others: Any) -> Path | None:
    """Return the checkpoint of a check; a port that is a Hugging Face folder is its own, unless another is given."""
    runtime = runtime_of(port)
    if checkpoint is not None or port is None or runtime is not HUB or any(others):
        return checkpoint
    return Path(port)
