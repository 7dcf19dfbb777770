"""Families of models, by `model_type`: NAME.toml describes families, and NAME.py has the functions that its rows name.

A table with a `model` is a family. Other tables contain rows that several families share. `like` names another table,
whose rows the table changes. "null" stands for null. The keys of a table are fields of `Family`, and these keys.

`fields` has a row for each field of config.json: the name of our field, or a kind of row with its arguments. A kind is
one of `rows.KINDS`, or a codec. Fields with the same `codec` are converted together, by the functions `read_CODEC` and
`write_CODEC`. `rope` is a codec that also reads all rotary fields. `by_tensors` is a codec that gets the names of all
tensors, and reads only fields with a default. `given` has further arguments of `read_CODEC`.

`modules` has the names of layers and norms, each for a weight and a bias. `tensors` has the names of single tensors. In
a name, `{i}` is the number of a layer, and `{e}` the number of an expert. A name with `{stack}` stands for each stack.

`without` and `without_tensors` list rows, and patterns of names, to leave out of the other table. `defaults` has other
defaults for fields of the other table, and `tokens` has the defaults of the special tokens. `sizes` is a name in the
table `[sizes]`; these sizes begin the `example`. `classifier` is the NAME of a table `[classifiers.NAME]`, which has
fields of `Classifier`.
"""

import dataclasses
import functools
import importlib
import pkgutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from transparity_conformance.checkpoints.naming import StoredTensor, flat, transposed
from transparity_conformance.checkpoints.tables import kinds, rotary
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.codecs import Classifier, Family
from transparity_conformance.checkpoints.tables.rows import FieldRow

OWN = ("model", "example", "sizes", "classifier")
"""The keys that a table does not take from the table that it is like."""

STACKS = ("encoder", "decoder")


@functools.cache
def functions() -> Mapping[str, Callable[..., Any]]:
    modules = [importlib.import_module(each.name) for each in pkgutil.iter_modules(__path__, f"{__name__}.")]
    return {name: found for module in (row, kinds, rotary, *modules) for name, found in vars(module).items()}


@functools.cache
def tables() -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(Path(__file__).parent.glob("*.toml")):
        for name, table in _with_null(tomllib.loads(file.read_text(encoding="utf-8"))).items():
            found[name] = found.get(name, {}) | table  # several files have `sizes` and `classifiers`
    return found


def _with_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_null(each) for key, each in value.items()}
    return None if value == "null" else value


def rows_of(fields: Mapping[str, Any]) -> dict[str, FieldRow]:
    """Return the rows of a table's `fields`, by the name of the first field."""
    tables = {name: {"rename": said} if isinstance(said, str) else said for name, said in fields.items()}
    found: dict[str, FieldRow] = {}
    converted = set()
    for name, said in tables.items():
        (kind, value), *arguments = said.items()
        if kind in row.KINDS:
            found[name] = row.KINDS[kind](name, value, **dict(arguments))
        elif (kind, value) not in converted:
            converted.add((kind, value))
            together = {each: other for each, other in tables.items() if other.get(kind) == value}
            found[name] = _converted(kind, value, together)
    return found


def _converted(kind: str, codec: str, fields: Mapping[str, Mapping[str, Any]]) -> FieldRow:
    known, first = functions(), next(iter(fields))
    if known.keys().isdisjoint((f"read_{codec}", f"write_{codec}")):
        raise LookupError(f"There is no function read_{codec} or write_{codec}, which the row {first} requires.")
    read: Callable[..., Any] = functools.partial(
        known.get(f"read_{codec}", row.read_nothing), **fields[first].get("given", {})
    )
    write = known.get(f"write_{codec}", rotary.write_rotary if kind == "rope" else row.write_nothing)
    defaults = {name: said["default"] for name, said in fields.items() if "default" in said}
    further = {"codec": tuple(fields), "rope": rotary.ROTARY, "by_tensors": ()}[kind]
    reads = (*defaults, *(name for name in further if name not in defaults))
    if kind == "by_tensors":
        return FieldRow(first, reads, defaults, read, write)
    return FieldRow(first, reads, defaults, lambda fields, names: read(fields), write)


@functools.cache
def merged(name: str) -> dict[str, Any]:
    """Return a table with all rows of the table that it is like."""
    table = tables()[name]
    own = {key: value for key, value in table.items() if key not in OWN}
    base = merged(own.pop("like")) if "like" in own else {}
    rows = dict(base.get("rows", {}))
    for gone in own.pop("without", ()):
        del rows[gone]
    rows |= rows_of(own.pop("fields", {}))
    rows |= {"tokens": row.tokens(own.pop("tokens"))} if "tokens" in own else {}
    of_field = {field: each for each in rows.values() for field in each.reads}
    for field, value in own.pop("defaults", {}).items():
        changed = rows[of_field[field].name]
        rows[changed.name] = dataclasses.replace(changed, defaults={**changed.defaults, field: value})
    always = base.get("always", {}) | own.pop("always", {})
    gone = own.pop("without_tensors", [])
    own |= {key: _kept(base.get(key, {}), gone) | own.get(key, {}) for key in ("tensors", "modules")}
    return base | own | {"rows": rows, "always": always}


def _kept(names: Mapping[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    return {theirs: ours for theirs, ours in names.items() if not any(fnmatch(theirs, each) for each in patterns)}


def names_of(tensors: Mapping[str, Any], modules: Mapping[str, str]) -> dict[str, str | StoredTensor]:
    """Return the table of tensors; a tensor that is not stored like the parameter has the function `flat` or
    `transposed` before the name of the parameter."""
    stored = {"flat": flat, "transposed": transposed}
    every = dict(tensors)
    every |= {f"{theirs}.{leaf}": f"{ours}.{leaf}" for theirs, ours in modules.items() for leaf in ("weight", "bias")}
    found: dict[str, str | StoredTensor] = {}
    for theirs, ours in every.items():
        if isinstance(ours, dict):
            ((form, parameter),) = ours.items()
            found[theirs] = stored[form](parameter)
        for stack in STACKS if isinstance(ours, str) else ():
            found[theirs.replace("{stack}", stack)] = ours.replace("{stack}", stack)
    return found


def family(name: str) -> Family:
    table, rest = tables()[name], merged(name)
    rest = {key: functions()[value] if isinstance(value, str) else value for key, value in rest.items()}
    rest |= {"rows": tuple(rest["rows"].values()), "names": names_of(rest.pop("tensors"), rest.pop("modules"))}
    if "classifier" in table:
        own = dict(tables()["classifiers"][table["classifier"]])
        rest["classifier"] = Classifier(names=names_of(own.pop("tensors", {}), own.pop("modules", {})), **own)
    rest["only"] = {field: tuple(values) for field, values in rest.get("only", {}).items()}
    rest["computed"] = {tensor: functions()[each] for tensor, each in rest.get("computed", {}).items()}
    sizes = tables()["sizes"][table["sizes"]] if "sizes" in table else {}
    return Family(model=table["model"], example=sizes | table.get("example", {}), **rest)


FAMILIES: Mapping[str, Family] = {name: family(name) for name in sorted(tables()) if "model" in tables()[name]}
