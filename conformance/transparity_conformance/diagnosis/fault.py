"""TODO."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.oracle.oracle import Arrays


@dataclass
class Run:
    """One forward pass as a fault sees it: what it runs on, and what has flowed so far."""

    config: TransformerConfig
    parameters: Arrays
    inputs: Arrays
    seen: Arrays = field(default_factory=dict)


Alter = Callable[[TransformerConfig, Arrays, str], Arrays]


Patch = Callable[[Run, str, Any], Any]


@dataclass(frozen=True)
class Fault:
    """A way to be wrong that can be put into the reference; what is None is left right."""

    id: str
    """As the catalogue calls it."""
    variant: str
    """Which of the ways to make it."""
    says: str
    """What the port seems to do, in words."""
    fields: Mapping[str, Any] | None = None
    """Fields of the configuration as the port takes them to be."""
    alter: Alter | None = None
    """Parameters as the port took them over, for one site."""
    patch: Patch | None = None
    """What the port has at a site instead of the right value."""
    beside: tuple[str, ...] = ()
    """Further taps of a site's sublayer that are patched with it."""
    onward: Patch | None = None
    """What the port goes on with behind a site, while the site itself is right."""
    value: float | None = None


@dataclass(frozen=True)
class Hypothesis:
    """A fault, and the taps at which it is made."""

    fault: Fault
    sites: tuple[str, ...] = ()

    @functools.cached_property
    def patched(self) -> frozenset[str]:
        """The taps at which something else stands than the right value."""
        if not self.fault.patch:
            return frozenset()
        scopes = (site.rpartition(".")[0] for site in self.sites)
        return frozenset([*self.sites, *(f"{scope}.{tap}" for scope in scopes for tap in self.fault.beside)])

    def __str__(self) -> str:
        return f"{self.fault.id} ({self.fault.variant}) at {', '.join(self.sites) or 'the whole model'}"
