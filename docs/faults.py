"""Write docs/faults.md, every fault of the catalogue with an example, and docs/causes/, a page for each cause.

`python docs/faults.py` writes them; tests/project/test_pages.py holds them to the catalogue.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from transparity.taps import tap_shapes
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.table import FAULTS
from transparity_conformance.catalogue import faults_at, whole_model
from transparity_conformance.catalogue.fault import Fault
from transparity_conformance.oracle.cases import MODELS
from transparity_conformance.report.describing.causes import Meaning, meanings

PAGE = Path(__file__).with_name("faults.md")
CAUSES = Path(__file__).with_name("causes")

RANKS = 2
"""Faults of sharding are listed as two ranks make them."""

INTRODUCTION = """# Faults

The checker knows these faults by name. Each can be put into the reference, at one place, in one stack or everywhere.
Most have several variants (`mask-value`: −1e9, −1e4, 0, added instead of replaced …); numbers in them are fitted. A
port with any other fault still diverges, at the right place; only its cause has no name. Each name leads to a page:
what is right, where to look, when it does not show; `transparity explain NAME` prints the same.

`python docs/faults.py` writes this page. To add a fault, see [CONTRIBUTING.md](../CONTRIBUTING.md).
"""


def of_the_forward_pass() -> Iterator[tuple[str, Fault]]:
    """Yield every tap of every kind of model with each of its faults; an empty name has the faults of the whole."""
    for config in MODELS.values():
        for site in tap_shapes(config, 1, **dict.fromkeys(config.input_names, 3)):
            yield from ((site, fault) for fault in faults_at(config, site, ranks=RANKS))
        yield from (("", hypothesis.fault) for hypothesis in whole_model(config))


def catalogue() -> dict[str, dict[str, str]]:
    """Return the sections of the page; in each, an example of every fault by its id."""
    sections = {name.capitalize(): _examples(faults) for name, faults in FAULTS.items()}
    return {"The forward pass": _examples(fault for _, fault in of_the_forward_pass()), **sections}


def _examples(faults: Iterable[Fault | SimulatedFault]) -> dict[str, str]:
    """Return the first sentence of each id."""
    examples: dict[str, str] = {}
    for fault in faults:
        sentence = fault.description if isinstance(fault, Fault) else fault.says
        examples.setdefault(fault.id, sentence)
    return examples


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for title, examples in catalogue().items():
        rows = "\n".join(f"| [`{name}`](causes/{name}.md) | {examples[name]} |" for name in sorted(examples))
        parts.append(f"## {title}\n\n| fault | for example |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


def sentences() -> dict[str, list[str]]:
    """Return a sentence for each variant of a cause, by its id."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for _, fault in of_the_forward_pass():
        found[fault.id].setdefault(fault.variant, fault.description)
    for simulated in itertools.chain.from_iterable(FAULTS.values()):
        found[simulated.id][simulated.says] = simulated.says
    return {name: list(texts.values()) for name, texts in found.items()}


def places() -> dict[str, set[str]]:
    """Return the taps of the forward pass at which a cause may be, without their layers, by its id."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for site, fault in of_the_forward_pass():
        if site:
            found[fault.id].add(".".join(part for part in site.split(".")[-2:] if not part.isdigit()))
    return found


def cause_page(name: str, meaning: Meaning, says: list[str], taps: set[str]) -> str:
    """Return the page of one cause."""
    parts = [f"# `{name}`", f"**Right:** {meaning.right}", f"**Where to look:** {meaning.look}"]
    if meaning.hidden:
        parts.append(f"**It does not show with:** {meaning.hidden}.")
    if taps:
        parts.append("**At:** " + ", ".join(f"`{tap}`" for tap in sorted(taps)))
    if says:
        parts.append("**What a report says**, for example:\n\n" + "\n".join(f"- {text}" for text in says))
    if meaning.seen:
        threads = zip(meaning.seen, meaning.links(), strict=True)
        parts.append("**Seen in real ports:** " + ", ".join(f"[{seen}]({link})" for seen, link in threads))
    parts.append("[All faults](../faults.md)")
    return "\n\n".join(parts) + "\n"


def cause_pages() -> dict[str, str]:
    """Return the page of every cause, by its id."""
    says, taps = sentences(), places()
    return {
        name: cause_page(name, each, says.get(name, []), taps.get(name, set())) for name, each in meanings().items()
    }


def write() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    pages = cause_pages()
    CAUSES.mkdir(exist_ok=True)
    for old in CAUSES.glob("*.md"):
        if old.stem not in pages:
            old.unlink()
    for name, text in pages.items():
        (CAUSES / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
