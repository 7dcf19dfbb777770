"""Test that images of other sizes are compared: right ports agree, and other interpolations are named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.capabilities.test_faults import Offering

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.capability import BuiltPort, ForwardPass
from transparity_conformance.capabilities.resized import RESIZED
from transparity_conformance.capabilities.table import compare_capabilities, compare_capability
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.oracle.probes import Probe, pixel_inputs, probe_parameters
from transparity_conformance.report.report import CapabilityResult
from transparity_numpy.transformer import transformer

Arrays = dict[str, np.ndarray]
TABLE = "encoder.position_embedding.weight"


def interpolating(change: dict[str, Any], is_swapped: bool = False) -> Callable[..., Any]:
    """Return a port that interpolates its positions with PyTorch; `change` replaces settings of the interpolation."""

    def build(config: TransformerConfig, parameters: Arrays) -> Offering:
        def resized(pixels: np.ndarray) -> np.ndarray:
            height, width = (size // (config.patch_size or 1) for size in pixels.shape[2:])
            own, side = int(config.class_token), config.image_size // (config.patch_size or 1)
            table = torch.from_numpy(parameters[TABLE])
            patches = table[own:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
            settings: dict[str, Any] = {"mode": "bicubic", "align_corners": False} | change
            size = (width, height) if is_swapped else (height, width)
            patches = torch.nn.functional.interpolate(patches, size=size, **settings)
            whole = torch.cat([table[:own], patches.permute(0, 2, 3, 1).flatten(0, 2)]).numpy()
            wider = dataclasses.replace(config, max_length=len(whole))
            return transformer(wider, {**parameters, TABLE: whole}, pixels=pixels)

        return Offering(lambda **tokens: transformer(config, parameters, **tokens), resized=resized)

    return build


def forward_pass(name: str) -> ForwardPass:
    config = example_config(name)
    probe = Probe("config", "mixed", "", config, probe_parameters(config), {"pixels": pixel_inputs(config, 2, 0)})
    return ForwardPass({"mixed": probe}, {}, "float32")


def compared(build: Callable[..., Any], name: str = "vit") -> CapabilityResult:
    forward = forward_pass(name)
    ((_, probe),) = forward.probes.items()
    return compare_capability(RESIZED, BuiltPort(build, build(probe.config, probe.parameters)), forward)


@pytest.mark.parametrize("name", ["vit", "clip_vision_model"])
def test_the_interpolation_of_pytorch_agrees(name: str) -> None:
    (claim,) = compared(interpolating({}), name).claims
    assert (claim.id, claim.verdict) == ("resized", "agrees")


@pytest.mark.parametrize(
    ("change", "is_swapped", "says"),
    [
        ({"mode": "bilinear"}, False, "positions are interpolated bilinearly"),
        ({"align_corners": True}, False, "positions are interpolated bicubically between the centers"),
        ({}, True, "height and width are swapped"),
    ],
)
def test_another_interpolation_is_named(change: dict[str, Any], is_swapped: bool, says: str) -> None:
    (fault,) = compared(interpolating(change, is_swapped)).faults
    ((cause,),) = [fault.causes]
    assert (fault.where, cause.mistake) == ("resized", "positions-resized")
    assert cause.says.startswith(says)


def test_other_sizes_are_listed_only_for_models_that_read_images() -> None:
    port = BuiltPort(interpolating({}), lambda **inputs: None)
    listed = compare_capabilities(port, forward_pass("vit"), (), {}, "agrees").not_compared
    assert "resized: the port has no such method" in listed
    config = example_config("llama")
    text = Probe("config", "mixed", "", config, probe_parameters(config), {"tokens": np.ones((2, 3), int)})
    listed = compare_capabilities(port, ForwardPass({"mixed": text}, {}, "float32"), (), {}, "agrees").not_compared
    assert not any(says.startswith("resized") for says in listed)
