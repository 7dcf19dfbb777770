"""A probe of a large model without the activations that nobody compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from transparity_conformance.oracle.probes import Probe


def lean(probe: Probe, shown: Collection[str], progress: Callable[[str, int, int], None]) -> Probe:
    """The probe; of a large model, one that keeps what its port shows alone, and tells each layer that it computes."""
    if not probe.is_large:
        return probe
    lean, config = dataclasses.replace(probe, kept=frozenset(shown)), probe.config
    outputs = [
        f"{stack}.layers.{layer}.output" for stack in config.stacks for layer in range(config.stack_num_layers(stack))
    ]
    numbers = {name: number for number, name in enumerate(outputs)}

    def watch(name: str) -> None:
        if name in numbers:
            progress("computing the reference", numbers[name], len(numbers))

    lean.oracle.watch = watch
    return lean
