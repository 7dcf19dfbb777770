"""The answer of `transparity fit`: the nearest template (preset or family), differing fields, and the evidence."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transparity.config import FIELD_TYPES, TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.presets import PRESETS, departures
from transparity.text import listed
from transparity_conformance.checkpoints.examples import EXAMPLES, example_config
from transparity_conformance.identify.fitting.subject import FitError
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.reach.features import replaced

OF_KINDS = frozenset(
    ["bos_id", "eos_id", "kv_lora_rank", "num_experts", "pad_id", "position_offset", "q_lora_rank", "router_groups"]
) | {"query_temperature_first", "query_temperature_length", "shared_expert_dim", "sliding_window", "topk_groups"}
"""Integer fields that are not sizes."""

WHOLE = {name for name, kind in FIELD_TYPES.items() if kind in (int, int | None)}
SIZES = WHOLE - OF_KINDS - {"value_head_dim"} | {"rotary_short_factors", "rotary_long_factors"}

NOT_RUN = {"dropout", "dropout_at", "norm_momentum", "bos_id", "eos_id"}
"""Fields without an effect on a forward pass in evaluation mode."""

VANILLA = dataclasses.replace(
    PRESETS["translation"].config,
    attention_scale="head_dim",
    mask_order="after-scale",
    mask_value=-float("inf"),
    target_mask="causal-and-padding",
    positions="sinusoidal",
    embedding_scale="embed_dim",
    shared_embedding=True,
    tied_head=True,
    head_bias=False,
    dropout=0.1,
    dropout_at=("embedding", "attention.output", "feed_forward.output"),
)


@functools.cache
def templates() -> Mapping[str, TransformerConfig]:
    families = {name: example_config(name) for name in EXAMPLES}
    return {"vanilla": VANILLA, **families, **{name: each.config for name, each in PRESETS.items()}}


def differences(config: TransformerConfig, template: TransformerConfig) -> Differences:
    """Return the differing fields that are not sizes. The number of experts is a size if both models have experts."""
    both_have_experts = config.num_experts and template.num_experts
    ignored = SIZES | NOT_RUN | ({"num_experts"} if both_have_experts else set())
    return apart({name: getattr(config, name) for name in FIELD_TYPES if name not in ignored}, template)


Differences = dict[str, tuple[object, object]]


def apart(fields: Mapping[str, Any], template: TransformerConfig) -> Differences:
    pairs = {name: (getattr(template, name), value) for name, value in fields.items()}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def nearest(config: TransformerConfig, untold: Collection[str] = ()) -> tuple[str, Differences]:
    """Return the nearest template's name, and the differing fields except `untold`."""
    every = {
        name: {field: pair for field, pair in differences(config, template).items() if field not in untold}
        for name, template in templates().items()
    }
    return min(every.items(), key=lambda each: len(each[1]))


def changed(config: TransformerConfig, fields: Mapping[str, Any]) -> TransformerConfig | None:
    """Return a changed configuration if it is valid and has the same parameters and inputs."""
    made = replaced(config, **fields)
    if made is None or made.further_inputs != config.further_inputs:
        return None
    return made if parameter_shapes(made) == parameter_shapes(config) else None


@dataclass(frozen=True, eq=False)
class Fit:
    """The configuration of a module, and the evidence for this configuration."""

    config: TransformerConfig
    share: float
    """The largest difference from the reference, divided by the budget."""
    template: str
    differences: Differences
    untold: dict[str, str]
    """Fields whose value does not change the outputs, each with the reason."""
    parameters: Arrays
    """The module's random parameters under the reference's names."""
    unused: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """Reasons why the fit is not confirmed."""

    @property
    def is_confirmed(self) -> bool:
        return self.share <= 1


def sentences(fit: Fit, port: str) -> Iterator[str]:
    pairs = fit.differences.items()
    fields = "; ".join(f"{name} is {_shown(ours)}, not {_shown(theirs)}" for name, (theirs, ours) in pairs)
    yield f"{port} is {fit.template}{f', but {fields}' if fields else ', apart from its sizes'}."
    if fit.is_confirmed:
        yield "Confirmed: the reference with this configuration agrees with the module within rounding."
    else:
        yield (
            "Not confirmed: the reference with this configuration differs from the module by "
            f"{fit.share:.2g} times the tolerance. The configuration does not describe some part of the module."
        )
    yield from (f"{remark}." for remark in fit.remarks)
    yield f"Differences from the paper: {'; '.join(departures(fit.config)) or 'none'}."
    if fit.unused:
        yield f"No recognized operation uses these parameters: {', '.join(fit.unused)}."
    for name, reason in fit.untold.items():
        yield f"Undetermined: {name} ({reason}); the configuration uses {_shown(getattr(fit.config, name))}."


AGAINST = "If another implementation is at hand, `check PORT --against REFERENCE` needs no configuration."


def unfinished(error: FitError) -> tuple[str, str]:
    """Return the incomplete configuration as JSON, with "?" for unknown fields, and a sentence about a template."""
    known = {name: value for name, value in error.known.items() if name not in SIZES}
    alike = {name: each for name, each in templates().items() if each.architecture == known.get("architecture")}
    others = alike or templates()
    run = {name: value for name, value in known.items() if name not in NOT_RUN}
    name, differ = min(((name, apart(run, each)) for name, each in others.items()), key=lambda each: len(each[1]))
    but = listed([f"{field} is {_shown(ours)}, not {_shown(theirs)}" for field, (theirs, ours) in differ.items()])
    open_fields = [
        field
        for field in FIELD_TYPES
        if field not in error.known and len({str(getattr(each, field)) for each in others.values()}) > 1
    ]
    fields = {**error.known, **dict.fromkeys(open_fields, "?")}
    written = {field: "-inf" if value == -math.inf else value for field, value in fields.items()}
    nearest = f"The nearest template is {name}{f', but {but}' if but else ''}. " if len(known) > 1 else ""
    return json.dumps(written, indent=2) + "\n", f"{nearest}{AGAINST}"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
