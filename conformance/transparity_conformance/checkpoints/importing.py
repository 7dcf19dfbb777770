"""Import a checkpoint: convert its configuration and its parameters, and list what was ignored."""

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
from transparity.limits.memory import available_memory
from transparity.parameters import check_parameters, parameter_shapes, save_parameters
from transparity.parts.part import Shapes
from transparity.text import listed, shown
from transparity_conformance.checkpoints import reading
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.checkpoints.naming import Convert, Part, called, is_any_of, parts_of, without_prefix
from transparity_conformance.checkpoints.reading import CONFIG, CheckpointError, as_json
from transparity_conformance.checkpoints.tables.codecs import TOKENS, UNNEEDED, Classifier, Family
from transparity_conformance.checkpoints.tables.rows import Fields
from transparity_conformance.storage.mapped import LARGE, Mapped, have_equal_numbers

PARAMETERS = "parameters.safetensors"

AS_THEY_ARE = (np.asarray, np.transpose)
"""Conversions that do not copy, so that a matrix can stay in its file."""

MOST_NAMED = 100
"""The largest number of names in a remark."""


class InFolder(dict[str, Any]):
    """All parameters of a checkpoint, and the folder that contains them. If `is_ours`, `export_checkpoint` wrote the
    folder. `stored_as` is the format of matrices with scales, and `no_gradients` is the reason why gradients are not
    compared; both may be empty."""

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
        is_other = self.is_ours or self.stored_as != ""
        return is_other or 2 * 4 * sum(value.size for value in self.values()) > available_memory()


@dataclass(frozen=True, eq=False)
class Checkpoint:
    model_type: str
    config: TransformerConfig
    parameters: dict[str, Any]
    """The parameters as arrays. The matrices of a large model stay in their files."""
    remarks: tuple[str, ...]
    """A line for each group of fields or tensors that were ignored or converted."""


