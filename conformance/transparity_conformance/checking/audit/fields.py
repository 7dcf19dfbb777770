"""The audit of a configuration: the port has to change exactly where the reference does."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, shown
from transparity_conformance.capabilities.stranger import PortError
from transparity_conformance.checking.audit.audited import Audited, AuditProbe, logits_of, probe_of
from transparity_conformance.checking.audit.variants import Changed, Variant, variants_of
from transparity_conformance.checkpoints.editing import Edit
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.report.audit.result import AuditedField

KEPT = 4
"""Models whose calls stay in memory."""


def shows(variant: Variant, dtype: str) -> AuditProbe | None:
    """A call in which a port that ignores the field answers otherwise; None if none does."""
    for tiny in (False, True):
        probe = probe_of(variant.config, tiny=tiny)
        ignoring = logits_of(variant.before, probe.parameters, probe.inputs)
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
            result = AuditedField(variant.name, variant.value, "not exercised")
            if probe is not None:
                result = _judged(port, variant, probe, dtype)
            if result.outcome != "refused":
                break
        yield result


def _judged(port: Audited, variant: Variant, probe: AuditProbe, dtype: str) -> AuditedField:
    """The result for a variant: its answer is the reference's, that of a port that ignores it, or neither."""
    result = AuditedField(variant.name, variant.value, "followed")
    logits = port.logits(Edit(fields=variant.fields), probe, dtype)
    if isinstance(logits, PortError):
        return dataclasses.replace(result, outcome="refused", says=reason_of(logits))
    result = dataclasses.replace(result, error=probe.error(logits), budget=probe.budget(dtype))
    if not probe.is_off(logits, dtype):
        return result
    given = f"with {variant.name} {variant.value} the port answers"
    if variant.must_show and (left := probe.left(logits, dtype, variant.before, probe.parameters)) is not None:
        as_before = f"as with {variant.was}" if variant.was else "as without it"
        return dataclasses.replace(result, outcome="ignored", says=f"{given} {as_before}", residual=left)
    for name, value, config in _readings(variant):
        if (left := probe.left(logits, dtype, config, probe.parameters)) is not None:
            says = f"{given} as if our {name} were {shown(value)}"
            return dataclasses.replace(result, outcome="wrong", says=says, residual=left)
    return dataclasses.replace(result, outcome="wrong", says=f"{given} neither as the reference does nor as before")


def reason_of(error: PortError) -> str:
    """The reason of a refusal, without the call in which it was raised."""
    return str(error).partition(" on the probe ")[0].removesuffix(".")


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
