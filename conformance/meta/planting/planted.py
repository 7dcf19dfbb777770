"""Plant a fault: load a backend with one changed file, in addition to the unchanged backend."""

import importlib
import importlib.util
import shutil
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from hypothesis import given, settings

from meta.fuzz.strategies import QUIETLY
from meta.pool.bug import PatchedFinder, edited, rows
from transparity.config import TransformerConfig
from transparity.protocol import Backend, Harness, ShardedHarness
from transparity_conformance.oracle.backends import REFERENCE, backend
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.strategies import models
from transparity_conformance.report.comparison import BackendSubject
from transparity_conformance.running.process.joining import handle_of
from transparity_conformance.running.process.ranks import ProcessGroup
from transparity_conformance.running.process.wire import Handle
from transparity_conformance.suite import ranks
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import all_claims
from transparity_conformance.suite.ranks import launched
from transparity_conformance.suite.test_drawn import EXAMPLES, drawn_evidence

REFERENCE_COLUMN = "transparity_numpy"
PLANTED: dict[int, tuple[str, str, str]] = {}
"""The column, the changed file and its source, by the id of the backend with the fault."""

DRAWN = "drawn.configurations"


def column_path(column: str) -> Path:
    spec = importlib.util.find_spec(column)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def file_path(column: str, file: str) -> Path:
    return column_path(column).joinpath(*file.split(".")).with_suffix(".py")


def files(column: str) -> tuple[str, ...]:
    top = column_path(column)
    paths = (path.relative_to(top).with_suffix("") for path in top.rglob("*.py") if path.stem != "__init__")
    return tuple(sorted(".".join(path.parts) for path in paths))


def _belongs(column: str, module: str) -> bool:
    return module.partition(".")[0] == column


@contextmanager
def planted(column: str, file: str, source: str) -> Iterator[Backend]:
    """Yield the backend of `column` with the source of one `file` replaced; restore the column afterwards."""
    right = {name: module for name, module in sys.modules.items() if _belongs(column, name)}
    for name in right:
        del sys.modules[name]
    path, folder = file_path(column, file), Path(tempfile.mkdtemp(prefix="planted-"))
    (folder / path.name).write_text(source, encoding="utf-8")
    finder = PatchedFinder(path, folder / path.name)
    sys.meta_path.insert(0, finder)
    try:
        build: Backend = importlib.import_module(f"{column}.port").build
        PLANTED[id(build)] = column, file, source
        yield build
    finally:
        sys.meta_path.remove(finder)
        shutil.rmtree(folder)
        for name in [name for name in sys.modules if _belongs(column, name)]:
            del sys.modules[name]
        sys.modules.update(right)
        if jax := sys.modules.get("jax"):
            jax.clear_caches()  # the compiled programs of a planted column take 60 MB


def harness_beside(build: Backend) -> Harness:
    """Return the harness of the column of `build`; for a planted column, call this function inside `planted`."""
    column = type(build).__module__.rpartition(".")[0]
    parts: Harness = importlib.import_module(f"{column}.harness")
    return parts


@contextmanager
def as_reference(build: Backend) -> Iterator[None]:
    """Make `build` the reference of the suite: names from the NumPy column then refer to the column of `build`."""

    def found(name: str) -> Backend:
        return build if name == REFERENCE else backend(name)

    with ExitStack() as stack:
        for module in _suite():
            for name, value in list(vars(module).items()):
                if value is backend:
                    stack.enter_context(patch.object(module, name, found))
                elif _belongs(REFERENCE_COLUMN, home := getattr(value, "__module__", None) or ""):
                    stack.enter_context(
                        patch.object(module, name, getattr(importlib.import_module(home), value.__name__))
                    )
        stack.callback(_forget)
        _forget()
        yield


def _suite() -> list[types.ModuleType]:
    return [module for name, module in sys.modules.items() if name.startswith("transparity_conformance")]


def _forget() -> None:
    for module in _suite():
        for kept in vars(module).values():
            if callable(forget := getattr(kept, "cache_clear", None)):
                forget()


def caught(name: str, build: Backend, dtype: str | None = None, *, in_full: bool = False) -> bool:
    """Return whether the claim `name` fails or raises for `build`, without compilation, which takes a minute."""
    if name == DRAWN:
        return drawn_catches(build)
    claim = all_claims()[name]
    if in_full:
        assert claim.full is not None
        claim = claim.full
    if dtype is None:
        dtype = "float32" if "float32" in claim.dtypes and build.name != "numpy" else claim.dtypes[0]
    try:
        parts = harness_beside(build)
        with parts.pinned(), planted_on_ranks(build) if claim.sharded else nullcontext():
            return not all(item.agrees for item in claim.check(Bench(BackendSubject(build.name, dtype), build, parts)))
    except Exception:  # noqa: BLE001 - whatever a mistake raises, the claim's test fails
        return True


@contextmanager
def planted_on_ranks(build: Backend) -> Iterator[None]:
    """Plant the fault of `build` in the worker processes of its sharded column until the context ends."""
    entered: dict[ProcessGroup, Handle] = {}

    def launched_with_fault(parts: ShardedHarness, count: int) -> ProcessGroup:
        group = launched(parts, count)
        if group not in entered:
            entered[group] = handle_of(group.answers("planting", _enter, *PLANTED[id(build)]))
        return group

    try:
        with patch.object(ranks, "launched", launched_with_fault):
            yield
    finally:
        for group, stack in entered.items():
            if group.is_running:  # the fault may have ended the processes
                group.answers("restoring", _leave, stack)


def _enter(column: str, file: str, source: str) -> ExitStack:
    ranks.sharded_backend.cache_clear()
    stack = ExitStack()
    stack.enter_context(planted(column, file, source))
    return stack


def _leave(stack: ExitStack) -> None:
    stack.close()
    ranks.sharded_backend.cache_clear()


def drawn_catches(build: Backend) -> bool:
    @settings(QUIETLY, max_examples=EXAMPLES.get(build.name, (60, 200))[1], derandomize=True)
    @given(models())
    def agree(model: tuple[TransformerConfig, int, Arrays]) -> None:
        assert all(item.agrees for item in drawn_evidence(build, *model, mode="eager"))

    try:
        agree()
    except Exception:  # noqa: BLE001
        return True
    return False


ABOUT = {"head": "families", "rounding": "precision", "cache": "decoding", "steps": "decoding", "beams": "generation"}
"""The topic of the claims about a file, by file name. For another file, the topic has the file's name, or is `forward`
if no topic has this name."""


def topic(file: str) -> str:
    topics, name = {name.partition(".")[0] for name in all_claims()}, file.rpartition(".")[2]
    return ABOUT.get(name, name if name in topics else "forward")


WORDS = ("pytorch", "flax")
"""Columns for which a row of plants.toml may have its own text."""


@dataclass(frozen=True)
class Plant:
    """An edit of one file that makes a column compute wrong results."""

    mistake: str
    column: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.column}-{self.mistake}"

    def source(self) -> str:
        return edited(file_path(self.column, self.file).read_text(), self.old, self.new, where=f"{self}: {self.file}")


def _plants() -> list[Plant]:
    found = []
    for row in rows(Path(__file__).with_name("plants.toml"), "plant"):
        texts = {name: row[name] for name in WORDS if name in row} or dict.fromkeys(row["columns"], row)
        for name, text in texts.items():
            claims = tuple(row["caught_by"])
            found.append(Plant(row["id"], f"transparity_{name}", row["file"], text["old"], text["new"], claims))
    return found


PLANTS = _plants()
