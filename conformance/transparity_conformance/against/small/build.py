"""Build small `transformers` models with random weights."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import Parameter
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from transparity.errors import TransparityError, shown
from transparity_conformance.against.small.fields import TABLES
from transparity_conformance.against.small.inputs import example_inputs as example_inputs
from transparity_conformance.against.small.sizes import made_small as made_small

LARGEST = 30_000_000

KEPT: list[list[str]] = TABLES["kept"]["kinds"]
AUTO: list[str] = TABLES["classes"]["auto"]


def read_config(path: str | Path) -> PretrainedConfig:
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        fields = json.loads(file.read_text(encoding="utf-8"), object_hook=_decoded)
    except (OSError, ValueError) as error:
        raise TransparityError(
            f"{shown(str(file))} is not a JSON file; expected a config.json ({type(error).__name__})."
        ) from error
    model_type = fields.get("model_type") if isinstance(fields, dict) else None
    if model_type not in transformers.CONFIG_MAPPING:
        version = transformers.__version__
        raise TransparityError(
            f"{shown(str(file))} has model_type {shown(model_type)}; expected a model type of transformers {version}."
        )
    try:
        return AutoConfig.for_model(**fields)
    except Exception as error:
        raise TransparityError(
            f"{shown(str(file))} is not a valid configuration of {model_type}: {shown(str(error))}."
        ) from error


def _decoded(fields: dict[str, Any]) -> Any:
    return float(fields["__float__"]) if fields.keys() == {"__float__"} else fields


def class_of(config: PretrainedConfig, model_class: str | None = None) -> type[torch.nn.Module]:
    """Return the class `model_class`, or the configured class, or the first class in `AUTO` for the model type."""
    names = [model_class] if model_class else [*(config.architectures or ())]
    for auto in () if names else AUTO:
        names += _names(getattr(modeling_auto, f"MODEL_FOR_{auto}_MAPPING_NAMES").get(config.model_type, ()))
    names = names or _names(modeling_auto.MODEL_MAPPING_NAMES.get(config.model_type, ()))
    found = getattr(transformers, names[0], None) if names else None
    if not isinstance(found, type) or not issubclass(found, PreTrainedModel):
        what = f"class {shown(names[0])}" if names else f"class for model_type {shown(config.model_type)}"
        raise TransparityError(f"transformers {transformers.__version__} has no {what}; expected a model class.")
    return found


def _names(names: str | tuple[str, ...]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def build(config: PretrainedConfig, model_class: str | type | None = None, seed: int = 0) -> torch.nn.Module:
    """Return a small float32 model in evaluation mode. If the model does not run, shrink fewer fields (see `KEPT`)."""
    made: Any = model_class if isinstance(model_class, type) else class_of(config, model_class)
    failures: list[Exception] = []
    for keep in KEPT:
        try:
            model = _drawn(made, made_small(part_of(config, made), keep), seed)
            example_inputs(copy.deepcopy(model))  # a call may change weights
        except Exception as error:  # noqa: BLE001 - the next way is tried
            failures.append(error)
        else:
            return model
    if isinstance(failures[0], TransparityError):
        raise failures[0]
    reason = shown(str(failures[0]))
    raise TransparityError(
        f"A small copy of {made.__name__} does not run ({reason}); expected a model of text, images or sound."
    ) from failures[0]


def _drawn(made: Any, small: PretrainedConfig, seed: int) -> torch.nn.Module:
    with torch.device("meta"), contextlib.suppress(RuntimeError, TypeError):  # some classes need real tensors
        _refuse_large(made(copy.deepcopy(small)))
    with torch.random.fork_rng(devices=[]), _uninitialised_is_nan():
        torch.manual_seed(seed)
        model = made(small).eval().float()
    _refuse_large(model)
    draw(model, seed)
    return model


@contextlib.contextmanager
def _uninitialised_is_nan() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _refuse_large(model: torch.nn.Module) -> None:
    if (count := sum(each.numel() for each in model.parameters())) > LARGEST:
        name = type(model).__name__
        raise TransparityError(f"The small copy of {name} has {count:,} parameters; expected at most {LARGEST:,}.")


def part_of(config: PretrainedConfig, made: Any) -> PretrainedConfig:
    """Return the (possibly nested) configuration of a model class."""
    if isinstance(config, made.config_class):
        return config
    inside = [value for value in vars(config).values() if isinstance(value, PretrainedConfig)]
    return next((part for each in inside if isinstance(part := part_of(each, made), made.config_class)), config)


def draw(model: torch.nn.Module, seed: int) -> None:
    """Fill parameters, and buffers that are constant or uninitialized; keep computed tables such as sines."""
    generator = torch.Generator().manual_seed(seed)
    modules = sorted(
        model.modules(), key=lambda each: isinstance(each, torch.nn.Embedding)
    )  # the embedding comes last, so that it becomes the owner of tied weights
    owners = {id(each.weight): each for each in modules if isinstance(getattr(each, "weight", None), Parameter)}
    with torch.no_grad():
        for name, each in model.named_parameters():
            if each.requires_grad or _is_constant(each):
                noise = torch.randn(each.shape, generator=generator)
                each.copy_(_drawn_weight(name, each, noise, owners.get(id(each)), generator))
        kept = model.state_dict()
        for name, buffer in model.named_buffers():
            if name in kept and buffer.is_floating_point() and _is_constant(buffer):
                noise = 0.3 * torch.randn(buffer.shape, generator=generator)
                is_signed = (buffer > 0).all() or (buffer < 0).all()
                buffer.copy_(buffer * noise.exp() if is_signed else buffer.nan_to_num() + noise)


def _is_constant(tensor: torch.Tensor) -> bool:
    """Return whether all elements are equal, or all are NaN, which marks uninitialized memory."""
    if tensor.numel() == 0 or tensor.isinf().any():
        return False
    return bool(tensor.isnan().all() or (tensor == tensor.flatten()[0]).all())


def _drawn_weight(
    name: str, built: torch.Tensor, noise: torch.Tensor, owner: torch.nn.Module | None, generator: torch.Generator
) -> torch.Tensor:
    if isinstance(owner, torch.nn.Embedding):  # small rows reveal a wrong epsilon of the next norm
        return noise * 10 ** (-2 * torch.rand((len(noise), 1), generator=generator))
    if noise.ndim < 2:
        return torch.nan_to_num(built, float(name.endswith("weight"))) + 0.3 * noise
    is_convolution = isinstance(owner, torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d)
    return noise / (noise[0].numel() if is_convolution else noise.shape[-1]) ** 0.5
