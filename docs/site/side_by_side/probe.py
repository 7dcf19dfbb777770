"""The values that the statements of the NumPy column compute while small models run."""

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from docs.site.pages import ROOT, TITLES
from docs.site.side_by_side.sources import Statement, definitions

from transparity.config import TransformerConfig
from transparity.parameters import initialize_parameters
from transparity.taps import Tap, recording
from transparity.training import Training
from transparity_conformance.oracle.cases import CASES
from transparity_numpy.port import build
from transparity_numpy.transformer import transformer

COLUMN = ROOT / "reference/transparity_numpy"
LINES = tuple[str, int]
"""A statement: its file (relative to the column's folder, without .py) and its first line."""


TRAINED = "gemma"
"""The only model that is trained; training more models would take long, because NumPy's gradients need a forward pass
per weight."""

CALLS = 12
"""The number of calls of one function that are followed in a model; later calls only repeat a loop."""


@dataclass(frozen=True)
class Seen:
    """A statement's first run: the assigned or returned values by name, the model, and the recorded tap."""

    values: dict[str, Any]
    model: str
    tap: str | None = None


@dataclass(frozen=True)
class Agreement:
    """The largest float32 difference of each column from float64 NumPy at a tap, relative to the largest value."""

    tap: str
    model: str
    differences: dict[str, float]


MAMBA2 = {"feed_forward_dim": 0, "num_heads": 1, "attention_head_dim": None, "num_key_value_heads": None}
MAMBA2 |= {"recurrent_value_dim": 4}
"""Sizes for a model whose layers have a recurrence instead of attention."""

OTHERS = "gemma t5 bloom bert opt llama qwen gpt-neox olmo2 deepseek yarn phi3 llama4 qwen3-next mamba2"
"""The names of further models, each a case of the oracle."""

SMALL: dict[str, Any] = {"embed_dim": 8, "num_heads": 2, "feed_forward_dim": 12, "max_length": 8}
"""Sizes that fit on a page; vocabularies have 11 tokens, and stacks have one layer."""


def models() -> dict[str, TransformerConfig]:
    """Return small models by name. Together, the models call most functions of a column; the first models call the most
    common functions."""
    translation = dataclasses.replace(
        CASES["marian"], **SMALL, **_vocabulary(CASES["marian"]), padding="token", rope_layout="interleaved"
    )
    found = {"translation": translation}
    for name in OTHERS.split():
        sizes = SMALL | ({"attention_head_dim": 4, "num_key_value_heads": 1} if CASES[name].gated else {})
        sizes |= {"attention_head_dim": None, "num_key_value_heads": None} if name == "t5" else {}
        sizes |= {"rotary_dim": 2} if name in ("phi3", "deepseek", "qwen3-next") else {}
        sizes |= {"num_key_value_heads": None} if CASES[name].kv_lora_rank else {}
        sizes |= MAMBA2 if name == "mamba2" else {}
        found[name] = CASES[name].with_sizes(**sizes, **_vocabulary(CASES[name]))
    batch = dataclasses.replace(translation, norm="batch")
    return found | {"batch norm": batch, "unbiased norm": dataclasses.replace(translation, norm="layer-unbiased")}


def _vocabulary(config: TransformerConfig) -> dict[str, Any]:
    names = [f"{stack}_vocab_size" for stack in ("source", "target") if getattr(config, f"{stack}_vocab_size")]
    layers = [f"num_{stack}_layers" for stack in ("encoder", "decoder") if getattr(config, f"num_{stack}_layers")]
    return dict.fromkeys(names, 11) | dict.fromkeys(layers, 1)


def tokens(config: TransformerConfig) -> dict[str, Any]:
    rows = {"source": [[5, 3, 7, 2, 0]], "target": [[1, 4, 6, 2]], "tokens": [[5, 3, 7, 4, 2]]}
    found = {name: np.array(rows[name]) for name in config.input_names}
    further = {"attention_mask": [[1, 1, 1, 1, 0]], "token_types": [[0, 0, 0, 1, 1]]}
    return found | {name: np.array(further[name]) for name in config.further_inputs}


