"""Calls by which a variant is told from a port that ignores it."""

from __future__ import annotations

import functools
import itertools

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.checking.audit.variants import Changed, Variant, variants_of
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.oracle.reach.features import logits_with
from transparity_conformance.oracle.reach.models import LogitsOracle
from transparity_conformance.report.comparison import gap, share

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
