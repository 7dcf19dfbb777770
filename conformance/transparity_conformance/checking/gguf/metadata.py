"""The metadata of a file beside the configuration of its checkpoint, as llama.cpp reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity_conformance.checking.gguf.reading import GgufFile
from transparity_conformance.identify.alignment.values.candidates import HALF_OF_THE_DIGITS
from transparity_conformance.report.report import Cause, Divergence
from transparity_numpy.positions import rotary_frequencies

REQUIRED = object()
Default = Any | Callable[[TransformerConfig], Any]


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of the metadata, and the field of the configuration that it is."""

    name: str
    field: str
    default: Default = REQUIRED
    """What llama.cpp takes without it."""


SIZES = (
    Key("block_count", "num_decoder_layers"),
    Key("embedding_length", "embed_dim"),
    Key("feed_forward_length", "feed_forward_dim"),
    Key("attention.head_count", "num_heads"),
)
GROUPED = (
    Key("attention.head_count_kv", "key_value_heads", lambda config: config.num_heads),
    Key("attention.key_length", "head_dim", lambda config: config.embed_dim // config.num_heads),
)
ROTARY = (
    Key("rope.freq_base", "rope_theta", 10_000.0),
    Key("rope.dimension_count", "rotated_dim", lambda config: config.head_dim),
)
RMS, LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
SOFTCAPS = (
    Key("attn_logit_softcapping", "attention_softcap", 50.0),
    Key("final_logit_softcapping", "final_softcap", 30.0),
    Key("attention.sliding_window", "sliding_window", 4096),
)
ACTIVATIONS = {"gemma": "gelu-tanh", "gemma2": "gelu-tanh", "gpt2": "gelu-tanh"}
"""The activation of llama.cpp's architectures; it is SiLU in the others."""

SHAPES = {key.field for key in (*SIZES, *GROUPED)}
"""Fields on which the shapes of weights depend."""

CONFIG_NAMES = {"key_value_heads": "num_key_value_heads", "head_dim": "attention_head_dim", "rotated_dim": "rotary_dim"}
"""The fields of a configuration from which a property is computed."""


def keys_of(config: TransformerConfig, architecture: str) -> tuple[Key, ...]:
    """The keys that llama.cpp reads of an architecture."""
    eps = Key(RMS if config.norm == "rms" else LAYER, "norm_eps")
    rotary = (*GROUPED, *ROTARY) if config.positions == "rotary" else ()
    return (*SIZES, eps, *rotary, *(SOFTCAPS if architecture == "gemma2" else ()))


def metadata_faults(file: GgufFile, config: TransformerConfig) -> tuple[list[Divergence], dict[str, Any] | None]:
    """The keys with another value than the checkpoint's, and the fields of the file's model; None for other shapes."""
    faults: list[Divergence] = []
    fields: dict[str, Any] = {}
    for key in keys_of(config, file.architecture):
        name, right, given = f"{file.architecture}.{key.name}", getattr(config, key.field), file.field(key.name)
        if given is None and key.default is REQUIRED:
            faults.append(_fault(name, "it is missing, and llama.cpp has no default for it"))
            continue
        value = (key.default(config) if callable(key.default) else key.default) if given is None else given
        if not isinstance(value, int | float) or not _is_same(value, right):
            said = f"{value:.6g}" if isinstance(value, float) else shown(value)
            how = said if given is not None else f"missing, for which llama.cpp takes {said}"
            faults.append(_fault(name, f"it is {how}; the checkpoint has {right}"))
            fields[CONFIG_NAMES.get(key.field, key.field)] = value
    scaling, scaled = _scaling(file, config)
    others = [*faults, *scaling, *_not_expressed(file, config)]
    return others, None if {CONFIG_NAMES.get(name, name) for name in SHAPES} & set(fields) else fields | scaled


def _is_same(value: float, right: float | None) -> bool:
    """Return whether two numbers are one in float32, which metadata has."""
    return right is not None and np.float32(value) == np.float32(right)


def _fault(where: str, says: str, mistake: str = "gguf-metadata") -> Divergence:
    return Divergence(where, float("inf"), 0.0, (Cause(mistake, says, None, 0.0, 1.0),))


def _scaling(file: GgufFile, config: TransformerConfig) -> tuple[list[Divergence], dict[str, Any]]:
    """Scaled rotary angles: a kind and a factor in the metadata, or a tensor with a factor for every angle."""
    if config.positions != "rotary":
        return [], {}
    faults: list[Divergence] = []
    fields: dict[str, Any] = {}
    linear = config.rotary_factor if config.rotary_scaling == "linear" else None
    kind, factor = file.field("rope.scaling.type"), file.field("rope.scaling.factor")
    found = factor if kind == "linear" else None
    if found != linear and not (found and linear and _is_same(found, linear)):
        says = f"rope.scaling is {shown(kind)} by {shown(factor)}; the checkpoint has {config.rotary_scaling}"
        faults.append(_fault(f"{file.architecture}.rope.scaling", says))
        fields = {"rotary_scaling": "linear", "rotary_factor": float(found)} if found else {"rotary_scaling": "none"}
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None and config.rotary_scaling != "llama3":
        return faults, fields
    right = _factors(config) if config.rotary_scaling == "llama3" else np.ones(config.rotated_dim // 2)
    factors = np.ones(len(right)) if tensor is None else tensor.numbers().astype(np.float64).ravel()
    if factors.shape != right.shape or np.abs(factors / right - 1).max() > HALF_OF_THE_DIGITS:
        how = "missing, so that no angle is slowed" if tensor is None else f"up to {factors.max():.4g}"
        says = f"the factors of the rotary angles are {how}; by the checkpoint they are up to {right.max():.4g}"
        faults.append(_fault("rope_freqs.weight", says, "gguf-rope-factors"))
        slowed = {"rotary_scaling": "llama3", "rotary_factor": float(factors.max())}
        fields = slowed if tensor is not None and config.rotary_scaling == "llama3" else {"rotary_scaling": "none"}
    return faults, fields


def _factors(config: TransformerConfig) -> np.ndarray:
    """By how much each angle is slowed."""
    return rotary_frequencies(dataclasses.replace(config, rotary_scaling="none")) / rotary_frequencies(config)


def _not_expressed(file: GgufFile, config: TransformerConfig) -> Iterator[Divergence]:
    """What the checkpoint has, and the architecture of llama.cpp has not, whatever the file says."""
    name = file.architecture
    activation = ACTIVATIONS.get(name, "silu")
    if config.activation != activation:
        says = f"llama.cpp runs its feed-forward with {activation}; the checkpoint has {config.activation}"
        yield _fault(name, says, "gguf-not-expressed")
    if config.sliding_window is not None and name != "gemma2":
        says = f"llama.cpp has no sliding window in it; the checkpoint has one of {config.sliding_window}"
        yield _fault(name, says, "gguf-not-expressed")
    if config.query_temperature:
        yield _fault(name, "llama.cpp has no temperature of queries in it; the checkpoint has", "gguf-not-expressed")
    scale = config.head_dim**-0.5
    if not _is_same(config.score_scale, scale):
        says = f"llama.cpp scales its scores by {scale:.4g}; the checkpoint by {config.score_scale:.4g}"
        yield _fault(name, says, "gguf-not-expressed")
