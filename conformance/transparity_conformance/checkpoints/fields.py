"""Fields of a config.json converted to ours: the parts that several families share."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.config import FULL, SLIDING, TransformerConfig, repeating
from transparity.errors import is_number, is_whole
from transparity_conformance.checkpoints.naming import Table
from transparity_conformance.checkpoints.reading import CheckpointError, as_json

Fields = Mapping[str, Any]
"""The fields of a config.json, by name."""

Configure = Callable[[Fields, Collection[str]], dict[str, Any]]
"""Computes fields of ours from those of config.json and the names of the tensors."""

Write = Callable[[TransformerConfig], dict[str, Any]]
"""Computes fields of config.json from a configuration: the inverse of `Configure`, for what it can express."""


def _nothing(config: TransformerConfig) -> Collection[str]:
    return ()


def _no_table(config: TransformerConfig) -> Table:
    return {}


def _no_copies(config: TransformerConfig) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """The head of the class for whole sequences, `…ForSequenceClassification`, or for images, or a projection."""

    names: Table
    """Its tensors, in place of those of another head."""
    fields: Mapping[str, Any]
    """Fields of ours with its values."""
    task: str = "ForSequenceClassification"
    """The end of the name of the class."""
    size: str = "id2label"
    """The field that has the classes, or their number: of a projection, its width."""


OF_THE_LAST_TOKEN = Classifier(names={"score.weight": "head.weight"}, fields={"pooling": "last", "pooler": "none"})
"""The head of decoders: the last token that is no padding decides."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type`: the conversion of its fields and its tensors."""

    always: Mapping[str, Any]
    """Fields of ours that have one value in the whole family."""
    fields: Mapping[str, str]
    """Fields of config.json by name, and the fields of ours that they are."""
    configure: Configure
    """Fields of ours that are computed."""
    write: Write
    """Fields of config.json that are computed."""
    model: str
    """The class of transformers that reads the written folder, the first of `architectures` in config.json."""
    absent: Callable[[TransformerConfig], Collection[str]] = _nothing
    """Names in the table that the file of a configuration does not have, though it has what they hold."""
    copies: Callable[[TransformerConfig], Mapping[str, str]] = _no_copies
    """Names in the table that the file of a configuration has beside the one that holds the same numbers."""
    reads: Collection[str]
    """The fields of config.json that `configure` reads."""
    defaults: Mapping[str, Any]
    """The values that transformers takes for missing fields."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Fields that are supported with these values only."""
    unneeded: Collection[str] = ()
    """Fields that no forward pass depends on."""
    names: Table
    packed: Callable[[TransformerConfig], Table] = _no_table
    """Names of tensors that hold several parameters, cut by sizes of the configuration."""
    prefixes: Sequence[str] = ()
    """Prefixes of tensor names, in files of a model with a head."""
    no_parameters: Collection[str] = ()
    """Patterns of tensors in older files that are computed here."""
    computed: Mapping[str, Callable[[TransformerConfig], np.ndarray]] = field(default_factory=dict)
    """Tensors that a file has though their numbers are computed here, and how; with other numbers they are parameters:
    `configure` is given their names."""
    classifier: Classifier | None = None
    """The head of classes, if one is read."""

    def table(self, config: TransformerConfig) -> Table:
        """The names of all tensors of a configuration, and ours."""
        table = {**self.names, **self.packed(config)}
        if config.head != "classes" or self.classifier is None:
            return table
        own = self.classifier.names
        return {theirs: ours for theirs, ours in table.items() if ours not in own.values()} | dict(own)

    def classes(self, fields: Fields) -> dict[str, Any]:
        """The fields of ours of a head of classes, if the class in `architectures` has one."""
        named = fields.get("architectures") or []
        if self.classifier is None or not any(str(name).endswith(self.classifier.task) for name in named):
            return {}
        if self.classifier.size != "id2label":
            return {"head": "classes", "num_classes": whole(fields, self.classifier.size), **self.classifier.fields}
        labels = fields.get("id2label")
        count = fields.get("num_labels", 2) if labels is None else len(labels) if isinstance(labels, dict) else 0
        if not is_whole(count, 1):
            raise wrong("id2label", labels, "an object with an entry for each class")
        return {"head": "classes", "num_classes": count, **self.classifier.fields}

    def written_classes(self, config: TransformerConfig) -> dict[str, Any]:
        """The fields of config.json of a head of classes."""
        if config.head != "classes" or self.classifier is None:
            return {}
        name = re.sub(r"(LMHead)?Model$|For\w+$", "", self.model) + self.classifier.task
        if self.classifier.size != "id2label":
            return {"architectures": [name], self.classifier.size: config.num_classes}
        labels = [f"LABEL_{index}" for index in range(config.num_classes)]
        return {
            "architectures": [name],
            "id2label": {str(index): label for index, label in enumerate(labels)},
            "label2id": {label: index for index, label in enumerate(labels)},
        }


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu-tanh",
    "quick_gelu": "gelu-quick",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")

