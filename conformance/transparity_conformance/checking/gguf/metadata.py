"""Compare the metadata of a GGUF file with the checkpoint's configuration. Missing keys have llama.cpp's defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.limits.files import file_size
from transparity_conformance.checkpoints.tables.rotary import yarn_scale
from transparity_conformance.matching.recorded import HALF_OF_THE_DIGITS
from transparity_conformance.report.report import Cause, Divergence
from transparity_conformance.running.loading import LoadError, read_with
from transparity_numpy.rotary.tables import rotary_frequencies

REQUIRED = object()
Default = Any | Callable[[TransformerConfig], Any]


@dataclasses.dataclass(frozen=True)
class Key:
    """A metadata key, with the corresponding field of our configuration."""

    name: str
    field: str | Callable[[TransformerConfig], Any]
    """The field, or a function that returns the right value."""
    default: Default = REQUIRED
    """The value that llama.cpp uses if the key is missing."""


ANY = ""
"""Marks a metadata key that llama.cpp requires, but whose value changes no logits."""

SIZES = (
    Key("context_length", ANY),
    Key("attention.causal", lambda config: config.architecture == "decoder", True),
    Key("block_count", "num_decoder_layers"),
    Key("embedding_length", "embed_dim"),
    Key("feed_forward_length", "feed_forward_dim"),
    Key("attention.head_count", "num_heads"),
)
GROUPED = (
    Key("attention.head_count_kv", "key_value_heads", lambda config: config.num_heads),
    Key("attention.key_length", "head_dim", lambda config: config.embed_dim // config.num_heads),
    Key("attention.value_length", "head_dim", lambda config: config.embed_dim // config.num_heads),
)
ROTARY = (
    Key("rope.freq_base", "rope_theta", 10_000.0),
    Key("rope.dimension_count", "rotated_dim", lambda config: config.head_dim),
    Key("rope.scaling.attn_factor", lambda config: config.rotary_attention_factor / _yarn_scale(config), 1.0),
)
YARN = (
    Key("rope.scaling.original_context_length", "rotary_original_length", lambda config: config.max_length),
    Key("rope.scaling.yarn_beta_fast", "rotary_fast_turns", 32.0),
    Key("rope.scaling.yarn_beta_slow", "rotary_slow_turns", 1.0),
)
RMS, LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
SOFTCAPS = (
    Key("attn_logit_softcapping", "attention_softcap", 50.0),
    Key("final_logit_softcapping", "final_softcap", 30.0),
    Key("attention.sliding_window", "sliding_window", 4096),
)
ACTIVATIONS = {"gemma": "gelu-tanh", "gemma2": "gelu-tanh", "gpt2": "gelu-tanh"}
"""The activation functions that llama.cpp uses, by architecture; all other architectures use SiLU."""

SHAPES = {key.field for key in (*SIZES, *GROUPED) if isinstance(key.field, str)}
"""Fields on which the shapes of weights depend."""

CONFIG_NAMES = {"key_value_heads": "num_key_value_heads", "head_dim": "attention_head_dim", "rotated_dim": "rotary_dim"}
"""For each property that is not a field of the configuration, the field that sets this property."""


def keys_of(config: TransformerConfig, architecture: str) -> tuple[Key, ...]:
    eps = Key(RMS if config.norm == "rms" else LAYER, "norm_eps")
    rotary = (*GROUPED, *ROTARY, *(YARN if config.rotary_scaling == "yarn" else ()))
    rotary = rotary if config.positions == "rotary" else ()
    return (*SIZES, eps, *rotary, *(SOFTCAPS if architecture == "gemma2" else ()))


def metadata_faults(file: GgufFile, config: TransformerConfig) -> tuple[list[Divergence], dict[str, Any] | None]:
    """Return a fault for each wrong key, and the wrong values by field of the configuration. Return None instead of the
    values if a wrong key changes shapes, or sets no single field."""
    faults: list[Divergence] = []
    fields: dict[str, Any] = {}
    for key in keys_of(config, file.architecture):
        name, given = f"{file.architecture}.{key.name}", file.field(key.name)
        if given is None and key.default is REQUIRED:
            faults.append(known_fault(name, "the key is missing, and llama.cpp has no default for it"))
        if key.field == ANY or (given is None and key.default is REQUIRED):
            continue
        right = getattr(config, key.field) if isinstance(key.field, str) else key.field(config)
        value = (key.default(config) if callable(key.default) else key.default) if given is None else given
        if not isinstance(value, int | float) or not _is_same(value, right):
            said = f"{value:.6g}" if isinstance(value, float) else shown(value)
            how = said if given is not None else f"missing, so llama.cpp uses {said}"
            faults.append(known_fault(name, f"the value is {how}; expected {right}, as in the checkpoint"))
            fields[CONFIG_NAMES.get(key.field, key.field) if isinstance(key.field, str) else ""] = value
    scaling, scaled = _scaling(file, config)
    others = [*faults, *scaling, *_not_expressed(file, config)]
    unknown = {"", *(CONFIG_NAMES.get(name, name) for name in SHAPES)} & set(fields)
    return others, None if unknown else fields | scaled


def _is_same(value: float, right: float | None) -> bool:
    return right is not None and np.float32(value) == np.float32(right)


def known_fault(where: str, says: str, mistake: str = "gguf-metadata") -> Divergence:
    return Divergence(where, float("inf"), 0.0, (Cause(mistake, says),))


def _yarn_scale(config: TransformerConfig) -> float:
    return yarn_scale(config.rotary_factor, 1.0) if config.rotary_scaling == "yarn" else 1.0


def _kind(kind: Any, factor: Any) -> tuple[Any, float]:
    """Return (kind, factor) of a rotary scaling. Without a factor, llama.cpp does not scale angles."""
    number = float(factor) if isinstance(factor, int | float) and factor else 1.0
    return ("none", 1.0) if kind == "none" or number == 1 else (kind, number)


def _scaling(file: GgufFile, config: TransformerConfig) -> tuple[list[Divergence], dict[str, Any]]:
    """Compare the rotary scaling, which a file stores as a kind with a factor, or as a tensor of factors. Return the
    faults and the fields with wrong values."""
    if config.positions != "rotary":
        return [], {}
    if config.rotary_scaling == "longrope":
        raise LoadError(f"{file.path} cannot be checked, because the checker does not compare the factors of longrope.")
    faults: list[Divergence] = []
    fields: dict[str, Any] = {}
    expected = _kind("none" if config.rotary_scaling == "llama3" else config.rotary_scaling, config.rotary_factor)
    given, older = file.field("rope.scaling.factor"), file.field("rope.scale_linear")
    found = _kind(file.field("rope.scaling.type") or "linear", older if given is None else given)
    if found[0] != expected[0] or not _is_same(found[1], expected[1]):
        theirs, ours = (f"{shown(kind)} with the factor {factor:.6g}" for kind, factor in (found, expected))
        says = f"the scaling is {theirs}; expected {ours}, as in the checkpoint"
        faults.append(known_fault(f"{file.architecture}.rope.scaling", says))
        fields = {"rotary_scaling": found[0], "rotary_factor": float(found[1])}
        if found[0] == "yarn":
            fields |= {"rotary_attention_factor": yarn_scale(found[1], 1.0), "rotary_fast_turns": 32.0}
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None and config.rotary_scaling != "llama3":
        return faults, fields
    unscaled = rotary_frequencies(dataclasses.replace(config, rotary_scaling="none"))
    right = unscaled / rotary_frequencies(config) if config.rotary_scaling == "llama3" else np.ones(len(unscaled))
    factors = np.ones(len(right)) if tensor is None else tensor.numbers().astype(np.float64).ravel()
    if factors.shape != right.shape or np.abs(factors / right - 1).max() > HALF_OF_THE_DIGITS:
        says = (
            "the tensor is missing, so llama.cpp scales no angle" if tensor is None else _wrong_factor(factors, right)
        )
        faults.append(known_fault("rope_freqs.weight", says, "gguf-rope-factors"))
        slowed = {"rotary_scaling": "llama3", "rotary_factor": float(factors.max())}
        fields = slowed if tensor is not None and config.rotary_scaling == "llama3" else {"rotary_scaling": "none"}
    return faults, fields


def _wrong_factor(factors: np.ndarray, right: np.ndarray) -> str:
    if factors.shape != right.shape:
        return f"the tensor has {factors.size} factors; expected {right.size}, one for each pair of rotated features"
    pair = int(np.abs(factors / right - 1).argmax())
    return f"the factor of pair {pair} is {factors[pair]:.4g}; expected {right[pair]:.4g}, as in the checkpoint"


def _not_expressed(file: GgufFile, config: TransformerConfig) -> Iterator[Divergence]:
    name = file.architecture
    activation, scale = ACTIVATIONS.get(name, "silu"), config.head_dim**-0.5
    lacking = {
        f"llama.cpp's activation function is {activation}; the checkpoint's is {config.activation}": (
            config.activation != activation
        ),
        f"llama.cpp applies no sliding window; the checkpoint has a window of {config.sliding_window}": (
            config.sliding_window is not None and name != "gemma2"
        ),
        "llama.cpp applies no query temperature, but the checkpoint has one": bool(config.query_temperature),
        f"llama.cpp scales scores by {scale:.4g}; the checkpoint scales them by {config.score_scale:.4g}": (
            not _is_same(config.score_scale, scale)
        ),
    }
    yield from (known_fault(name, says, "gguf-not-expressed") for says, is_lacking in lacking.items() if is_lacking)


MOST_ITEMS = 2**22
"""The largest number of tensors, fields or array items in a file; a tokenizer's arrays have about 2¹⁹ items."""


