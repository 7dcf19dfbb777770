"""Families of models: tables for the fields of config.json and the names of tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import is_whole
from transparity_conformance.checkpoints.naming import Table
from transparity_conformance.checkpoints.reading import CheckpointError, as_json
from transparity_conformance.checkpoints.tables.rows import FieldRow, Fields, as_whole, write_nothing, wrong

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
"""Fields that change results in any family, each with its supported values; null is always supported."""

UNNEEDED = frozenset(
    {
        # about the file
        *("model_type", "architectures", "auto_map", "transformers_version", "_name_or_path", "name_or_path"),
        *("_attn_implementation", "_attn_implementation_autoset", "_num_labels", "finetuning_task"),
        *("task_specific_params", "tokenizer_class", "is_encoder_decoder", "dtype", "torch_dtype", "torchscript"),
        *("id2label", "label2id", "num_labels", "problem_type", "cache_implementation", "gradient_checkpointing"),
        *("chunk_size_feed_forward", "tie_last_hidden_states", "use_bfloat16", "tf_legacy_loss", "pretraining_tp"),
        # about the format of the output
        *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "output_past"),
        # only for training
        *("initializer_range", "initializer_factor", "init_std", "classifier_dropout", "classif_dropout"),
        # only for generation
        *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "temperature"),
        *("top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "diversity_penalty", "bad_words_ids"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_return_sequences", "output_scores", "prefix"),
        *("return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values"),
        *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "sep_token_id"),
        "force_bos_token_to_be_generated",
    }
)
"""Fields that never change a forward pass, in any family."""


def without_task(model: str) -> str:
    """Remove the ending of a class's name: `LMHeadModel`, `Model`, or `For` with a task."""
    return re.sub(r"(LMHead)?Model$|For\w+$", "", model)


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A head that replaces the family's default head, as in the class `BertForSequenceClassification`."""

    names: Table
    """The tensors of this head, which replace the tensors of the family's default head."""
    fields: Fields
    """The `TransformerConfig` fields that are equal in all models with this head."""
    task: str = "ForSequenceClassification"
    """The ending of the names of classes with this head."""
    size: str = "id2label"
    """The field of config.json with the number of outputs: `id2label`, or a field such as `projection_dim`."""

    def read(self, fields: Fields) -> dict[str, Any]:
        """Return `TransformerConfig` fields if `architectures` names a class with this head; otherwise `{}`."""
        names = fields.get("architectures")
        if not any(str(name).endswith(self.task) for name in (names if isinstance(names, list) else [])):
            return {}
        labels = fields.get("id2label")
        count = fields.get("num_labels", 2) if labels is None else len(labels) if isinstance(labels, dict) else 0
        if self.size != "id2label":
            count = as_whole(fields, self.size)
        elif not is_whole(count, 1):
            raise wrong("id2label", labels, "an object with an entry for each class")
        return {"head": "classes", "num_classes": count, **self.fields}

    def write(self, config: TransformerConfig, model: str) -> dict[str, Any]:
        """Return fields of config.json for a model with this head; `model` is the class without the head."""
        name = without_task(model) + self.task
        if self.size != "id2label":
            return {"architectures": [name], self.size: config.num_classes}
        labels = [f"LABEL_{index}" for index in range(config.num_classes)]
        return {
            "architectures": [name],
            "id2label": {str(index): label for index, label in enumerate(labels)},
            "label2id": {label: index for index, label in enumerate(labels)},
        }


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models with the same `model_type`, and how its config.json and tensors are converted."""

    model: str
    """The `transformers` class that reads a written folder; config.json names this class in `architectures`."""
    example: Fields
    """The config.json of a small model.

    All sizes differ, so that no two axes can be confused. Sizes keep the ratios on which ports rely, such as GPT-2's
    4 × n_embd or the width of Llama's heads.
    """
    always: Fields
    """The `TransformerConfig` fields that are equal in all models of the family."""
    rows: Sequence[FieldRow]
    """The rows for the fields of config.json. If several rows set the same `TransformerConfig` field, the last row
    without `ours` decides."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """For fields of config.json that are only partly supported, the supported values."""
    unneeded: Collection[str] = ()
    """Fields of config.json that never change a forward pass of this family."""
    names: Table
    packed: Callable[[TransformerConfig], Table] = write_nothing
    """Tensors whose form depends on the configuration's sizes, such as fused matrices."""
    absent: Callable[[TransformerConfig], Collection[str]] = write_nothing
    """Tensors that are missing in a file, because another tensor has the same values."""
    copies: Callable[[TransformerConfig], Mapping[str, str]] = write_nothing
    """Tensors that a file stores a second time, as {second name: first name}."""
    prefixes: Sequence[str] = ()
    """The prefixes that the names of tensors have in a file if the model has a head."""
    no_parameters: Collection[str] = ()
    """Patterns of tensors that contain no parameter, such as causal masks in older files."""
    computed: Mapping[str, Callable[[TransformerConfig], np.ndarray]] = field(default_factory=dict)
    """Functions that compute tensors, such as sinusoids. If a file has other values, the tensor is a parameter."""
    classifier: Classifier | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        return {name: value for row in self.rows for name, value in row.defaults.items()}

    @property
    def understood(self) -> set[str]:
        """Return all fields of config.json that the family reads or checks."""
        return {name for row in self.rows for name in row.reads} | {*self.only, *ONLY, *TOKENS}

    def read(self, given: Fields, names: Collection[str]) -> dict[str, Any]:
        """Convert config.json to `TransformerConfig` fields, given the `names` of all tensors in the file."""
        for name, right in {**ONLY, **self.only}.items():
            if given.get(name) is not None and given[name] not in right:
                raise wrong(name, given[name], " or ".join(map(as_json, right)) or "null")
        nulls = {name: None for row in self.rows for name in row.reads if not row.ours}
        fields = {**nulls, **self.defaults, **given}
        found = dict(self.always)
        for row in sorted(self.rows, key=lambda row: not row.ours):
            if row.ours and row.name not in fields:
                raise CheckpointError(f"{row.name} is missing; expected the field, because it sets {row.ours[0]}.")
            found |= row.read(fields, names)
        return found | (self.classifier.read(fields) if self.classifier else {})

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """Convert a configuration to config.json. `read` is the inverse if the family can express the configuration."""
        found = {name: value for name, value in self.defaults.items() if value is not None and name not in TOKENS}
        for row in sorted(self.rows, key=lambda row: not row.ours):
            found |= row.write(config)
        if config.head == "classes" and self.classifier is not None:
            found |= self.classifier.write(config, self.model)
        if config.head == "logits" and config.architecture == "encoder":
            found |= {"architectures": [f"{without_task(self.model)}ForMaskedLM"]}
        return found

    def table(self, config: TransformerConfig) -> Table:
        table = {**self.names, **self.packed(config)}
        if config.head != "classes" or self.classifier is None:
            return table
        own = self.classifier.names
        return {theirs: ours for theirs, ours in table.items() if ours not in own.values()} | dict(own)
