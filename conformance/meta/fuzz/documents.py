"""Configurations and parameters, as JSON, as files and as objects."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from meta.fuzz.outcome import ACCEPTED
from meta.fuzz.wild import NAMES, damaged, wild_json, wild_object, wild_text
from transparity import TransformerConfig, check_parameters, initialize_parameters, load_parameters, save_parameters
from transparity.presets import PRESETS, preset
from transparity_conformance.oracle.memory import check_memory

TINY = TransformerConfig(
    architecture="decoder",
    target_vocab_size=5,
    max_length=3,
    embed_dim=4,
    num_heads=1,
    num_decoder_layers=1,
    feed_forward_dim=2,
)

PARAMETERS = initialize_parameters(TINY)

FIELDS = [field.name for field in dataclasses.fields(TransformerConfig)]


def configuration_text(random: Random, folder: Path) -> str:
    """A configuration as JSON: fields of wild values, and text that is damaged."""
    fields = preset(random.choice(list(PRESETS))).resized().as_dict()
    for _ in range(random.randrange(4)):
        name = random.choice(FIELDS) if random.random() < 0.9 else random.choice(NAMES)
        fields[name] = wild_json(random)
    if random.random() < 0.1:
        fields.pop(random.choice(list(fields)))
    return _used(TransformerConfig.from_json(wild_text(random, fields)))


def configuration_object(random: Random, folder: Path) -> str:
    """A configuration from Python objects, by each of its constructors."""
    name, value = random.choice(FIELDS), wild_object(random)
    if random.random() < 0.3:
        return _used(TINY.resized(**{name: value}))
    if random.random() < 0.3:
        return _used(TransformerConfig.from_dict({**TINY.as_dict(), name: value}))
    return _used(dataclasses.replace(TINY, **{name: value}))


def _used(config: TransformerConfig) -> str:
    """Return whether it can be checked is known at once; JSON brings it back."""
    assert TransformerConfig.from_json(config.to_json()) == config
    check_memory(config, 8, source=min(9, config.max_length), target=1, tokens=min(9, config.max_length))
    return ACCEPTED


def parameters_file(random: Random, folder: Path) -> str:
    """A damaged safetensors file."""
    path = folder / "parameters.safetensors"
    save_parameters(path, PARAMETERS)
    path.write_bytes(damaged(random, path.read_bytes()))
    load_parameters(path, TINY if random.random() < 0.5 else None)
    return ACCEPTED


def parameters_named(random: Random, folder: Path) -> str:
    """A file of right form with wrong tensors in it."""
    tensors = dict(PARAMETERS)
    for _ in range(random.randrange(1, 3)):
        name = random.choice([*tensors, *(name for name in NAMES if name.isprintable())])
        shape = random.choice(((), (0,), (4,), (5, 4), (4, 5), (1,) * 12, (0, 2**20)))
        tensors[name] = np.zeros(shape, random.choice(("float32", "float64", "float16", "int32", "bool")))
    path = folder / "parameters.safetensors"
    save_file(tensors, path)
    load_parameters(path, TINY)
    return ACCEPTED


def parameters_object(random: Random, folder: Path) -> str:
    """Parameters that are no arrays, or not by name."""
    given: Any = dict(PARAMETERS)
    if random.random() < 0.1:
        given = wild_object(random)
    else:
        given[random.choice([*PARAMETERS, *NAMES, 3, None])] = wild_object(random)
    if random.random() < 0.2 and isinstance(given, dict) and all(isinstance(name, str) for name in given):
        save_parameters(folder / "parameters.safetensors", given)
    check_parameters(TINY if random.random() < 0.9 else wild_object(random), given)
    return ACCEPTED
