"""Mistakes at the norms: another eps, another place for it, another deviation, another norm, or none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.mistakes.places import Value, is_norm, norm_input, norm_scope, parameters_of, sublayers
from transparity_conformance.oracle import Arrays
from transparity_conformance.walk import Mistake, Run

KNOWN_EPS = (1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12, 0.0, 1e-2, 1e-4)


@dataclass(frozen=True)
class Form:
    """A norm over the features, piece by piece."""

    centered: bool = True
    correction: int = 0
    outside: bool = False
    """Whether eps is added to the deviation instead of the variance."""
    biased: bool = True
    gained: bool = True
    statistics: str = "features"


def mistakes(config: TransformerConfig, site: str) -> Iterator[Mistake]:
    if not is_norm(config, site):
        return
    for eps in KNOWN_EPS:
        if eps != config.norm_eps:
            yield other_eps(config, eps)
    right = form_of(config)
    if config.norm != "batch":
        place = "inside the root" if right.outside else "outside the root"
        says = f"eps is added {place}"
        yield _formed("norm-eps-placement", place, says, Form(correction=right.correction, outside=not right.outside))
        over = "n" if right.correction else "n − 1"
        says = f"the variance is taken over {over}"
        yield _formed("norm-variance", over, says, Form(correction=1 - right.correction, outside=right.outside))
        says += f", and eps is added {place}"
        form = Form(correction=1 - right.correction, outside=not right.outside)
        yield _formed("norm-variance", f"{over}, eps {place}", says, form)
        for biased, without in ((True, ""), (False, ", and there is no bias")):
            says = f"it is an RMSNorm: the mean is not taken away{without}"
            yield _formed("norm-kind", f"RMSNorm{without}", says, Form(centered=False, biased=biased))
            if right.outside:
                outside = Form(centered=False, biased=biased, outside=True)
                yield _formed(
                    "norm-kind", f"RMSNorm{without}, eps outside", f"{says}, and eps is outside the root", outside
                )
                form = _without(right, centered=False, biased=biased)
                says += ", the deviation as in the right norm"
                yield _formed("norm-kind", f"RMSNorm{without}, same deviation", says, form)
        says = "it is a BatchNorm over the batch and the positions"
        yield _formed("norm-kind", "BatchNorm", says, Form(statistics="batch"))
        if right.outside:
            form = Form(correction=right.correction, outside=True, statistics="batch")
            says += ", the deviation as in the right norm"
            yield _formed("norm-kind", "BatchNorm, same deviation", says, form)
    else:
        form = Form(outside=True, statistics="running")
        yield _formed("norm-eps-placement", "outside the root", "eps is added outside the root", form)
        says = "it normalises by the batch, not by the running statistics"
        yield _formed("norm-kind", "batch statistics", says, Form(statistics="batch"))
        yield _formed("norm-kind", "LayerNorm", "it is a LayerNorm", Form())
    says = "its bias is missing"
    yield _formed("norm-kind", "without bias", says, _without(right, biased=False))
    says = "its gain is missing"
    yield _formed("norm-kind", "without gain", says, _without(right, gained=False))
    yield Mistake("norm-missing", "missing", "this norm is left out", patch=_missing)
    if site.count(".") == 3:
        scope, name = site.rpartition(".")[::2]
        names = [f"{sublayer}_norm" for sublayer in sublayers(config, scope)]
        names += ["memory_norm"] * (config.memory_norm and "cross_attention_norm" in names)
        for other in names:
            if other != name:
                pair = (min(name, other), max(name, other))
                says = f"the parameters of {pair[0]} and {pair[1]} are exchanged"
                yield Mistake("norm-swapped", " and ".join(pair), says, alter=partial(_exchanged, pair))


def form_of(config: TransformerConfig) -> Form:
    unbiased = config.norm == "layer-unbiased"
    statistics = "running" if config.norm == "batch" else "features"
    return Form(correction=int(unbiased), outside=unbiased, statistics=statistics)


def _without(form: Form, **changes: bool) -> Form:
    return Form(**({name: getattr(form, name) for name in Form.__dataclass_fields__} | changes))


def other_eps(config: TransformerConfig, eps: float) -> Mistake:
    says = f"eps is {eps:.3g} instead of {config.norm_eps:g}"
    return Mistake("norm-eps", f"{eps:.3g}", says, patch=partial(_normed, form_of(config), eps), value=eps)


def _formed(identity: str, variant: str, says: str, form: Form) -> Mistake:
    return Mistake(identity, variant, says, patch=partial(_normed, form, None))


def _normed(form: Form, eps: float | None, run: Run, site: str, value: Value) -> Value:
    x, parameters = norm_input(run, site), parameters_of(run, norm_scope(site))
    number = x.dtype.type
    eps = number(run.config.norm_eps if eps is None else eps)
    weight = parameters["weight"] if form.gained else number(1)
    bias = parameters["bias"] if form.biased else number(0)
    if form.statistics == "running":
        centered, variance = x - parameters["running_mean"], parameters["running_var"]
    else:
        axes = (0, 1) if form.statistics == "batch" else (-1,)
        centered = x - x.mean(axes, keepdims=True) if form.centered else x
        count = math.prod(x.shape[axis] for axis in axes) - form.correction
        variance = (centered * centered).sum(axes, keepdims=True) / number(count)
    deviation = np.sqrt(variance) + eps if form.outside else np.sqrt(variance + eps)
    return centered / deviation * weight + bias


def normed(run: Run, site: str) -> Value:
    """What the right norm makes of what flows into it."""
    return _normed(form_of(run.config), None, run, site, None)


def _missing(run: Run, site: str, value: Value) -> Value:
    return norm_input(run, site)


def _exchanged(pair: tuple[str, str], config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    scope, name = site.rpartition(".")[::2]
    other = pair[name == pair[0]]
    kinds = ["weight", "bias"] + ["running_mean", "running_var"] * (config.norm == "batch")
    return {f"{site}.{kind}": parameters[f"{scope}.{other}.{kind}"] for kind in kinds}