ONLY: dict[str, tuple[Any, ...]] = {
    "cross_attention_hidden_size": (),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "per_layer_config": (),
    "pruned_heads": ({},),
    "quantization_config": (),
    "tie_encoder_decoder": (False,),
}
"""Fields of every family that change numbers, and their supported values (absent and null always are)."""

UNNEEDED = frozenset(
    {
        # the file and its history
        *("model_type", "architectures", "auto_map", "transformers_version", "_name_or_path", "name_or_path"),
        *("_attn_implementation", "_attn_implementation_autoset", "_num_labels", "finetuning_task"),
        *("task_specific_params", "tokenizer_class", "is_encoder_decoder", "dtype", "torch_dtype", "torchscript"),
        *("id2label", "label2id", "num_labels", "problem_type", "cache_implementation", "gradient_checkpointing"),
        *("chunk_size_feed_forward", "tie_last_hidden_states", "use_bfloat16", "tf_legacy_loss", "pretraining_tp"),
        # the form of the output
        *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "output_past"),
        # training
        *("initializer_range", "initializer_factor", "init_std", "classifier_dropout", "classif_dropout"),
        # generation
        *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "temperature"),
        *("top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "diversity_penalty", "bad_words_ids"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_return_sequences", "output_scores", "prefix"),
        *("return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values"),
        *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "sep_token_id"),
        "force_bos_token_to_be_generated",
    }
)
"""Fields of every family that no forward pass depends on."""


def wrong(name: str, found: Any, expected: str) -> CheckpointError:
    """The error for a value that is not supported."""
    return CheckpointError(f"{name} is {as_json(found)}; expected {expected}: nothing else can be imported.")


def activation(fields: Fields, name: str) -> str:
    """Our name of the activation in the field `name`."""
    found = fields[name]
    if not isinstance(found, str) or found not in ACTIVATIONS:
        raise wrong(name, found, f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[found]


def activation_name(config: TransformerConfig) -> str:
    """The first of transformers' names of an activation."""
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation)


def whole(fields: Fields, name: str) -> int:
    """A size: a whole number, at least 1."""
    if not is_whole(fields[name], 1):
        raise wrong(name, fields[name], "a whole number, at least 1")
    return int(fields[name])


MOST_LAYERS = 10_000
"""The most layers that are imported; they are listed one by one."""


def layers(fields: Fields, name: str = "num_hidden_layers") -> int:
    """The number of layers."""
    count = fields[name]
    if not is_whole(count, 0) or count > MOST_LAYERS:
        raise wrong(name, count, f"a whole number, at most {MOST_LAYERS}")
    return int(count)


def number(fields: Fields, name: str) -> float:
    """A number greater than 0."""
    found = fields[name]
    if not is_number(found) or not 0 < found <= sys.float_info.max:  # JSON has whole numbers of any size
        raise wrong(name, found, "a finite number greater than 0")
    return float(found)


