"""Matrices in float8 with scales are what transformers makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from transparity_conformance import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.oracle.probes import probe_parameters

BLOCK = (16, 32)
CONFIGS = {
    "block": {"quant_method": "fp8", "weight_block_size": list(BLOCK), "activation_scheme": "dynamic"},
    "row": {"quant_method": "compressed-tensors", "format": "float-quantized"},
    "matrix": {"quant_method": "compressed-tensors", "format": "float-quantized"},
}


def quantised(folder: Path, kind: str) -> dict[str, torch.Tensor]:
    """Write a Llama whose projections are in float8; return its tensors in float32."""
    config = example_config("llama")
    export_checkpoint("llama", config, probe_parameters(config), folder)
    tensors, exact = load_file(folder / "model.safetensors"), {}
    for name, value in list(tensors.items()):
        exact[name] = value
        if not name.endswith("proj.weight"):
            continue
        high, wide = {"block": BLOCK, "row": (1, value.shape[1]), "matrix": tuple(value.shape)}[kind]
        scale = torch.rand(-(-value.shape[0] // high), -(-value.shape[1] // wide)) + 0.5
        spread = scale.repeat_interleave(high, 0)[: value.shape[0]].repeat_interleave(wide, 1)[:, : value.shape[1]]
        tensors[name] = (value / spread).to(torch.float8_e4m3fn)
        tensors[name + ("_scale_inv" if kind == "block" else "_scale")] = scale.squeeze() if kind == "matrix" else scale
        exact[name] = tensors[name].float() * spread
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    fields = json.loads(path.read_text(encoding="utf-8")) | {"quantization_config": CONFIGS[kind]}
    path.write_text(json.dumps(fields), encoding="utf-8")
    return exact


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_matrix_in_float8_is_multiplied_by_its_scales(kind: str, tmp_path: Path) -> None:
    exact = quantised(tmp_path / "hub", kind)
    checkpoint = import_checkpoint(tmp_path / "hub")
    ours = checkpoint.parameters["decoder.layers.1.feed_forward.down.weight"]
    np.testing.assert_array_equal(ours, exact["model.layers.1.mlp.down_proj.weight"].numpy())
    assert any("float8" in remark for remark in checkpoint.remarks)
    assert not any("tensors that are not used" in remark for remark in checkpoint.remarks)


@pytest.mark.long
def test_a_loader_of_float8_is_given_the_folder_and_one_that_leaves_out_the_scales_is_wrong(tmp_path: Path) -> None:
    exact = quantised(tmp_path / "hub", "block")

    def load(folder: str, *, with_scales: bool = True) -> Any:
        import transformers

        kept = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
        config = transformers.LlamaConfig(**{name: kept[name] for name in kept if name != "quantization_config"})
        model = transformers.LlamaForCausalLM(config).eval()
        stored = load_file(Path(folder, "model.safetensors"))
        dense = {name: value.float() for name, value in stored.items() if "scale" not in name}
        model.load_state_dict(exact if with_scales else dense, strict=False)
        return model

    checkpoint = import_checkpoint(tmp_path / "hub")
    given = {"config": checkpoint.config, "parameters": checkpoint.parameters}
    options: dict[str, Any] = {"family": "llama", "audit": False, **given}
    report = check(load, **options)
    assert report.verdict == "agrees"
    assert any("its numbers are in float8" in note for note in report.notes)
    wrong = check(lambda folder: load(folder, with_scales=False), **options)
    assert wrong.verdict == "diverges"


@pytest.mark.parametrize(
    ("lacks", "message"), [("scales", "is beside it; expected a matrix with its"), ("block", "has the shape")]
)
def test_scales_that_are_missing_or_do_not_fit_are_named(lacks: str, message: str, tmp_path: Path) -> None:
    quantised(tmp_path / "hub", "block")
    if lacks == "scales":
        tensors = load_file(tmp_path / "hub" / "model.safetensors")
        save_file(
            {name: tensors[name] for name in tensors if "scale" not in name}, tmp_path / "hub" / "model.safetensors"
        )
    else:
        path = tmp_path / "hub" / "config.json"
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields["quantization_config"]["weight_block_size"] = [128, 128]
        path.write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        import_checkpoint(tmp_path / "hub")
