"""Use a loader of Hugging Face folders (a port's `load(folder)`, or transformers) as a `build(config, parameters)`."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import logging
import random
import re
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import TransparityError
from transparity.text import SENTENCE, safe
from transparity_conformance.capabilities.port_calls import PortCallError, PortError, call_port
from transparity_conformance.checkpoints.exporting import Edit, edit_folder, export_checkpoint
from transparity_conformance.checkpoints.reading import read_fields
from transparity_conformance.running.forward import called, forward_of
from transparity_conformance.running.gradients import offer_gradients
from transparity_conformance.running.loading import Limits, read_with


class HubBuild:
    """A `build(config, parameters)` that writes a folder and calls a port's `load(folder)`. `parameters` may also be
    the path of an existing folder. Keyword arguments are passed to `load`. `model_type` is the family of the folders.
    `edit` changes the written folder, or a copy of an existing folder, before `load` reads this folder. The written
    folders are below `root`. A folder is removed when its model is freed; the caller removes `root`."""

    def __init__(self, load: Callable[..., Any], model_type: str, root: str, edit: Edit | None = None) -> None:
        functools.update_wrapper(self, load)
        self.load, self.model_type, self.root, self.edit = load, model_type, root, edit

    def edited(self, edit: Edit) -> HubBuild:
        return HubBuild(self.load, self.model_type, self.root, edit)

    def __call__(
        self, config: TransformerConfig, parameters: Mapping[str, np.ndarray] | str, **options: Any
    ) -> Callable[..., Any]:
        if isinstance(parameters, str) and self.edit is None:
            return self._loaded(Path(parameters), config, options)
        parent = tempfile.mkdtemp(dir=self.root)
        folder = Path(parent, "model")  # always the same name, to detect loaders that cache by name
        try:
            if isinstance(parameters, str):
                shutil.copytree(parameters, folder)
            else:
                export_checkpoint(self.model_type, config, parameters, folder)
        except TransparityError as error:
            raise PortError(f"No folder can be written for load(folder): {error}") from None
        forward = self._loaded(folder, config, options)
        # keep the folder as long as the model, which may read its weights late
        weakref.finalize(forward, shutil.rmtree, parent, ignore_errors=True)
        return forward

    def _loaded(self, folder: Path, config: TransformerConfig, options: Mapping[str, Any]) -> Callable[..., Any]:
        try:
            if self.edit is None:
                model = call_port(self.load, str(folder), **options)
                return offer_gradients(forward_of(model, config), model, folder, config, called)
            edit_folder(folder, self.edit)
            with seeded(self.edit.seed), recorded_messages() as said:
                forward = forward_of(call_port(self.load, str(folder), **options), config)
        except PortCallError as error:
            raise PortError(f"load(folder) raised {error}.") from error.__cause__
        usual = _USUAL.setdefault(self.load, set())
        if not self.edit.without:
            usual.update(said.lines())
        if line := next(filter(None, (said.line_about(name, usual) for name in self.edit.without)), ""):
            raise PortError(f"load(folder) reported: {line}.")
        return forward

    def reported(self, folder: str, names: Sequence[str]) -> list[str]:
        """Load a copy of `folder` without the tensors `names`, and return the tensors that the loader reports.

        If the loader returns a model, search its messages for the names. If the loader raises an exception, search only
        the exception of PyTorch's strict `load_state_dict`. Other exceptions may list tensors that are not missing.
        """
        with tempfile.TemporaryDirectory(dir=self.root) as copy, recorded_messages() as said:
            shutil.copytree(folder, copy, dirs_exist_ok=True)
            edit_folder(Path(copy), Edit(without=tuple(names)))
            try:
                call_port(self.load, copy)
                lines = said.lines()
            except PortCallError as error:
                lines = str(error.__cause__).splitlines()
                lines = lines if any(STRICT in line for line in lines) else []
        expanded = itertools.chain.from_iterable(map(_without_braces, lines))
        text = "\n".join(itertools.islice(expanded, MOST_LINES))
        return [name for name in names if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w|\.\w)", text)]


@contextlib.contextmanager
def loaded_here(load: Callable[..., Any], model_type: str) -> Iterator[HubBuild]:
    with tempfile.TemporaryDirectory(prefix="transparity-") as root:
        yield HubBuild(load, model_type, root)


_USUAL: weakref.WeakKeyDictionary[Callable[..., Any], set[str]] = weakref.WeakKeyDictionary()
"""The messages that each loader prints even if the folder is complete."""


class Messages:
    def __init__(self) -> None:
        self.written = io.StringIO()
        self.records: list[logging.LogRecord] = []
        self.warnings: list[Any] = []

    def lines(self) -> list[str]:
        texts = [self.written.getvalue(), *map(_message, self.records), *(str(each.message) for each in self.warnings)]
        return [line.strip() for text in texts for line in text.splitlines()]

    def line_about(self, name: str, usual: Collection[str] = ()) -> str:
        """Return the first line about a tensor, or an empty string. The line may contain the name without its first
        part, or with changed parts in the middle. If no line contains the name, search the lines that are not in
        `usual` for the layer number and the last part of the name."""
        asked, renamed = _about(name), _renamed(name)
        lines = [line for line in self.lines() if asked.search(line)]
        lines += [line for line in self.lines() if renamed.search(line) and line not in usual]
        return next((safe(line, SENTENCE).rstrip(".") for line in lines), "")


STRICT = "Missing key(s) in state_dict"
"""The words with which PyTorch's strict `load_state_dict` lists all missing tensors."""

