"""The kinds of inputs, and how many there are of each among 20,000."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from meta.fuzz.columns import column_build, column_call, model
from meta.fuzz.command_line import command_line
from meta.fuzz.documents import (
    configuration_object,
    configuration_text,
    parameters_file,
    parameters_named,
    parameters_object,
)
from meta.fuzz.folders import (
    bundle_file,
    bundle_manifest,
    bundle_outputs,
    checkpoint_fields,
    checkpoint_tensors,
)
from meta.fuzz.outcome import Outcome, outcome
from meta.fuzz.ports import port_call, port_check, port_file, program
from transparity_conformance.oracle.backends import installed

KINDS: dict[Callable[[Random, Path], str], int] = {
    configuration_text: 3000,
    configuration_object: 2000,
    parameters_file: 1500,
    parameters_named: 1000,
    parameters_object: 1500,
    bundle_file: 1200,
    bundle_manifest: 1200,
    bundle_outputs: 1600,
    checkpoint_fields: 1800,
    checkpoint_tensors: 1200,
    port_call: 1500,
    port_check: 140,
    port_file: 500,
    program: 400,
    column_build: 600,
    column_call: 700,
    command_line: 160,
}
"""Those that start a process or look for causes are few."""

TOTAL = sum(KINDS.values())


def share(count: int, inputs: int) -> int:
    """Return the inputs of a kind among `inputs`, rounded up: each kind has at least one."""
    return -(-inputs * count // TOTAL)


def campaign(inputs: int, seed: int = 0, only: str = "") -> Iterator[Outcome]:
    """Run `inputs` inputs, of each kind its share, or of the kind `only` alone."""
    for name in installed():
        model(name)  # importing a framework is not a part of an input
    for kind, count in KINDS.items():
        if only in ("", kind.__name__):
            for index in range(share(count, inputs)):
                yield one_input(kind, index, seed)


def one_input(kind: Callable[[Random, Path], str], index: int, seed: int = 0) -> Outcome:
    """Run one input in a folder of its own; the same numbers give the same input."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        return outcome(kind.__name__, index, lambda random: kind(random, Path(folder)), seed)
