"""Faults with the inputs beside the tokens: the attention mask and the token types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.embedding import right_ids, right_positions
from transparity_conformance.catalogue.fault import Fault, WalkState
from transparity_conformance.catalogue.masks import weighed
from transparity_conformance.catalogue.sites import Value
from transparity_conformance.oracle.masks import Call, Mask, MaskParts, given_mask, padding_at

OtherTypes = Callable[[np.ndarray, int], np.ndarray]
"""From the token types and the highest one to the wrong ones."""

TYPES: tuple[tuple[str, str, OtherTypes | None], ...] = (
    ("none", "token types are not embedded", None),
    ("all 0", "all tokens are of type 0, whatever the token_types", lambda types, most: 0 * types),
    ("all 1", "all tokens are of type 1, whatever the token_types", lambda types, most: 0 * types + min(1, most)),
    ("turned", "the token types are in the opposite order", lambda types, most: most - types),
)

EXCHANGED = "token_types"

MASKS: dict[str, tuple[str, Callable[[Call, str], Mask]]] = {
    "tokens": (
        "the padding token is masked, whatever the attention_mask",
        lambda state, site: padding_at(state, site, by_token=True),
    ),
    "none": ("the attention_mask is ignored", lambda state, site: np.ones_like(padding_at(state, site))),
    "inverted": ("the attention_mask is inverted: its ones are masked", lambda state, site: ~padding_at(state, site)),
    EXCHANGED: (
        "token_types and attention_mask are exchanged",
        lambda state, site: (state.inputs["token_types"] != 0)[:, None, None],
    ),
}
"""Masks (batch, 1, 1, keys) that may be used instead of the given one."""


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if site.endswith(".embedding") and config.num_token_types:
        for name, description, wrong in TYPES:
            yield Fault("token-types", name, description, patch=partial(_typed, wrong))
    if site.endswith((".embedding", ".weights")) and given_mask(config, site):
        yield from _mask_faults(config, is_embedding=site.endswith(".embedding"))


def _mask_faults(config: TransformerConfig, *, is_embedding: bool) -> Iterator[Fault]:
    """Faults in attention; they reach the embeddings if positions count visible tokens, or if inputs are exchanged."""
    counts = config.position_count == "visible"
    for name, (description, _) in MASKS.items():
        # A mask that is ignored or inverted in attention alone is a fault of `masks`.
        acts = {"tokens": config.pad_id is not None, EXCHANGED: config.num_token_types > 1}.get(name, counts)
        if acts and (counts or name == EXCHANGED or not is_embedding):
            patch, settings = partial(_embedded_otherwise, name), {"padding": partial(_other_mask, name)}
            yield Fault("attention-mask", name, description, patch=patch, formula=weighed, settings=settings)


def _other_mask(name: str, parts: MaskParts) -> Mask:
    return MASKS[name][1](parts.state, parts.site)


def _typed(wrong: OtherTypes | None, state: WalkState, site: str, value: Value) -> Value:
    table, types = state.parameters[f"{site.split('.')[0]}.token_type_embedding.weight"], state.inputs["token_types"]
    return value - table[types] + (0 if wrong is None else table[wrong(types, state.config.num_token_types - 1)])


def _embedded_otherwise(name: str, state: WalkState, site: str, value: Value) -> Value:
    """The embeddings with the positions and types that another mask gives."""
    if not site.endswith(".embedding"):
        return value
    mask = MASKS[name][1](state, site)
    if state.config.position_count == "visible":
        table = state.parameters[f"{site.split('.')[0]}.position_embedding.weight"]
        value = value - right_positions(state, site) + table[right_ids(state, site, mask[:, 0, 0])]
    if name == EXCHANGED:
        value = _typed(lambda _, most: state.inputs["attention_mask"], state, site, value)
    return value
