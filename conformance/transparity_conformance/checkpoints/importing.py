"""A checkpoint from a hub as a configuration and parameters, with everything said that was not taken over."""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, ParameterError, is_whole
from transparity.parameters import check_parameters, parameter_shapes, save_parameters
from transparity_conformance.checkpoints.fields import ONLY, TOKENS, UNNEEDED, Family, Fields, wrong
from transparity_conformance.checkpoints.naming import Part, called, is_any_of, parts_of, without_prefix
from transparity_conformance.checkpoints.reading import (
    CONFIG,
    CheckpointError,
    as_json,
    load_tensors,
    read_fields,
    tensor_files,
)

FILES = {
    "bart": "bart",
    "bert": "bert",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gpt2": "gpt2",
    "llama": "llama",
    "marian": "bart",
    "mistral": "llama",
    "opt": "opt",
    "qwen2": "llama",
    "qwen3": "llama",
    "roberta": "bert",
    "t5": "t5",
}
"""The file of each `model_type`."""

PARAMETERS = "parameters.safetensors"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a folder holds, in our terms."""

    model_type: str
    config: TransformerConfig
    parameters: dict[str, np.ndarray]
    remarks: tuple[str, ...]
    """What was not taken over as it stands, a line for each kind."""


def import_checkpoint(folder: str | Path, head: str | None = None) -> Checkpoint:
    """The checkpoint in `folder`, as a hub keeps it: config.json, and safetensors. `head` is what comes out of a lone
    encoder, `hidden` or `pooled`: if none is given, `pooled` where the file has a pooler.

    Raises `TransparityError`, in one sentence, for what is not there, cannot be read, or is of no system that there is
    a configuration for.
    """
    folder = Path(folder)
    given = read_fields(folder)
    family = family_of(folder, given)
    where = tensor_files(folder)
    try:
        config = configuration(family, given, {without_prefix(name, family.prefixes) for name in where}, head)
    except (CheckpointError, ConfigError) as error:
        raise CheckpointError(f"{folder / CONFIG} cannot be imported: {error}") from None
    parameters, used = _parameters(folder, family, config, where)
    return Checkpoint(given["model_type"], config, parameters, _remarks(family, given, config, where, used))


def save_checkpoint(checkpoint: Checkpoint, folder: str | Path) -> None:
    """Write config.json and parameters.safetensors; raises `CheckpointError` for a folder with other things in it."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = {path.name for path in folder.iterdir()} - {CONFIG, PARAMETERS}
        if others or ((folder / CONFIG).exists() and not (folder / PARAMETERS).exists()):
            raise CheckpointError(f"{folder} has other files in it; expected an empty folder, or a new one.")
        (folder / CONFIG).write_text(checkpoint.config.to_json(), encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error.strerror or error}.") from None
    save_parameters(folder / PARAMETERS, checkpoint.parameters)


def family_of(folder: Path, given: Fields) -> Family:
    """The family that config.json names."""
    kind = given.get("model_type")
    if "architecture" in given and "model_type" not in given:
        raise CheckpointError(f"{folder / CONFIG} is a configuration of ours, imported already; check it by --config.")
    if not isinstance(kind, str) or kind not in FILES:
        raise CheckpointError(
            f"{folder / CONFIG} has the model_type {as_json(kind)}; expected one of {', '.join(FILES)}: no other can "
            "be imported."
        )
    families: dict[str, Family] = importlib.import_module(f"{__package__}.families.{FILES[kind]}").FAMILIES
    return families[kind]


def configuration(family: Family, given: Fields, names: Collection[str], head: str | None = None) -> TransformerConfig:
    """The configuration of what config.json says, of a file with the tensors `names`."""
    for name, right in (ONLY | dict(family.only)).items():
        if given.get(name) is not None and given[name] not in right:
            raise wrong(name, given[name], " or ".join(map(as_json, right)) or "none")
    fields = {**dict.fromkeys(family.reads), **family.defaults, **given}
    found = dict(family.always)
    for theirs, ours in family.fields.items():
        if theirs not in fields:
            raise CheckpointError(f"{theirs} is missing; expected it, for {ours} is read from it.")
        found[ours] = fields[theirs]
    found |= family.configure(fields, names)
    if head is not None:
        if "head" not in found:
            raise CheckpointError(f"a head is asked for ({head}), but what comes out of this system are logits.")
        found["head"] = head
    return TransformerConfig(**found | _tokens(fields, found))


def _tokens(fields: Fields, found: Mapping[str, Any]) -> dict[str, int | None]:
    """The special tokens: those that are in the vocabulary. An encoder-decoder begins with `decoder_start_token_id`."""
    sizes = [found[name] for name in ("source_vocab_size", "target_vocab_size") if is_whole(found.get(name), 1)]
    begins = "decoder_start_token_id" if found["architecture"] == "encoder-decoder" else "bos_token_id"
    named = {"pad_id": "pad_token_id", "bos_id": begins, "eos_id": "eos_token_id"}
    tokens = {ours: _first(fields.get(theirs)) for ours, theirs in named.items()}
    inside = min(sizes, default=0)
    return {name: token if is_whole(token, 0) and token < inside else None for name, token in tokens.items()}


