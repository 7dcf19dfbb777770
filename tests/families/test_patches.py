"""Image encoders: correct ports agree, and wrong patches are named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, InputError
from transparity.protocol import Backend
from transparity_conformance.checking.check import check
from transparity_conformance.oracle.backends import backend, installed
from transparity_conformance.oracle.cases import CLIP_IMAGES, IMAGES
from transparity_conformance.oracle.probes import pixel_inputs, probe_parameters, probes_of
from transparity_conformance.report.comparison import as_numbers, gap
from transparity_pytorch.port import build as pytorch_build

Change = Callable[[TransformerConfig, np.ndarray], np.ndarray]


def cut(config: TransformerConfig, pixels: np.ndarray) -> np.ndarray:
    """Return the image as (batch, channels, rows of patches, rows, columns of patches, columns)."""
    size, side = config.patch_size or 1, config.image_size // (config.patch_size or 1)
    return pixels.reshape(*pixels.shape[:2], side, size, side, size)


def numbered_by_column(config: TransformerConfig, pixels: np.ndarray) -> np.ndarray:
    return cut(config, pixels).transpose(0, 1, 4, 3, 2, 5).reshape(pixels.shape)


def read_by_column(config: TransformerConfig, pixels: np.ndarray) -> np.ndarray:
    return cut(config, pixels).transpose(0, 1, 2, 5, 4, 3).reshape(pixels.shape)


def channels_turned(config: TransformerConfig, pixels: np.ndarray) -> np.ndarray:
    return pixels[:, ::-1]


def channels_last(config: TransformerConfig, pixels: np.ndarray) -> np.ndarray:
    """Return the image whose patches, read channel by channel, equal the patches of `pixels` read pixel by pixel."""
    channels, size = config.image_channels, config.patch_size or 1
    patches = cut(config, pixels).transpose(0, 2, 4, 3, 5, 1)
    again = patches.reshape(*patches.shape[:3], channels, size, size)
    return again.transpose(0, 3, 1, 4, 2, 5).reshape(pixels.shape)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (numbered_by_column, "patch-order"),
        (read_by_column, "patch-layout"),
        (channels_last, "patch-layout"),
        (channels_turned, "patch-layout"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_wrong_patches_are_named(wrong: Change, named: str) -> None:
    def build(config: TransformerConfig, parameters: Any) -> Any:
        forward = pytorch_build(config, parameters)
        return lambda pixels: forward(pixels=np.ascontiguousarray(wrong(config, pixels)))

    report = check(build, config=IMAGES)
    assert report.verdict == "diverges" and report.first_divergence == "encoder.embedding"
    assert {cause.mistake for fault in report.faults for cause in fault.causes} == {named}


def test_the_fast_path_reads_images_and_may_write_into_memory_that_is_given(backend: Backend) -> None:
    probe = probes_of(IMAGES, "vit")["mixed"]
    forward, pixels = backend(IMAGES, probe.parameters, dtype="float32"), probe.inputs["pixels"]
    logits = forward.logits(pixels=pixels)
    assert gap(as_numbers(logits), probe.oracle.expected["logits"]) <= probe.oracle.budget("logits", "float32")
    right = np.array(as_numbers(logits))
    again = forward.logits(pixels=pixels, out=logits)
    np.testing.assert_array_equal(as_numbers(again), right)
    with pytest.raises(InputError, match=r"^out is of shape \(2,\); expected \("):
        forward.logits(pixels=pixels, out=np.empty(2, np.float32))


def test_a_module_of_images_agrees() -> None:
    """Check a port that reads patches with a convolution."""

    class Patches(torch.nn.Module):
        def __init__(self, config: TransformerConfig, parameters: Any) -> None:
            super().__init__()
            size = config.patch_size or 1
            weight = torch.tensor(parameters["encoder.patch_projection.weight"])
            self.kernel = torch.nn.Parameter(weight.reshape(len(weight), config.image_channels, size, size))
            self.rest = pytorch_build(config, parameters)

        def forward(self, pixels: Tensor) -> Any:
            assert torch.nn.functional.conv2d(torch.as_tensor(pixels), self.kernel, stride=2).shape[-2:] == (3, 3)
            return self.rest(pixels=np.asarray(pixels))

    assert check(Patches, config=IMAGES).verdict == "agrees"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_length": 11}, "max_length is 11, but a square image has a square number of patches"),
        ({"pad_id": 0}, "pad_id is 0, but with patch_size"),
        ({"head": "logits"}, "head is 'logits', but an image has no vocabulary"),
        ({"patch_size": None, "source_vocab_size": 9}, "class_token is true, but patch_size is absent"),
    ],
)
def test_an_impossible_image_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        dataclasses.replace(IMAGES, **fields)


@pytest.mark.parametrize(
    ("pixels", "says"),
    [
        (np.zeros((2, 6, 6, 3), np.float32), "3 channels of 6 × 6 pixels"),
        (np.zeros((2, 3, 6, 6), np.int64), "expected finite floats"),
        (np.full((2, 3, 6, 6), np.nan), "expected finite floats"),
    ],
)
def test_wrong_pixels_are_refused(pixels: np.ndarray, says: str) -> None:
    forward = pytorch_build(IMAGES, probe_parameters(IMAGES))
    with pytest.raises(InputError, match=says):
        forward.logits(pixels=pixels)
    assert forward.logits(pixels=pixel_inputs(IMAGES, 2, 0)).shape == (2, IMAGES.embed_dim)


@pytest.mark.parametrize("column", installed())
def test_the_last_position_of_an_image_is_pooled(column: str) -> None:
    config = dataclasses.replace(CLIP_IMAGES, pooling="last")
    taps = backend(column)(config, probe_parameters(config))(pixels=pixel_inputs(config, 2, 0))
    np.testing.assert_array_equal(as_numbers(taps["pooled"]), as_numbers(taps["encoder.output"])[:, -1])
