"""The configurations on which a port is checked: presets, a configuration file, or a checkpoint."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import UsageError, shown
from transparity.presets import PRESETS, preset
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.importing import Checkpoint
from transparity_conformance.checkpoints.layers import open_for_pieces, pieces, written
from transparity_conformance.identify.fitting.answer import templates
from transparity_conformance.oracle.budgets import HALF
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, other_sizes, probe_parameters
from transparity_conformance.oracle.reach.models import small_system
from transparity_conformance.report.formatting import count
from transparity_conformance.running.loading import Limits
from transparity_conformance.storage.paths import is_file, is_folder


@dataclass(frozen=True, eq=False)
class System:
    """A configuration to check, with its name in reports and, for a checkpoint, its parameters."""

    name: str
    config: TransformerConfig
    parameters: Arrays | None = None
    model_type: str | None = None
    """The family whose folders a loader reads; None for a `build`."""
    dtype: str | None = None
    not_compared: tuple[str, ...] = ()
    """Lines of the report about comparisons that the limits of an artifact exclude, such as padding or other batch
    sizes."""

    @property
    def is_asked(self) -> bool:
        """Return whether the user chose the sizes; otherwise, the checker chose small sizes."""
        return self.parameters is not None or self.name in ("config", self.model_type)


def systems(names: Sequence[str], config: Path | None) -> Iterator[System]:
    for name in dict.fromkeys(names or (() if config else PRESETS)):
        yield System(name, preset(name).resized())
    if config is not None:
        yield System("config", _read(config))


def _read(path: Path) -> TransformerConfig:
    from transparity_conformance.exchange.reading import read_config  # a slow import that is rarely needed

    return read_config(path)


def family_systems(names: Sequence[str], changes: Sequence[str] = (), head: str | None = None) -> Iterator[System]:
    """Yield the small model of each family, with random weights. `example_config` documents the other arguments."""
    for name in dict.fromkeys(names):
        yield System(name, example_config(name, changes, head), model_type=name)


def checkpoint_systems(checkpoint: Checkpoint, *, for_loader: bool) -> Iterator[System]:
    name, config = checkpoint.model_type, checkpoint.config
    yield System(name, config, checkpoint.parameters, name if for_loader else None)
    if for_loader:
        yield System(f"{name} at probe size", small_system(config), model_type=name)


def layer_systems(folder: Path, head: str | None, layers: str | None) -> Iterator[System]:
    """Yield parts of a checkpoint as separate models, then a small model with random weights. The parts are the
    embedding with the head, and each layer in `layers` (None for all), read one after another. `head` is the output of
    an encoder; None means all hidden states. Gradients take long, so the checker compares gradients only in the first
    layer of each configuration, unless `layers` is given."""
    opened, differentiated = open_for_pieces(folder, head), dict[TransformerConfig, str]()
    for piece in pieces(opened, None if layers is None else layer_numbers(layers)):
        alike = differentiated.setdefault(piece.config, piece.name) if layers is None else piece.name
        others = (
            ""
            if alike == piece.name
            else f"not compared here, because {alike} has the same configuration; --layers selects other layers"
        )
        with written(piece, opened.model_type, others) as parameters:
            yield System(f"{opened.model_type}, {piece.name}", piece.config, parameters, opened.model_type)
    yield System(f"{opened.model_type} at probe size", small_system(opened.config), model_type=opened.model_type)


def layer_numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(
            f"--layers is {shown(text)}; expected numbers of layers from 0, separated by commas, such as 0,7,31."
        )
    return [int(part) for part in parts]


def named_config(name: str, *, resized: bool) -> TransformerConfig:
    if label(name) == "config":
        return _read(Path(name))
    if name in templates() and name not in PRESETS:
        return templates()[name]
    if name not in PRESETS and (is_file(Path(name)) or is_folder(Path(name))):
        raise UsageError(
            f"{name} is not the name of a preset; expected a preset, or a configuration in a file that ends in .json."
        )
    return preset(name).resized() if resized else preset(name)


def label(name: str) -> str:
    return "config" if name.endswith(".json") else name


SEED = 5

LEAST_OF_A_RANK = 2
"""The smallest number of heads per rank: a single head would hide a wrong order of heads."""


def divisible(config: TransformerConfig, ranks: int) -> TransformerConfig:
    """Return a small configuration whose sizes are multiples of `ranks`, with several heads for each rank."""
    resize = functools.partial(small_system, config) if config.shared_embedding else config.resized
    small = resize()
    heads = max(_multiple(small.num_heads, ranks), LEAST_OF_A_RANK * ranks)
    sizes: dict[str, Any] = {"num_heads": heads}
    if small.attention_head_dim is None:
        sizes["embed_dim"] = heads * small.head_dim
    if 1 < small.key_value_heads < small.num_heads:
        sizes["num_key_value_heads"] = heads // math.ceil(heads / _multiple(small.key_value_heads, ranks))
    wide = sizes.get("embed_dim", small.embed_dim)
    sizes["feed_forward_dim"] = _multiple(max(1, small.feed_forward_dim * wide // small.embed_dim), ranks)
    for name in ("source_vocab_size", "target_vocab_size", "num_encoder_layers", "num_decoder_layers"):
        if (size := getattr(small, name)) is not None:
            sizes[name] = _multiple(size, ranks)
    return resize(**sizes)


def probes_on(probes: Mapping[str, Probe], ranks: int) -> dict[str, Probe]:
    """Return the probes; for several ranks, the model of the probe `square` has sizes that are multiples of `ranks`."""
    made = dict(probes)
    if ranks > 1 and "square" in made:
        probe, first = made["square"], next(iter(made.values()))
        sizes = other_sizes(first.config, ranks)[0]
        made["square"] = dataclasses.replace(probe, config=sizes, parameters=probe_parameters(sizes, SEED))
    return made


def sized(name: str, config: TransformerConfig, ranks: int) -> TransformerConfig:
    return config if ranks == 1 or name == "config" else divisible(config, ranks)


def _multiple(size: int, ranks: int) -> int:
    return ranks * math.ceil(size / ranks)


def artefact_system(checkpoint: Checkpoint, limits: Limits) -> System:
    config, parameters, lines = checkpoint.config, checkpoint.parameters, []
    for narrow in (_masked, _typed, _short):
        config, parameters, line = narrow(config, parameters, limits)
        lines += [line] if line else []
    if limits.batch is not None:
        lines.append(
            f"batches: the artifact takes only {count(limits.batch, 'row')} at a time, so the checker splits batches"
        )
    dtype = limits.dtype if limits.dtype in HALF else None
    return System(checkpoint.model_type, config, parameters, dtype=dtype, not_compared=tuple(lines))


Narrowed = tuple[TransformerConfig, Arrays, str]


def _masked(config: TransformerConfig, parameters: Arrays, limits: Limits) -> Narrowed:
    """Hide padding by the artifact's attention mask. If the artifact takes no mask, use inputs without padding."""
    if config.reads_pixels or config.reads_frames:
        return config, parameters, ""
    if limits.has_mask:
        by_mask = (
            config if config.position_count == "visible" else dataclasses.replace(config, padding="attention-mask")
        )
        return by_mask, parameters, ""
    plain: dict[str, Any] = {"padding": "token", "pad_id": None, "target_mask": "causal"}
    return dataclasses.replace(config, **plain), parameters, "padding: the artifact has no input attention_mask"