MOST_LINES = 100_000
"""The largest number of lines that are searched for names of missing tensors."""


def _without_braces(line: str) -> Iterator[str]:
    """Yield a line for each number in braces: transformers writes `layers.{0, 1}.` or `layers.{0...11}.`."""
    found = re.search(r"\{(\d{1,4})(?:\.\.\.(\d{1,4})|((?:, \d{1,4})*))\}", line)
    if found is None:
        yield line
        return
    first, last, others = found.groups()
    for number in range(int(first), int(last) + 1) if last else map(int, f"{first}{others}".split(",")):
        yield from _without_braces(f"{line[: found.start()]}{number}{line[found.end() :]}")


def _about(name: str) -> re.Pattern[str]:
    names = [re.escape(name)]
    if name.count(".") > 1:
        names.append(re.escape(name.partition(".")[2]))
    if found := re.fullmatch(r".*?\.(\d+\.)\w+\.(?:\w+\.)*?(\w+\.\w+)", name):
        names.append(rf"\.{re.escape(found[1])}(?:\w+\.)*{re.escape(found[2])}\b")
    return re.compile("|".join(names))


def _renamed(name: str) -> re.Pattern[str]:
    found = re.fullmatch(r".*?\.(\d+)\..*\.(\w+)", name)
    begins, last = (rf"\.{found[1]}\.", found[2]) if found else (r"(?:^|\s)[^\W\d]\w*\.", name.rpartition(".")[2])
    return re.compile(rf"{begins}(?:[^\W\d]\w*\.)*{last}\b")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - a port's message may not fit its arguments
        return str(record.msg)


@contextlib.contextmanager
def recorded_messages() -> Iterator[Messages]:
    """Record everything that is printed, warned or logged within the context, and do not show it."""
    said, make = Messages(), logging.getLogRecordFactory()

    def record(*args: Any, **named: Any) -> logging.LogRecord:
        said.records.append(made := make(*args, **named))
        made.levelno = -1  # below the level of every handler, so that no handler shows the record
        return made

    logging.setLogRecordFactory(record)
    try:
        with (
            contextlib.redirect_stdout(said.written),
            contextlib.redirect_stderr(said.written),
            warnings.catch_warnings(record=True, action="always") as said.warnings,
        ):
            yield said
    finally:
        logging.setLogRecordFactory(make)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of Python, NumPy and (if imported) PyTorch, and restore their states after the context."""
    torch = sys.modules.get("torch")
    legacy: Any = np.random  # NumPy's only global generator is the legacy one
    kept = random.getstate(), legacy.get_state(), None if torch is None else torch.random.get_rng_state()
    random.seed(seed)
    legacy.seed(seed)
    if torch is not None:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(kept[0])
        legacy.set_state(kept[1])
        if torch is not None:
            torch.random.set_rng_state(kept[2])


class HubModel:
    """A Hugging Face folder with config.json and safetensors, which transformers runs."""

    limits = Limits()

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self, config: TransformerConfig, parameters: Mapping[str, np.ndarray], *, dtype: str = "float32"
    ) -> Callable[..., Any]:
        import torch
        import transformers

        named = {"dtype": getattr(torch, dtype), "local_files_only": True, "use_safetensors": True}
        kind = _class_of(config)
        if config.head == "classes":  # texts and images have different classes
            kind = getattr(transformers, str((read_fields(self.folder).get("architectures") or [None])[0]), kind)
        what = f"{self.folder} cannot be read by transformers"
        return forward_of(read_with(kind.from_pretrained, what, str(self.folder), **named), config)


def load(path: Path) -> HubModel:
    import transformers

    read_fields(path)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return HubModel(path)


def _class_of(config: TransformerConfig) -> Any:
    import transformers as of

    if config.head != "logits":
        return of.AutoModelForSequenceClassification if config.head == "classes" else of.AutoModel
    if config.architecture == "encoder":
        return of.AutoModelForMaskedLM
    if config.reads_frames:
        return of.AutoModelForSpeechSeq2Seq
    return of.AutoModelForCausalLM if config.architecture == "decoder" else of.AutoModelForSeq2SeqLM
