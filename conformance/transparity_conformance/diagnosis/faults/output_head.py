"""Faults at the head: its scale, its cap, and what of the last layer goes into it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import shared
from transparity_conformance.diagnosis.fault import Fault, Run
from transparity_conformance.diagnosis.faults.attention import KNOWN_CAPS
from transparity_conformance.diagnosis.faults.sites import Value, apply_linear, padding_at
from transparity_numpy.functional import nest
from transparity_numpy.head import head


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if site != "logits":
        return
    if config.head == "pooled":
        for name, (pooled, says) in POOLINGS.items():
            yield Fault("pooling", name, says, patch=partial(_pooled, pooled))
    if config.head != "logits":
        return
    if config.head_scale == "embed_dim":
        yield Fault("head-scale", "none", "what goes into the head is not divided by √embed_dim", patch=_unscaled)
        says = "what goes into the head is multiplied by √embed_dim, not divided"
        yield Fault("head-scale", "√embed_dim", says, patch=partial(_scaled, 0.5))
    elif config.tied_head:
        says = "what goes into the head is divided by √embed_dim"
        yield Fault("head-scale", "1/√embed_dim", says, patch=partial(_scaled, -0.5))
        says = "what goes into the head is multiplied by √embed_dim"
        yield Fault("head-scale", "√embed_dim", says, patch=partial(_scaled, 0.5))
    if config.final_softcap is not None:
        yield from _cap_faults(config)


def _cap_faults(config: TransformerConfig) -> Iterator[Fault]:
    yield Fault(
        "logit-cap", "missing", "logits are not held below the cap", patch=partial(_with, {"final_softcap": None})
    )
    for cap in KNOWN_CAPS:
        if cap != config.final_softcap:
            yield other_cap(config, cap)
    says = "logits are cut off at the cap instead of being bent towards it by tanh"
    yield Fault("logit-cap", "clipped", says, patch=partial(_after, lambda x, cap: np.clip(x, -cap, cap)))
    says = "logits are tanh(logits / cap), which is not multiplied by the cap again"
    yield Fault("logit-cap", "not scaled back", says, patch=partial(_after, lambda x, cap: np.tanh(x / cap)))


def other_cap(config: TransformerConfig, cap: float) -> Fault:
    says = f"logits are held below {cap:.6g} instead of {config.final_softcap:g}"
    return Fault("logit-cap", f"{cap:.6g}", says, patch=partial(_with, {"final_softcap": cap}), value=cap)


def _last(run: Run) -> Value:
    return run.seen[f"{run.config.stacks[-1]}.output"]


def _headed(run: Run, x: Value, changes: dict[str, Any]) -> Value:
    config = dataclasses.replace(run.config, **changes)
    return head(config, nest(shared(config, run.parameters)), x)


def _with(changes: dict[str, Any], run: Run, site: str, value: Value) -> Value:
    return _headed(run, _last(run), changes)


def _unscaled(run: Run, site: str, value: Value) -> Value:
    return _headed(run, _last(run), {"head_scale": "none"})


def _scaled(power: float, run: Run, site: str, value: Value) -> Value:
    x = _last(run)
    return _headed(run, x * x.dtype.type(run.config.embed_dim**power), {"head_scale": "none"})


def _after(change: Callable[[Value, float], Value], run: Run, site: str, value: Value) -> Value:
    cap = run.config.final_softcap
    assert cap is not None
    return change(_headed(run, _last(run), {"final_softcap": None}), cap)


Pooled = Callable[[Run, Value], Value]


def _projected(run: Run, x: Value) -> Value:
    return np.tanh(apply_linear(run, "pooler", x))


def _mean(run: Run, x: Value, *, visible: bool) -> Value:
    shown = padding_at(run, "encoder.embedding")[:, 0, 0, :, None] | (not visible)
    return (x * shown).sum(1) / np.maximum(shown.sum(1), 1)


POOLINGS: dict[str, tuple[Pooled, str]] = {
    "without tanh": (lambda run, x: apply_linear(run, "pooler", x[:, 0]), "there is no tanh behind the pooler"),
    "mean": (
        lambda run, x: _projected(run, _mean(run, x, visible=False)),
        "the mean of all positions is pooled, not the first position",
    ),
    "mean of visible": (
        lambda run, x: _projected(run, _mean(run, x, visible=True)),
        "the mean of all positions that are no padding is pooled, not the first position",
    ),
    "last": (lambda run, x: _projected(run, x[:, -1]), "the last position is pooled, not the first"),
    "unprojected": (lambda run, x: x[:, 0], "the first position is returned as it is, without the pooler"),
}


def _pooled(pooled: Pooled, run: Run, site: str, value: Value) -> Value:
    return pooled(run, _last(run)).astype(value.dtype)
