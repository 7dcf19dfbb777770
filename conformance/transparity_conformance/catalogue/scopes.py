"""The groups of taps that share code in a port, and so share its faults."""

from __future__ import annotations

from collections.abc import Iterable


def groups(sites: Iterable[str]) -> list[tuple[str, ...]]:
    """Every sensible set of `sites`, the widest first: all of them, those that look at the same tokens, those of one
    stack, of one part in both stacks, of one kind of sublayer, of one layer, of one sublayer, and each alone."""
    sites = tuple(sites)
    found = [sites] if sites else []
    for scope in (_keys, _stack, _part, _kind, _layer, _sublayer, str):
        members: dict[str, list[str]] = {}
        for site in sites:
            members.setdefault(scope(site), []).append(site)
        found += map(tuple, members.values())
    return list(dict.fromkeys(found))


def _keys(site: str) -> str:
    """The input whose padding is masked: the encoder and cross-attention share theirs."""
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
