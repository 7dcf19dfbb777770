"""The catalogue: every mistake that can be put into the reference, by the kind of tap at which it is made.

A mistake is data and up to three functions (`walk.Mistake`); a new one is a new entry in the file of its subject.
"""

from __future__ import annotations

from collections.abc import Iterator

from transparity.config import TransformerConfig
from transparity_conformance.mistakes import attention, embedding, masks, norms, structure, weights
from transparity_conformance.walk import Hypothesis, Mistake


def mistakes_at(config: TransformerConfig, site: str) -> Iterator[Mistake]:
    """Every mistake that can be made at the tap `site`, but for those that have a number to be fitted."""
    for subject in (embedding, weights, attention, masks, norms, structure):
        yield from subject.mistakes(config, site)


def whole_model(config: TransformerConfig) -> Iterator[Hypothesis]:
    """Mistakes that are made at no one place."""
    for mistake in structure.everywhere(config):
        yield Hypothesis(mistake)


def hypotheses(config: TransformerConfig, sites: list[str]) -> list[Hypothesis]:
    """Every mistake over every sensible set of `sites`: all alike, those that look at the same tokens, of one stack, of
    one part in both stacks, of one kind of sublayer, of one layer, of one sublayer, and each alone; the widest first,
    for code is shared and mistakes in it are, too."""
    found: dict[tuple[str, str], dict[str, Mistake]] = {}
    for site in sites:
        for mistake in mistakes_at(config, site):
            found.setdefault((mistake.id, mistake.variant), {})[site] = mistake
    result: list[Hypothesis] = []
    for places in found.values():
        mistake = next(iter(places.values()))
        sets = [tuple(places)]
        for scope in (_keys, _stack, _part, _kind, _layer, _sublayer, str):
            groups: dict[str, list[str]] = {}
            for site in places:
                groups.setdefault(scope(site), []).append(site)
            sets += [tuple(group) for group in groups.values()]
        result += [Hypothesis(mistake, chosen) for chosen in dict.fromkeys(sets)]
    return result


def _keys(site: str) -> str:
    """Whose padding its mask is made of: the encoder and cross-attention share theirs."""
    return "source" if site.startswith("encoder") or ".cross_attention." in site else "target"


def _part(site: str) -> str:
    """`feed_forward_norm` of every layer of either stack."""
    return "".join(site.split(".")[3:4])


def _stack(site: str) -> str:
    return site.split(".")[0]


def _layer(site: str) -> str:
    return ".".join(site.split(".")[:3])


def _kind(site: str) -> str:
    """`decoder.cross_attention` of `decoder.layers.1.cross_attention.key`: all layers of it share their code."""
    parts = site.split(".")
    return f"{parts[0]}.{parts[3]}" if len(parts) > 3 else parts[0]


def _sublayer(site: str) -> str:
    return ".".join(site.split(".")[:4])
