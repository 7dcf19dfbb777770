"""A bundle: a check as a folder of files, for a port in any language and on any machine.

`manifest.json` describes the other files. A port reads `config.json`, the parameters and `inputs.safetensors`, and
writes its results to one file. A capability that needs further inputs has its own file.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.presets import preset
from transparity.taps import tap_shapes
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.exchange.manifest import ProbeFields, StoredShapes
from transparity_conformance.exchange.sections import Section
from transparity_conformance.oracle.budgets import RULES
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import LONGEST, Probe, probes_of
from transparity_conformance.running.inputs import add_mask

ACTUAL = "actual.safetensors"

SMALLEST_VOCABULARY = 3

WIDTH = 8
"""A common feed-forward width; configurations are resized to it before they are compared."""

LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True, eq=False)
class Bundle:
    """One configuration, one set of parameters, and the probes that use both."""

    name: str
    """The name of a preset, `config` for any other configuration, or the family of a checkpoint."""
    dtype: str
    config: TransformerConfig
    probes: dict[str, Probe]
    capabilities: Mapping[str, Section] = field(default_factory=dict)
    """The section of each capability."""
    has_weights: bool = True
    """Whether the bundle contains the parameters; if not, it refers to the tensors of a checkpoint."""

    @property
    def sections(self) -> tuple[str, ...]:
        """Return the names of the capabilities that have a section in the bundle."""
        return tuple(self.capabilities)

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every activation, with `{probe}/{tap}` as its name."""
        return {
            f"{name}/{tap}": shape for name, probe in self.probes.items() for tap, shape in _tap_shapes(probe).items()
        }

    @functools.cached_property
    def asked(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor that a port may write for a capability."""
        return {name: shape for section in self.capabilities.values() for name, shape in section.asked().items()}

    def inputs(self, probe: Probe) -> Arrays:
        """Return the inputs of a probe as they are stored; for a checkpoint, a mask is added as a tokenizer does."""
        return dict(probe.inputs) if self.has_weights else add_mask(probe.inputs, self.config)

    def described(self, probe: Probe) -> ProbeFields:
        """Return the manifest entry of a probe, without tolerances."""
        inputs = {name: list(value.shape) for name, value in self.inputs(probe).items()}
        return ProbeFields(purpose=probe.purpose, inputs=inputs, taps=_collapsed(_tap_shapes(probe)))


def bundle_probes(name: str, config: TransformerConfig) -> dict[str, Probe]:
    """Return the probes that use the ordinary parameters of `config`."""
    vocabularies = [config.stack_vocab_size(config.input_stack(read)) for read in config.token_inputs]
    if min(vocabularies, default=SMALLEST_VOCABULARY) < SMALLEST_VOCABULARY:
        raise BundleError(f"A bundle needs vocabularies of at least {SMALLEST_VOCABULARY} tokens, so that rows differ.")
    made = probes_of(config, name)
    ordinary = made["mixed"].parameters
    return {
        key: probe
        for key, probe in made.items()
        if probe.parameters is ordinary and (key != "longest" or config.max_length <= LONGEST)
    }


def _tap_shapes(probe: Probe) -> dict[str, tuple[int, ...]]:
    config, first = probe.config, probe.inputs[probe.config.input_names[0]]
    lengths = {name: config.positions_of(name) or probe.inputs[name].shape[1] for name in config.input_names}
    return tap_shapes(config, len(first), **lengths)


def _collapsed(shapes: Mapping[str, tuple[int, ...]]) -> StoredShapes:
    """Return the shapes with one name for all layers: `decoder.layers.{i}.output`, where `i` starts at 0.

    Raises `AssertionError` if the shapes of layers differ, which no configuration allows.
    """
    found: StoredShapes = {}
    for name, shape in shapes.items():
        pattern = LAYER.sub(r"\1.layers.{i}.\3", name)
        assert found.setdefault(pattern, list(shape)) == list(shape), name
    return found


def check_name(name: str, config: TransformerConfig) -> None:
    """Raise `BundleError` if the configuration differs from the preset `name` in more than its sizes."""
    if name != "config" and preset(name).resized(feed_forward_dim=WIDTH) != config.resized(feed_forward_dim=WIDTH):
        raise BundleError(
            f"The bundle is named {name!r}, but its configuration differs from this preset; use the name 'config'."
        )


def check_dtype(dtype: str) -> None:
    if dtype not in RULES:
        raise BundleError(f"The dtype is {shown(dtype)}; expected one of {', '.join(RULES)}.")
