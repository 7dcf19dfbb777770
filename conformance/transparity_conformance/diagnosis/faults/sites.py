"""Where a tap stands in the model: what its part is called, and what goes into it."""

from __future__ import annotations

from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.fault import Run
from transparity_numpy.functional import linear
from transparity_numpy.masks import padding_mask
from transparity_numpy.positions import distances

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
    return _behind_layers(run, stack, int(index))


def _behind_layers(run: Run, stack: str, layers: int) -> Value:
    """What flows behind the first `layers` of a stack."""
    first = "embedding_norm" if run.config.embedding_norm else "embedding"
    return run.seen[f"{stack}.layers.{layers - 1}.output" if layers else f"{stack}.{first}"]


def stream(run: Run, scope: str, upto: str) -> Value:
    """The residual stream of a layer in front of the sublayer `upto`."""
    x = layer_input(run, scope)
    for name in sublayers(run.config, scope):
        if name == upto:
            break
        behind = run.config.norm_position == "post"
        x = run.seen[f"{scope}.{name}_norm"] if behind else x + run.seen[branch_end(run.config, f"{scope}.{name}")]
    return x


def branch_end(config: TransformerConfig, sublayer: str) -> str:
    """The tap behind which the residual is added to what the sublayer at `sublayer` gives."""
    return f"{sublayer}_post_norm" if config.norm_position == "both" else f"{sublayer}.output"


def sublayer_of(site: str) -> tuple[str, str]:
    """`decoder.layers.0` and `self_attention` of any tap of the sublayer, its norms' too."""
    scope, name, _ = split(site)
    return scope, name.removesuffix("_norm").removesuffix("_post")


def norm_input(run: Run, site: str) -> Value:
    """What goes into the norm whose result is tapped as `site` (a stack's output, if it has a final norm)."""
    config, parts = run.config, site.split(".")
    if parts[1] == "embedding_norm":
        return run.seen[f"{parts[0]}.embedding"]
    if len(parts) == 2:
        return _behind_layers(run, parts[0], config.stack_num_layers(parts[0]))
    if is_head_norm(site):
        return run.seen[site.removesuffix("_norm")]
    scope, name = ".".join(parts[:3]), parts[3].removesuffix("_norm")
    if name == "memory":
        return run.seen["encoder.output"]
    if name.endswith("_post"):
        return run.seen[f"{scope}.{name.removesuffix('_post')}.output"]
    x = stream(run, scope, name)
    return x + run.seen[f"{scope}.{name}.output"] if config.norm_position == "post" else x


def sublayer_input(run: Run, scope: str, sublayer: str, role: str = "query") -> Value:
    """What goes into a sublayer: for the keys and values of cross-attention, the memory."""
    if sublayer == "cross_attention" and role in ("key", "value"):
        return run.seen[f"{scope}.memory_norm" if run.config.memory_norm else "encoder.output"]
    if run.config.norm_position == "post":
        return stream(run, scope, sublayer)
    return run.seen[f"{scope}.{sublayer}_norm"]


def is_norm(config: TransformerConfig, site: str) -> bool:
    return site.endswith("_norm") or (config.final_norm and site in ("encoder.output", "decoder.output"))


def is_head_norm(site: str) -> bool:
    """Whether the norm is of each head's queries or keys."""
    return site.endswith(("attention.query_norm", "attention.key_norm"))


def norm_scope(site: str) -> str:
    """Where a norm's parameters are."""
    return site.replace(".output", ".final_norm") if site.count(".") == 1 else site


def apply_linear(run: Run, scope: str, x: Value) -> Value:
    return linear(parameters_of(run, scope), x)


def keys_name(config: TransformerConfig, site: str) -> str:
    """The input that an attention looks at, or that is embedded."""
    scope, sublayer, _ = split(site)
    stack = scope.split(".")[0]
    if sublayer == "cross_attention" or (stack == "encoder" and config.has_decoder):
        return "source"
    return config.input_names[-1]


def keys_of(run: Run, site: str) -> tuple[np.ndarray, bool]:
    """The tokens that an attention looks at, and whether it is causal."""
    scope, sublayer, _ = split(site)
    name = keys_name(run.config, site)
    return run.inputs[name], scope.startswith("decoder") and sublayer != "cross_attention"


def given_mask(config: TransformerConfig, site: str) -> bool:
    """Whether a mask that is given beside the tokens tells which of those at `site` are padding."""
    return config.padding == "attention-mask" and keys_name(config, site) != "target"


def padding_at(run: Run, site: str, *, by_token: bool = False) -> np.ndarray:
    """What is no padding (batch, 1, 1, keys) of the tokens at `site`; `by_token`, whatever mask is given."""
    given = run.inputs["attention_mask"] if given_mask(run.config, site) and not by_token else None
    return padding_mask(run.inputs[keys_name(run.config, site)], run.config.pad_id, given)


def distances_at(run: Run, site: str) -> np.ndarray:
    """How far (1, queries, keys) each key of a self-attention stands behind its query."""
    length = run.inputs[keys_name(run.config, site)].shape[1]
    return distances(np.arange(length)[None], length)


def token_table(config: TransformerConfig, stack: str) -> str:
    """The parameter that tokens of `stack` are embedded by."""
    return f"{'encoder' if config.shared_embedding else stack}.token_embedding.weight"


def met(run: Run, scope: str, role: str) -> Value:
    """The `query` or the `key` of the attention at `scope` as they meet: normalised and turned, where there is such."""
    names = [f"{scope}.{role}{step}" for step in ("_rotated", "_norm", "")]
    return run.seen[next(name for name in names if name in run.seen)]
