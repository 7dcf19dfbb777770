import tomllib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from meta.pool.bug import META, edited
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.cli import app
from transparity_conformance.oracle.probes import probe_parameters


def test_bits_of_bfloat16_that_are_read_as_float16_are_named(tmp_path: Path) -> None:
    rows = tomllib.loads((META / "planting/around.toml").read_text(encoding="utf-8"))["line"]
    (row,) = (row for row in rows if row["cause"] == "folder-read")
    text = (META.parents[1] / row["file"]).read_text(encoding="utf-8")
    (tmp_path / "right.py").write_text(text, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(edited(text, row["old"], row["new"]), encoding="utf-8")
    config, folder = example_config("llama"), tmp_path / "folder"
    export_checkpoint("llama", config, probe_parameters(config), folder)
    weights = folder / "model.safetensors"
    save_file({name: value.to(torch.bfloat16) for name, value in load_file(weights).items()}, weights)
    answers = [
        CliRunner().invoke(app, ["check", f"{tmp_path / name}.py:load", "--checkpoint", str(folder), "--no-audit"])
        for name in ("right", "wrong")
    ]
    assert [answer.exit_code for answer in answers] == [0, 1]
    assert ["  folder-read  " in answer.output for answer in answers] == [False, True]
