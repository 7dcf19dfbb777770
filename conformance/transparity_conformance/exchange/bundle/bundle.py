"""Bundles: a check as a folder of files, for a port in any language.

`manifest.json` describes the others; a port reads `config.json`, `parameters.safetensors` and `inputs.safetensors`, and
`expected.safetensors` has the right answers. Sections for capabilities have files of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.presets import preset
from transparity.taps import lengths_of, tap_shapes
from transparity_conformance.capabilities.capability import ForwardPass
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.diagnosis.judge import Located, Progress, judge, untold
from transparity_conformance.diagnosis.reach.coverage import covered
from transparity_conformance.diagnosis.search.clock import BUDGET, Clock
from transparity_conformance.exchange.bundle.judge import judge_sections
from transparity_conformance.exchange.bundle.sections import LONGEST, Section
from transparity_conformance.oracle.budgets import RULES
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.report.capability_result import with_capabilities
from transparity_conformance.report.report import Report

ACTUAL = "actual.safetensors"

SMALLEST_VOCABULARY = 3

SIZES = (
    "source_vocab_size",
    "target_vocab_size",
    "max_length",
    "embed_dim",
    "num_heads",
    "num_key_value_heads",
    "attention_head_dim",
    "num_encoder_layers",
    "num_decoder_layers",
    "feed_forward_dim",
    "sliding_window",
    "query_temperature_length",
    "layer_types",
    "layer_overrides",
    "rotary_dim",
    "rotary_original_length",
    "rotary_short_factors",
    "rotary_long_factors",
    "relative_buckets",
    "relative_max_distance",
)
"""Fields in which two sizes of one system may differ."""

Outputs = dict[str, dict[str, np.ndarray]]
"""The tensors that a port wrote: by probe or request, by tap or by the rest of the name."""


@dataclass(frozen=True, eq=False)
class Bundle:
    """One configuration, one set of parameters, and probes that share them."""

    name: str
    """The preset's, or `config`."""
    dtype: str
    config: TransformerConfig
    probes: dict[str, Probe]
    capabilities: Mapping[str, Section] = field(default_factory=dict)
    """The sections, by name."""

    @property
    def sections(self) -> tuple[str, ...]:
        """The capabilities for which a port may write tensors beside its taps."""
        return tuple(self.capabilities)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every `{probe}/{tap}` with its shape."""
        return {
            f"{name}/{tap}": shape
            for name, probe in self.probes.items()
            for tap, shape in _tap_shapes(self.config, probe.inputs).items()
        }

    @functools.cached_property
    def asked(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the sections with its shape."""
        return {name: shape for section in self.capabilities.values() for name, shape in section.asked().items()}


def bundle_probes(name: str, config: TransformerConfig) -> dict[str, Probe]:
    """The probes of `config` that share its ordinary parameters."""
    vocabularies = [config.stack_vocab_size(config.input_stack(read)) for read in config.token_inputs]
    if min(vocabularies, default=SMALLEST_VOCABULARY) < SMALLEST_VOCABULARY:
        raise BundleError(f"A bundle needs vocabularies of at least {SMALLEST_VOCABULARY} tokens, for rows to differ.")
    made = probes_of(config, name)
    ordinary = made["mixed"].parameters
    return {
        key: probe
        for key, probe in made.items()
        if probe.parameters is ordinary and (key != "longest" or config.max_length <= LONGEST)
    }


def judge_bundle(
    bundle: Bundle,
    outputs: Outputs,
    *,
    logits_only: bool = False,
    progress: Progress | None = None,
    stopped: bool = False,
    budget: float = BUDGET,
    port: str = "",
    located: Located = untold,
    ranks: int = 1,
) -> Report:
    """Judge what a port wrote for a bundle; a tensor that is missing is no fault of one that was `stopped`."""
    flat = {f"{group}/{name}": value for group, tensors in outputs.items() for name, value in tensors.items()}
    taps = {
        probe: {tap: value for tap, value in outputs[probe].items() if f"{probe}/{tap}" not in bundle.asked}
        for probe in outputs
        if probe in bundle.probes
    }
    with np.errstate(all="ignore"):  # a stranger may have written numbers of any size
        report = judge(
            bundle.name,
            bundle.probes,
            taps,
            port=port,
            dtype=bundle.dtype,
            logits_only=logits_only,
            progress=progress,
            clock=Clock(budget, progress),
            located=located,
            ranks=ranks,
        )
        report = covered(report, bundle.config, [bundle.probes[probe] for probe in taps])
        logits = {probe: tensors["logits"] for probe, tensors in taps.items() if "logits" in tensors}
        forward = ForwardPass(bundle.probes, logits, bundle.dtype)
        answers = {name: flat[name] for name in bundle.asked if name in flat}
        found = judge_sections(bundle.capabilities.values(), answers, forward, report.verdict, stopped=stopped)
    return with_capabilities(report, found)


def _tap_shapes(config: TransformerConfig, inputs: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    read = {name: inputs[name] for name in config.input_names}
    return tap_shapes(config, len(read[config.input_names[0]]), **lengths_of(config, read))


def check_name(name: str, config: TransformerConfig) -> None:
    """Refuse the name of a preset for another system; its size does not matter."""
    if name == "config":
        return
    sizes = {field: getattr(config, field) for field in SIZES}
    if preset(name).architecture != config.architecture or preset(name).resized(**sizes) != config:
        raise BundleError(f"The bundle is said to be of {name!r}, but its configuration is of another system.")


def check_dtype(dtype: str) -> None:
    if dtype not in RULES:
        raise BundleError(f"The dtype is {shown(dtype)}; it should be one of {', '.join(RULES)}.")
