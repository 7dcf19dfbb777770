"""The audit of a configuration: the port has to change exactly where the reference does."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, shown
from transparity.parameters import parameter_shapes
from transparity_conformance.capabilities.port_calls import PortError, PortProcessError
from transparity_conformance.checking.audit.audited import Audited
from transparity_conformance.checking.audit.variants import Changed, Variant, variants_of
from transparity_conformance.checkpoints.editing import Edit
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.oracle.reach.features import logits_with
from transparity_conformance.oracle.reach.models import LogitsOracle
from transparity_conformance.report.audit.result import AuditedField
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.running.process.running import Port, built, run

LENGTHS = (21, 18)
"""Tokens of the source and of the target: beyond every window, bucket and original length of a variant."""

KEPT = 4
"""Models whose calls stay in memory."""

ROWS = [0, 1, 3]
"""Rows of mixed inputs in which every query sees a token: all different, padding on the right, padding inside."""


class AuditProbe(Probe):
    """A call of which the logits are compared."""

    @functools.cached_property
    def oracle(self) -> LogitsOracle:
        return LogitsOracle(self.config, self.parameters, self.inputs)

    def error(self, logits: np.ndarray) -> float:
        """The largest difference from the reference's logits."""
        return gap(logits, self.oracle.expected["logits"])

    def budget(self, dtype: str) -> float:
        """The largest difference that rounding explains."""
        return self.oracle.budget("logits", dtype)

    def is_off(self, logits: np.ndarray, dtype: str) -> bool:
        """Return whether logits differ by more than rounding from the reference's."""
        return share(self.error(logits), self.budget(dtype)) > 1


def probe_of(config: TransformerConfig, *, tiny: bool = False) -> AuditProbe:
    """The call of a model with drawn weights; `tiny`: with activations beside which eps is large."""
    source, target = (min(length, config.max_length) for length in LENGTHS)
    inputs = {name: value[ROWS] for name, value in mixed_inputs(config, 3, source, target).items()}
    parameters = probe_parameters(config, 12, 1e-3) if tiny else probe_parameters(config, 11)
    return AuditProbe("audit", "audit", "a field or a tensor that counts", config, parameters, inputs)


def logits_ignoring(probe: AuditProbe, before: TransformerConfig) -> np.ndarray | None:
    """The logits of a port that takes the model of `probe` for `before`; None if its tensors are not of that model."""
    shapes = parameter_shapes(before)
    if any(name not in probe.parameters or probe.parameters[name].shape != shapes[name] for name in shapes):
        return None
    return logits_with(before, probe.parameters, probe.inputs)


def shows(variant: Variant, dtype: str) -> AuditProbe | None:
    """A call in which a port that ignores the field answers otherwise; None if none does."""
    for tiny in (False, True):
        probe = probe_of(variant.config, tiny=tiny)
        ignoring = logits_ignoring(probe, variant.before)
        if ignoring is None or probe.is_off(ignoring, dtype):
            return probe
    return None


Exercised = tuple[tuple[Variant, AuditProbe | None], ...]
"""Variants of one change with calls that show them, the second for ports that refuse the first; None: none does."""


@functools.lru_cache(maxsize=KEPT)
def exercised(model_type: str | None, config: TransformerConfig, dtype: str) -> tuple[Exercised, ...]:
    """Each change of a small model, in variants that show."""
    return tuple(_that_show(changed, dtype) for changed in variants_of(model_type, config))


def _that_show(changed: Changed, dtype: str) -> Exercised:
    if not changed[0].must_show:
        return ((changed[0], probe_of(changed[0].config)),)
    found = ((variant, probe) for variant in changed if (probe := shows(variant, dtype)) is not None)
    return tuple(itertools.islice(found, 2)) or ((changed[0], None),)


def audited_fields(port: Audited, config: TransformerConfig, dtype: str, progress: Progress) -> Iterator[AuditedField]:
    """Build the port for every variant of a model, and compare its answer with the reference's."""
    changes = exercised(port.model_type, config, dtype)
    for done, variants in enumerate(changes):
        progress("changing fields of the configuration", done, len(changes))
        for variant, probe in variants:
            if probe is None:
                result = AuditedField(variant.name, variant.value, "not exercised")
            else:
                result = _judged(variant, probe, port.edited(Edit(fields=variant.fields)), dtype)
            if result.outcome != "refused":
                break
        yield result


def _judged(variant: Variant, probe: AuditProbe, build: Port, dtype: str) -> AuditedField:
    """The result for a variant: its answer is the reference's, that of a port that ignores it, or neither."""
    result = AuditedField(variant.name, variant.value, "followed")
    try:
        logits = run(built(build, probe), probe, logits_only=True)["logits"]
    except PortProcessError:
        raise
    except PortError as error:
        return dataclasses.replace(result, outcome="refused", says=reason_of(error))
    budget = probe.budget(dtype)
    result = dataclasses.replace(result, error=probe.error(logits), budget=budget)
    if not probe.is_off(logits, dtype):
        return result
    given = f"with {variant.name} {variant.value} the port answers"
    if variant.must_show and (left := _left(probe, variant.before, logits, budget)) is not None:
        as_before = f"as with {variant.was}" if variant.was else "as without it"
        return dataclasses.replace(result, outcome="ignored", says=f"{given} {as_before}", residual=left)
    for name, value, config in _readings(variant):
        if (left := _left(probe, config, logits, budget)) is not None:
            says = f"{given} as if our {name} were {shown(value)}"
            return dataclasses.replace(result, outcome="wrong", says=says, residual=left)
    return dataclasses.replace(result, outcome="wrong", says=f"{given} neither as the reference does nor as before")


def reason_of(error: PortError) -> str:
    """The reason of a refusal, without the call in which it was raised."""
    return str(error).partition(" on the probe ")[0].removesuffix(".")


def _left(probe: AuditProbe, config: TransformerConfig, logits: np.ndarray, budget: float) -> float | None:
    """The difference from a reference that takes the model for `config`; None if it is more than rounding."""
    expected = logits_ignoring(probe, config)
    left = np.inf if expected is None else gap(logits, expected)
    return left if share(left, budget) <= 1 else None


def _readings(variant: Variant) -> Iterator[tuple[str, Any, TransformerConfig]]:
    """The model of a variant with one field of ours as a port may have read it: by default, or as before."""
    for field in dataclasses.fields(variant.config):
        ours = getattr(variant.config, field.name)
        tried = [getattr(variant.before, field.name), field.default, *field.metadata.get("tried", ())]
        tried += [not ours] if isinstance(ours, bool) else []
        for value in dict.fromkeys(tried):
            with contextlib.suppress(ConfigError):
                config = dataclasses.replace(variant.config, **{field.name: value})
                if config != variant.config:
                    yield field.name, value, config
