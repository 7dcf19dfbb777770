from collections.abc import Callable
from pathlib import Path
from typing import Any

from meta.audits.measure import FOLDER
from meta.pool.bug import edited_copy
from transparity_conformance.checking.audit.audit import audited
from transparity_conformance.checking.audit.fields import audited_of
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.diagnosis.judge import ignore_progress
from transparity_conformance.report.audit import Audit
from transparity_conformance.running.hub import HubBuild
from transparity_conformance.running.loading import load_port


def changed(right: str, wrong: str, folder: Path, loader: str = "llama_module") -> Callable[..., Any]:
    return load_port(f"{edited_copy(FOLDER / f'{loader}.py', folder, right, wrong)}:load")


def audit_of(load: Callable[..., Any], family: str, folder: Path, *, with_fields: bool) -> Audit:
    loader = audited_of(HubBuild(load, family, str(folder)))
    return audited(loader, example_config(family), "float32", ignore_progress, with_fields=with_fields)
