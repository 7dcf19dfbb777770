"""Import a checkpoint: its configuration, its parameters, and remarks on ignored parts."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, ParameterError, TransparityError, is_whole
from transparity.limits.mapped import LARGE, Mapped, have_equal_numbers
from transparity.limits.memory import available_memory
from transparity.parameters import check_parameters, parameter_shapes, save_parameters
from transparity.text import listed, shown
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.checkpoints.naming import Convert, Part, called, is_any_of, parts_of, without_prefix
from transparity_conformance.checkpoints.packed import BLOCKS, SCALES, load_experts, unpacked_files
from transparity_conformance.checkpoints.reading import (
    CONFIG,
    TOWERS,
    CheckpointError,
    as_json,
    load_tensors,
    read_tower,
    scale_of,
    tensor_files,
)
from transparity_conformance.checkpoints.tables.codecs import TOKENS, UNNEEDED, Classifier, Family
from transparity_conformance.checkpoints.tables.values import Fields

PARAMETERS = "parameters.safetensors"

AS_THEY_ARE = (np.asarray, np.transpose)
"""Conversions after which matrices can stay in their files."""

MOST_NAMED = 100
"""The largest number of names in a remark; real checkpoints have fewer."""


class InFolder(dict[str, Any]):
    """All parameters of a checkpoint, and its folder; a changed copy is a plain dictionary.

    Args:
        is_ours: Whether `export_checkpoint` wrote the folder.
        stored_as: The format of matrices with scales; empty without scales.
        no_gradients: The reason why gradients are not compared; empty if they are.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        folder: Path,
        *,
        is_ours: bool = False,
        stored_as: str = "",
        no_gradients: str = "",
    ) -> None:
        super().__init__(parameters)
        self.folder, self.is_ours, self.stored_as = folder, is_ours, stored_as
        self.no_gradients = no_gradients

    @functools.cached_property
    def is_given_itself(self) -> bool:
        """Return whether a loader receives the folder itself instead of a float32 copy.

        It does if the folder is such a copy, has scales, or is too large to copy. The result is cached.
        """
        is_other = self.is_ours or self.stored_as != ""
        return is_other or 2 * 4 * sum(value.size for value in self.values()) > available_memory()


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """An imported checkpoint."""

    model_type: str
    config: TransformerConfig
    parameters: dict[str, Any]
    """Arrays; matrices of a large model stay in their files."""
    remarks: tuple[str, ...]
    """Ignored or changed fields and tensors, one line for each kind."""


def import_checkpoint(folder: str | Path, head: str | None = None) -> Checkpoint:
    """Import a checkpoint.

    Args:
        folder: A Hugging Face folder with config.json and safetensors; for CLIP, with the section of one tower added:
            `clip/text_config`, `clip/vision_config`.
        head: The output of an encoder, `hidden`, `pooled` or, with a masked-language head, `logits`. The default is
            `classes` for a sequence classifier, else `pooled` with a pooler, else `logits` with a head.

    Raises `TransparityError` if a file is missing or unreadable, or if no configuration describes the model.
    """
    opened = open_checkpoint(folder, head)
    config, shapes = opened.config, parameter_shapes(opened.config)
    parameters, used = opened.read(shapes)
    try:
        check_parameters(config, parameters)
    except ParameterError as error:
        raise CheckpointError(f"{folder} cannot be imported: {error}") from None
    remarks = _remarks(opened.family, opened.given, config, opened.where, used)
    if opened.quantised:
        stored, given = opened.stored_as, as_json(dict(opened.quantised))
        remarks += (f"matrices in {stored} are multiplied by their scales: {given}",)
    kept = InFolder(parameters, opened.folder, stored_as=opened.stored_as)
    return Checkpoint(opened.model_type, config, kept, remarks)


