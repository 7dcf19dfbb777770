import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.families.cases import ONE_SENTENCE
from tests.helpers import exported, invoke

from transparity.config import TransformerConfig
from transparity.errors import TransparityError
from transparity.taps import recording
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.checkpoints.importing import Opened, import_checkpoint, open_checkpoint
from transparity_conformance.checkpoints.layers import LENGTH, ROWS, open_for_pieces, pieces
from transparity_conformance.matching.recorded import HALF_OF_THE_DIGITS
from transparity_conformance.oracle.budgets import epsilon
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.report.comparison import gap
from transparity_numpy.transformer import transformer

WHOLE = ("bart", "clip_text_model", "clip_vision_model", "marian", "modernbert", "mpnet", "t5", "vit", "whisper")
"""Families whose layers cannot be checked separately."""

ONE_STACK = [name for name in FAMILIES if name not in WHOLE]


def opened(family: str, folder: Path) -> Opened:
    config = exported(family, folder)
    return open_checkpoint(folder, "hidden" if config.architecture == "encoder" else None)


@pytest.mark.parametrize("family", ONE_STACK)
def test_each_layer_makes_of_its_tokens_what_it_makes_in_the_whole_model(family: str, tmp_path: Path) -> None:
    whole = opened(family, tmp_path / "whole")
    config, (stack,) = whole.config, whole.config.stacks
    shape = ROWS, min(LENGTH, config.max_length)
    tokens = np.random.default_rng(0).integers(0, config.stack_vocab_size(stack), shape)
    ours = taps(config, import_checkpoint(whole.folder, "hidden" if stack == "encoder" else None).parameters, tokens)
    rows = np.arange(tokens.size).reshape(shape)
    found = list(pieces(whole))
    layers = [f"layer {i}" for i in range(config.stack_num_layers(stack))]
    assert [piece.name for piece in found] == ["embedding and head", *layers]
    for layer, piece in enumerate(found[1:]):
        expected = ours[f"{stack}.layers.{layer}.output"]
        made = taps(piece.config, piece.parameters, rows)[f"{stack}.layers.0.output"]
        assert gap(made, expected) <= epsilon("float32") ** HALF_OF_THE_DIGITS * np.abs(expected).max()


def taps(config: TransformerConfig, parameters: dict[str, np.ndarray], tokens: np.ndarray) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    transformer(dataclasses.replace(config, pad_id=None), parameters, tokens=tokens, tap=recording(found))
    return found


@pytest.mark.parametrize("family", ONE_STACK)
def test_each_piece_is_a_folder_of_its_family(family: str, tmp_path: Path) -> None:
    for number, piece in enumerate(pieces(opened(family, tmp_path / "whole"))):
        export_checkpoint(family, piece.config, piece.parameters, tmp_path / str(number))


def test_a_large_vocabulary_comes_in_blocks_and_each_token_in_one(tmp_path: Path) -> None:
    parameters = probe_parameters(exported("llama", tmp_path / "whole", target_vocab_size=2000))
    blocks = [piece for piece in pieces(open_checkpoint(tmp_path / "whole")) if "tokens" in piece.name]
    assert len(blocks) > 1
    for name in ("decoder.token_embedding.weight", "head.weight"):
        joined = np.concatenate([block.parameters[name] for block in blocks])
        np.testing.assert_array_equal(joined, parameters[name])


@pytest.mark.parametrize(("family", "layers", "message"), ONE_SENTENCE["layers"])
def test_what_has_no_such_layer_is_said(family: str, layers: list[int] | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(TransparityError) as raised:
        list(pieces(opened(family, tmp_path / "whole"), layers))
    assert str(raised.value).endswith(message)


@pytest.mark.parametrize(
    ("head", "fields"), [("logits", {"head_transform": True, "tied_head": True}), ("pooled", {}), ("classes", {})]
)
def test_a_head_that_needs_all_layers_is_refused(head: str, fields: dict[str, Any], tmp_path: Path) -> None:
    exported("bert", tmp_path, head=head, **fields)
    with pytest.raises(TransparityError, match=f"has the head {head}, which a model of one layer cannot compute"):
        list(pieces(open_for_pieces(tmp_path, head)))
    assert open_for_pieces(tmp_path, None).config.head == "hidden"


WRONG = """
import torch

from meta.audits.loaders.llama_module import load as right


def load(folder):
    model = right(folder)
    for block in model.blocks:
        if float(block.attention.wq.weight[0, 0]) == {number!r}:
            block.activation = torch.nn.functional.gelu
    return model
"""
"""A loader with a mistake in the layer whose first query weight is `number`."""


@pytest.mark.long
def test_of_all_layers_only_the_one_with_the_mistake_diverges(tmp_path: Path) -> None:
    config = exported("llama", tmp_path / "whole", num_decoder_layers=3)
    weights = probe_parameters(config)["decoder.layers.1.self_attention.query.weight"]
    (tmp_path / "wrong.py").write_text(WRONG.format(number=float(np.float32(weights[0, 0]))))
    written, port = tmp_path / "report.json", f"{tmp_path / 'wrong.py'}:load"
    invoke("check", port, "--checkpoint", tmp_path / "whole", "--by-layer", "--no-audit", "--json", written)
    reports = {each["preset"].rpartition(", ")[2]: each for each in json.loads(written.read_text(encoding="utf-8"))}
    assert {name for name, each in reports.items() if each["verdict"] != "agrees"} == {"layer 1"}
    assert {cause["mistake"] for fault in reports["layer 1"]["faults"] for cause in fault["causes"]} == {"activation"}
    assert {"embedding and head", "layer 0", "layer 2"} <= reports.keys()
