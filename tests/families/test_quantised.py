import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.helpers import exported
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from transparity_conformance import check
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.storage.mapped import Mapped

BLOCK = (16, 32)
FLOAT8: dict[str, dict[str, Any]] = {
    "block": {"quant_method": "fp8", "weight_block_size": list(BLOCK), "activation_scheme": "dynamic"},
    "row": {"quant_method": "compressed-tensors", "format": "float-quantized"},
    "matrix": {"quant_method": "compressed-tensors", "format": "float-quantized"},
}


def configure(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields), encoding="utf-8")


def in_float8(folder: Path, kind: str) -> dict[str, torch.Tensor]:
    """Write a Llama whose projections are in float8; return its tensors in float32."""
    exported("llama", folder)
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
    configure(folder, quantization_config=FLOAT8[kind])
    return exact


@pytest.mark.parametrize("kind", FLOAT8)
def test_a_matrix_in_float8_is_multiplied_by_its_scales(kind: str, tmp_path: Path) -> None:
    exact = in_float8(tmp_path / "hub", kind)
    checkpoint = import_checkpoint(tmp_path / "hub")
    ours = checkpoint.parameters["decoder.layers.1.feed_forward.down.weight"]
    np.testing.assert_array_equal(ours, exact["model.layers.1.mlp.down_proj.weight"].numpy())
    assert any("float8" in remark for remark in checkpoint.remarks)
    assert not any("tensors that are not used" in remark for remark in checkpoint.remarks)


@pytest.mark.parametrize(("lacks", "message"), [("scales", "; expected a matrix with its"), ("block", "has the shape")])
def test_scales_that_are_missing_or_do_not_fit_are_named(lacks: str, message: str, tmp_path: Path) -> None:
    in_float8(tmp_path, "block")
    if lacks == "scales":
        tensors = load_file(tmp_path / "model.safetensors")
        save_file({name: tensors[name] for name in tensors if "scale" not in name}, tmp_path / "model.safetensors")
    else:
        configure(tmp_path, quantization_config=FLOAT8["block"] | {"weight_block_size": [128, 128]})
    with pytest.raises(CheckpointError, match=message):
        import_checkpoint(tmp_path)


MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def in_mxfp4(folder: Path, **config: Any) -> dict[str, torch.Tensor]:
    """Write a gpt-oss whose experts are random bytes; return its tensors in float32, dequantized by transformers."""
    exported("gpt_oss", folder, embed_dim=32, feed_forward_dim=64, num_experts=3)
    tensors, exact, drawn = load_file(folder / "model.safetensors"), {}, torch.Generator().manual_seed(0)
    for name, value in list(tensors.items()):
        exact[name] = value
        if not name.endswith("_proj") or value.ndim != 3:
            continue
        count, wide, high = value.shape
        blocks = torch.randint(256, (count, high, wide // 32, 16), generator=drawn, dtype=torch.uint8)
        scales = torch.randint(121, 126, (count, high, wide // 32), generator=drawn, dtype=torch.uint8)
        del tensors[name]
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        exact[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_file(tensors, folder / "model.safetensors")
    configure(folder, **{"quantization_config": MXFP4} | config)
    return exact


@pytest.mark.parametrize("in_place", [False, True])
def test_experts_in_mxfp4_are_those_of_transformers(
    in_place: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    exact = in_mxfp4(tmp_path)
    if in_place:
        request.getfixturevalue("all_are_large")
    checkpoint = import_checkpoint(tmp_path)
    for layer in range(checkpoint.config.num_decoder_layers):
        both = exact[f"model.layers.{layer}.mlp.experts.gate_up_proj"].numpy()
        downs = exact[f"model.layers.{layer}.mlp.experts.down_proj"].numpy()
        for expert in range(checkpoint.config.num_experts):
            right = {"gate": both[expert, :, ::2], "up": both[expert, :, 1::2], "down": downs[expert]}
            for role, value in right.items():
                ours = checkpoint.parameters[f"decoder.layers.{layer}.feed_forward.experts.{expert}.{role}.weight"]
                assert isinstance(ours, Mapped) == in_place
                np.testing.assert_array_equal(ours, value.T)
                np.testing.assert_array_equal(ours[1:5], value.T[1:5])
    assert any("matrices in MXFP4" in remark for remark in checkpoint.remarks)
    assert not any("tensors that are not used" in remark for remark in checkpoint.remarks)


@pytest.mark.parametrize(
    ("config", "changed", "message"),
    [
        ({"quantization_config": None}, {}, "has no tensor 'layers.0.mlp.experts"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, {}, "quantization_config is "),
        ({}, {"_scales": lambda x: x[..., :1]}, "expected .experts, out, in"),
        ({}, {"_blocks": lambda x: x.float()}, "has the dtype F32; expected U8"),
        ({}, {"_blocks": lambda x: x[:, :8], "_scales": lambda x: x[:, :8]}, "so decoder.layers.0.feed_for"),
    ],
)
def test_bytes_that_are_not_mxfp4_are_refused_by_name(
    config: dict[str, Any], changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    in_mxfp4(tmp_path, **config)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for name in list(tensors):
        for ending, change in changed.items():
            if name.endswith(ending):
                tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=message):
        import_checkpoint(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("with_scales", "verdict"), [(True, "agrees"), (False, "diverges")])
def test_a_loader_is_given_the_matrices_in_float8(with_scales: bool, verdict: str, tmp_path: Path) -> None:
    exact = in_float8(tmp_path / "hub", "block")

    def load(folder: str) -> Any:
        kept = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
        config = transformers.LlamaConfig(**{name: kept[name] for name in kept if name != "quantization_config"})
        model = transformers.LlamaForCausalLM(config).eval()
        stored = load_file(Path(folder, "model.safetensors"))
        dense = {name: value.float() for name, value in stored.items() if "scale" not in name}
        model.load_state_dict(exact if with_scales else dense, strict=False)
        return model

    given = import_checkpoint(tmp_path / "hub")
    report = check(load, family="llama", audit=False, config=given.config, parameters=given.parameters)
    assert report.verdict == verdict
