"""Names that contradict: a tensor that is computed with as a query, and is called a key, may be loaded as one."""

from __future__ import annotations

import re
from collections.abc import Mapping

WORDS = {
    "query": {"query", "queries", "q", "wq"},
    "key": {"key", "keys", "k", "wk"},
    "value": {"value", "values", "v", "wv"},
    "gate": {"gate"},
    "up": {"up"},
    "down": {"down"},
}
"""The words by which tensors are called, by the role of our parameter."""


def contradicting(lines: Mapping[str, str]) -> list[str]:
    """A sentence for each line whose tensor is called by the name of another role, and of that alone."""
    found = []
    for ours, line in lines.items():
        role, said = ours.split(".")[-2], called(line)
        if role in WORDS and len(said) == 1 and said != {role} and {role, *said} <= set(WORDS):
            one = min(said)
            found.append(
                f"{ours} is {line}, which is called {one}: if weights are loaded by their names, they are wrong"
            )
    return found


def called(line: str) -> set[str]:
    """The roles that the name of a tensor names."""
    words = set(re.split(r"[^a-z]+", line.partition(".view(")[0].partition("[")[0].lower()))
    return {role for role, names in WORDS.items() if words & names}
