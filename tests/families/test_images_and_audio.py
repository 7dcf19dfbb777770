import dataclasses
from typing import Any

import numpy as np
import pytest
import transformers
from tests.families.cases import ONE_SENTENCE

from meta.pool.port import port_with
from transparity.config import TransformerConfig
from transparity.errors import ConfigError, InputError
from transparity.protocol import Backend
from transparity_conformance.checking.audit.variants import variants_of
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.oracle.backends import backend, installed
from transparity_conformance.oracle.cases import AUDIO, CLIP_IMAGES, IMAGES
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.oracle.probes import mixed_inputs, pixel_inputs, probe_parameters, probes_of
from transparity_conformance.report.comparison import as_numbers, difference, gap, share
from transparity_pytorch.port import build as pytorch_build

transformers.logging.disable_progress_bar()


@pytest.mark.parametrize(
    ("style", "config"),
    [
        ("frames-as-products", AUDIO),
        ("roots-of-the-scale", AUDIO),
        ("scaled-query", AUDIO),
        ("patches-as-a-convolution", IMAGES),
    ],
)
def test_right_styles_agree(style: str, config: TransformerConfig) -> None:
    report = check(port_with(f"right-{style}", taps=False), config=config)
    assert report.verdict == "agrees" and not report.faults, report.verdict


@pytest.mark.parametrize("column", ["numpy", "pytorch", "flax"], indirect=True)
def test_a_column_decodes_with_a_cache(backend: Backend) -> None:
    parameters, inputs = probe_parameters(AUDIO), mixed_inputs(AUDIO)
    oracle = forward_oracle(AUDIO, parameters, inputs)
    for dtype in [each for each in ("float32", "float64") if each in backend.dtypes]:
        forward = backend(AUDIO, parameters, dtype=dtype)
        first, cache = forward.step(inputs["target"][:, :3], source=inputs["source"])
        then, cache = forward.step(inputs["target"][:, 3:6], cache)
        found = np.concatenate([as_numbers(first), as_numbers(then)], axis=1)
        assert share(difference(found, oracle.expected["logits"][:, :6]), oracle.budget("logits", dtype)) <= 1


@pytest.mark.parametrize(("model", "fields", "says"), ONE_SENTENCE["impossible"])
def test_an_impossible_model_is_refused(model: str, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        dataclasses.replace({"audio": AUDIO, "images": IMAGES}[model], **fields)


@pytest.mark.parametrize(
    ("config", "given", "says"),
    [
        (AUDIO, np.zeros((2, 14, 5), np.float32), r"shape \(2, 14, 5\) \(it looks transposed\); expected"),
        (AUDIO, np.zeros((2, 5, 12), np.float32), "5 bins of 14 frames"),
        (AUDIO, np.zeros((2, 5, 14), np.int64), "expected finite floats"),
        (AUDIO, np.full((2, 5, 14), np.nan), "is not finite"),
        (AUDIO, np.zeros((3, 5, 14), np.float32), "The batch size of source is 3, but the batch size of target is 2"),
        (IMAGES, np.zeros((2, 6, 6, 3), np.float32), r"\(it looks transposed\); expected .*3 channels of 6 × 6 pixels"),
        (IMAGES, np.zeros((2, 3, 6, 6), np.int64), "expected finite floats"),
        (IMAGES, np.full((2, 3, 6, 6), np.nan), "expected finite floats"),
    ],
)
def test_wrong_frames_and_pixels_are_refused(config: TransformerConfig, given: np.ndarray, says: str) -> None:
    forward = pytorch_build(config, probe_parameters(config))
    inputs = {"pixels": given} if config is IMAGES else {"source": given, "target": np.ones((2, 3), int)}
    with pytest.raises(InputError, match=says):
        forward.logits(**inputs)
    if config is IMAGES:
        assert forward.logits(pixels=pixel_inputs(IMAGES, 2, 0)).shape == (2, IMAGES.embed_dim)


def test_a_table_that_is_computed_is_no_parameter_of_what_is_audited() -> None:
    assert next(variants_of("whisper", example_config("whisper")))


def test_the_fast_path_reads_images_and_may_write_into_memory_that_is_given(backend: Backend) -> None:
    probe = probes_of(IMAGES, "vit")["mixed"]
    forward, pixels = backend(IMAGES, probe.parameters, dtype="float32"), probe.inputs["pixels"]
    logits = forward.logits(pixels=pixels)
    assert gap(as_numbers(logits), probe.oracle.expected["logits"]) <= probe.oracle.budget("logits", "float32")
    right = np.array(as_numbers(logits))
    np.testing.assert_array_equal(as_numbers(forward.logits(pixels=pixels, out=logits)), right)
    with pytest.raises(InputError, match=r"^out is of shape \(2,\); expected \("):
        forward.logits(pixels=pixels, out=np.empty(2, np.float32))


@pytest.mark.parametrize("column", installed())
def test_the_last_position_of_an_image_is_pooled(column: str) -> None:
    config = dataclasses.replace(CLIP_IMAGES, pooling="last")
    taps = backend(column)(config, probe_parameters(config))(pixels=pixel_inputs(config, 2, 0))
    np.testing.assert_array_equal(as_numbers(taps["pooled"]), as_numbers(taps["encoder.output"])[:, -1])