def import_checkpoint(folder: str | Path, head: str | None = None) -> Checkpoint:
    """Import a checkpoint.

    Args:
        folder: A Hugging Face folder with config.json and safetensors. For one tower of CLIP, append the name of the
            tower's section: `clip/text_config` or `clip/vision_config`.
        head: The output of an encoder: `hidden`, `pooled`, `classes`, or `logits` of a masked-language head. By
            default, the checkpoint decides: `classes` for a sequence classifier, `pooled` with a pooler, `logits` with
            a masked-language head.

    Raise `TransparityError` if a file is missing or unreadable, or if no configuration describes the model.
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
    """A checkpoint with its configuration. Parameters are read when they are needed."""

    folder: Path
    family: Family
    given: Fields
    config: TransformerConfig
    where: Mapping[str, Path]
    """The file of each tensor."""
    quantised: Fields | None = None
    """The `quantization_config` of config.json for weights in float8 or MXFP4; otherwise None."""

    @property
    def model_type(self) -> str:
        return str(self.given["model_type"])

    def read(self, names: Collection[str]) -> tuple[dict[str, np.ndarray], set[str]]:
        """Return the parameters called `names`, and the names of their tensors.

        Raise `CheckpointError` if a tensor is missing, has a wrong shape or dtype, or differs from its copy.
        """
        folder, family, where = self.folder, self.family, self.files
        shapes = {name: shape for name, shape in parameter_shapes(self.config).items() if name in names}
        parts = parts_in(family, self.config, where, shapes)
        sources = {ours: name for name, found in reversed(parts.items()) for ours, _ in found}
        for ours, shape in shapes.items():
            if ours not in sources:
                name = called(ours, family.table(self.config))
                raise CheckpointError(
                    f"{folder} has no tensor {name!r}; expected this tensor for {ours}, of shape {shape}: a file is "
                    "missing, or the checkpoint contains another model."
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
                        f"{sources[ours]!r} and {name!r} of {folder} differ; expected equal numbers, because both "
                        f"become {ours}: correct the weights, or the field of {CONFIG} that ties them."
                    )
                parameters.setdefault(ours, value)
        held = {scale for name in parts if (scale := reading.scale_of(name, where)) is not None}
        held |= {
            name + ending for name in parts if name not in self.where for ending in (reading.NUMBERS, reading.EXPONENTS)
        }
        return {name: parameters[name] for name in shapes}, {*parts, *held}

    @functools.cached_property
    def files(self) -> Mapping[str, Path]:
        """Return the file of each tensor; the two tensors of MXFP4 experts count as one."""
        return reading.unpacked_files(self.where) if self.stored_as == "MXFP4" else self.where

    def tensors(
        self, names: Collection[str], in_place: Collection[str] = (), *, experts_in_place: bool = False
    ) -> dict[str, Any]:
        """Load tensors as float32, including MXFP4 experts. `reading.load_tensors` documents the arguments."""
        packed = [name for name in names if name not in self.where]
        plain = [name for name in names if name in self.where]
        experts = reading.load_experts(self.where, packed, in_place=experts_in_place)
        return reading.load_tensors(self.where, plain, in_place, self.block) | experts

    @property
    def stored_as(self) -> str:
        return "" if self.quantised is None else STORED_AS[str(self.quantised["quant_method"])]

    @property
    def block(self) -> tuple[int, int] | None:
        """Return (rows, columns) of the blocks that share a scale; None if scales do not belong to blocks."""
        block = (self.quantised or {}).get("weight_block_size")
        is_pair = isinstance(block, list) and len(block) == 2 and all(is_whole(size, 1) for size in block)
        return (block[0], block[1]) if is_pair else None  # type: ignore[index] # a pair is a list


def open_checkpoint(folder: str | Path, head: str | None = None) -> Opened:
    """Read the configuration of a checkpoint, and find its tensors. `import_checkpoint` documents the arguments."""
    path = Path(folder)
    folder, fields = reading.read_tower(path)
    given, quantised = _without_scales(fields)
    family = family_of(folder, given)
    where = reading.tensor_files(folder)
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
    held = {name: without_prefix(name, family.prefixes) for name in where}
    tensors = reading.load_tensors(where, [name for name, bare in held.items() if bare in family.computed])
    exact = {held[name]: (family.computed[held[name]](config), tensor) for name, tensor in tensors.items()}
    return {name for name, (ours, theirs) in exact.items() if have_equal_numbers(ours.astype(np.float32), theirs)}


STORED_AS = {"fp8": "float8", "compressed-tensors": "float8", "mxfp4": "MXFP4"}


def _without_scales(given: Fields) -> tuple[Fields, Fields | None]:
    found = given.get("quantization_config")
    kind = (found.get("quant_method"), found.get("format")) if isinstance(found, dict) else ()
    known = (("fp8", None), ("compressed-tensors", "float-quantized"), ("mxfp4", None))
    if not isinstance(found, dict) or kind not in known:
        return given, None
    return {name: value for name, value in given.items() if name != "quantization_config"}, found


def save_checkpoint(checkpoint: Checkpoint, folder: str | Path) -> None:
    """Write config.json and parameters.safetensors. Raise `CheckpointError` if the folder contains other files."""
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
    kind = given.get("model_type")
    if "architecture" in given and "model_type" not in given:
        raise CheckpointError(f"{folder / CONFIG} is a configuration that was already imported; pass it as --config.")
    if str(kind) in reading.TOWERS:
        towers = " or ".join(str(folder / section) for section in reading.TOWERS[str(kind)])
        raise CheckpointError(f"{folder / CONFIG} has two towers; expected one of them: {towers}.")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise _unknown(f"{folder / CONFIG} has the model_type {as_json(kind)}", kind)
    return family_called(kind)


def family_called(model_type: str) -> Family:
    if model_type in reading.TOWERS:
        towers = " or ".join(str(tower["model_type"]) for tower in reading.TOWERS[model_type].values())
        raise CheckpointError(f"The family {model_type} has two towers; expected one of them: {towers}.")
    if model_type not in FAMILIES:
        raise _unknown(f"There is no family {shown(model_type)}", model_type)
    return FAMILIES[model_type]


def _unknown(says: str, name: Any) -> CheckpointError:
    near = difflib.get_close_matches(str(name), FAMILIES, 1)
    error = CheckpointError(f"{says}{f'; the nearest family is {near[0]}' if near else ''}.")
    error.add_note(f"Families: {', '.join(FAMILIES)}.")
    error.add_note(
        "Without a family, `fit PORT` finds a configuration, and --against compares with any implementation."
    )
    return error


def configuration(family: Family, given: Fields, names: Collection[str], head: str | None = None) -> TransformerConfig:
    """Convert fields of config.json to a configuration, given the `names` of all tensors in the file."""
    found = family.read(given, names)
    if head is not None:
        if "head" not in found:
            other = " or 'classes'" if family.classifier else ""
            raise CheckpointError(
                f"the head '{head}' was requested; expected no head{other}, because this model returns logits."
            )
        if head == "logits" and "head_transform" not in found:
            raise CheckpointError(
                "the head 'logits' was requested; expected a checkpoint with a masked-language head that is tied to "
                "the embedding and, in RoBERTa, uses GELU."
            )
        if head == "classes" and found["head"] != "classes":
            ends = family.classifier.task if family.classifier else Classifier.task
            raise CheckpointError(
                f"the head 'classes' was requested; expected a class in architectures whose name ends with {ends}."
            )
        found["head"] = head
    if found.get("head") in ("hidden", "pooled"):  # without the masked-language head
        found = {name: value for name, value in found.items() if name not in ("head_transform", "tied_head")}
    return TransformerConfig(**found | _tokens({**family.defaults, **given}, found))


def _tokens(fields: Fields, found: Mapping[str, Any]) -> dict[str, int | None]:
    sizes = [found[name] for name in ("source_vocab_size", "target_vocab_size") if is_whole(found.get(name), 1)]
    begins = "decoder_start_token_id" if found["architecture"] == "encoder-decoder" else "bos_token_id"
    named = {"pad_id": "pad_token_id", "bos_id": begins, "eos_id": "eos_token_id"}
    inside, found = min(sizes, default=0), dict[str, int | None]()
    for ours, theirs in named.items():
        token: Any = fields.get(theirs)
        token = token[0] if isinstance(token, list) and token else token
        found[ours] = token if is_whole(token, 0) and token < inside else None
    return found


def parameters_from(
    family: Family, config: TransformerConfig, tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    shapes = parameter_shapes(config)
    parts = parts_in(family, config, tensors, shapes).items()
    made = {ours: np.ascontiguousarray(convert(tensors[name])) for name, found in parts for ours, convert in found}
    return {name: made[name] for name in shapes}


def needed(family: Family, given: Fields, names: Collection[str]) -> frozenset[str]:
    """Return the tensors in `names` that an import needs, if config.json has the fields `given`."""
    bare = {name: without_prefix(name, family.prefixes) for name in names}
    known: dict[TransformerConfig, tuple[Shapes, dict[str, list[Part]]]] = {}
    found = set()
    for tensor in names:
        try:
            config = configuration(family, given, {bare[name] for name in names if name != tensor})
        except TransparityError:
            found.add(tensor)
            continue
        if config not in known:
            known[config] = (own := parameter_shapes(config)), parts_in(family, config, names, own)
        shapes, parts = known[config]
        held = {ours for name, each in parts.items() if name != tensor for ours, _ in each}
        if not held >= set(shapes):
            found.add(tensor)
    return frozenset(found)


def _converted(path: Path, name: str, tensor: Any, convert: Convert, ours: str, shape: tuple[int, ...]) -> Any:
    in_file = tensor.T if convert is np.transpose else tensor
    value: Any = in_file if isinstance(tensor, Mapped) else convert(tensor)
    if value.shape != shape:
        theirs, given = shown(tensor.shape, 20), shown(value.shape, 20)
        raise CheckpointError(
            f"{name!r} of {path} has the shape {theirs}, so {ours} would have {given}; {CONFIG} requires {shape}: the "
            "files belong to different models."
        )
    return value if isinstance(value, Mapped) else np.ascontiguousarray(value)


def parts_in(
    family: Family, config: TransformerConfig, names: Collection[str], shapes: Collection[str]
) -> dict[str, list[Part]]:
    owned = {
        name: [(_owner(config, ours), convert) for ours, convert in found]
        for name, found in parts_of(names, family.table(config), family.prefixes).items()
    }
    needed = {name: [part for part in found if part[0] in shapes] for name, found in owned.items()}
    return {name: found for name, found in needed.items() if found}


def _owner(config: TransformerConfig, name: str) -> str:
    if name == "head.weight" and config.has_tied_head:
        name = f"{config.stacks[-1]}.token_embedding.weight"
    if name == "decoder.token_embedding.weight" and config.shared_embedding:
        name = "encoder.token_embedding.weight"
    return name


def _remarks(
    family: Family, given: Fields, config: TransformerConfig, where: Mapping[str, Path], used: Collection[str]
) -> tuple[str, ...]:
    understood = family.understood
    unneeded = {*UNNEEDED, *family.unneeded} - understood
    ignored = [name for name in given if name not in understood | unneeded]
    ids = (config.pad_id, config.bos_id, config.eos_id, None)
    unused = "bos_token_id" if config.architecture == "encoder-decoder" else None  # the field has no effect there
    ignored += [name for name in TOKENS if name in given and given[name] not in ids and name != unused]
    rope = given.get("rope_parameters")
    present = {*given, *(rope if isinstance(rope, dict) else ())}
    defaults = {name: value for name, value in family.defaults.items() if name not in present and value is not None}
    buffers = [name for name in where if is_any_of(name, family.no_parameters, family.prefixes)]
    known = {*used, *buffers, *(name for name in where if without_prefix(name, family.prefixes) in family.computed)}
    lines: dict[str, list[str]] = {
        "fields that are ignored": [f"{name} ({as_json(given[name])})" for name in ignored],
        "fields that no forward pass depends on": [name for name in given if name in unneeded],
        "missing fields, with the defaults of transformers": [f"{name} {as_json(defaults[name])}" for name in defaults],
        "tensors that are not used": [name for name in where if name not in known],
        "tensors that the reference computes": buffers,
        "head": [config.head] * (config.head != "logits"),
    }
    return tuple(f"{kind}: {listed(names, MOST_NAMED)}" for kind, names in lines.items() if names)