@dataclass(frozen=True, eq=False)
class GgufTensor:
    name: str
    kind: Any
    """The `GGMLQuantizationType`."""
    shape: tuple[int, ...]
    data: np.ndarray

    def numbers(self) -> np.ndarray:
        what = f"{self.name} has the type {self.kind.name}, which gguf cannot read"
        found = read_with(gguf.dequantize, what, self.data, self.kind)
        return np.asarray(found, np.float32).reshape(self.shape)


@dataclass(frozen=True, eq=False)
class GgufFile:
    path: Path
    architecture: str
    fields: dict[str, Any]
    """The metadata by key, without the lists of the tokenizer."""
    tensors: dict[str, GgufTensor]

    def field(self, name: str) -> Any:
        """Return the metadata of the file's architecture for a name such as `rope.freq_base`; None if missing."""
        return self.fields.get(f"{self.architecture}.{name}")


def read_gguf(path: Path) -> GgufFile:
    file_size(path, LoadError)
    opened: GgufFile = read_with(_read, f"{path} cannot be read as a GGUF file", path)
    return opened


class _Reader(gguf.GGUFReader):  # type: ignore[misc]
    """A reader that also checks counts and offsets, which the gguf library does not check."""

    def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **named: Any) -> Any:
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError("the file is shorter than its header and its tensors require")
        return super()._get(offset, dtype, count, *order, **named)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == gguf.GGUFValueType.ARRAY:
            _check_count(self._get(orig_offs + 4, np.uint64))
        return super()._get_field_parts(orig_offs, raw_type)


def _check_count(counts: np.ndarray) -> None:
    if counts.max(initial=0) > MOST_ITEMS:
        raise ValueError(f"the file declares {counts.max():,} items; expected at most {MOST_ITEMS:,}")


def _read(path: Path) -> GgufFile:
    _check_count(np.fromfile(path, "<u8", 2, offset=8))  # the numbers of tensors and fields
    reader = _Reader(path)
    if reader.byte_order != "I":
        raise ValueError("its byte order is big-endian")
    lists = {"tokens", "merges", "scores", "token_type"}
    fields = {name: field.contents() for name, field in reader.fields.items() if name.rpartition(".")[2] not in lists}
    if (parts := fields.get("split.count", 1)) != 1:
        raise ValueError(f"the file is one of {parts} parts; join the parts with llama-gguf-split --merge")
    architecture = fields.get("general.architecture")
    if not isinstance(architecture, str):
        raise ValueError(f"its general.architecture is {shown(architecture)}")
    tensors = {
        each.name: GgufTensor(each.name, each.tensor_type, tuple(int(size) for size in reversed(each.shape)), each.data)
        for each in reader.tensors
    }
    return GgufFile(path, architecture, fields, tensors)