@dataclass(frozen=True, eq=False)
class Opened:
    """A checkpoint whose configuration is read, and whose parameters can be read."""

    folder: Path
    family: Family
    given: Fields
    """The fields of config.json."""
    config: TransformerConfig
    where: Mapping[str, Path]
    """The file of each tensor."""
    quantised: Fields | None = None
    """The `quantization_config` of matrices with scales."""

    @property
    def model_type(self) -> str:
        """The family's name."""
        return str(self.given["model_type"])

    def read(self, names: Collection[str]) -> tuple[dict[str, np.ndarray], set[str]]:
        """Read the parameters `names`; return them with the names of their tensors.

        Raises `CheckpointError` for a tensor that is missing, has another shape or dtype, or differs from its copy.
        """
        folder, family, where = self.folder, self.family, self.files
        shapes = {name: shape for name, shape in parameter_shapes(self.config).items() if name in names}
        parts = parts_in(family, self.config, where, shapes)
        sources = {ours: name for name, found in reversed(parts.items()) for ours, _ in found}
        for ours, shape in shapes.items():
            if ours not in sources:
                name = called(ours, family.table(self.config))
                raise CheckpointError(
                    f"{folder} has no tensor {name!r}; expected it, for the parameter {ours} of the "
                    f"shape {shape}: a file is missing, or the model lacks that part."
                )
        is_large = sum(map(math.prod, shapes.values())) >= LARGE
        in_place = [name for name, found in parts.items() if is_large and all(each in AS_THEY_ARE for _, each in found)]
        tensors = self.tensors(parts, in_place, experts_in_place=is_large)
        parameters: dict[str, Any] = {}
        for name, found in parts.items():
            for ours, convert in found:
                value = _converted(where[name], name, tensors[name], convert, ours, shapes[ours])
                if ours in parameters and not have_equal_numbers(parameters[ours], value):
                    raise CheckpointError(
                        f"{sources[ours]!r} and {name!r} of {folder} differ; expected equal "
                        f"numbers, because {CONFIG} ties them as {ours}: correct the field that ties them, or the file."
                    )
                parameters.setdefault(ours, value)
        held = {scale for name in parts if (scale := scale_of(name, where)) is not None}
        held |= {name + ending for name in parts if name not in self.where for ending in (BLOCKS, SCALES)}
        return {name: parameters[name] for name in shapes}, {*parts, *held}

    @functools.cached_property
    def files(self) -> Mapping[str, Path]:
        """Return the file of each tensor; experts in MXFP4 count as one tensor of numbers."""
        return unpacked_files(self.where) if self.stored_as == "MXFP4" else self.where

    def tensors(
        self, names: Collection[str], in_place: Collection[str] = (), *, experts_in_place: bool = False
    ) -> dict[str, Any]:
        """Load the tensors `names` of `files`, as `load_tensors` does."""
        packed = [name for name in names if name not in self.where]
        plain = [name for name in names if name in self.where]
        experts = load_experts(self.where, packed, in_place=experts_in_place)
        return load_tensors(self.where, plain, in_place, self.block) | experts

    @property
    def stored_as(self) -> str:
        """Return the format of matrices with scales; empty without scales."""
        return "" if self.quantised is None else STORED_AS[str(self.quantised["quant_method"])]

    @property
    def block(self) -> tuple[int, int] | None:
        """Return the numbers of rows and columns that share a scale."""
        block = (self.quantised or {}).get("weight_block_size")
        is_pair = isinstance(block, list) and len(block) == 2 and all(is_whole(size, 1) for size in block)
        return (block[0], block[1]) if is_pair else None  # type: ignore[index] # then it is a list


def open_checkpoint(folder: str | Path, head: str | None = None) -> Opened:
    """Read the configuration and the tensor locations of a checkpoint; see `import_checkpoint`."""
    path = Path(folder)
    folder, fields = read_tower(path)
    given, quantised = _without_scales(fields)
    family = family_of(folder, given)
    where = tensor_files(folder)
    if folder != path:
        own = (*family.prefixes, *(family.classifier.names if family.classifier else ()))
        where = {name: file for name, file in where.items() if name.startswith(own)}
    try:
        names = {without_prefix(name, family.prefixes) for name in where}
        config = configuration(family, given, names, head)
        if computed := _computed(family, config, where):
            config = configuration(family, given, names - computed, head)
    except (CheckpointError, ConfigError) as error:
        raise CheckpointError(f"{folder / CONFIG} cannot be imported: {error}") from None
    return Opened(folder, family, given, config, where, quantised)


def _computed(family: Family, config: TransformerConfig, where: Mapping[str, Path]) -> set[str]:
    """Return the tensors, without a prefix, whose numbers equal the ones that we compute."""
    held = {name: without_prefix(name, family.prefixes) for name in where}
    tensors = load_tensors(where, [name for name, bare in held.items() if bare in family.computed])
    exact = {held[name]: (family.computed[held[name]](config), tensor) for name, tensor in tensors.items()}
    return {name for name, (ours, theirs) in exact.items() if have_equal_numbers(ours.astype(np.float32), theirs)}


