import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.helpers import table

from transparity_conformance import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.report.report import Report

TEXT = Path(__file__).with_name("ports.py").read_text(encoding="utf-8")
ROWS: list[dict[str, str]] = table(__file__, "kinds.toml")["wrong"]

SYSTEMS = {
    "plain": dataclasses.replace(CASES["llama"], max_length=64, pad_id=None, bos_id=None, eos_id=None),
    "short": dataclasses.replace(CASES["llama"], max_length=11, pad_id=None, bos_id=None, eos_id=None),
    "window": dataclasses.replace(
        CASES["qwen"], max_length=300, sliding_window=64, pad_id=None, bos_id=None, eos_id=None
    ),
    "longrope": dataclasses.replace(CASES["phi3"], max_length=40, pad_id=None, bos_id=None, eos_id=None),
    "bart": dataclasses.replace(CASES["bart"], max_length=11),
    "mamba2": dataclasses.replace(CASES["mamba2"], padding="attention-mask"),
}

FEW = {(row["port"], row["system"]): row for row in reversed(ROWS) if row["system"] in ("bart", "folder")}
"""The quick rows: the first row of kinds.toml for each port with the system `bart` or `folder`."""

TWINS = sorted({(row["port"], row["system"]) for row in ROWS} | {("Uncropped", "short")})


def marked(values: Any, *, is_short: bool) -> Any:
    return pytest.param(*values, marks=() if is_short else pytest.mark.long)


def made(port: str, old: str = "", new: str = "") -> Any:
    assert not old or TEXT.count(old) == 1, old
    names: dict[str, Any] = {"__name__": "ports"}
    exec(compile(TEXT.replace(old, new) if old else TEXT, "ports.py", "exec"), names)
    return names[port]


@cache
def folder(path: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"vocab_size": 53, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, max_position_embeddings=64)
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.3)
    model.to(torch.bfloat16).save_pretrained(path, max_shard_size="20KB")
    return path


def report(port: Any, system: str, path: Path) -> Report:
    if system == "folder":
        found = import_checkpoint(folder(path))
        options: dict[str, Any] = {"config": found.config, "parameters": found.parameters, "audit": False}
        return check(port, family="llama", budget=0, **options)
    if system not in SYSTEMS:
        family, _, head = system.partition(" ")
        config = example_config(family, head=head) if head else None
        return check(port, family=family, config=config, budget=0, audit=False)
    return check(port, config=SYSTEMS[system], logits_only=True, budget=0)


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds")


@pytest.mark.parametrize(
    "row",
    [marked([row], is_short=row in FEW.values()) for row in ROWS],
    ids=[f"{row['kind']}: {row['says']}" for row in ROWS],
)
def test_a_fault_of_a_kind_that_hides_diverges(row: dict[str, str], path: Path) -> None:
    found = report(made(row["port"], row["old"], row["new"]), row["system"], path)
    assert found.verdict == "diverges" and row.get("notes", "") in " ".join(found.notes), found.notes


@pytest.mark.parametrize(("port", "system"), [marked(twin, is_short=twin in FEW) for twin in TWINS])
def test_the_right_twin_agrees(port: str, system: str, path: Path) -> None:
    found = report(made(port), system, path)
    assert found.verdict == "agrees", found.faults


def test_each_kind_has_three_faults() -> None:
    kinds = [row["kind"] for row in ROWS]
    assert min(kinds.count(kind) for kind in kinds) >= 3
