"""An encoder and a decoder in two files are run as one model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtimes.conftest import Check

with warnings.catch_warnings():  # its warnings while it is imported are not about this project
    warnings.simplefilter("ignore")
    import transformers

Hub = Callable[[str], Path]


class Encoder(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        return self.model.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class Decoder(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, encoder_attention_mask: Any, input_ids: Any, encoder_hidden_states: Any) -> Any:
        given = {"encoder_outputs": (encoder_hidden_states,), "attention_mask": encoder_attention_mask}
        return self.model(decoder_input_ids=input_ids, **given, use_cache=False).logits


def export(checkpoint: Path, folder: Path, **fields: Any) -> Path:
    """Write both files, by the names that exporters give."""
    model = transformers.T5ForConditionalGeneration.from_pretrained(checkpoint, attn_implementation="eager", **fields)
    folder.mkdir()
    ids, mask = torch.randint(1, 30, (2, 5)), torch.ones(2, 5, dtype=torch.long)
    free, of_source = {0: "batch", 1: "length"}, {0: "batch", 1: "source"}
    for name, part, given, names, output in (
        ("encoder", Encoder, (ids, mask), ["input_ids", "attention_mask"], "last_hidden_state"),
        (
            "decoder",
            Decoder,
            (mask, torch.randint(1, 30, (2, 4)), torch.randn(2, 5, model.config.d_model)),
            ["encoder_attention_mask", "input_ids", "encoder_hidden_states"],
            "logits",
        ),
    ):
        axes = {each: free if name == "encoder" or each == "input_ids" else of_source for each in names}
        options: dict[str, Any] = {"input_names": names, "output_names": [output], "dynamo": False}
        with warnings.catch_warnings(action="ignore"):
            path = str(folder / f"{name}_model.onnx")
            torch.onnx.export(part(model.eval()), given, path, **options, dynamic_axes=axes | {output: free})
    return folder


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("fields", "cause"),
    [({}, ""), ({"layer_norm_epsilon": 1e-2}, "norm-eps"), ({"relative_attention_max_distance": 8}, "relative")],
)
def test_two_files_are_judged_as_one_model(
    fields: dict[str, Any], cause: str, hub: Hub, check: Check, tmp_path: Path
) -> None:
    checked = check(export(hub("t5"), tmp_path / "made", **fields), "--checkpoint", hub("t5"))
    assert checked.exit_code == bool(cause), checked.errors
    if cause:
        assert any(cause in found for found in checked.causes)
        assert "_model.onnx" in checked.report["faults"][0]["source"]["file"]


def test_a_pair_is_not_held_to_a_decoder(hub: Hub, check: Check, tmp_path: Path) -> None:
    checked = check(export(hub("t5"), tmp_path / "made"), "--checkpoint", hub("gpt2"))
    assert checked.exit_code == 2
    assert "has an encoder and a decoder, and the checkpoint is a decoder" in " ".join(checked.errors.split())
