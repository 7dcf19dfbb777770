"""The audit of a loader, beside the verdict on its forward pass."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checking.audit.audited import Audited
from transparity_conformance.checking.audit.fields import audited_fields
from transparity_conformance.checking.audit.tensors import audited_tensors, missed_in_variants
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.report.audit.result import CAUSES, Audit, AuditedField, AuditedTensor
from transparity_conformance.report.comparison import share
from transparity_conformance.report.report import Cause, ClaimResult, Divergence, Report, known_so_far
from transparity_conformance.running.process.running import told_dtype

FIELDS, TENSORS = "loader.fields", "loader.tensors"
"""The ids of the two claims."""

AFTER = "field by field: the forward pass has to agree first"


def audited(port: Audited, config: TransformerConfig, dtype: str, progress: Progress, *, with_fields: bool) -> Audit:
    """Audit the tensors of a port and, if its forward pass agrees (`with_fields`), the fields of its configuration."""
    began = time.monotonic()
    of_dtype = dataclasses.replace(port, edited=lambda edit: told_dtype(port.edited(edit), dtype))
    options = (of_dtype, config, dtype, progress)
    tensors = tuple(audited_tensors(*options))
    if not with_fields:
        return Audit((), tensors, port.files, time.monotonic() - began)
    fields, further = tuple(audited_fields(*options)), tuple(missed_in_variants(*options))
    return Audit(fields, tensors + further, port.files, time.monotonic() - began)


def with_audit(
    report: Report, port: Audited, config: TransformerConfig, progress: Progress, *, diverges: bool
) -> Report:
    """The report with the audit of a port; what it finds is listed, and a divergence only if it `diverges`.

    Code for one model has settings built in, and is right with them.
    """
    is_right = report.verdict != "diverges"
    with known_so_far(report.verdict, report.first_divergence):
        audit = audited(port, config, report.dtype, progress, with_fields=is_right)
    of_fields, of_tensors = list(_faults(audit, audit.fields)), list(_faults(audit, audit.tensors))
    missing = [f"{port.files[0]}, {AFTER}"] * (not is_right) + list(_not_compared(audit))
    not_compared = (*report.not_compared, *missing)
    if not diverges:
        return dataclasses.replace(report, audit=audit, not_compared=not_compared)
    faults = (*of_fields, *of_tensors)
    return dataclasses.replace(
        report,
        audit=audit,
        verdict="diverges" if faults else report.verdict,
        first_divergence=report.first_divergence or next((fault.where for fault in faults), None),
        faults=(*report.faults, *faults),
        claims=(
            *report.claims,
            *_claims(FIELDS, of_fields, audit.fields),
            *_claims(TENSORS, of_tensors, audit.tensors),
        ),
        not_compared=not_compared,
    )


def _faults(audit: Audit, audited: Sequence[AuditedField | AuditedTensor]) -> Iterator[Divergence]:
    """A divergence for each field and each tensor; of a field with several values, the first that is wrong."""
    for each in reversed({each.name: each for each in reversed(audited) if each.outcome in CAUSES}.values()):
        left, error = each.residual, each.error
        explained = 0.0 if left is None else 1.0 if np.isinf(error) or not error else 1 - left / error
        cause = Cause(CAUSES[each.outcome], each.says, None, error if left is None else left, explained)
        file = audit.files[isinstance(each, AuditedTensor)]
        yield Divergence(f"{file}: {each.name}", error, each.budget, (cause,))


def _claims(
    name: str, faults: Sequence[Divergence], audited: Sequence[AuditedField | AuditedTensor]
) -> Iterator[ClaimResult]:
    """The claim that every field is obeyed, or every tensor read; none if nothing was audited."""
    if faults:
        worst = max(faults, key=lambda fault: share(fault.error, fault.budget))
        yield ClaimResult(name, "diverges", worst.error, worst.budget, worst.where)
    elif audited:
        used = max(audited, key=lambda each: share(each.error, each.budget))
        yield ClaimResult(name, "agrees", used.error, used.budget, used.name)


def _not_compared(audit: Audit) -> Iterator[str]:
    """Fields and tensors that no call shows, and values that the port refuses."""
    fields, tensors = audit.files
    for file, names in ((fields, audit.fields_with("not exercised")), (tensors, audit.tensors_with("not exercised"))):
        yield from (f"{file} {name}: no call shows it" for name in names)
    yield from (f"{tensors} {each.name}: {each.says}" for each in audit.tensors if each.outcome == "not tried")
    for each in audit.fields:
        if each.outcome == "refused" and each.value != "absent":
            yield f"{fields} {each.name} {each.value}: {each.says}"
