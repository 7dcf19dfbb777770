"""Faults with what is given beside the tokens: a mask that tells padding, and the types of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.fault import Fault, WalkState
from transparity_conformance.diagnosis.faults.embedding import right_ids, right_positions
from transparity_conformance.diagnosis.faults.masks import Mask, parts_at, shown_of, weighed
from transparity_conformance.diagnosis.faults.sites import Value, given_mask, padding_at


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if site.endswith(".embedding") and config.num_token_types:
        yield from _type_faults(config)
    if site.endswith((".embedding", ".weights")) and given_mask(config, site):
        yield from _mask_faults(config, site)


OtherTypes = Callable[[np.ndarray], np.ndarray]


def _type_faults(config: TransformerConfig) -> Iterator[Fault]:
    most = config.num_token_types - 1
    wrongs: tuple[tuple[str, str, OtherTypes | None], ...] = (
        ("none", "token types are not embedded", None),
        ("all 0", "all tokens are of type 0, whatever token_types says", lambda types: 0 * types),
        ("all 1", "all tokens are of type 1, whatever token_types says", lambda types: 0 * types + min(1, most)),
        ("turned", "the token types are in the opposite order", lambda types: most - types),
    )
    for name, says, wrong in wrongs:
        yield Fault("token-types", name, says, patch=partial(_typed, wrong))


def _typed(wrong: OtherTypes | None, state: WalkState, site: str, value: Value) -> Value:
    table = state.parameters[f"{site.split('.')[0]}.token_type_embedding.weight"]
    types = state.inputs["token_types"]
    return value - table[types] + (0 if wrong is None else table[wrong(types)])


EXCHANGED = "token_types"

OTHER_MASKS: dict[str, tuple[Callable[[WalkState, str], Mask], str]] = {
    "tokens": (
        lambda state, site: padding_at(state, site, by_token=True),
        "the padding token is hidden, whatever the attention_mask hides",
    ),
    "none": (lambda state, site: np.ones_like(padding_at(state, site)), "the attention_mask is ignored"),
    "inverted": (
        lambda state, site: ~padding_at(state, site),
        "the attention_mask is taken for one that says what is hidden",
    ),
    EXCHANGED: (
        lambda state, site: (state.inputs["token_types"] != 0)[:, None, None],
        "token_types and attention_mask are exchanged",
    ),
}
"""What is taken for the mask that is given: (batch, 1, 1, keys), and in words."""


def _mask_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    """As attention makes them; they reach to the embeddings, where positions count what the mask shows, or it is taken
    for the types of tokens."""
    counts, is_embedding = config.position_count == "visible", site.endswith(".embedding")
    for name, (_, says) in OTHER_MASKS.items():
        # What is ignored or inverted in attention alone has a name there.
        acts = {"tokens": config.pad_id is not None, EXCHANGED: config.num_token_types > 1}.get(name, counts)
        if acts and (counts or name == EXCHANGED or not is_embedding):
            yield Fault("attention-mask", name, says, patch=partial(_masked_otherwise, name))


def _masked_otherwise(name: str, state: WalkState, site: str, value: Value) -> Value:
    mask = OTHER_MASKS[name][0]
    if site.endswith(".weights"):
        return weighed(
            lambda state, site: shown_of(state, site, mask(state, site), parts_at(state, site)[1]), state, site, value
        )
    if state.config.position_count == "visible":
        table = state.parameters[f"{site.split('.')[0]}.position_embedding.weight"]
        value = value - right_positions(state, site) + table[right_ids(state, site, mask(state, site)[:, 0, 0])]
    if name == EXCHANGED:
        value = _typed(lambda _: state.inputs["attention_mask"], state, site, value)
    return value
