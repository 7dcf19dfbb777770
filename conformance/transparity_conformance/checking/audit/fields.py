"""The audit of a configuration: if a field changes, the port's result must change like the reference's result."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, shown
from transparity.parameters import parameter_shapes
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.checking.audit.variants import Changed, Variant, variants_of
from transparity_conformance.checking.calls import answer_or_error
from transparity_conformance.checkpoints.exporting import Edit
from transparity_conformance.checkpoints.importing import InFolder
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.diagnosis.thresholds import LUCK, REMEASURED_WITHIN
from transparity_conformance.oracle.budgets import NEIGHBOURS_OF_HOT
from transparity_conformance.oracle.oracle import Arrays, budget_of
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.oracle.reach.features import logits_with
from transparity_conformance.oracle.reach.models import LogitsOracle
from transparity_conformance.report.audit import AuditedField
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.running.hub import HubBuild, seeded
from transparity_conformance.running.process.isolation import IsolatedBuild
from transparity_conformance.running.process.running import Port, built, in_precision, run

LENGTHS = (21, 18)
"""The numbers of source and target tokens; in most variants, both numbers exceed the thresholds of the model."""

ROWS = [0, 1, 3]
"""The rows of `mixed_inputs` in which every query sees a token: without padding, padded on the right, padded inside."""


@dataclass(frozen=True, eq=False)
class AuditProbe(Probe):
    """A call of the audit, which compares only the logits."""

    dtype: str = dataclasses.field(kw_only=True)
    """The precision of the port."""

    @functools.cached_property
    def oracle(self) -> LogitsOracle:
        return LogitsOracle(self.config, self.parameters, self.inputs)

    def error(self, logits: np.ndarray) -> float:
        return gap(logits, self.oracle.expected["logits"])

    @property
    def allowed(self) -> float:
        """Return the largest difference that rounding may cause, given all measurements of rounding so far."""
        noise = max(self.oracle.noise(self.dtype)["logits"], self.oracle.known_again(self.dtype))
        return budget_of(noise, self.oracle.scale("logits"), self.dtype)

    def is_off(self, logits: np.ndarray) -> bool:
        """Return whether the error exceeds rounding. If the error is slightly too large, measure rounding again: first
        with sequential sums, then with further perturbed copies of the weights."""
        error = self.error(logits)
        if 1 < share(error, self.allowed) < REMEASURED_WITHIN[self.dtype]:
            self.oracle.measure_again(self.dtype)
        if 1 < share(error, self.allowed) < LUCK:
            self.oracle.measure_again(self.dtype, NEIGHBOURS_OF_HOT)
        return share(error, self.allowed) > 1

    def left(self, logits: np.ndarray, config: TransformerConfig, parameters: Arrays) -> float | None:
        """Return the largest difference from the reference's logits with `config` and `parameters`. Return None if the
        difference exceeds rounding, or if the parameters do not fit the configuration."""
        expected = logits_of(config, parameters, self.inputs)
        left = np.inf if expected is None else gap(logits, expected)
        return left if share(left, self.allowed) <= 1 else None


def logits_of(config: TransformerConfig, parameters: Arrays, inputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
    shapes = parameter_shapes(config)
    if any(name not in parameters or parameters[name].shape != shapes[name] for name in shapes):
        return None
    return logits_with(config, parameters, inputs)


def probe_of(config: TransformerConfig, dtype: str, *, tiny: bool = False) -> AuditProbe:
    """Return a call of a model with random weights. With `tiny`, activations are so small that eps matters."""
    source, target = (min(length, config.max_length) for length in LENGTHS)
    inputs = {name: value[ROWS] for name, value in mixed_inputs(config, 3, source, target).items()}
    parameters = probe_parameters(config, 12, 1e-3) if tiny else probe_parameters(config, 11)
    purpose = "the effect of each field and tensor"
    return AuditProbe("audit", "audit", purpose, config, parameters, inputs, dtype=dtype)


@dataclass(frozen=True)
class Audited:
    """A port that can be built from a changed configuration or from changed parameters."""

    edited: Callable[[Edit], Port]
    model_type: str | None
    """The family whose folders a loader reads; None for a `build`."""
    files: tuple[str, str]
    """The names under which reports show the configuration and the parameters, such as `config.json`."""
    reported: Callable[[str, Sequence[str]], Sequence[str]] = lambda folder, names: ()
    """A function that loads a copy of a folder without the tensors `names`, and returns the names that the loader
    reports."""

    def logits(self, edit: Edit, probe: AuditProbe, folder: Path | None = None) -> np.ndarray | PortError:
        """Return the logits or the error of the port after an edit of its files; a loader reads a copy of `folder`."""
        parameters = probe.parameters if folder is None else InFolder(probe.parameters, folder, is_ours=True)
        given = dataclasses.replace(probe, parameters=parameters)

        def call() -> np.ndarray:
            return run(built(in_precision(self.edited(edit), probe.dtype), given), probe, logits_only=True)["logits"]

        return answer_or_error(call)


def audited_of(build: Port) -> Audited:
    if isinstance(build, HubBuild | IsolatedBuild) and build.model_type is not None:
        return Audited(build.edited, build.model_type, ("config.json", "model.safetensors"), build.reported)
    return Audited(functools.partial(_edited, build), None, ("config", "parameters"))


def _edited(port: Port, edit: Edit) -> Port:
    @functools.wraps(port)
    def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray], **options: Any) -> Any:
        with seeded(edit.seed):
            left = {name: value for name, value in parameters.items() if name not in edit.without}
            return port(config, left, **options)

    return build


KEPT = 4


def shows(variant: Variant, dtype: str) -> AuditProbe | None:
    """Return a call in which a port that ignores the change has wrong logits; None if the logits stay right."""
    for tiny in (False, True):
        probe = probe_of(variant.config, dtype, tiny=tiny)
        ignoring = logits_of(variant.before, probe.parameters, probe.inputs)
        if ignoring is None or probe.is_off(ignoring):
            return probe
    return None


Exercised = tuple[tuple[Variant, AuditProbe | None], ...]
"""One or two variants with the same change. Each variant has a call in which a port that ignores the change has wrong
logits, or None. The audit tries the second variant if the port refuses the first variant, or if the error on the first
variant may be chance."""


@functools.lru_cache(maxsize=KEPT)
def exercised(model_type: str | None, config: TransformerConfig, dtype: str) -> tuple[Exercised, ...]:
    """Return the variants of a small model, each with a call that shows whether a port ignores the change, or None."""
    return tuple(_that_show(changed, dtype) for changed in variants_of(model_type, config))


def _that_show(changed: Changed, dtype: str) -> Exercised:
    if not changed[0].must_show:
        return ((changed[0], probe_of(changed[0].config, dtype)),)
    found = ((variant, probe) for variant in changed if (probe := shows(variant, dtype)) is not None)
    return tuple(itertools.islice(found, 2)) or ((changed[0], None),)


def audited_fields(port: Audited, config: TransformerConfig, dtype: str, progress: Progress) -> Iterator[AuditedField]:
    changes = exercised(port.model_type, config, dtype)
    for done, variants in enumerate(changes):
        progress("changing fields of the configuration", done, len(changes))
        results: list[AuditedField] = []
        for variant, probe in variants:
            result = AuditedField(variant.name, variant.value, "not exercised")
            results.append(result if probe is None else _judged(port, variant, probe))
            last = results[-1]
            is_chance = last.outcome == "wrong" and last.share < LUCK
            if last.outcome != "refused" and not is_chance:
                break
        yield next((each for each in reversed(results) if each.outcome != "refused"), results[-1])


def _judged(port: Audited, variant: Variant, probe: AuditProbe) -> AuditedField:
    result = AuditedField(variant.name, variant.value, "followed")
    logits = port.logits(Edit(fields=variant.fields), probe)
    if isinstance(logits, PortError):
        return dataclasses.replace(
            result, outcome="refused", says=str(logits).partition(" on the probe ")[0].removesuffix(".")
        )
    is_off = probe.is_off(logits)
    result = dataclasses.replace(result, error=probe.error(logits), budget=probe.allowed)
    if not is_off:
        return result
    given = f"with {variant.name} {variant.value}, the port's result"
    if variant.must_show and (left := probe.left(logits, variant.before, probe.parameters)) is not None:
        before = f"with {variant.was}" if variant.was else "without the field"
        return dataclasses.replace(result, outcome="ignored", says=f"{given} is the same as {before}", residual=left)
    for name, value, config in _readings(variant):
        if (left := probe.left(logits, config, probe.parameters)) is not None:
            says = f"{given} equals the reference's result with {name} {shown(value)}"
            return dataclasses.replace(result, outcome="wrong", says=says, residual=left)
    says = f"{given} equals the reference's result neither before nor after the change"
    return dataclasses.replace(result, outcome="wrong", says=says)


def _readings(variant: Variant) -> Iterator[tuple[str, Any, TransformerConfig]]:
    """Yield (field, wrong value, configuration) for each way in which a port may misread the variant."""
    for field in dataclasses.fields(variant.config):
        ours = getattr(variant.config, field.name)
        tried = [getattr(variant.before, field.name), field.default, *field.metadata.get("tried", ())]
        tried += [not ours] if isinstance(ours, bool) else []
        for value in dict.fromkeys(tried):
            with contextlib.suppress(ConfigError):
                config = dataclasses.replace(variant.config, **{field.name: value})
                if config != variant.config:
                    yield field.name, value, config
