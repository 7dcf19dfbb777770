import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from meta.pool.port import Offering
from transparity.config import TransformerConfig
from transparity_conformance.capabilities.capability import BuiltPort, ForwardPass
from transparity_conformance.capabilities.resized import RESIZED
from transparity_conformance.capabilities.table import compare_capability
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.oracle.probes import Probe, pixel_inputs, probe_parameters
from transparity_conformance.report.report import CapabilityResult
from transparity_numpy.transformer import transformer

Arrays = dict[str, np.ndarray]
TABLE = "encoder.position_embedding.weight"


def bicubic(patches: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return torch.nn.functional.interpolate(patches, size=size, mode="bicubic", align_corners=False)


def smaller_without_aliasing(patches: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return interpolate(patches, size=size, mode="bicubic", antialias=size[0] < patches.shape[2])


def smaller_cut(patches: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    height, width = size
    return bicubic(patches, size) if height > patches.shape[2] else patches[:, :, :height, :width]


def interpolating(interpolated: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Return a port that interpolates its table of positions with `interpolated`."""

    def build(config: TransformerConfig, parameters: Arrays) -> Offering:
        def resized(pixels: np.ndarray) -> np.ndarray:
            height, width = (size // (config.patch_size or 1) for size in pixels.shape[2:])
            own, side = config.position_offset + config.class_token, config.image_size // (config.patch_size or 1)
            table = torch.from_numpy(parameters[TABLE])
            patches = table[own:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
            patches = interpolated(patches, (height, width))
            whole = torch.cat([table[:own], patches.permute(0, 2, 3, 1).flatten(0, 2)]).numpy()
            wider = dataclasses.replace(config, max_length=len(whole) - config.position_offset)
            return transformer(wider, {**parameters, TABLE: whole}, pixels=pixels)

        return Offering(lambda **tokens: transformer(config, parameters, **tokens), resized=resized)

    return build


def compared(build: Callable[..., Any], name: str = "vit", **change: Any) -> CapabilityResult:
    config = dataclasses.replace(example_config(name), **change)
    probe = Probe("config", "mixed", "", config, probe_parameters(config), {"pixels": pixel_inputs(config, 2, 0)})
    port = BuiltPort(build, build(config, probe.parameters))
    return compare_capability(RESIZED, port, ForwardPass({"mixed": probe}, {}, "float32"))


@pytest.mark.parametrize(("name", "offset"), [("vit", 0), ("clip_vision_model", 0), ("vit", 2)])
@pytest.mark.parametrize("interpolated", [bicubic, smaller_without_aliasing])
def test_the_interpolation_of_pytorch_agrees(interpolated: Any, name: str, offset: int) -> None:
    (claim,) = compared(interpolating(interpolated), name, position_offset=offset).claims
    assert (claim.id, claim.verdict) == ("resized", "agrees")


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "rotary", "alibi"])
def test_positions_that_are_not_learned_are_not_interpolated(positions: str) -> None:
    found = compared(interpolating(bicubic), positions=positions)
    assert found.not_compared == ("resized: the model has no learned positions to interpolate",)


@pytest.mark.parametrize(
    ("interpolated", "says"),
    [
        (partial(interpolate, mode="bilinear"), "positions are interpolated bilinearly"),
        (
            partial(interpolate, mode="bicubic", align_corners=True),
            "positions are interpolated bicubically between the centers",
        ),
        (lambda patches, size: bicubic(patches, size[::-1]), "height and width are swapped"),
    ],
)
def test_another_interpolation_is_named(interpolated: Callable[..., torch.Tensor], says: str) -> None:
    (fault,) = compared(interpolating(interpolated)).faults
    ((cause,),) = [fault.causes]
    assert (fault.where, cause.mistake) == ("resized", "positions-resized")
    assert cause.says.startswith(says)


def test_a_table_that_is_cut_for_smaller_images_diverges() -> None:
    assert compared(interpolating(smaller_cut)).claims[0].verdict == "diverges"
