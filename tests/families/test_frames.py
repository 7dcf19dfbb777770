"""Audio encoders: correct ports agree in every style, and wrong ports are placed and named."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

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
from transparity_conformance.report.report import Report
from transparity_pytorch.port import build as pytorch_build

with warnings.catch_warnings():  # import warnings do not concern this project
    warnings.simplefilter("ignore")
    import transformers
    from transformers.models.whisper import modeling_whisper

transformers.logging.disable_progress_bar()


class Listener(torch.nn.Module):
    """A hand-written Whisper; tests replace single methods."""

    def __init__(self, config: TransformerConfig, parameters: Any) -> None:
        super().__init__()
        self.c, c = config, config
        self.w = torch.nn.ParameterDict({n.replace(".", "/"): torch.tensor(v) for n, v in parameters.items()})
        self.kernels = [
            self.part(f"encoder.{name}_convolution.weight").reshape(c.embed_dim, -1, 3) for name in ("first", "second")
        ]

    def part(self, name: str) -> Tensor:
        found = self.w[name.replace(".", "/")]
        assert isinstance(found, Tensor)
        return found

    def linear(self, name: str, x: Tensor) -> Tensor:
        bias = f"{name}.bias".replace(".", "/")
        return F.linear(x, self.part(f"{name}.weight"), self.w.get(bias, None))

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.part(f"{name}.weight"), self.part(f"{name}.bias"), self.c.norm_eps)

    def frames(self, source: Tensor) -> Tensor:
        return source

    def kernel(self, index: int) -> Tensor:
        return self.kernels[index]

    def convolution(self, x: Tensor, index: int, stride: int) -> Tensor:
        bias = self.part(f"encoder.{('first', 'second')[index]}_convolution.bias")
        return F.conv1d(x, self.kernel(index), bias, stride=stride, padding=1)

    def activation(self, x: Tensor, index: int) -> Tensor:
        return F.gelu(x)

    def strides(self) -> tuple[int, int]:
        return (1, 2)

    def sinusoids(self) -> Tensor:
        half = self.c.embed_dim // 2
        rates = torch.exp(-np.log(self.c.rope_theta) / (half - 1) * torch.arange(half))
        return self.layout(torch.arange(self.c.frame_positions)[:, None] * rates)

    def layout(self, angles: Tensor) -> Tensor:
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def attention(self, name: str, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        def heads(role: str, y: Tensor) -> Tensor:
            return self.linear(f"{name}.{role}", y).unflatten(-1, (self.c.num_heads, -1)).transpose(1, 2)

        scores = self.scores(heads("query", x), heads("key", memory))
        scores = scores if mask is None else scores.masked_fill(mask, float("-inf"))
        return self.linear(f"{name}.output", (scores.softmax(-1) @ heads("value", memory)).transpose(1, 2).flatten(2))

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.transpose(-1, -2) / self.c.head_dim**0.5

    def layer(self, name: str, x: Tensor, memory: Tensor | None) -> Tensor:
        length, y = x.shape[1], self.norm(f"{name}.self_attention_norm", x)
        mask = None if memory is None else torch.ones(length, length, dtype=torch.bool).triu(1)
        x = x + self.attention(f"{name}.self_attention", y, y, mask)
        if memory is not None:
            y = self.norm(f"{name}.cross_attention_norm", x)
            x = x + self.attention(f"{name}.cross_attention", y, memory, None)
        hidden = F.gelu(self.linear(f"{name}.feed_forward.up", self.norm(f"{name}.feed_forward_norm", x)))
        return x + self.linear(f"{name}.feed_forward.down", hidden)

    def encode(self, source: Tensor) -> Tensor:
        x = self.frames(source)
        for index, stride in enumerate(self.strides()):
            x = self.activation(self.convolution(x, index, stride), index)
        x = self.placed(x.transpose(1, 2))
        for layer in range(self.c.num_encoder_layers):
            x = self.layer(f"encoder.layers.{layer}", x, None)
        return self.norm("encoder.final_norm", x)

    def placed(self, x: Tensor) -> Tensor:
        return x + self.sinusoids()

    @torch.no_grad()
    def forward(self, source: np.ndarray, target: np.ndarray) -> Tensor:
        tokens, memory = torch.from_numpy(target), self.encode(torch.from_numpy(source))
        table = self.part("decoder.token_embedding.weight")
        x = table[tokens] + self.part("decoder.position_embedding.weight")[: tokens.shape[1]]
        for layer in range(self.c.num_decoder_layers):
            x = self.layer(f"decoder.layers.{layer}", x, memory)
        return self.norm("decoder.final_norm", x) @ table.T


def built(port: type[Listener]) -> Callable[[TransformerConfig, Any], Any]:
    """Return the port as a function, because a module's `train` would be mistaken for a capability."""

    def build(config: TransformerConfig, parameters: Any) -> Any:
        return port(config, parameters).forward

    return build


def unfolded(self: Listener, x: Tensor, index: int, stride: int) -> Tensor:
    """Compute a convolution as a matrix product of unfolded frames."""
    name = f"encoder.{('first', 'second')[index]}_convolution"
    return self.linear(name, F.pad(x, (1, 1)).unfold(-1, 3, stride).transpose(1, 2).flatten(2)).transpose(1, 2)


def scaled_both(self: Listener, query: Tensor, key: Tensor) -> Tensor:
    """Scale both query and key by the square root of the scale, as in OpenAI's code."""
    scale = self.c.head_dim**-0.25
    return (query * scale) @ (key * scale).transpose(-1, -2)


RIGHT: dict[str, dict[str, Any]] = {
    "plain": {},
    "unfolded": {"convolution": unfolded},
    "scaled before": {"scores": lambda self, query, key: (query * self.c.head_dim**-0.5) @ key.transpose(-1, -2)},
    "scaled both": {"scores": scaled_both},
}
"""Correct ports, by the methods that they replace."""


def check_with(**methods: Any) -> Report:
    return check(built(type("Changed", (Listener,), methods)), config=AUDIO)


@pytest.mark.parametrize("name", RIGHT)
def test_right_styles_agree(name: str) -> None:
    report = check_with(**RIGHT[name])
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
