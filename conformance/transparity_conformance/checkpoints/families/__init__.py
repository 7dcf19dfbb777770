"""Families of models, by `model_type`: NAME.toml has the tables of families, and NAME.py the functions that NAME.toml
names.

A table with a `model` is a family; other tables have rows that several families share. The keys of a table are fields
of `Family`, and the keys below. The text "null" stands for null.

`like` is the name of a base table, whose rows this table inherits. `without` and `without_tensors` list rows of the
base table, and patterns of tensor names, to leave out. `defaults` has new defaults for fields of the base table.

`fields` has a row for each field of config.json: the name of our field, a kind in `rows.KINDS` with its arguments, or a
`codec`. The functions `read_CODEC` and `write_CODEC` convert all fields with the same `codec` together. `given` has
further arguments of `read_CODEC`. The codec `rope` also reads all rotary fields. The codec `by_tensors` also gets the
names of all tensors, and each of its fields needs a default.

`modules` has the names of layers and norms, each with a weight and a bias. `tensors` has the names of single tensors.
In a name, `{i}` is the number of a layer, and `{e}` the number of an expert. A name with `{stack}` stands for both
stacks.

`tokens` has the defaults of the special tokens. `sizes` is a name in the table `[sizes]`, whose sizes the `example`
also has. `classifier` is the NAME of a table `[classifiers.NAME]` with fields of `Classifier`.
"""

import functools
import importlib
import pkgutil
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import filter as fnfilter
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from transparity.config import FIELD_TYPES
from transparity_conformance.checkpoints.naming import StoredTensor, flat, transposed
from transparity_conformance.checkpoints.tables import kinds, rotary
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.codecs import TOKENS, Classifier, Family
from transparity_conformance.checkpoints.tables.rows import FieldRow

OWN = ("model", "example", "sizes", "classifier")
"""The keys that a table does not inherit from its base table (`like`)."""

CHANGES = ("like", "without", "without_tensors", "defaults")
"""The keys that change the rows of the base table (`like`)."""

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


@functools.cache
def merged(name: str) -> dict[str, Any]:
    """Return a table with all rows of its base table (`like`)."""
    own = tables()[name]
    base = merged(own["like"]) if "like" in own else {}
    found = {key: value for key, value in base.items() if key not in OWN}
    found |= {key: value for key, value in own.items() if key not in CHANGES}
    gone = {"fields": own.get("without", ()), **dict.fromkeys(("tensors", "modules"), own.get("without_tensors", ()))}
    for key in ("always", "fields", "tensors", "modules"):
        kept = {each: said for each, said in base.get(key, {}).items() if not is_any(each, gone.get(key, ()))}
        found[key] = kept | own.get(key, {})
    _check_known(name, own.get("without", ()), base.get("fields", ()))
    _check_known(name, own.get("without_tensors", ()), (*base.get("tensors", ()), *base.get("modules", ())))
    _check_known(name, own.get("always", ()), FIELD_TYPES)
    _check_known(name, (f"{each}_token_id" for each in own.get("tokens", ())), TOKENS)
    fields = {each: {"rename": said} if isinstance(said, str) else said for each, said in found["fields"].items()}
    for field, value in own.get("defaults", {}).items():
        fields[field] = fields[field] | {"default": value}
    return found | {"fields": fields}


def _check_known(where: str, patterns: Iterable[str], known: Collection[str]) -> None:
    if unknown := [each for each in patterns if not fnfilter(known, each)]:
        raise LookupError(f"The row or table {where} contains {unknown[0]}, which names nothing.")


def is_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def rows_of(fields: Mapping[str, Mapping[str, Any]]) -> Iterator[FieldRow]:
    converted = set()
    for name, said in fields.items():
        (kind, value), *arguments = said.items()
        if kind in row.KINDS:
            yield row.KINDS[kind](name, value, **dict(arguments))
        elif value not in converted:
            converted.add(value)
            yield _converted(kind, value, {each: other for each, other in fields.items() if other.get(kind) == value})


def _converted(kind: str, codec: str, fields: Mapping[str, Mapping[str, Any]]) -> FieldRow:
    known, first = functions(), next(iter(fields))
    _check_known(first, {key for said in fields.values() for key in said}, (kind, "default", "given"))
    if known.keys().isdisjoint((f"read_{codec}", f"write_{codec}")):
        raise LookupError(f"There is no function read_{codec} or write_{codec}, which the row {first} requires.")
    read: Callable[..., Any] = known.get(f"read_{codec}", row.read_nothing)
    write = known.get(f"write_{codec}", rotary.write_rotary if kind == "rope" else row.write_nothing)
    defaults = {name: said["default"] for name, said in fields.items() if "default" in said}
    further = {"codec": tuple(fields), "rope": rotary.ROTARY, "by_tensors": ()}[kind]
    reads = (*defaults, *(name for name in further if name not in defaults))
    if kind == "by_tensors":
        return FieldRow(first, reads, defaults, functools.partial(read, **fields[first].get("given", {})), write)
    return FieldRow(first, reads, defaults, lambda fields, names: read(fields), write)


def names_of(tensors: Mapping[str, Any], modules: Mapping[str, str]) -> dict[str, str | StoredTensor]:
    """Map the names of all tensors to parameters. `{flat = NAME}` or `{transposed = NAME}` is a parameter that the file
    stores in another form."""
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
    table, known = dict(merged(name)), functions()
    rows = [*rows_of(table.pop("fields")), *([row.tokens(table.pop("tokens"))] if "tokens" in table else [])]
    names = names_of(table.pop("tensors"), table.pop("modules"))
    table |= {key: known[table[key]] for key in ("packed", "absent", "copies") if key in table}
    table["only"] = {field: tuple(values) for field, values in table.get("only", {}).items()}
    table["computed"] = {tensor: known[function] for tensor, function in table.get("computed", {}).items()}
    table["example"] = (tables()["sizes"][table.pop("sizes")] if "sizes" in table else {}) | table.get("example", {})
    if "classifier" in table:
        own = dict(tables()["classifiers"][table["classifier"]])
        table["classifier"] = Classifier(names=names_of(own.pop("tensors", {}), own.pop("modules", {})), **own)
    found = Family(rows=tuple(rows), names=names, **table)
    _check_known(name, tables()[name].get("example", ()), found.understood)
    return found


FAMILIES: Mapping[str, Family] = {name: family(name) for name in sorted(tables()) if "model" in tables()[name]}