STORED_AS = {"fp8": "float8", "compressed-tensors": "float8", "mxfp4": "MXFP4"}
"""The format of matrices with scales, by `quant_method`."""


def _without_scales(given: Fields) -> tuple[Fields, Fields | None]:
    """Return the fields without a supported quantization with scales, and that quantization."""
    found = given.get("quantization_config")
    kind = (found.get("quant_method"), found.get("format")) if isinstance(found, dict) else ()
    known = (("fp8", None), ("compressed-tensors", "float-quantized"), ("mxfp4", None))
    if not isinstance(found, dict) or kind not in known:
        return given, None
    return {name: value for name, value in given.items() if name != "quantization_config"}, found


def save_checkpoint(checkpoint: Checkpoint, folder: str | Path) -> None:
    """Write config.json and parameters.safetensors; raise `CheckpointError` if the folder has other files."""
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
    """Return the family of the `model_type` in config.json."""
    kind = given.get("model_type")
    if "architecture" in given and "model_type" not in given:
        raise CheckpointError(f"{folder / CONFIG} is an imported configuration in our format; check it by --config.")
    if str(kind) in TOWERS:
        towers = " or ".join(str(folder / section) for section in TOWERS[str(kind)])
        raise CheckpointError(f"{folder / CONFIG} has two towers; expected one of them: {towers}.")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise _unknown(f"{folder / CONFIG} has the model_type {as_json(kind)}", kind)
    return family_called(kind)


def family_called(model_type: str) -> Family:
    """Return the family of a `model_type`; raise `CheckpointError` for an unknown one."""
    if model_type in TOWERS:
        towers = " or ".join(str(tower["model_type"]) for tower in TOWERS[model_type].values())
        raise CheckpointError(f"The family {model_type} has two towers; expected one of them: {towers}.")
    if model_type not in FAMILIES:
        raise _unknown(f"There is no family {shown(model_type)}", model_type)
    return FAMILIES[model_type]


def _unknown(says: str, name: Any) -> CheckpointError:
    """Return the error for an unknown family, with the nearest name and alternatives."""
    near = difflib.get_close_matches(str(name), FAMILIES, 1)
    error = CheckpointError(f"{says}{f'; the nearest family is {near[0]}' if near else ''}.")
    error.add_note(f"Families: {', '.join(FAMILIES)}.")
    error.add_note("`fit PORT` finds a configuration without one, and --against compares with any implementation.")
    return error


def configuration(family: Family, given: Fields, names: Collection[str], head: str | None = None) -> TransformerConfig:
    """Convert the fields of config.json to a configuration, for a checkpoint with the tensors `names`."""
    found = family.read(given, names)
    if head is not None:
        if "head" not in found:
            raise CheckpointError(f"a head is asked for ({head}); expected none: the output of this model is logits.")
        if head == "logits" and "head_transform" not in found:
            raise CheckpointError(
                "a head is asked for (logits), but there is no masked-language head tied to the embedding and, in "
                "RoBERTa, with GELU."
            )
        if head == "classes" and found["head"] != "classes":
            ends = family.classifier.task if family.classifier else Classifier.task
            raise CheckpointError(
                f"a head is asked for (classes); expected a class that ends with {ends} in architectures."
            )
        found["head"] = head
    if found.get("head") in ("hidden", "pooled"):  # without the masked-language head
        found = {name: value for name, value in found.items() if name not in ("head_transform", "tied_head")}
    return TransformerConfig(**found | _tokens({**family.defaults, **given}, found))


