"""Where a tap stands in the model: what its part is called, and what goes into it."""

from __future__ import annotations

from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.functional import linear
from transparity_conformance.walk import Run

Value = Any
ATTENTIONS = ("self_attention", "cross_attention")


def split(site: str) -> tuple[str, str, str]:
    """`decoder.layers.0`, `self_attention` and `scores` of a tap's name; what it lacks is empty."""
    parts = site.split(".")
    if len(parts) < 4:
        return (parts[0], "", parts[-1])
    return ".".join(parts[:3]), parts[3], parts[4] if len(parts) > 4 else ""


def parameters_of(run: Run, scope: str) -> dict[str, np.ndarray]:
    """The weight and bias of one part."""
    scope += "."
    return {name.removeprefix(scope): value for name, value in run.parameters.items() if name.startswith(scope)}


def sublayers(config: TransformerConfig, scope: str) -> list[str]:
    """The sublayers of a layer, in order."""
    crosses = scope.startswith("decoder") and config.has_encoder
    return ["self_attention", *["cross_attention"] * crosses, "feed_forward"]


def layer_input(run: Run, scope: str) -> Value:
    """What flows into a layer."""
    stack, _, index = scope.split(".")
    return run.seen[f"{stack}.layers.{int(index) - 1}.output" if int(index) else f"{stack}.embedding"]


def stream(run: Run, scope: str, upto: str) -> Value:
    """The residual stream of a layer in front of the sublayer `upto`."""
    x = layer_input(run, scope)
    for name in sublayers(run.config, scope):
        if name == upto:
            break
        behind = run.config.norm_position == "post"
        x = run.seen[f"{scope}.{name}_norm"] if behind else x + run.seen[f"{scope}.{name}.output"]
    return x


def norm_input(run: Run, site: str) -> Value:
    """What goes into the norm whose result is tapped as `site` (a stack's output, if it has a final norm)."""
    config, parts = run.config, site.split(".")
    if len(parts) == 2:
        layers = config.stack_num_layers(parts[0])
        return run.seen[f"{parts[0]}.layers.{layers - 1}.output" if layers else f"{parts[0]}.embedding"]
    scope, name = ".".join(parts[:3]), parts[3].removesuffix("_norm")
    if name == "memory":
        return run.seen["encoder.output"]
    x = stream(run, scope, name)
    return x if config.norm_position == "pre" else x + run.seen[f"{scope}.{name}.output"]


def sublayer_input(run: Run, scope: str, sublayer: str, role: str = "query") -> Value:
    """What goes into a sublayer: for the keys and values of cross-attention, the memory."""
    if sublayer == "cross_attention" and role in ("key", "value"):
        return run.seen[f"{scope}.memory_norm" if run.config.memory_norm else "encoder.output"]
    if run.config.norm_position == "pre":
        return run.seen[f"{scope}.{sublayer}_norm"]
    return stream(run, scope, sublayer)


def is_norm(config: TransformerConfig, site: str) -> bool:
    return site.endswith("_norm") or (config.final_norm and site in ("encoder.output", "decoder.output"))


def norm_scope(site: str) -> str:
    """Where a norm's parameters are."""
    return site.replace(".output", ".final_norm") if site.count(".") == 1 else site


def apply_linear(run: Run, scope: str, x: Value) -> Value:
    return linear(parameters_of(run, scope), x)


def keys_of(run: Run, site: str) -> tuple[np.ndarray, bool]:
    """The tokens that an attention looks at, and whether it is causal."""
    scope, sublayer, _ = split(site)
    stack = scope.split(".")[0]
    if sublayer == "cross_attention" or (stack == "encoder" and run.config.has_decoder):
        return run.inputs["source"], False
    return run.inputs["target" if "target" in run.inputs else "tokens"], stack == "decoder"
