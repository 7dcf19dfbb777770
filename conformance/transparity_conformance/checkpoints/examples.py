"""The small models on which loaders are checked, one for each family."""

import difflib
import json
from collections.abc import Sequence
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import UsageError, shown
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.checkpoints.importing import configuration, family_called
from transparity_conformance.checkpoints.tables.codecs import Family
from transparity_conformance.checkpoints.tables.rows import Fields

EXAMPLES: dict[str, Fields] = {model_type: family.example for model_type, family in FAMILIES.items()}
"""The config.json of each family's small model. Missing fields have the defaults of `transformers`."""


def example_config(model_type: str, changes: Sequence[str] = (), head: str | None = None) -> TransformerConfig:
    """Return the configuration of a family's small model. `changes` sets fields of config.json, as `name=JSON`. `head`
    chooses the output of an encoder or a classifier. Raise `CheckpointError` for an unknown family."""
    family = family_called(model_type)
    names, fields = set(family.names) - set(family.computed), {**family.example}
    if head == "classes" and family.classifier is not None:
        fields["architectures"] = [f"Model{family.classifier.task}"]
        if family.classifier.fields.get("pooling") == "last":
            # Without a padding token, `transformers` finds the last token only in batches of one row.
            fields = {"pad_token_id": 0} | fields
        names |= set(family.classifier.names)
    fields |= dict(_changed(each, model_type, family) for each in changes)
    return configuration(family, fields, names, head)


def _changed(text: str, model_type: str, family: Family) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    known = {**family.defaults, **family.example, **family.write(example_config(model_type))}
    if not equals or name not in known:
        near = difflib.get_close_matches(name, known, 1)
        raise UsageError(
            f"--set was given {shown(text)}; expected name=value, where name is a field of {model_type}"
            f"{f', such as {near[0]}' if near else ''}."
        )
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
