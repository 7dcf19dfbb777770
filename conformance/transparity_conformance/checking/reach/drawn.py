"""Weights that a port draws while it is built: built again from the same ones, it answers otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from transparity_conformance.capabilities.stranger import PortError, PortProcessError
from transparity_conformance.catalogue.wholly_hidden import judged_gap
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.comparison import share
from transparity_conformance.report.report import Cause, Divergence, Report
from transparity_conformance.running.hub import seeded
from transparity_conformance.running.process.running import Port, built, run

DRAWN = "a weight is drawn, not read: built again from the same weights, the port answers otherwise"
NOT_TIED = "the head is not tied to the token embedding: its weight is drawn anew whenever the port is built"

SEED = 1


def with_drawn_weights(report: Report, build: Port, probe: Probe, actual: Mapping[str, np.ndarray]) -> Report:
    """Explain what has no cause in a port that answers otherwise when it is built again.

    Args:
        report: that of the forward pass.
        build: the port.
        probe: a probe of it, and its answers.
        actual: by tap.
    """
    first = next((index for index, fault in enumerate(report.faults) if not fault.causes), None)
    if first is None or probe.is_large:
        return report
    try:
        with seeded(SEED):
            logits = run(built(build, probe), probe, logits_only=True)["logits"]
    except PortProcessError:
        raise
    except PortError:  # it was built before, so that it need not be
        return report
    error = judged_gap(probe, "logits", logits, actual["logits"], report.dtype)
    if share(error, probe.oracle.budget("logits", report.dtype)) <= 1:
        return report
    faults = list(report.faults)
    faults[first] = dataclasses.replace(faults[first], causes=(_cause(faults[first], probe, error),))
    return dataclasses.replace(report, faults=tuple(faults))


def _cause(fault: Divergence, probe: Probe, error: float) -> Cause:
    if fault.where == "logits" and probe.config.tied_head:
        return Cause("head-tied", NOT_TIED, None, error, 0.0)
    return Cause("weight-drawn", DRAWN, None, error, 0.0)
