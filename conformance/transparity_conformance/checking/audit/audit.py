"""The audit of a loader, which runs after the comparison of the forward pass."""

import time
from collections.abc import Iterator, Sequence

import numpy as np

from transparity.config import TransformerConfig
from transparity.presets import preset as preset_called
from transparity_conformance.checking.audit.fields import Audited, audited_fields, audited_of
from transparity_conformance.checking.audit.tensors import audited_tensors, missed_in_variants
from transparity_conformance.checking.stages.evidence import Evidence
from transparity_conformance.checkpoints.tables.rotary import NOT_READ
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.report.audit import CAUSES, Audit, AuditedField, AuditedTensor
from transparity_conformance.report.comparison import SHARE
from transparity_conformance.report.report import Cause, ClaimResult, Divergence, known_so_far

FIELDS, TENSORS = "loader.fields", "loader.tensors"


def audited(port: Audited, config: TransformerConfig, dtype: str, progress: Progress, *, with_fields: bool) -> Audit:
    began = time.monotonic()
    options = (port, config, dtype, progress)
    tensors, fields = tuple(audited_tensors(*options)), tuple[AuditedField, ...]()
    if with_fields:
        fields, tensors = tuple(audited_fields(*options)), (*tensors, *missed_in_variants(*options))
    return Audit(fields, tensors, port.files, time.monotonic() - began)


def audit_loader(evidence: Evidence) -> None:
    """Audit which fields and tensors a loader reads; audit a `build` only on request. If the user requested the audit,
    an ignored field or tensor is a divergence. Skip the audit if the user gave parameters, which fit only one
    configuration."""
    arguments, report, port = evidence.arguments, evidence.report, audited_of(evidence.port)
    is_loader = port.model_type is not None
    if arguments.parameters is not None or not (is_loader if arguments.audit is None else arguments.audit):
        why = "config.json, model.safetensors: not compared, because the loader was not audited"
        evidence.add(not_compared=[why] * is_loader)
        return
    config = arguments.config or preset_called(arguments.name).resized()
    is_right = report.verdict != "diverges"
    with known_so_far(report.verdict, report.first_divergence):
        audit = audited(port, config, report.dtype, evidence.progress, with_fields=is_right)
    missing = list(_not_compared(audit))
    if not is_right:
        missing.insert(0, f"{port.files[0]}, field by field: not audited, because the forward pass does not agree")
    if is_loader and config.positions == "rotary":
        missing.append(f"rope_type {' or '.join(NOT_READ)}: not compared, because the reference has no such scaling")
    evidence.add(audit=audit, not_compared=missing)
    for name, parts in ((FIELDS, audit.fields), (TENSORS, audit.tensors)) if arguments.audit else ():
        faults = list(_faults(audit, parts))
        evidence.add(*faults, claims=_claims(name, faults, parts))


def _faults(audit: Audit, audited: Sequence[AuditedField | AuditedTensor]) -> Iterator[Divergence]:
    for each in reversed({each.name: each for each in reversed(audited) if each.outcome in CAUSES}.values()):
        left, error = each.residual, each.error
        explained = 0.0 if left is None else 1.0 if np.isinf(error) or not error else 1 - left / error
        cause = Cause(CAUSES[each.outcome], each.says, None, error if left is None else left, explained)
        file = audit.files[isinstance(each, AuditedTensor)]
        yield Divergence(f"{file}: {each.name}", error, each.budget, (cause,))


def _claims(
    name: str, faults: Sequence[Divergence], audited: Sequence[AuditedField | AuditedTensor]
) -> Iterator[ClaimResult]:
    if faults:
        worst = max(faults, key=SHARE)
        yield ClaimResult(name, "diverges", worst.error, worst.budget, worst.where)
    elif audited:
        used = max(audited, key=SHARE)
        yield ClaimResult(name, "agrees", used.error, used.budget, used.name)


def _not_compared(audit: Audit) -> Iterator[str]:
    fields, tensors = audit.files
    for file, names in ((fields, audit.fields_with("not exercised")), (tensors, audit.tensors_with("not exercised"))):
        yield from (f"{file} {name}: no call of the audit depends on it" for name in names)
    for each in audit.fields:
        if each.counted == "refused":
            yield f"{fields} {each.name} {each.value}: {each.says}"
