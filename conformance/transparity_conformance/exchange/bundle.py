"""A bundle: a check as a folder of files, for a port in any language and on any machine.

`manifest.json` describes the other files. A port reads `config.json`, the parameters and `inputs.safetensors`, and
writes its results to one file. Capabilities that need further inputs have separate files.
"""

import dataclasses
import functools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.presets import preset
from transparity.taps import in_every_layer
from transparity_conformance.capabilities.capability import Answers, Capability, ForwardPass, Probes, Requests, Shapes
from transparity_conformance.capabilities.table import CAPABILITIES
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.exchange.manifest import ProbeFields, SectionFields, StoredShapes
from transparity_conformance.oracle.budgets import RULES
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import LONGEST, Probe, probes_of
from transparity_conformance.running.inputs import add_mask, shapes_of


@dataclass(frozen=True, eq=False)
class Section:
    """The part of a bundle that requests one capability of a port."""

    row: Capability
    probe: Probe
    requests: Mapping[str, Requests]
    """{claim: requests} for each claim that is compared."""
    reasons: Mapping[str, str]
    """For each claim, the reason why it is not compared; empty if it is compared."""

    @property
    def all_requests(self) -> dict[str, Any]:
        return {key: request for requests in self.requests.values() for key, request in requests.items()}

    @property
    def purpose(self) -> str:
        """Describe the section, including claims that are not compared."""
        reasons = {reason: claim for claim, reason in self.reasons.items() if reason}
        if reasons and not self.all_requests:
            return "; ".join(reasons)
        return "; ".join([self.row.purpose, *(f"{claim}: {reason}" for reason, claim in reasons.items())])

    def tensors(self) -> Arrays:
        return {
            f"{key}/{name}": value
            for key, request in self.all_requests.items()
            for name, value in self.row.tensors(request, self.probe).items()
        }

    def asked(self) -> Shapes:
        asked: Shapes = {}
        for key, request in self.all_requests.items():
            asked |= self.row.shapes(key, request)
        return asked

    def described(self) -> SectionFields:
        return SectionFields(
            purpose=self.purpose,
            requests={key: self.row.describe(request) for key, request in self.all_requests.items()},
            inputs={name: list(value.shape) for name, value in self.tensors().items()},
            actual={name: list(shape) for name, shape in self.asked().items()},
        )


def in_order(sections: Collection[str]) -> tuple[str, ...]:
    for name in sections:
        if name not in CAPABILITIES:
            raise BundleError(f"A bundle has no section {name!r}; expected one of {', '.join(CAPABILITIES)}.")
    needed = {need for name in sections for need in CAPABILITIES[name].needs}
    return tuple(name for name in CAPABILITIES if name in sections or name in needed)


def section_of(name: str, probes: Probes, dtype: str) -> Section:
    row, forward = CAPABILITIES[name], ForwardPass(probes, {}, dtype)
    probe = forward.first
    of_all = row.reason(probe, dtype)
    if row.is_long and probe.config.max_length > LONGEST:
        of_all = of_all or f"calls up to a max_length of {probe.config.max_length} would take too long"
    ways = [way for way in row.ways if not way.is_optional]
    reasons = {way.claim: of_all or way.why_not(probe, dtype) for way in ways}
    requests = {way.claim: way.requests(forward) for way in ways if not reasons[way.claim]}
    return Section(row, probe, requests, reasons)


def check_section(path: Path, section: Section, described: SectionFields) -> None:
    """Raise `BundleError` if a section differs from the section that the checker computes. The `purpose` and the values
    of `free_fields` may differ."""
    if _comparable(section, described) != _comparable(section, section.described()):
        name = section.row.name
        raise BundleError(
            f"{path} is not valid: the section {name} does not fit the configuration and probes; export the bundle "
            "again."
        )


def _comparable(section: Section, described: SectionFields) -> str:
    free = section.row.free_fields
    requests = {
        key: fields | {name: type(fields[name]).__name__ for name in free if name in fields}
        for key, fields in described.requests.items()
    }
    return json.dumps([requests, described.inputs, described.actual], sort_keys=True)


