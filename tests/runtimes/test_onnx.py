import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import transformers
from onnxruntime.quantization import quantize_dynamic
from tests.runtimes.cached_models import export, written
from tests.runtimes.conftest import Check, Hub


@pytest.mark.parametrize(
    "how",
    [{}, {"cached": True}, {"cached": True, "takes_positions": True}, {"masked": False}, {"fixed": True}],
    ids=str,
)
def test_a_right_graph_agrees(how: dict[str, Any], hub: Hub, check: Check, tmp_path: Path) -> None:
    graph = export(hub("llama"), tmp_path / "model.onnx", **how)
    checked = check(graph, "--checkpoint", hub("llama"))
    assert checked.exit_code == 0, checked.errors
    claims = {claim["id"]: claim["verdict"] for claim in checked.report["claims"]}
    assert set(claims.values()) == {"agrees"}
    assert ("step" in claims) == bool(how.get("cached"))
    lines = " ".join(checked.report["not_compared"])
    assert ("padding: the artifact has no input attention_mask" in lines) == (how.get("masked") is False)
    assert ("the graph fixes 5 tokens" in lines) == ("takes only 2 rows at a time" in lines) == bool(how.get("fixed"))
    assert checked.report["coverage"]["lengths"][-1] == (5 if how.get("fixed") else 29)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("", {"rope_theta": 500.0}, "rotary-base"),
    ("attention-scale-width", {}, "attention-scale"),
    ("head-grouping-tiled", {}, "head-grouping"),
    ("cache-position-from-0", {"cached": True}, "cache-position"),
    ("", {"fixed": True, "norm_eps": 1e-3}, "norm-eps"),
    ("activation-for-silu", {"masked": False, "fixed": True}, "activation"),
    ("padding-axis-target", {}, "padding-axis"),
    ("head-grouping-tiled", {"dtype": "float16"}, "head-grouping"),
]


@pytest.mark.parametrize(("bug", "how", "cause"), WRONG, ids=str)
def test_a_wrong_graph_diverges_by_its_cause(
    bug: str, how: dict[str, Any], cause: str, hub: Hub, check: Check, tmp_path: Path
) -> None:
    graph = export(hub("llama"), tmp_path / "model.onnx", *filter(None, [bug]), **how)
    checked = check(graph, "--checkpoint", hub("llama"))
    assert checked.exit_code == 1, checked.errors
    assert set(checked.causes) == {cause}


def test_the_source_of_a_fault_is_the_node_of_the_graph(hub: Hub, check: Check, tmp_path: Path) -> None:
    graph = export(hub("llama"), tmp_path / "model.onnx", "activation-for-silu")
    source = check(graph, "--checkpoint", hub("llama")).report["faults"][0]["source"]
    node = onnx.load(graph).graph.node[source["line"] - 1]
    assert node.op_type == "Gelu"
    assert Path(source["file"]).name == "model.onnx"
    assert source["code"] == f"{node.output[0]} = Gelu({node.input[0]})"


@pytest.mark.parametrize("asked", ["float32", "float16"])
def test_a_graph_in_half_precision_is_checked_in_it(asked: str, hub: Hub, check: Check, tmp_path: Path) -> None:
    graph = export(hub("llama"), tmp_path / "model.onnx", dtype="float16")
    checked = check(graph, "--checkpoint", hub("llama"), "--dtype", asked)
    assert checked.exit_code == 0, checked.errors
    assert checked.report["dtype"] == "float16"
    said = "the artifact's weights are float16, so the tolerances are for float16 instead of float32"
    assert (said in checked.report["notes"]) == (asked == "float32")


def test_a_quantised_graph_is_refused(hub: Hub, check: Check, tmp_path: Path) -> None:
    graph = export(hub("llama"), tmp_path / "model.onnx")
    small, model = tmp_path / "small.onnx", onnx.load(graph)
    for node in [node for node in model.graph.node if node.op_type == "Constant"]:
        node.attribute[0].t.name = node.output[0]
        model.graph.initializer.append(node.attribute[0].t)
        model.graph.node.remove(node)
    onnx.save(model, graph)
    with warnings.catch_warnings(action="ignore"):
        quantize_dynamic(graph, small)
    checked = check(small, "--checkpoint", hub("llama"))
    assert checked.exit_code == 2
    assert checked.last_line.startswith(f"{small} has quantized weights, and no budget separates")


@pytest.mark.parametrize(
    "change",
    [lambda data: b"", lambda data: b"no graph", lambda data: b"\x08\x08\x12\x00" * 9, lambda data: data[:-1000]],
)
def test_a_corrupt_file_is_one_sentence(
    change: Callable[[bytes], bytes], hub: Hub, check: Check, tmp_path: Path
) -> None:
    path = export(hub("llama"), tmp_path / "model.onnx")
    path.write_bytes(change(path.read_bytes()))
    checked = check(path, "--checkpoint", hub("llama"))
    assert checked.exit_code == 2
    assert checked.last_line.startswith(f"{path} cannot be read by ONNX Runtime: ")


def test_a_missing_file_and_a_missing_checkpoint_are_named(hub: Hub, check: Check, tmp_path: Path) -> None:
    missing = tmp_path / "missing.onnx"
    assert check(missing, "--checkpoint", hub("llama")).last_line == f"There is no file {missing}."
    graph = export(hub("llama"), tmp_path / "model.onnx")
    checked = check(graph)
    assert checked.exit_code == 2
    assert checked.last_line.startswith(f"{graph} contains its weights; give the folder of the original")


def image_graph(folder: Path, path: Path, *, fixed: bool = False, eps: float | None = None) -> Path:
    """Export a ViT that returns its pooled output, for any number of images, or for exactly two if `fixed`."""
    model = transformers.ViTModel.from_pretrained(folder, attn_implementation="eager").eval().requires_grad_(False)
    for norm in (each for each in model.modules() if isinstance(each, torch.nn.LayerNorm)):
        norm.eps = norm.eps if eps is None else eps

    class Pooled(torch.nn.Module):
        def forward(self, pixel_values: torch.Tensor) -> Any:
            return model(pixel_values=pixel_values).pooler_output

    axes = None if fixed else {"pixel_values": {0: "batch"}, "pooler_output": {0: "batch"}}
    return written(Pooled(), [torch.zeros(2, 3, 6, 6)], path, ["pixel_values"], ["pooler_output"], axes)


@pytest.mark.parametrize(("fixed", "eps"), [(False, None), (True, 1e-2)])
def test_a_graph_of_images_is_checked(fixed: bool, eps: float | None, hub: Hub, check: Check, tmp_path: Path) -> None:
    checked = check(image_graph(hub("vit"), tmp_path / "vit.onnx", fixed=fixed, eps=eps), "--checkpoint", hub("vit"))
    assert (checked.exit_code, set(checked.causes)) == ((1, {"norm-eps"}) if eps else (0, set())), checked.errors
    lines = " ".join(checked.report["not_compared"])
    assert ("takes only 2 rows at a time" in lines) == fixed and "attention_mask" not in lines


def test_a_graph_of_images_is_no_model_of_texts(hub: Hub, check: Check, tmp_path: Path) -> None:
    path = image_graph(hub("vit"), tmp_path / "vit.onnx")
    errors = check(path, "--checkpoint", hub("llama")).errors
    assert f"{path} reads images, but the checkpoint's model takes token ids; expected a graph exported" in errors