def flag(fields: Fields, name: str) -> bool:
    """A truth value; null is false."""
    if fields[name] not in (None, False, True):
        raise wrong(name, fields[name], "true or false")
    return bool(fields[name])


def same(fields: Fields, name: str, other: str) -> Any:
    """The value of two fields that are one of ours."""
    if fields[name] != fields[other]:
        raise wrong(other, fields[other], f"{as_json(fields[name])}, as {name} is")
    return fields[name]


def head_width(fields: Fields, embed_dim: str, num_heads: str, head_dim: str = "head_dim") -> dict[str, Any]:
    """`attention_head_dim`, if a head is not embed_dim / num_heads wide."""
    if fields[head_dim] is None or whole(fields, head_dim) * whole(fields, num_heads) == whole(fields, embed_dim):
        return {}
    return {"attention_head_dim": fields[head_dim]}


ROTARY = (
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"),
    "original_max_position_embeddings",
)

ROTARY_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
"""The keys of each kind of scaling."""

OPTIONAL_KEYS: dict[str, tuple[str, ...]] = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("attention_factor", "factor"),
}
"""The keys that a kind of scaling may have."""

KEYS_OF_ALL = ("rope_theta", "rope_type", "type", "partial_rotary_factor", "original_max_position_embeddings")
"""The keys that every kind may have."""


def rotary(fields: Fields, head_dim: int | None = None) -> dict[str, Any]:
    """Rotary positions, as transformers 4 writes them (`rope_theta`, `rope_scaling`) or 5 (`rope_parameters`).

    Args:
        fields: of config.json.
        head_dim: the features of a head, in a family of which heads may be rotated in part; None: wholly.
    """
    name, kind, given = _rotary_given(fields)
    found = {"rope_layout": "halves", "positions": "rotary", "rope_theta": number(given, "rope_theta")}
    found |= _rotated_part(given.get("partial_rotary_factor", fields.get("partial_rotary_factor")), head_dim)
    known = (*KEYS_OF_ALL, *ROTARY_KEYS[kind], *OPTIONAL_KEYS.get(kind, ()))
    if unknown := [key for key in given if key not in known]:
        raise wrong(f"{name}.{unknown[0]}", given[unknown[0]], f"none where its rope_type is {kind}")
    if "original_max_position_embeddings" in ROTARY_KEYS[kind]:
        given = {"original_max_position_embeddings": fields["max_position_embeddings"]} | given
        outside = fields.get("original_max_position_embeddings")
        given |= {} if outside is None else {"original_max_position_embeddings": outside}
    for key in ROTARY_KEYS[kind]:
        if key not in given:
            raise CheckpointError(f"{name} has no {key}; expected it, for its rope_type is {kind!r}.")
    given |= {"max_position_embeddings": fields["max_position_embeddings"]}
    return found | (SCALINGS[kind](given) if kind in SCALINGS else {})


def _linear(given: Fields) -> dict[str, Any]:
    return {"rotary_scaling": "linear", "rotary_factor": number(given, "factor")}


def _llama3(given: Fields) -> dict[str, Any]:
    return _linear(given) | {
        "rotary_scaling": "llama3",
        "rotary_low_frequency": number(given, "low_freq_factor"),
        "rotary_high_frequency": number(given, "high_freq_factor"),
        "rotary_original_length": given["original_max_position_embeddings"],
    }