def received(path: Path, section: Section, described: SectionFields, tensors: Answers) -> Section:
    """Return `section` with the requests that the bundle contains. Tensors with `parameters/` in their names may
    differ, because another machine may round them differently. Raise `BundleError` for other differences."""
    for name, value in section.tensors().items():
        if "parameters/" not in name and not np.array_equal(value, tensors[name]):
            raise BundleError(
                f"{path} is not valid: {name} does not fit the configuration and probes; export the bundle again."
            )

    def request_of(key: str, request: Any) -> Any:
        begins = f"{key}/"
        own = {name.removeprefix(begins): value for name, value in tensors.items() if name.startswith(begins)}
        return section.row.received(request, described.requests[key], own)

    requests = {
        claim: {key: request_of(key, request) for key, request in of_way.items()}
        for claim, of_way in section.requests.items()
    }
    return dataclasses.replace(section, requests=requests)


ACTUAL = "actual.safetensors"

SMALLEST_VOCABULARY = 3

WIDTH = 8
"""The feed-forward width of both configurations while `check_name` compares them."""


@dataclass(frozen=True, eq=False)
class Bundle:
    """One configuration and one set of parameters, with the probes that use them."""

    name: str
    """The name of a preset, `config` for another configuration, or the family of a checkpoint."""
    dtype: str
    config: TransformerConfig
    probes: dict[str, Probe]
    capabilities: Mapping[str, Section] = field(default_factory=dict)
    has_weights: bool = True
    """Whether the bundle contains the parameters. Otherwise, the bundle refers to the tensors of a checkpoint."""

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            f"{name}/{tap}": shape
            for name, probe in self.probes.items()
            for tap, shape in shapes_of(probe.config, probe.inputs).items()
        }

    @functools.cached_property
    def asked(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for section in self.capabilities.values() for name, shape in section.asked().items()}

    def inputs(self, probe: Probe) -> Arrays:
        return dict(probe.inputs) if self.has_weights else add_mask(probe.inputs, self.config)

    def described(self, probe: Probe) -> ProbeFields:
        inputs = {name: list(value.shape) for name, value in self.inputs(probe).items()}
        return ProbeFields(purpose=probe.purpose, inputs=inputs, taps=_collapsed(shapes_of(probe.config, probe.inputs)))


def bundle_probes(name: str, config: TransformerConfig) -> dict[str, Probe]:
    """Return the probes of `config` that use the same parameters as the probe `mixed`; leave out very long inputs."""
    vocabularies = [config.stack_vocab_size(config.input_stack(read)) for read in config.token_inputs]
    if min(vocabularies, default=SMALLEST_VOCABULARY) < SMALLEST_VOCABULARY:
        raise BundleError(
            f"A vocabulary is too small for a bundle; expected at least {SMALLEST_VOCABULARY} tokens, so that rows "
            "differ."
        )
    made = probes_of(config, name)
    ordinary = made["mixed"].parameters
    return {
        key: probe
        for key, probe in made.items()
        if probe.parameters is ordinary and (key != "longest" or config.max_length <= LONGEST)
    }


def _collapsed(shapes: Mapping[str, tuple[int, ...]]) -> StoredShapes:
    """Replace the numbers of layers by `{i}`, as in `decoder.layers.{i}.output`, if all layers have the same shape."""
    alike: dict[str, set[tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        alike.setdefault(in_every_layer(name), set()).add(shape)
    collapsed = {name: in_every_layer(name) for name in shapes}
    return {every if len(alike[every]) == 1 else name: list(shapes[name]) for name, every in collapsed.items()}


def check_name(name: str, config: TransformerConfig) -> None:
    if name != "config" and preset(name).resized(feed_forward_dim=WIDTH) != config.resized(feed_forward_dim=WIDTH):
        raise BundleError(
            f"The bundle is named {name!r}, but its configuration differs from the preset; use the name 'config'."
        )


def check_dtype(dtype: str) -> None:
    if dtype not in RULES:
        raise BundleError(f"The dtype is {shown(dtype)}; expected one of {', '.join(RULES)}.")
