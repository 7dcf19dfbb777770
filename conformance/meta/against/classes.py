"""The model classes of the library transformers, by kind of model, and their default configurations."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from transparity_conformance.against.small.build import part_of

TABLES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("classes.toml").read_text(encoding="utf-8"))
KINDS = TABLES["kinds"]
"""For each kind of model, the auto mappings of transformers (`MODEL_FOR_…_MAPPING_NAMES`)."""

LACKING = TABLES["lacking"]
"""Fields of published configurations that the default configuration lacks, by model type or class."""


def classes() -> Iterator[tuple[str, str, str]]:
    for kind, mappings in KINDS.items():
        seen = set()
        for mapping in mappings:
            for model_type, names in getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES").items():
                name = names if isinstance(names, str) else names[0]
                if (model_type, name) not in seen:
                    seen.add((model_type, name))
                    yield kind, model_type, name


def configured(model_type: str, name: str = "") -> Any:
    config: Any = transformers.CONFIG_MAPPING[model_type](**LACKING.get(model_type, LACKING.get(name, {})))
    text: Any = vars(config).get("text_config")
    vision: Any = vars(config).get("vision_config")
    if hasattr(vision, "out_hidden_size") and hasattr(text, "hidden_size"):  # the default parts do not fit together
        vision.out_hidden_size = text.hidden_size
    return config


def exists(model_type: str, name: str) -> bool:
    try:
        made = getattr(transformers, name)
        with torch.device("meta"):
            made(part_of(configured(model_type, name), made))
    except Exception:  # noqa: BLE001 - any failure says no
        return False
    return True
