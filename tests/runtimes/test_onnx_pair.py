from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.runtimes import cached_models
from tests.runtimes.conftest import Check, Hub

Tensors = tuple[torch.Tensor, ...]
FREE = {
    "input_features": {0: "batch"},
    "encoder_hidden_states": {0: "batch", 1: "source"},
    "encoder_attention_mask": {0: "batch", 1: "source"},
    "attention_mask": {0: "batch", 1: "length"},
    "decoder_input_ids": {0: "batch", 1: "length"},
    "input_ids": {0: "batch", 1: "length"},
}


class Whisper(torch.nn.Module):
    """A Whisper that returns logits; its source is frames, or the encoder's output if `encoded`."""

    def __init__(self, model: Any, *, encoded: bool) -> None:
        super().__init__()
        self.model, self.encoded = model, encoded

    def forward(self, source: torch.Tensor, tokens: torch.Tensor) -> Any:
        given: dict[str, Any] = {"encoder_outputs": (source,)} if self.encoded else {"input_features": source}
        # without a mask, transformers looks for packed sequences with an operator that this exporter lacks
        given |= {"decoder_input_ids": tokens, "decoder_attention_mask": torch.ones_like(tokens)}
        return self.model(**given, use_cache=False).logits


class Encoder(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
        return self.model.get_encoder()(source, attention_mask=attention_mask).last_hidden_state


class Decoder(Encoder):
    def forward(self, mask: torch.Tensor, tokens: torch.Tensor, memory: torch.Tensor) -> Any:  # type: ignore[override]
        given = {"encoder_outputs": (memory,), "attention_mask": mask}
        return self.model(decoder_input_ids=tokens, **given, use_cache=False).logits


def whisper(checkpoint: Path, fields: dict[str, Any]) -> Any:
    options = {"attn_implementation": "eager", **fields}
    return transformers.WhisperForConditionalGeneration.from_pretrained(checkpoint, **options).eval()


def written(part: torch.nn.Module, given: Tensors, names: list[str], output: str, path: Path) -> Path:
    axes = {name: FREE[name] for name in names} | {output: {0: "batch", 1: "length"}}
    return cached_models.written(part, given, path, names, [output], axes)


def one_graph(checkpoint: Path, path: Path, **fields: Any) -> Path:
    model = whisper(checkpoint, fields)
    frames = torch.randn(2, model.config.num_mel_bins, 2 * model.config.max_source_positions)
    given, names = (frames, torch.randint(1, 20, (2, 5))), ["input_features", "decoder_input_ids"]
    return written(Whisper(model, encoded=False), given, names, "logits", path)


def two_graphs(checkpoint: Path, folder: Path, **fields: Any) -> Path:
    model = whisper(checkpoint, fields)
    folder.mkdir()
    frames = torch.randn(2, model.config.num_mel_bins, 2 * model.config.max_source_positions)
    encoder, decoder = folder / "encoder_model.onnx", folder / "decoder_model.onnx"
    written(Encoder(model), (frames,), ["input_features"], "last_hidden_state", encoder)
    memory, names = torch.randn(2, 5, model.config.d_model), ["encoder_hidden_states", "input_ids"]
    written(Whisper(model, encoded=True), (memory, torch.randint(1, 20, (2, 4))), names, "logits", decoder)
    return folder


def t5(checkpoint: Path, folder: Path, **fields: Any) -> Path:
    options = {"attn_implementation": "eager", **fields}
    model = transformers.T5ForConditionalGeneration.from_pretrained(checkpoint, **options).eval()
    folder.mkdir()
    ids, mask = torch.randint(1, 30, (2, 5)), torch.ones(2, 5, dtype=torch.long)
    names = ["input_ids", "attention_mask"]
    written(Encoder(model), (ids, mask), names, "last_hidden_state", folder / "encoder_model.onnx")
    names = ["encoder_attention_mask", "input_ids", "encoder_hidden_states"]
    given = (mask, torch.randint(1, 30, (2, 4)), torch.randn(2, 5, model.config.d_model))
    written(Decoder(model), given, names, "logits", folder / "decoder_model.onnx")
    return folder


MADE: dict[str, Callable[..., Path]] = {"made.onnx": one_graph, "made": two_graphs}


@pytest.mark.parametrize("graphs", MADE)
def test_a_graph_of_audio_agrees(graphs: str, hub: Hub, check: Check, tmp_path: Path) -> None:
    checked = check(MADE[graphs](hub("whisper"), tmp_path / graphs), "--checkpoint", hub("whisper"))
    assert checked.exit_code == 0, checked.errors


@pytest.mark.parametrize("graphs", MADE)
def test_a_mistake_in_a_graph_of_audio_is_found_at_its_node(
    graphs: str, hub: Hub, check: Check, tmp_path: Path
) -> None:
    wrong = MADE[graphs](hub("whisper"), tmp_path / graphs, activation_function="relu")
    checked = check(wrong, "--checkpoint", hub("whisper"))
    assert (checked.exit_code, set(checked.causes)) == (1, {"activation"}), checked.errors
    source = checked.report["faults"][0]["source"]
    assert "Relu(" in source["code"] and "encoder" in source["code"]


@pytest.mark.parametrize(
    ("fields", "cause"),
    [({}, ""), ({"layer_norm_epsilon": 1e-2}, "norm-eps"), ({"relative_attention_max_distance": 8}, "relative")],
)
def test_two_files_are_judged_as_one_model(
    fields: dict[str, Any], cause: str, hub: Hub, check: Check, tmp_path: Path
) -> None:
    checked = check(t5(hub("t5"), tmp_path / "made", **fields), "--checkpoint", hub("t5"))
    assert checked.exit_code == bool(cause), checked.errors
    if cause:
        assert any(cause in found for found in checked.causes)
        assert "_model.onnx" in checked.report["faults"][0]["source"]["file"]