def _typed(config: TransformerConfig, parameters: Arrays, limits: Limits) -> Narrowed:
    """If the artifact takes no token types, add the embedding of the first type to the token embeddings."""
    if limits.has_token_types or not config.num_token_types:
        return config, parameters, ""
    stack = config.stacks[0]
    types, tokens = f"{stack}.token_type_embedding.weight", f"{stack}.token_embedding.weight"
    kept = {name: value for name, value in parameters.items() if name != types}
    kept[tokens] = parameters[tokens] + parameters[types][0]
    return (
        dataclasses.replace(config, num_token_types=0),
        kept,
        "token types: the artifact has no such input, so every token has the first type",
    )


def _short(config: TransformerConfig, parameters: Arrays, limits: Limits) -> Narrowed:
    length = limits.length
    if length is None:
        return config, parameters, ""
    if config.has_encoder and not limits.has_mask and not config.reads_frames:
        raise UsageError(
            f"The graph fixes {count(length, 'token')} and has no input attention_mask, so shorter sequences are "
            "impossible; export the graph with its mask, or with a variable length."
        )
    longest = min(length, config.max_length)
    audio = {"encoder.position_embedding.weight"} if config.reads_frames else set()
    tables = {name for name in parameters if name.endswith("position_embedding.weight")} - audio
    beyond = config.max_length - longest
    cut = {name: value[: len(value) - beyond] if name in tables else value for name, value in parameters.items()}
    line = (
        f"lengths above {length}: the graph fixes {count(length, 'token')}; shorter sequences are padded on the right"
    )
    return dataclasses.replace(config, max_length=longest), cut, line