def _first(token: Any) -> Any:
    return token[0] if isinstance(token, list) and token else token


def _parameters(
    folder: Path, family: Family, config: TransformerConfig, where: Mapping[str, Path]
) -> tuple[dict[str, np.ndarray], set[str]]:
    """The parameters in their order, and the tensors that they were made of."""
    shapes = parameter_shapes(config)
    parts = _parts(family, config, where, shapes)
    sources = {ours: name for name, found in reversed(parts.items()) for ours, _ in found}
    for ours, shape in shapes.items():
        if ours not in sources:
            raise CheckpointError(
                f"{folder} has no tensor {called(ours, family.names)!r}; expected it, for the parameter {ours} of the "
                f"shape {shape}: look whether a file is missing, or the model is one without that part."
            )
    tensors = load_tensors(where, parts)
    made: dict[str, np.ndarray] = {}
    for name, found in parts.items():
        for ours, make in found:
            value = make(tensors[name])
            if value.shape != shapes[ours]:
                given = tensors[name].shape
                raise CheckpointError(
                    f"{name!r} of {where[name]} has the shape {given}, which gives {ours} {value.shape}; by {CONFIG} "
                    f"expected {shapes[ours]}: one of the two is of another model."
                )
            if ours in made and not np.array_equal(made[ours], value):
                raise CheckpointError(
                    f"{sources[ours]!r} and {name!r} of {folder} differ; expected the same numbers in both, for "
                    f"by {CONFIG} both are {ours}: correct there what ties them, or the file."
                )
            made.setdefault(ours, np.ascontiguousarray(value))
    parameters = {name: made[name] for name in shapes}
    try:
        check_parameters(config, parameters)
    except ParameterError as error:
        raise CheckpointError(f"{folder} cannot be imported: {error}") from None
    return parameters, set(parts)


def _parts(
    family: Family, config: TransformerConfig, names: Collection[str], shapes: Collection[str]
) -> dict[str, list[Part]]:
    """What each tensor is of the parameters that there are; those that are none are left out."""
    owned = {
        name: [(_owner(config, ours), make) for ours, make in found]
        for name, found in parts_of(names, family.names, family.prefixes).items()
    }
    needed = {name: [part for part in found if part[0] in shapes] for name, found in owned.items()}
    return {name: found for name, found in needed.items() if found}


def _owner(config: TransformerConfig, name: str) -> str:
    """The parameter that holds the numbers of `name`: where a head or a decoder's tokens are another's, that one."""
    if name == "head.weight" and config.tied_head:
        name = f"{config.stacks[-1]}.token_embedding.weight"
    if name == "decoder.token_embedding.weight" and config.shared_embedding:
        name = "encoder.token_embedding.weight"
    return name


def _remarks(
    family: Family, given: Fields, config: TransformerConfig, where: Mapping[str, Path], used: Collection[str]
) -> tuple[str, ...]:
    """What was not taken over as it stands."""
    understood = {*family.fields, *family.reads, *family.only, *ONLY, *TOKENS}
    unneeded = {*UNNEEDED, *family.unneeded} - understood
    ids = (config.pad_id, config.bos_id, config.eos_id, None)
    tokens = [name for name in TOKENS if name in given and given[name] not in ids]
    if config.architecture == "encoder-decoder":
        tokens = [name for name in tokens if name != "bos_token_id"]
    strange = [name for name in given if name not in understood | unneeded] + tokens
    rope = given.get("rope_parameters")
    said = {*given, *(rope if isinstance(rope, dict) else ())}
    taken = {name: value for name, value in family.defaults.items() if name not in said and value is not None}
    buffers = [name for name in where if is_any_of(name, family.no_parameters, family.prefixes)]
    left = [name for name in where if name not in used and name not in buffers]
    lines: dict[str, list[str]] = {
        "fields that are not honoured": [f"{name} ({as_json(given[name])})" for name in strange],
        "fields that no forward pass depends on": [name for name in given if name in unneeded],
        "fields that are missing, taken as transformers does": [f"{name} {as_json(taken[name])}" for name in taken],
        "tensors that are not used": left,
        "tensors that are computed here": buffers,
        "head": [config.head] * (config.head != "logits"),
    }
    return tuple(f"{kind}: {', '.join(map(_printable, what))}" for kind, what in lines.items() if what)


def _printable(name: str) -> str:
    """A name as JSON writes it, for a stranger's may hold anything."""
    return json.dumps(name)[1:-1].replace('\\"', '"')