def _yarn(given: Fields) -> dict[str, Any]:
    """Without an attention factor, it is 0.1 · mscale · ln(factor) + 1, of `mscale` by that of `mscale_all_dim`."""
    usual = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
    given = {**given, **{key: usual[key] for key in usual if given.get(key) is None}}
    factor = number(given, "factor")
    scales = [number(given, key) for key in ("mscale", "mscale_all_dim") if given.get(key)]
    steps = [0.1 * scale * math.log(max(factor, 1)) + 1 for scale in (scales if len(scales) == 2 else (1.0,))]
    by_formula = steps[0] / (steps[1] if len(steps) == 2 else 1)
    return {
        "rotary_scaling": "yarn",
        "rotary_factor": factor,
        "rotary_low_frequency": number(given, "beta_slow"),
        "rotary_high_frequency": number(given, "beta_fast"),
        "rotary_original_length": given["original_max_position_embeddings"],
        "rotary_truncate": flag(given, "truncate"),
        "rotary_attention_factor": _attention_factor(given, by_formula),
    }


def _longrope(given: Fields) -> dict[str, Any]:
    """Without an attention factor, it is √(1 + ln(factor) / ln(original length)), of the factor by which the sequence
    is longer than the original one."""
    original = whole(given, "original_max_position_embeddings")
    longer = given.get("factor")
    longer = given["max_position_embeddings"] / original if longer is None else number(given, "factor")
    by_formula = 1.0 if longer <= 1 else math.sqrt(1 + math.log(longer) / math.log(original))
    return {
        "rotary_scaling": "longrope",
        "rotary_original_length": original,
        "rotary_attention_factor": _attention_factor(given, by_formula),
        "rotary_short_factors": _numbers(given, "short_factor"),
        "rotary_long_factors": _numbers(given, "long_factor"),
    }


def _attention_factor(given: Fields, otherwise: float) -> float:
    return otherwise if given.get("attention_factor") is None else number(given, "attention_factor")


def _numbers(given: Fields, name: str) -> tuple[float, ...]:
    listed = given[name] if isinstance(given[name], list) else [None]
    return tuple(number({f"{name}[{i}]": each}, f"{name}[{i}]") for i, each in enumerate(listed))


