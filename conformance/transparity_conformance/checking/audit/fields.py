"""The audit of a configuration: the port has to change exactly where the reference does."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, shown
from transparity_conformance.capabilities.stranger import PortError, PortProcessError
from transparity_conformance.checking.audit.audited import Audited, Told
from transparity_conformance.checking.audit.probing import AuditProbe, exercised, logits_ignoring
from transparity_conformance.checking.audit.variants import Variant
from transparity_conformance.checkpoints.editing import Edit
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.report.audit.result import AuditedField
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.running.process.running import Port, built, run


def audited_fields(
    port: Audited, config: TransformerConfig, dtype: str, told: Told, progress: Progress
) -> Iterator[AuditedField]:
    """Build the port for every variant of a model, and compare its answer with the reference's."""
    changes = exercised(port.model_type, config, dtype)
    for done, variants in enumerate(changes):
        progress("changing fields of the configuration", done, len(changes))
        for variant, probe in variants:
            if probe is None:
                result = AuditedField(variant.name, variant.value, "not exercised")
            else:
                result = _judged(variant, probe, told(port.edited(Edit(fields=variant.fields))), dtype)
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
