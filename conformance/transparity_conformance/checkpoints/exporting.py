"""Write models as Hugging Face folders, by the tables with which `importing` reads; edit written folders to test
loaders."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from transparity.config import PER_LAYER, TransformerConfig
from transparity.errors import TransparityError
from transparity.parameters import check_parameters, parameter_shapes, save_parameters
from transparity.text import listed, reason, shown
from transparity_conformance.checkpoints.importing import Checkpoint, configuration, family_called, import_checkpoint
from transparity_conformance.checkpoints.naming import called, tensors_of, without_prefix
from transparity_conformance.checkpoints.reading import CONFIG, WEIGHTS, CheckpointError
from transparity_conformance.checkpoints.tables.codecs import Family
from transparity_conformance.storage.mapped import have_equal_numbers


def export_checkpoint(
    model_type: str, config: TransformerConfig, parameters: Mapping[str, np.ndarray], folder: str | Path
) -> Checkpoint:
    """Write a model as a float32 Hugging Face folder. Import the folder again to verify it, and return the imported
    checkpoint.

    The folder must be new or empty, and float32 must represent all parameters exactly. Raise `CheckpointError` if the
    family cannot express the configuration, or if the folder cannot be written. Raise `ParameterError` if the
    parameters do not fit `config`.
    """
    family, folder = family_called(model_type), Path(folder)
    check_parameters(config, parameters)
    fields, tensors = fields_of(model_type, family, config), tensors_in(family, config, parameters)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise CheckpointError(f"{folder} has files in it; expected an empty folder, or a new one.")
        (folder / CONFIG).write_text(json.dumps(fields, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {reason(error)}.") from None
    save_parameters(folder / WEIGHTS, tensors)
    try:
        again = import_checkpoint(folder)
    except TransparityError as error:
        cause = str(error).rstrip(".")
        raise CheckpointError(f"The family {model_type} cannot express this configuration: {cause}.") from None
    _check_same(model_type, config, parameters, again)
    return again


def fields_of(model_type: str, family: Family, config: TransformerConfig) -> dict[str, Any]:
    """Convert a configuration to config.json; the family must be able to express the configuration."""
    tokens = {"pad_token_id": config.pad_id, "eos_token_id": config.eos_id, "bos_token_id": config.bos_id}
    tokens |= {"decoder_start_token_id": config.bos_id} if config.architecture == "encoder-decoder" else {}
    return {
        "model_type": model_type,
        "architectures": [family.model],
        "dtype": "float32",
        "is_encoder_decoder": config.architecture == "encoder-decoder",
        **{name: tokens[name] for name in (*family.defaults, *tokens) if name in tokens},
        **family.write(config),
    }


def tensors_in(
    family: Family, config: TransformerConfig, parameters: Mapping[str, np.ndarray], *, with_computed: bool = True
) -> dict[str, np.ndarray]:
    """Return the tensors of model.safetensors; `with_computed` includes tensors such as sinusoids, which `transformers`
    can compute."""
    absent = set(family.absent(config))
    table = {theirs: ours for theirs, ours in family.table(config).items() if theirs not in absent}
    exact = {name: np.asarray(value, np.float32) for name, value in parameters.items()}
    of_heads = (*OF_HEADS, *(["pooler."] if not called("pooler.weight", table).startswith("pooler.") else []))
    heads = tensors_of({name: exact[name] for name in exact if name.startswith(of_heads)}, table)
    others = tensors_of({name: exact[name] for name in exact if not name.startswith(of_heads)}, table)
    others |= {copy: others[theirs] for copy, theirs in family.copies(config).items()}
    if with_computed:
        made = {name: compute(config).astype(np.float32) for name, compute in family.computed.items()}
        others = made | others
    # If the model has a head, the names of all other tensors have a prefix.
    prefix = next(iter(family.prefixes), "") if config.head in ("logits", "classes") else ""
    return {f"{prefix}{name}": value for name, value in others.items()} | heads


def written(model_type: str, family: Family, config: TransformerConfig) -> dict[str, Any] | None:
    """Convert a configuration to config.json; return None if the family cannot express the configuration."""
    if (fields := drafted(model_type, family, config)) is None:
        return None
    try:
        again = read_beside(family, config, fields)
    except TransparityError:
        return None
    return fields if explicit(again) == explicit(config) else None


def drafted(model_type: str, family: Family, config: TransformerConfig) -> dict[str, Any] | None:
    try:
        fields: dict[str, Any] = json.loads(json.dumps(fields_of(model_type, family, config)))
    except TransparityError:
        return None
    return fields


def read_beside(family: Family, config: TransformerConfig, fields: Mapping[str, Any]) -> TransformerConfig:
    """Import `fields` as config.json, together with the names of all tensors of `config`; return the configuration."""
    zeros = {name: np.zeros(shape, np.float32) for name, shape in parameter_shapes(config).items()}
    tensors = tensors_in(family, config, zeros, with_computed=False)
    return configuration(family, fields, {without_prefix(name, family.prefixes) for name in tensors})


def accepted_by(model_type: str | None) -> Callable[[TransformerConfig], bool]:
    if model_type is None:
        return lambda config: True
    family = family_called(model_type)
    return lambda config: written(model_type, family, config) is not None


OF_HEADS = ("head.", "head_transform.", "head_norm.")


def _check_same(
    model_type: str, config: TransformerConfig, parameters: Mapping[str, np.ndarray], again: Checkpoint
) -> None:
    asked, found = explicit(config), explicit(again.config)
    if names := [name for name, value in asked.items() if found[name] != value]:
        fields = listed([f"{name} {shown(asked[name])} (imported as {shown(found[name])})" for name in names])
        raise CheckpointError(
            f"The family {model_type} cannot express {fields}; expected a configuration of that family."
        )
    for name, value in parameters.items():
        if not have_equal_numbers(value, again.parameters[name]):
            raise CheckpointError(
                f"The parameter {name} changed when the {model_type} folder was written and read; expected numbers "
                "that float32 represents exactly."
            )


def explicit(config: TransformerConfig) -> dict[str, Any]:
    """Return the fields of a configuration; a field without a value gets the value that other fields imply."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    heads = {"num_key_value_heads": config.key_value_heads, "attention_head_dim": config.head_dim}
    return fields | _by_layer(config) | heads


def _by_layer(config: TransformerConfig) -> dict[str, Any]:
    layers = [config.for_layer(stack, i) for stack in config.stacks for i in range(config.stack_num_layers(stack))]
    found: dict[str, Any] = {"layer_types": (), "layer_overrides": {}}
    for name in PER_LAYER:
        values = [getattr(own, name) for own in layers or [config]]
        found[name] = values[0] if len(set(values)) == 1 else values
    return found


@dataclass(frozen=True)
class Edit:
    """A change of a folder that `export_checkpoint` has written."""

    fields: Mapping[str, Any] | None = None
    """The new config.json; None for no change."""
    without: tuple[str, ...] = ()
    """The tensors to remove from model.safetensors."""
    beside: Mapping[str, np.ndarray] = field(default_factory=dict)
    seed: int = 0
    """The seed of Python, NumPy and PyTorch while a loader reads the folder."""


def edit_folder(folder: Path, edit: Edit) -> None:
    if edit.fields is not None:
        (folder / CONFIG).write_text(json.dumps(dict(edit.fields), indent=2) + "\n", encoding="utf-8")
    if edit.without or edit.beside:
        tensors = load_file(folder / WEIGHTS) | dict(edit.beside)
        tensors = {name: value for name, value in tensors.items() if name not in edit.without}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