def _tokens(fields: Fields, found: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the special tokens in the vocabulary; an encoder-decoder starts with `decoder_start_token_id`."""
    sizes = [found[name] for name in ("source_vocab_size", "target_vocab_size") if is_whole(found.get(name), 1)]
    begins = "decoder_start_token_id" if found["architecture"] == "encoder-decoder" else "bos_token_id"
    named = {"pad_id": "pad_token_id", "bos_id": begins, "eos_id": "eos_token_id"}
    tokens = {ours: _first(fields.get(theirs)) for ours, theirs in named.items()}
    inside = min(sizes, default=0)
    return {name: token if is_whole(token, 0) and token < inside else None for name, token in tokens.items()}


def _first(token: Any) -> Any:
    return token[0] if isinstance(token, list) and token else token


def parameters_from(
    family: Family, config: TransformerConfig, tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the parameters in their order, from all tensors of a hub model."""
    shapes = parameter_shapes(config)
    parts = parts_in(family, config, tensors, shapes).items()
    made = {ours: np.ascontiguousarray(convert(tensors[name])) for name, found in parts for ours, convert in found}
    return {name: made[name] for name in shapes}


def needed(family: Family, given: Fields, names: Collection[str]) -> frozenset[str]:
    """Return the tensors without which a folder with these fields and names cannot be imported."""
    bare = {name: without_prefix(name, family.prefixes) for name in names}
    parts: dict[TransformerConfig, dict[str, list[Part]]] = {}
    found = set()
    for tensor in names:
        try:
            config = configuration(family, given, {bare[name] for name in names if name != tensor})
        except TransparityError:
            found.add(tensor)
            continue
        shapes = parameter_shapes(config)
        if config not in parts:
            parts[config] = parts_in(family, config, names, shapes)
        held = {ours for name, each in parts[config].items() if name != tensor for ours, _ in each}
        if not held >= set(shapes):
            found.add(tensor)
    return frozenset(found)


def _converted(path: Path, name: str, tensor: Any, convert: Convert, ours: str, shape: tuple[int, ...]) -> Any:
    """Return a parameter of the expected `shape`, converted from its tensor."""
    in_file = tensor.T if convert is np.transpose else tensor
    value: Any = in_file if isinstance(tensor, Mapped) else convert(tensor)
    if value.shape != shape:
        theirs, given = shown(tensor.shape, 30), shown(value.shape, 30)
        raise CheckpointError(
            f"{name!r} of {path} has the shape {theirs}, which gives {ours} {given}; by {CONFIG} expected {shape}: one "
            "of them belongs to another model."
        )
    return value if isinstance(value, Mapped) else np.ascontiguousarray(value)


def parts_in(
    family: Family, config: TransformerConfig, names: Collection[str], shapes: Collection[str]
) -> dict[str, list[Part]]:
    """Return the parts of each tensor that are parameters of the model with `shapes`."""
    owned = {
        name: [(_owner(config, ours), convert) for ours, convert in found]
        for name, found in parts_of(names, family.table(config), family.prefixes).items()
    }
    needed = {name: [part for part in found if part[0] in shapes] for name, found in owned.items()}
    return {name: found for name, found in needed.items() if found}


def _owner(config: TransformerConfig, name: str) -> str:
    """Return the parameter that stores `name`, which differs for tied heads and shared embeddings."""
    if name == "head.weight" and config.has_tied_head:
        name = f"{config.stacks[-1]}.token_embedding.weight"
    if name == "decoder.token_embedding.weight" and config.shared_embedding:
        name = "encoder.token_embedding.weight"
    return name


def _remarks(
    family: Family, given: Fields, config: TransformerConfig, where: Mapping[str, Path], used: Collection[str]
) -> tuple[str, ...]:
    """Return the ignored or changed fields and tensors, one line for each kind."""
    understood = family.understood
    unneeded = {*UNNEEDED, *family.unneeded} - understood
    ignored = [name for name in given if name not in understood | unneeded] + _ignored_tokens(given, config)
    rope = given.get("rope_parameters")
    present = {*given, *(rope if isinstance(rope, dict) else ())}
    defaults = {name: value for name, value in family.defaults.items() if name not in present and value is not None}
    buffers = [name for name in where if is_any_of(name, family.no_parameters, family.prefixes)]
    known = {*used, *buffers, *(name for name in where if without_prefix(name, family.prefixes) in family.computed)}
    lines: dict[str, list[str]] = {
        "fields that are not honored": [f"{name} ({as_json(given[name])})" for name in ignored],
        "fields that no forward pass depends on": [name for name in given if name in unneeded],
        "fields that are missing, taken as transformers does": [
            f"{name} {as_json(defaults[name])}" for name in defaults
        ],
        "tensors that are not used": [name for name in where if name not in known],
        "tensors that are computed here": buffers,
        "head": [config.head] * (config.head != "logits"),
    }
    return tuple(f"{kind}: {listed(names, MOST_NAMED)}" for kind, names in lines.items() if names)


def _ignored_tokens(given: Fields, config: TransformerConfig) -> list[str]:
    """Return the fields of special tokens that differ from the configuration's."""
    ids = (config.pad_id, config.bos_id, config.eos_id, None)
    # An encoder-decoder starts with decoder_start_token_id.
    unused = "bos_token_id" if config.architecture == "encoder-decoder" else None
    return [name for name in TOKENS if name in given and given[name] not in ids and name != unused]