def _parameters(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Return weights in float64 that are exact in float32 too."""
    return {name: value.astype(np.float32).astype(np.float64) for name, value in initialize_parameters(config).items()}


def watched() -> dict[LINES, Seen]:
    seen: dict[LINES, Seen] = {}
    statements = {str(path): _by_line(path) for path in sorted(COLUMN.rglob("*.py"))}
    for name, config in models().items():
        parameters = _parameters(config)
        with _watching(statements, seen, name) as tap:
            transformer(config, parameters, **tokens(config), tap=tap, training=config.norm == "batch")
            _besides(config, parameters, trained=name == TRAINED)
    return seen


def _besides(config: TransformerConfig, parameters: dict[str, np.ndarray], *, trained: bool) -> None:
    """Run the model's other capabilities, such as generation."""
    forward, given = build(config, parameters, dtype="float64"), tokens(config)
    forward.logits(**given)
    if config.architecture == "encoder" or config.norm == "batch" or config.further_inputs:
        return
    last = config.input_names[-1]
    forward.loss(np.array([[4, 6, 2, 0, 0]])[:, : given[last].shape[1]], **given)
    source: dict[str, Any] = {name: value for name, value in given.items() if name != last}
    forward.generate(given[last][:, :2], 2, **source)
    forward.beam_search(given[last][:, :2], 2, beams=2, **source)
    if not trained:
        return
    for training in (Training(max_norm=0.1), Training("sgd", momentum=0.9), Training("adamw", weight_decay=0.1)):
        forward.train([{**given, "targets": given[last]}], training)


def _by_line(path: Path) -> dict[int, Statement]:
    """Return, by line number, the statement of a file that contains the line."""
    found = definitions(path.read_text(encoding="utf-8")).values()
    listed = [statement for definition in found for statement in definition.statements]
    return {line: statement for statement in listed for line in range(statement.begin, statement.end + 1)}


class _Watcher:
    """A trace function that stores the values that each statement assigns or returns when it first runs."""

    def __init__(self, statements: dict[str, dict[int, Statement]]) -> None:
        self.statements = statements
        self.found: dict[LINES, dict[str, Any]] = {}
        self.caller: dict[LINES, int] = {}
        self.taps: dict[LINES, str] = {}
        self.calls: Counter[CodeType] = Counter()

    def call(self, frame: FrameType, _event: str, _result: Any) -> Callable[..., Any] | None:
        """Trace a call of a column's function line by line, except comprehensions and calls after the first `CALLS`."""
        code = frame.f_code
        self.calls[code] += 1
        if self.calls[code] > CALLS or code.co_filename not in self.statements or code.co_name.startswith("<"):
            return None
        last, number = [code.co_firstlineno], self.calls[code]

        def line(frame: FrameType, event: str, result: Any) -> Any:
            self.note(frame, last[0], number, result if event == "return" else None)
            last[0] = frame.f_lineno
            return line

        return line

    def note(self, frame: FrameType, line: int, number: int, result: Any) -> None:
        """Store the values of the statement at `line`, unless an earlier call has reached it."""
        key, statement = self.place(frame.f_code.co_filename, line)
        if statement is None or self.caller.get(key, number) != number:
            return
        values = {name: frame.f_locals[name] for name in statement.targets if name in frame.f_locals}
        if values := {"returns": result} if statement.returns else values:
            self.caller[key] = number
            # Copy arrays, because caches are updated in place.
            copied = {each: value.copy() if isinstance(value, np.ndarray) else value for each, value in values.items()}
            self.found[key] = copied

    def place(self, file: str, line: int) -> tuple[LINES, Statement | None]:
        statement = self.statements[file].get(line)
        name = Path(file).relative_to(COLUMN).with_suffix("").as_posix()
        return (name, statement.begin if statement else line), statement

    def tap(self, name: str, value: Any) -> Any:
        """Store the name of a tap for the statement of the column that recorded it."""
        frame: FrameType | None = sys._getframe(1)
        while frame and frame.f_code.co_filename not in self.statements:
            frame = frame.f_back
        if frame:
            self.taps.setdefault(self.place(frame.f_code.co_filename, frame.f_lineno)[0], name)
        return value


@contextmanager
def _watching(statements: dict[str, dict[int, Statement]], seen: dict[LINES, Seen], model: str) -> Iterator[Tap]:
    """Return a context manager that yields a tap function, and stores the values of all statements in `seen`."""
    watcher = _Watcher(statements)
    sys.settrace(watcher.call)
    try:
        yield watcher.tap
    finally:
        sys.settrace(None)
    for key, values in watcher.found.items():
        seen.setdefault(key, Seen(values, model, watcher.taps.get(key)))


def agreements() -> dict[tuple[str, str], Agreement]:
    columns = {entry.name: entry.load() for entry in entry_points(group="transparity.backends")}
    found = {}
    for name, config in models().items():
        parameters, given = _parameters(config), tokens(config)
        exact: dict[str, Any] = {}
        transformer(config, parameters, **given, tap=recording(exact))
        answers = {column: columns[column](config, parameters, dtype="float32")(**given) for column in TITLES}
        for tap, value in exact.items():
            largest = max(float(np.abs(value).max()), np.finfo(float).tiny)
            differences = {
                column: float(np.abs(np.asarray(answer[tap], np.float64) - value).max()) / largest
                for column, answer in answers.items()
            }
            found[name, tap] = Agreement(tap, name, differences)
    return found
