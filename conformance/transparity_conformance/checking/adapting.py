"""The command `transparity adapt`: find the tensor that holds each parameter of the reference, and write an adapter."""

import re
from collections.abc import Mapping
from pathlib import Path

from transparity.config import TransformerConfig
from transparity.errors import UsageError
from transparity.text import listed, safe
from transparity_conformance.checking.systems import family_systems, systems
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.identify.adapting.adapt import Adapted, adapt_model
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.report.files import write_text
from transparity_conformance.report.formatting import count
from transparity_conformance.running.adapters.adapter import ASKED, written
from transparity_conformance.running.adapters.notation import ABSENT, letters_of
from transparity_conformance.running.process.isolation import isolated_build

AGREES, DIVERGES, INCONCLUSIVE = 0, 1, 3

WORDS = {
    "query": {"query", "queries", "q", "wq"},
    "key": {"key", "keys", "k", "wk"},
    "value": {"value", "values", "v", "wv"},
    "gate": {"gate"},
    "up": {"up"},
    "down": {"down"},
}
"""For each role of a parameter, the words by which the names of tensors denote this role."""


def adapt_port(
    port: str,
    preset: str | None,
    config: Path | None,
    family: str | None,
    out: Path | None,
    timeout: float | None,
    budget: float | None,
    progress: Progress,
) -> tuple[str, list[str], int]:
    """Run a port in a separate process, find its adapter, and write the adapter to `out`. Return the adapter's text,
    lines for the user, and an exit code. The exit code is 0 if the logits agree, 1 if they differ, and 3 if the adapter
    is incomplete."""
    name, chosen = _chosen(preset, config, family)
    build = isolated_build(port, timeout, "")
    try:
        given = probe_parameters(chosen)
        result = adapt_model(build.made(chosen, given), chosen, given, budget=budget, progress=progress)
    finally:
        build.process.stop()
    lines, code = summary(result)
    text = written(result.adapter, remarks(port, name, lines, chosen))
    if out is not None:
        write_text(out, text)
        lines = [f"{out}: {lines[0]}", *lines[1:]]
    return text, lines, code


def _chosen(preset: str | None, config: Path | None, family: str | None) -> tuple[str, TransformerConfig]:
    if sum(each is not None for each in (preset, config, family)) != 1:
        raise UsageError("adapt needs the model's configuration; give exactly one of --preset, --config and --family.")
    given = [] if preset is None else [preset]
    system = next(family_systems([family]) if family is not None else systems(given, config))
    option = f"--config {config}" if config is not None else f"--{'family' if family else 'preset'} {system.name}"
    return option, system.config


def remarks(port: str, option: str, known: list[str], config: TransformerConfig) -> list[str]:
    letters = ", ".join(f"{letter} {field}" for letter, field in letters_of(config).items())
    return [
        f"The tensors of {safe(port)}, written by `transparity adapt {safe(port)} {safe(option)}`.",
        *known,
        "",
        "Left: a parameter of the reference; right: a tensor of the port. .T, .view(…) and […] are as in PyTorch.",
        "{i} is the number of the layer, from 0.",
        f"Sizes: {letters}. Correct wrong lines; run `transparity check {safe(port)} {safe(option)} --adapter FILE`.",
    ]


def summary(result: Adapted) -> tuple[list[str], int]:
    adapter, found = result.adapter, result.found
    absent = [name for name, line in adapter.lines.items() if line == ABSENT]
    asked = [name for name, line in adapter.lines.items() if line == ASKED]
    settled = len(found.lines) - sum(line == ABSENT for line in found.lines.values())
    written_for = count(len(adapter.lines) - len(absent) - len(asked), "line")
    lines = [f"{count(settled, 'parameter')} found, written as {written_for} in the adapter"]
    if adapter.zero:
        lines.append(f"set to 0 in the port, because this configuration has no such biases: {listed(adapter.zero)}")
    if adapter.unused:
        lines.append(f"tensors left unchanged, because they correspond to no parameter: {listed(adapter.unused)}")
    lines += contradicting(adapter.lines)
    if found.faults:
        seen = dict.fromkeys(each.fault.description for each in found.faults)
        lines.append(f"some tensors fit only if the port has these faults, which `check` reports: {listed(seen)}")
    if absent:
        lines.append(
            f"the port has no tensor for {listed(absent)}; name each tensor, or choose a configuration that needs none"
        )
    if asked:
        why = (
            f"no known formula reproduces {found.lost_at}"
            if found.lost_at
            else "no activation depends on the parameters"
        )
        lines.append(f"undetermined: {listed(asked)} ({why})")
    if result.misplaced:
        lines += [each.says for each in result.misplaced]
        return lines, DIVERGES
    if result.is_proved:
        return [*lines, "proved: with this adapter, the logits are within their budget on every probe"], AGREES
    if result.wrong is not None:
        return [*lines, f"each line fits the activations, but the logits differ ({result.wrong})"], DIVERGES
    return lines, INCONCLUSIVE


def contradicting(lines: Mapping[str, str]) -> list[str]:
    """Return a sentence for each tensor whose name suggests another role than its values, such as a tensor `wk` with
    the query's weight."""
    found = []
    for ours, line in lines.items():
        role, said = ours.split(".")[-2], called(line)
        if role in WORDS and len(said) == 1 and said != {role} and {role, *said} <= set(WORDS):
            one = min(said)
            found.append(f"{ours} is {line}, a name that suggests {one}: loading tensors by name gives wrong weights")
    return found


def called(line: str) -> set[str]:
    words = set(re.split(r"[^a-z]+", line.partition(".view(")[0].partition("[")[0].lower()))
    return {role for role, names in WORDS.items() if words & names}
