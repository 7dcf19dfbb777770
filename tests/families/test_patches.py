"""Image encoders: a correct port agrees, and impossible images are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from meta.pool.port import port_with
from transparity.errors import ConfigError, InputError
from transparity.protocol import Backend
from transparity_conformance.checking.check import check
from transparity_conformance.oracle.backends import backend, installed
from transparity_conformance.oracle.cases import CLIP_IMAGES, IMAGES
from transparity_conformance.oracle.probes import pixel_inputs, probe_parameters, probes_of
from transparity_conformance.report.comparison import as_numbers, gap
from transparity_pytorch.port import build as pytorch_build


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


def test_patches_as_a_convolution_agree() -> None:
    assert check(port_with("right-patches-as-a-convolution", taps=False), config=IMAGES).verdict == "agrees"


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
