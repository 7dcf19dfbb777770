"""Audio encoders: ports agree in every style, models compute what transformers computes, wrong frames are refused."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from meta.pool.port import port_with
from transparity.config import TransformerConfig
from transparity.errors import ConfigError, InputError
from transparity.protocol import Backend
from transparity_conformance.checking.audit.variants import variants_of
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.oracle.cases import AUDIO
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.oracle.probes import frame_inputs, mixed_inputs, probe_parameters
from transparity_conformance.report.comparison import as_numbers, difference, share
from transparity_pytorch.port import build as pytorch_build

with warnings.catch_warnings():  # import warnings do not concern this project
    warnings.simplefilter("ignore")
    import transformers
    from transformers.models.whisper import modeling_whisper

transformers.logging.disable_progress_bar()


@pytest.mark.parametrize("style", ["frames-as-products", "roots-of-the-scale", "scaled-query"])
def test_right_styles_agree(style: str) -> None:
    report = check(port_with(f"right-{style}", taps=False), config=AUDIO)
    assert report.verdict == "agrees" and not report.faults, report.verdict


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "usual": {},
    "another width": {"embed_dim": 10, "num_heads": 5, "feed_forward_dim": 7, "mel_bins": 1, "num_frames": 2},
    "untied": {"tied_head": False, "activation": "relu", "num_decoder_layers": 1, "num_frames": 38},
}
"""Models of the family whose encoder is as long as the decoder, shorter and longer."""


def exported(name: str, folder: Path) -> tuple[TransformerConfig, Any]:
    config = dataclasses.replace(example_config("whisper"), **CONFIGURATIONS[name])
    parameters = probe_parameters(config)
    export_checkpoint("whisper", config, parameters, folder)
    return config, parameters


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_transformers_computes_the_same_at_once_and_with_its_cache(name: str, dtype: str, tmp_path: Path) -> None:
    config, parameters = exported(name, tmp_path)
    inputs = mixed_inputs(config)
    oracle = forward_oracle(config, parameters, inputs)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path, dtype=getattr(torch, dtype))
    with torch.no_grad(), default_dtype(model.dtype):  # transformers loads the table in float32
        table = model.model.encoder.embed_positions.weight
        table.copy_(modeling_whisper.sinusoids(*table.shape))
    frames, target = torch.tensor(inputs["source"], dtype=model.dtype), torch.from_numpy(inputs["target"])
    with torch.no_grad():
        memory = model.model.encoder(frames)
        said = model(encoder_outputs=memory, decoder_input_ids=target[:, :4], use_cache=True)
        found = [said.logits]
        for token in target[:, 4:].split(1, dim=1):
            cache = said.past_key_values
            said = model(encoder_outputs=memory, decoder_input_ids=token, past_key_values=cache, use_cache=True)
            found.append(said.logits)
        whole = as_numbers(model(input_features=frames, decoder_input_ids=target).logits)
    for each in (whole, np.concatenate([as_numbers(logits) for logits in found], axis=1)):
        assert share(difference(each, oracle.expected["logits"]), oracle.budget("logits", dtype)) <= 1


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


def test_generation_is_that_of_transformers(tmp_path: Path) -> None:
    config, parameters = exported("usual", tmp_path)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path)
    prompt, frames = np.array([[config.bos_id, 5], [config.bos_id, 9]]), frame_inputs(config, 2, 3)
    ours = pytorch_build(config, parameters).generate(prompt, 6, source=frames)
    with torch.no_grad():
        tokens, given = torch.from_numpy(prompt), {"input_features": torch.from_numpy(frames)}
        for _ in range(6):
            new = model(**given, decoder_input_ids=tokens).logits[:, -1].argmax(-1)
            ended = tokens[:, 2:].eq(config.eos_id or 0).any(1)
            tokens = torch.cat([tokens, torch.where(ended, config.filling_id, new)[:, None]], dim=1)
    assert np.array_equal(ours, tokens.numpy())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_frames": 7}, "num_frames is 7, but the second convolution turns two frames into one position: 8 would"),
        ({"source_vocab_size": 9}, "source_vocab_size is 9, but with mel_bins"),
        ({"padding": "attention-mask"}, "padding is 'attention-mask', but with mel_bins"),
        ({"mel_bins": None}, "source_vocab_size is missing"),
        ({"positions": "rotary"}, "encoder_positions is 'sinusoidal', but only an encoder-decoder"),
        ({"embed_dim": 2, "num_heads": 1}, "embed_dim is 2, but sinusoidal_timescales 'inclusive'"),
    ],
)
def test_an_impossible_model_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        dataclasses.replace(AUDIO, **fields)


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        (np.zeros((2, 14, 5), np.float32), r"shape \(2, 14, 5\) \(it looks transposed\); expected"),
        (np.zeros((2, 5, 12), np.float32), "5 bins of 14 frames"),
        (np.zeros((2, 5, 14), np.int64), "expected finite floats"),
        (np.full((2, 5, 14), np.nan), "is not finite"),
        (np.zeros((3, 5, 14), np.float32), "source has 3 rows and target 2"),
    ],
)
def test_wrong_frames_are_refused(frames: np.ndarray, says: str) -> None:
    forward = pytorch_build(AUDIO, probe_parameters(AUDIO))
    with pytest.raises(InputError, match=says):
        forward.logits(source=frames, target=np.ones((2, 3), int))


def test_a_table_that_is_computed_is_no_parameter_of_what_is_audited() -> None:
    assert next(variants_of("whisper", example_config("whisper")))