SCALINGS: Mapping[str, Callable[[Fields], dict[str, Any]]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
"""Fields of ours by the kind of scaling, whose keys `max_position_embeddings` is added to."""


def written_scaling(config: TransformerConfig) -> dict[str, Any]:
    """The scaling, with all keys that its kind has and the attention factor itself."""
    kind = "default" if config.rotary_scaling == "none" else config.rotary_scaling
    ours: dict[str, Any] = {
        "factor": config.rotary_factor,
        "low_freq_factor": config.rotary_low_frequency,
        "high_freq_factor": config.rotary_high_frequency,
        "original_max_position_embeddings": config.rotary_original_length,
        "short_factor": list(config.rotary_short_factors),
        "long_factor": list(config.rotary_long_factors),
    }
    optional: dict[str, Any] = {"attention_factor": config.rotary_attention_factor} if kind in OPTIONAL_KEYS else {}
    if kind == "yarn":
        optional |= {"beta_fast": config.rotary_high_frequency, "beta_slow": config.rotary_low_frequency}
        optional |= {"truncate": config.rotary_truncate}
    return {"rope_type": kind} | {key: ours[key] for key in ROTARY_KEYS[kind]} | optional


def rotary_fields(config: TransformerConfig) -> dict[str, Any]:
    """Rotary positions as both transformers 4 and 5 write them; published files have one of the two forms."""
    scaling = written_scaling(config)
    part = {} if config.rotated_dim == config.head_dim else {"partial_rotary_factor": rotated_share(config)}
    return {
        "rope_theta": config.rope_theta,
        "rope_scaling": None if config.rotary_scaling == "none" else scaling,
        "rope_parameters": {"rope_theta": config.rope_theta} | scaling | part,
        "head_dim": config.head_dim,
        **part,
    }


def _rotary_given(fields: Fields) -> tuple[str, str, dict[str, Any]]:
    """The name of the field with the scaling, its kind, and its content with `rope_theta`."""
    name = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    given = fields.get(name) or {}
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise wrong(name, given, "one object of numbers for all layers")
    given = {"rope_theta": fields["rope_theta"]} | given
    kind = given.get("rope_type", given.get("type", "default"))
    if not isinstance(kind, str) or kind not in ROTARY_KEYS:
        raise wrong(f"{name}.rope_type", kind, f"one of {', '.join(ROTARY_KEYS)}")
    return name, kind, given


def _rotated_part(share: Any, head_dim: int | None) -> dict[str, Any]:
    """`rotary_dim`, if a `share` of the features of a head is rotated."""
    if share is None or (is_number(share) and share == 1):
        return {}
    if head_dim is None:
        raise wrong("partial_rotary_factor", share, "1, or none")
    if not is_number(share) or not 0 < share < 1:
        raise wrong("partial_rotary_factor", share, "a number greater than 0, at most 1")
    return {"rotary_dim": int(head_dim * share)}


def rotated_share(config: TransformerConfig) -> float:
    """The `partial_rotary_factor`, of which `rotary_dim` is the whole part of a product; rounding may make it less."""
    share = config.rotated_dim / config.head_dim
    return share if int(config.head_dim * share) == config.rotated_dim else math.nextafter(share, 1)


SCALING: dict[str, Any] = {
    "rotary_scaling": "none",
    "rotary_factor": 1.0,
    "rotary_low_frequency": 1.0,
    "rotary_high_frequency": 4.0,
    "rotary_original_length": 8192,
    "rotary_truncate": True,
    "rotary_attention_factor": 1.0,
    "rotary_short_factors": (),
    "rotary_long_factors": (),
}
"""Rotary positions that are not scaled."""


def by_kind(kinds: Sequence[str], facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of ours of layers that differ.

    Args:
        kinds: the kind of each layer.
        facts: the fields of ours of each kind, of `PER_LAYER`; those of the first that occurs hold for the rest, but
            for a window and for rotary positions, which the configuration has if any layer does.
    """
    present = [kind for kind in facts if kind in kinds]
    if not present:
        return {**next(iter(facts.values())), "sliding_window": None}
    found = dict(facts[present[0]])
    for name, nothing in (("sliding_window", None), ("positions", "none")):
        if name in found:
            found[name] = next((facts[kind][name] for kind in present if facts[kind][name] != nothing), nothing)
    if len(present) == 1:
        return found
    return found | {"layer_types": repeating(kinds), "layer_overrides": {kind: facts[kind] for kind in present}}


def layer_kinds(config: TransformerConfig) -> list[str]:
    """The field `layer_types`: the kind of attention of each layer of a decoder."""
    windows = (config.for_layer("decoder", i).sliding_window for i in range(config.num_decoder_layers))
    return [FULL if window is None else SLIDING for window in windows]


def kinds_given(layer_types: Any, count: int) -> list[str]:
    """The field `layer_types` of `count` layers, each with a sliding window or with full attention."""
    known = isinstance(layer_types, list) and all(kind in (SLIDING, FULL) for kind in layer_types)
    if not known or len(layer_types) != count:
        raise wrong("layer_types", layer_types, f"{SLIDING} or {FULL} for each of {count} layers")
    return list(layer_types)


def kinds_by_pattern(fields: Fields) -> list[str]:
    """The kinds of all layers: `layer_types`, or full attention in every layer `sliding_window_pattern`."""
    count = layers(fields)
    if fields["layer_types"] is not None:
        return kinds_given(fields["layer_types"], count)
    every = whole(fields, "sliding_window_pattern")
    return [SLIDING if (i + 1) % every else FULL for i in range(count)]


def windows(layer_types: Any, window: Any, count: int) -> dict[str, Any]:
    """Convert `layer_types` of `count` layers into `sliding_window`, and the kinds of layers with and without it."""
    layer_types = kinds_given(layer_types, count)
    return by_kind(layer_types, {SLIDING: {"sliding_window": window}, FULL: {"sliding_window": None}})
