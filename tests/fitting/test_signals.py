"""`transparity fit` finds the configuration of encoders of images, of Whisper, and of pooled states and classes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from tests.fitting import small_vision
from torch import Tensor, nn

from transparity_conformance.capabilities.stranger import PortError
from transparity_conformance.identify.fitting.fit import fit
from transparity_conformance.identify.fitting.subject import FitError

with warnings.catch_warnings():  # its warnings while it is imported are not about this project
    warnings.simplefilter("ignore")
    import transformers

IMAGES: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
IMAGES |= {"image_size": 6, "patch_size": 2}
TEXTS: dict[str, Any] = {"vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
TEXTS |= {"intermediate_size": 40, "max_position_embeddings": 29, "bos_token_id": 1, "projection_dim": 7}


def fields_of(make: Any, *names: str) -> tuple[Any, ...]:
    """The fields of a fit, which is confirmed."""
    made = fit(make)
    assert made.is_confirmed
    assert made.unused == ()
    return tuple(getattr(made.config, name) for name in names)


def test_patches_that_are_read_pixel_by_pixel_and_averaged_are_found() -> None:
    names = ("patch_size", "image_channels", "class_token", "max_length", "pooling", "head", "num_classes")
    assert fields_of(small_vision.PlainViT, *names) == (2, 3, False, 16, "mean", "classes", 5)


def test_a_class_token_and_the_size_of_images_are_found() -> None:
    names = ("patch_size", "image_channels", "class_token", "max_length", "pooling", "pooler")
    assert fields_of(small_vision.TimmViT, *names) == (2, 1, True, 10, "first", "none")


def vit() -> Any:
    return transformers.ViTModel(transformers.ViTConfig(**IMAGES))


def images_of_clip() -> Any:
    config = transformers.CLIPVisionConfig(**IMAGES, projection_dim=7)
    return transformers.CLIPVisionModelWithProjection(config)


def texts_of_clip() -> Any:
    return transformers.CLIPTextModel(transformers.CLIPTextConfig(**TEXTS, eos_token_id=36))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("make", "template", "differs"),
    [
        (vit, "vit", set()),
        (images_of_clip, "clip_vision_model", {"head"}),
        (texts_of_clip, "clip_text_model", {"padding", "head_bias"}),
    ],
    ids=["vit", "images of clip", "texts of clip"],
)
def test_an_encoder_of_transformers_is_fitted_to_its_family(
    make: Callable[[], Any], template: str, differs: set[str]
) -> None:
    made = fit(make())
    assert made.is_confirmed
    assert made.template == template
    assert set(made.differences) <= differs
    assert made.unused == ()


@pytest.mark.long
@pytest.mark.parametrize(("end", "pooling"), [(36, "eos"), (2, "largest")])
def test_the_token_that_is_pooled_is_found(end: int, pooling: str) -> None:
    config = transformers.CLIPTextConfig(**TEXTS, eos_token_id=end)
    names = ("head", "pooling", "num_classes", "head_bias")
    found = fields_of(transformers.CLIPTextModelWithProjection(config), *names, "eos_id")
    assert found == ("classes", pooling, 7, False, end if pooling == "eos" else None)


def test_two_towers_are_asked_for_one_by_one() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.images = nn.Linear(2, 2)

        def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
            return self.images(pixel_values)

    with pytest.raises(PortError, match=r"takes images \(pixel_values\) and token ids .* each tower by itself"):
        fit(Pair())


@pytest.mark.long
def test_the_last_token_that_is_no_padding_tells_the_token_of_padding() -> None:
    sizes = {"vocab_size": 37, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40, "num_labels": 5}
    model = transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**sizes, pad_token_id=3))
    names = ("head", "pooling", "pad_id", "num_classes")
    assert fields_of(lambda: lambda ids: model(ids).logits, *names) == ("classes", "last", 3, 5)


WHISPER = ("mel_bins", "num_frames", "max_length", "positions", "encoder_positions", "sinusoidal_timescales")
SIZES = (5, 14, 11, "learned", "sinusoidal", "inclusive")


@pytest.mark.long
def test_a_whisper_in_the_manner_of_its_authors_is_found() -> None:
    assert fields_of(small_vision.Whisper, *WHISPER, "key_bias", "tied_head") == (*SIZES, False, True)


@pytest.mark.long
def test_whisper_of_transformers_is_fitted_to_its_family() -> None:
    sizes: dict[str, Any] = {f"{stack}_{name}": 3 for stack in ("encoder", "decoder") for name in ("attention_heads",)}
    sizes |= {"encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40}
    sizes |= {"vocab_size": 37, "d_model": 24, "num_mel_bins": 5, "max_source_positions": 7, "max_target_positions": 11}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 36)
    config = transformers.WhisperConfig(**sizes, **tokens, decoder_start_token_id=35)
    made = fit(transformers.WhisperForConditionalGeneration(config))
    assert made.is_confirmed
    assert made.template == "whisper"
    assert set(made.differences) <= {"pad_id"}
    assert tuple(getattr(made.config, name) for name in WHISPER) == SIZES


def test_convolutions_with_another_activation_are_told_in_one_sentence() -> None:
    with pytest.raises(
        FitError, match="go through no two convolutions over time of width 3, each with a bias and GELU"
    ):
        fit(small_vision.ReluWhisper)


def test_a_number_of_patches_that_nothing_tells_is_listed() -> None:
    made = fit(small_vision.UnplacedViT)
    assert made.is_confirmed
    assert (made.config.positions, made.untold["max_length"]) == ("none", "any number of patches is taken")


def test_what_reads_no_patches_is_told() -> None:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(5, 5)

        def forward(self, pixel_values: Tensor) -> Tensor:
            return self.map(pixel_values)

    with pytest.raises(FitError, match="none of its parameters is a map of square patches"):
        fit(Pixels())


def test_patches_that_are_normalised_before_positions_are_added_are_none_of_ours() -> None:
    with pytest.raises(FitError, match="The sublayers of the encoder are connected by no residuals and norms of ours"):
        fit(small_vision.NormedViT)
