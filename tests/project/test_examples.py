from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib", reason="the examples' plot needs matplotlib")

from examples import character_loop, character_model

from transparity_pytorch.transformer import Transformer as Column

SMALL = {"max_length": 16, "embed_dim": 24, "num_heads": 3, "num_decoder_layers": 1}


def test_the_character_model_runs_and_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(character_model, "SIZES", SMALL)
    monkeypatch.setattr(character_model, "WRITTEN", 20)
    character_model.main(steps=3, out=tmp_path / "new")
    assert (tmp_path / "new" / "character_model.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    for said in ("before", "after", "PyTorch", "JAX", "changed by one rounding"):
        assert said in printed


def test_the_column_learns_in_a_loop_of_plain_pytorch() -> None:
    torch.manual_seed(0)
    losses = character_loop.learn(Column(character_loop.LLAMA), 12)
    assert losses[-1] < losses[0]
