"""Import a port by name, such as `path/to/file.py:build` or `package.module:build`; or open an exported model."""

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from transparity.errors import shown
from transparity.limits.files import file_size
from transparity.text import VALUE, reason, safe
from transparity_conformance.capabilities.port_calls import NOT_FOUND, PortCallError, PortError, call_port, install
from transparity_conformance.checkpoints.files import LARGEST_JSON
from transparity_conformance.listening.operation import Operation
from transparity_conformance.running.artefacts import Runtime
from transparity_conformance.storage.paths import is_file


class LoadError(PortError):
    """A port does not exist, or cannot be imported."""


def load_port(spec: str, what: str = "port") -> Callable[..., Any]:
    """Import the function that `spec` names. Raise `LoadError` if the import fails; messages call the function
    `what`."""
    where, _, name = spec.rpartition(":")
    if not where or not name.isidentifier():
        raise LoadError(
            f"The {what} is {shown(spec)}; expected file.py:NAME or package.module:NAME, such as my.py:load."
        )
    module = load_file(Path(where), what) if where.endswith(".py") else _load_module(where)
    build = _attribute(module, where, name)
    if not callable(build):
        raise LoadError(f"{name!r} of {where} is {shown(build)}; expected a function {name}(config, parameters).")
    return build


def _attribute(module: ModuleType, where: str, name: str) -> Any:
    try:
        return call_port(getattr, module, name)
    except PortCallError as error:
        if isinstance(error.__cause__, AttributeError):
            arguments = "folder" if name.startswith("load") else "config, parameters"
            close = difflib.get_close_matches(name, vars(module), 1)
            wanted = f"a class {name}" if name[0].isupper() else f"a function {name}({arguments})"
            meant = f"did you mean {close[0]!r}?" if close else f"expected {wanted} there."
            raise LoadError(f"{where} has no {name!r}; {meant}") from None
        raise LoadError(f"{name!r} of {where} cannot be read: {error}.") from error.__cause__


def load_file(path: Path, what: str = "port") -> ModuleType:
    if not is_file(path):
        raise LoadError(f"There is no file {path}; expected a Python file that contains the {what}.")
    if (size := file_size(path, LoadError)) > LARGEST_JSON:
        raise LoadError(f"{path} has {size} bytes; a Python file may have at most {LARGEST_JSON}.")
    # Let the file import modules of its folder, as `python file.py` does.
    _importable_from(path.parent)
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses look up their module by name
    try:
        call_port(spec.loader.exec_module, module)
    except PortCallError as error:
        raise LoadError(f"{path} cannot be imported: {_describe(error)}.") from error.__cause__
    finally:
        if before is not None:
            sys.modules[name] = before
    return module


def _load_module(name: str) -> ModuleType:
    _importable_from(Path.cwd())
    try:
        module: ModuleType = call_port(importlib.import_module, name)
    except PortCallError as error:
        raised = error.__cause__
        if isinstance(raised, ModuleNotFoundError) and raised.name and f"{name}.".startswith(f"{raised.name}."):
            raise LoadError(
                f"There is no module {shown(name)} in this folder, and no installed package has this name."
            ) from None
        raise LoadError(f"{safe(name, VALUE)} cannot be imported: {_describe(error)}.") from raised
    return module


def _importable_from(folder: Path) -> None:
    path = str(folder.resolve())
    if path not in sys.path:
        sys.path.insert(0, path)


def _describe(error: PortCallError) -> str:
    raised = error.__cause__
    if isinstance(raised, SyntaxError):
        return f"SyntaxError: {safe(raised.msg, VALUE)} (line {raised.lineno})"
    return str(error).removeprefix(NOT_FOUND)


@dataclass(frozen=True)
class Limits:
    """The calls that an exported model accepts."""

    has_mask: bool = True
    """Whether the inputs include an attention mask."""
    has_token_types: bool = True
    batch: int | None = None
    """The number of rows if it is fixed, otherwise None; the checker splits or fills up other batches."""
    length: int | None = None
    """The number of tokens per row if it is fixed, otherwise None; the checker pads shorter rows on the right."""
    dtype: str = ""
    """The dtype of the weights: `int8` for quantized weights, empty if it is unknown."""


class Listened:
    def listened(self, largest: float, **inputs: np.ndarray) -> tuple[Any, list[Operation]]:
        """Run the model; return the result and the operations. The values of all operations together have at most
        `largest` bytes."""
        raise NotImplementedError


def load_artefact(port: str, runtime: Runtime) -> Any:
    require(port, runtime.package)
    return importlib.import_module(f"{__package__}.{runtime.module}").load(Path(port))


def read_with(function: Callable[..., Any], what: str, *args: Any, **named: Any) -> Any:
    try:
        return call_port(function, *args, **named)
    except PortCallError as error:
        raise LoadError(f"{what}: {reason(error.__cause__ or error)}.") from None


def require(what: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise LoadError(f"{what} needs {package}, which is not installed: {install(package)}.")
