"""The folder that the user names: a loader is compared on a copy in float32, and is given the folder itself once.

In the folder itself the tensors have their own dtype, and are in as many files as they were written to. What a loader
computes from it may be rounded as that dtype is.
"""

from __future__ import annotations

import dataclasses

from transparity_conformance.capabilities.compare import failed
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.checking.calls import answer_or_error
from transparity_conformance.checking.stages.evidence import Evidence
from transparity_conformance.checkpoints.hashing import headers
from transparity_conformance.checkpoints.importing import InFolder
from transparity_conformance.checkpoints.reading import tensor_files
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.undetermined import judged_gap
from transparity_conformance.report.capability_result import with_capabilities
from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import count
from transparity_conformance.report.report import Cause, ClaimResult, Divergence
from transparity_conformance.running.process.running import built, is_loader, run

CLAIM = "loader.folder"

HALF_PRECISIONS = {"BF16": "bfloat16", "F16": "float16"}
"""The dtypes of files in which a model may compute."""


def is_copied(evidence: Evidence) -> bool:
    """Return whether a loader was given a copy of the checkpoint that was named, and agrees."""
    parameters = evidence.arguments.parameters
    is_named = isinstance(parameters, InFolder) and not parameters.is_given_itself
    return is_named and is_loader(evidence.build) and evidence.agrees()


def load_as_named(evidence: Evidence) -> None:
    """Give the loader the named folder itself, and compare the logits of the first probe."""
    parameters, probe, dtype = evidence.arguments.parameters, evidence.first, evidence.arguments.dtype
    assert isinstance(parameters, InFolder)
    folder, where = parameters.folder, tensor_files(parameters.folder)
    itself = dataclasses.replace(probe, parameters=InFolder(parameters, folder, is_ours=True))
    answer = answer_or_error(lambda: run(built(evidence.build, itself), itself, logits_only=True)["logits"])
    stored = {tensor.dtype for tensor in headers(where).values()}
    says = f"{folder}: {' and '.join(sorted(stored))} in {count(len(set(where.values())), 'file')}"
    if isinstance(answer, PortError):
        evidence.report = with_capabilities(evidence.report, failed(CLAIM, str(folder), answer))
        return
    halves = [HALF_PRECISIONS[each] for each in sorted(stored & HALF_PRECISIONS.keys())]
    tried = [_judged(probe, answer, each, dtype) for each in (dtype, *halves)]
    error, budget = min(tried, key=lambda each: share(*each))
    is_wrong = share(error, budget) > 1
    evidence.add(claims=[ClaimResult(CLAIM, "diverges" if is_wrong else "agrees", error, budget, f"logits ({says})")])
    evidence.add(notes=[f"load(folder) was given a copy in float32 in one file, and once the folder itself ({says})"])
    if is_wrong:
        cause = Cause(
            "folder-read",
            f"load(folder) is right on a copy in float32 in one file, and wrong on {says}",
            None,
            0.0,
            1.0,
        )
        evidence.add(Divergence("logits", error, budget, (cause,), probe=probe.name))


def _judged(probe: Probe, logits: np.ndarray, computed: str, dtype: str) -> tuple[float, float]:
    """The error, and the budget of a model that computes in the precision asked for, or as its tensors are stored."""
    budget = probe.budget(dtype if computed == dtype else f"float32:{computed}")
    return judged_gap(probe, "logits", logits, probe.oracle.expected["logits"], computed), budget
