"""Test that `adapt` matches models of images and audio, recurrences, and gated attention."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
from tests.fitting import small_recurrent, small_vision

from transparity_conformance.identify.adapting.adapt import Adapted, adapt
from transparity_conformance.identify.fitting.fit import fit


def own(make: Callable[[], Any], **fields: Any) -> Adapted:
    """Fit a configuration to a model, and return its adapter."""
    return adapt(make, dataclasses.replace(fit(make).config, **fields))


@pytest.mark.parametrize(
    ("make", "parameter", "line"),
    [
        (small_vision.TimmViT, "encoder.patch_projection.weight", "conv.weight.view(-1, C*P*P)"),
        (small_vision.TimmViT, "encoder.class_embedding.weight", "cls_token.view(-1, D)"),
        (
            small_vision.PlainViT,
            "encoder.patch_projection.weight",
            "to_patch.weight.view(-1, P, P, C).permute(0, 3, 1, 2)",
        ),
        (small_vision.PlainViT, "encoder.position_embedding.weight", "pos.view(-1, D)"),
        (small_vision.Whisper, "encoder.first_convolution.weight", "conv1.weight.view(-1, 3*M)"),
        (small_vision.Whisper, "encoder.second_convolution.weight", "conv2.weight.view(-1, 3*D)"),
    ],
)
def test_the_front_of_a_model_of_images_or_audio_is_matched(make: Any, parameter: str, line: str) -> None:
    result = adapted_once(make)
    assert result.is_proved, result
    assert not result.found.faults
    assert result.adapter.lines[parameter] == line


adapted_once = functools.cache(own)


@pytest.mark.long
def test_the_packed_maps_of_mamba_2_are_matched() -> None:
    result = own(functools.partial(small_recurrent.MambaLM, groups=2))
    assert result.is_proved, result
    scope = "decoder.layers.{i}.recurrence"
    assert result.adapter.lines[f"{scope}.gate.weight"] == "layers.{i}.in_proj.weight[0:R*V]"
    assert (
        result.adapter.lines[f"{scope}.decay.weight"] == "layers.{i}.in_proj.weight[R*V+R*V+G*S+G*S:R*V+R*V+G*S+G*S+R]"
    )
    assert result.adapter.lines[f"{scope}.key_convolution.bias"] == "layers.{i}.conv.bias[R*V:R*V+G*S]"


def test_a_wrong_front_is_not_proved() -> None:
    result = adapt(small_vision.TurnedViT, fit(small_vision.TimmViT).config)
    assert not result.is_proved
