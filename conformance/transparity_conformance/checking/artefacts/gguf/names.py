"""The names and shapes of a file's tensors beside those of the checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from transparity.errors import shown
from transparity_conformance.checking.artefacts.gguf.reading import GgufFile
from transparity_conformance.checking.artefacts.gguf.tensors import Checkpoint, hold
from transparity_conformance.report.report import Cause, Divergence
from transparity_conformance.report.text import listed

OUTPUT, EMBEDDING = "output.weight", "token_embd.weight"
COMPUTED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors of files that no checkpoint has."""


def name_faults(file: GgufFile, hub: Checkpoint) -> Iterator[Divergence]:
    """Tensors that are missing, of another shape, or of no use."""
    for name, theirs in hub.names.items():
        expected = hub.expected(name).shape
        if theirs not in file.tensors:
            also = ": llama.cpp then takes the embeddings for it" if theirs == OUTPUT else ""
            yield known_fault(theirs, "gguf-tensor-missing", f"it is missing{also}; the checkpoint has {name}")
        elif file.tensors[theirs].shape != expected:
            found = shown(file.tensors[theirs].shape)
            yield known_fault(theirs, "gguf-shape", f"its shape is {found}; by the checkpoint expected {expected}")
    others = [name for name in file.tensors if name not in {*hub.names.values(), *COMPUTED, OUTPUT}]
    if others:
        yield known_fault(others[0], "gguf-tensor-unknown", f"the checkpoint has nothing of the name {listed(others)}")


def head_faults(file: GgufFile, hub: Checkpoint) -> Iterator[Divergence]:
    """The head in the file of a model whose head is its embeddings: it has to be the same numbers."""
    if not hub.config.tied_head or OUTPUT not in file.tensors:
        return
    embedding = next(name for name, theirs in hub.names.items() if theirs == EMBEDDING)
    if file.tensors[OUTPUT].shape != hub.tensors[embedding].shape:
        yield known_fault(OUTPUT, "gguf-shape", "its shape is not that of the embeddings, which are the head")
        return
    says = "it is not the embeddings, which are the head of the checkpoint"
    for fault in hold(dataclasses.replace(hub, names={embedding: OUTPUT}), file.tensors, [embedding]).faults:
        yield dataclasses.replace(fault, causes=(Cause("head-tied", says, None, 0.0, 1.0),))


def known_fault(where: str, mistake: str, says: str) -> Divergence:
    """A fault that is a fact, and no difference of numbers."""
    return Divergence(where, float("inf"), 0.0, (Cause(mistake, says, None, 0.0, 1.0),))
