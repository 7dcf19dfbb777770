"""Position tables in float32 agree at every length, with any of the usual formulas; wrong tables diverge."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from meta.independent.model import Model
from meta.independent.positions import inverse_frequencies
from transparity.presets import preset
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.report.comparison import gap, share

LENGTHS = (1024,)


def exponential(base: float, width: int) -> Tensor:
    return torch.exp(torch.arange(0, width, 2).float() * (-math.log(base) / width))


def inverse_power(base: float, width: int) -> Tensor:
    return 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.int64).float() / width))


def power(base: float, width: int) -> Tensor:
    return torch.tensor(base) ** (-torch.arange(0, width, 2).float() / width)


FORMULAS = {"exponential": exponential, "inverse power": inverse_power, "power": power}


class Float32Tables(Model):
    """A correct port with float32 angles; other values of `base` and `first` make it wrong."""

    formula = staticmethod(exponential)
    base: float = 1.0
    first = 0

    def sinusoids(self, length: int) -> Tensor:
        where = torch.arange(self.first, length + self.first).float()
        angles = where[:, None] * self.formula(self.c.rope_theta * self.base, self.c.embed_dim)
        sine, cosine = angles.sin(), angles.cos()
        if self.c.rope_layout == "halves":
            return torch.cat([sine, cosine], -1)
        return torch.stack([sine, cosine], -1).flatten(-2)

    def rotated(self, x: Tensor, where: Tensor) -> Tensor:
        width = self.c.rotary_dim or self.head_dim
        plain = self.c.rope_theta ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
        scaling = (inverse_frequencies(self.c, self.head_dim, int(where.max()) + 1) / plain).float()
        frequencies = self.formula(self.c.rope_theta * self.base, width) * scaling
        angles = (where + self.first)[..., None].float() * frequencies
        pairs = torch.polar(torch.full_like(angles, self.own.rotary_attention_factor), angles)
        exact = rotate_by(pairs.real, pairs.imag, x, self.c.rope_layout)
        return exact if x.shape[-1] == width else torch.cat([exact, x[..., width:]], -1)


def rotate_by(cosine: Tensor, sine: Tensor, x: Tensor, layout: str) -> Tensor:
    """Rotate `x` by the angles in two tables."""
    cosine, sine = cosine[:, None], sine[:, None]
    half = cosine.shape[-1]
    if layout == "interleaved":
        a, b = x[..., : 2 * half : 2], x[..., 1 : 2 * half : 2]
        return torch.stack([a * cosine - b * sine, a * sine + b * cosine], -1).flatten(-2)
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)


@functools.cache
def probe(case: str, length: int) -> Probe:
    """Return a probe with one row of the given length."""
    config = preset(case).resized() if case == "pre-norm" else CASES[case]
    config = dataclasses.replace(config, max_length=max(length, config.max_length))
    inputs = {name: tokens[:1] for name, tokens in mixed_inputs(config, 0, length, length).items()}
    return Probe(case, "long", "long", config, probe_parameters(config), inputs)


def share_of(port: type[Model], one: Probe, dtype: str = "float32") -> float:
    """Return the port's largest error as a share of the budget."""
    logits = np.asarray(port(one.config, one.parameters, dtype)(**one.inputs), np.float64)
    return share(gap(logits, one.oracle.expected["logits"]), one.oracle.budget("logits", dtype))


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("case", ["pre-norm", "llama"])
def test_float32_tables_are_within_the_budget(case: str, length: int, formula: str) -> None:
    made = type("Right", (Float32Tables,), {"formula": staticmethod(FORMULAS[formula])})
    assert share_of(made, probe(case, length)) <= 1


@pytest.mark.parametrize(
    ("case", "wrong"), [("pre-norm", {"base": 1.0001}), ("pre-norm", {"first": 1}), ("llama", {"base": 1.0001})]
)
def test_wrong_float32_tables_are_over_the_budget(case: str, wrong: dict[str, float]) -> None:
    assert share_of(type("Wrong", (Float32Tables,), wrong), probe(case, 256)) > 1


def test_the_budget_of_float64_does_not_allow_float32_tables() -> None:
    assert share_of(Float32Tables, probe("pre-norm", 256), "float64") > 1
