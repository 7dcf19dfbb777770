"""What a loader says while it loads, on every way by which Python programs say something; and its random numbers."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from transparity_conformance.report.text import SENTENCE, safe


class Said:
    """Everything that was said."""

    def __init__(self) -> None:
        self.written = io.StringIO()
        self.records: list[logging.LogRecord] = []
        self.warnings: list[Any] = []

    def line_about(self, name: str) -> str:
        """The first line that has the name of a tensor, whole, without the prefix of a model with a head, or with other
        words between the number of its layer and its last two parts, as a loader has that renames what it reads."""
        texts = [self.written.getvalue(), *map(_message, self.records), *(str(each.message) for each in self.warnings)]
        lines = (line for text in texts for line in text.splitlines())
        asked = _about(name)
        return next((safe(line.strip(), SENTENCE).rstrip(".") for line in lines if asked.search(line)), "")


def _about(name: str) -> re.Pattern[str]:
    names = [re.escape(name)]
    if name.count(".") > 1:
        names.append(re.escape(name.partition(".")[2]))
    if found := re.fullmatch(r".*?\.(\d+\.)\w+\.(?:\w+\.)*?(\w+\.\w+)", name):
        names.append(rf"\.{re.escape(found[1])}(?:\w+\.)*{re.escape(found[2])}\b")
    return re.compile("|".join(names))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - a stranger's arguments may not fit its message
        return str(record.msg)


@contextlib.contextmanager
def spoken() -> Iterator[Said]:
    """Record what is printed, warned of and logged within the context, in place of showing it."""
    said, make = Said(), logging.getLogRecordFactory()

    def record(*args: Any, **named: Any) -> logging.LogRecord:
        said.records.append(made := make(*args, **named))
        made.levelno = -1  # below the level of every handler, so that none shows it
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
    """Seed the random numbers of Python, NumPy and PyTorch, as far as they are imported, and put them back."""
    torch = sys.modules.get("torch")
    legacy: Any = np.random  # a port draws from NumPy's global generator, if from any
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
