"""The inputs and outputs of an exported graph: what each is for, and which sizes are fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transparity.errors import shown
from transparity_conformance.report.text import listed
from transparity_conformance.running.loading import LoadError

TOKENS, IMAGES, FRAMES = ("input_ids", "decoder_input_ids"), "pixel_values", "input_features"
READS = {IMAGES: "images", FRAMES: "frames of audio"}
"""What is in place of tokens, by the name of the input."""

OTHERS = ("attention_mask", "token_type_ids", "position_ids", "use_cache_branch")
"""The names that exporters give to inputs; a cache has `past…` going in and `present…` coming out."""

PAST, PRESENT = "past", "present"


@dataclass(frozen=True)
class Graph:
    """The signature of a graph."""

    path: Path
    inputs: dict[str, Any]
    """Each input by name, with its `shape` and `type`; tokens under a name of our own if there is one input alone."""
    renamed: dict[str, str]
    """The graph's own name of an input that it calls otherwise."""
    outputs: Sequence[str]

    @property
    def past(self) -> list[str]:
        """The inputs of the cache."""
        return [name for name in self.inputs if name.startswith(PAST)]

    @property
    def present(self) -> list[str]:
        """The outputs of the cache, in the order of the inputs that they become."""
        ends = {name.lstrip("_.").removeprefix(PRESENT): name for name in self.outputs if name.startswith(PRESENT)}
        found = [next((full for end, full in ends.items() if name.endswith(end)), None) for name in self.past]
        return list(filter(None, found))

    @property
    def reads(self) -> str:
        """What the first stack reads."""
        return next((what for name, what in READS.items() if name in self.inputs), "token ids")

    def fixed(self, axis: int) -> int | None:
        """The size of an axis of the tokens, or of the batch of images or audio, if the graph fixes it."""
        names = (*TOKENS, *READS) if axis == 0 else TOKENS
        sizes = [self.inputs[name].shape[axis] for name in names if name in self.inputs]
        return next((size for size in sizes if isinstance(size, int)), None)


def graph_of(path: Path, inputs: Sequence[Any], outputs: Sequence[Any]) -> Graph:
    """The signature, from what the runtime says of inputs and outputs; raises `LoadError` for one of no such model."""
    named = {each.name: each for each in inputs}
    axes = {name: len(each.shape or ()) for name, each in named.items()}
    if axes in ({IMAGES: 4}, {FRAMES: 3, TOKENS[1]: 2}):
        return Graph(path, named, {}, [each.name for each in outputs])
    known = {name for name in named if name in (*TOKENS, *OTHERS) or name.startswith(PAST)}
    unknown = [name for name in named if name not in known]
    renamed = {}
    if len(unknown) == 1 and "input_ids" not in named and "int" in named[unknown[0]].type:
        renamed = {"input_ids": unknown.pop()}
        named = {
            next((ours for ours, theirs in renamed.items() if theirs == name), name): named[name] for name in named
        }
    if unknown or "input_ids" not in named:
        raise LoadError(
            f"{path} takes {listed(list(map(shown, named)))}; expected token ids, by the name input_ids, and beside "
            f"them no others than {', '.join((TOKENS[1], *OTHERS))} and {PAST}…; or {IMAGES} of four axes alone; or "
            f"{FRAMES} of three axes beside {TOKENS[1]}: export it with these names."
        )
    shapes = [len(named[name].shape or ()) for name in TOKENS if name in named]
    if set(shapes) != {2}:
        raise LoadError(f"{path} takes token ids with {shapes[0]} axes; expected two, (batch, length).")
    return Graph(path, named, renamed, [each.name for each in outputs])
