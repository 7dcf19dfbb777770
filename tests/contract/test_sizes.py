import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_hostile_files import LARGE, checkpoint, refusal_at_once
from tests.helpers import table, tiny
from tests.looping import for_each

from transparity import TransformerConfig, initialize_parameters
from transparity.errors import ConfigError, TransparityError
from transparity.limits import memory as memory_of_the_machine
from transparity.limits.memory import available_memory, check_fits, in_bytes
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.exchange.writing import export_bundle
from transparity_conformance.oracle.probes import probes_of

TINY = tiny(target_vocab_size=8, max_length=8, feed_forward_dim=4)

LARGEST = 2**31 - 1


TOO_LARGE: dict[str, dict[str, Any]] = table(__file__, "fields.toml")["too_large"]


@for_each("fields", TOO_LARGE.values())
def test_a_check_that_no_machine_has_memory_for(tmp_path: Path, fields: dict[str, Any]) -> None:
    config = dataclasses.replace(TINY, **fields)
    says = refusal_at_once(lambda: probes_of(config, "config"), ConfigError, **LARGE)
    assert "needs at least" in says and "but the free memory is" in says
    refusal_at_once(lambda: export_bundle(config, tmp_path / "bundle"), ConfigError, **LARGE)
    assert not (tmp_path / "bundle").exists()


def test_a_vocabulary_of_one_token_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="The vocabulary of tokens has 1 token"):
        probes_of(dataclasses.replace(TINY, target_vocab_size=1), "one token")


def test_initial_parameters_that_no_machine_has_memory_for() -> None:
    config = dataclasses.replace(TINY, target_vocab_size=LARGEST)
    says = refusal_at_once(lambda: initialize_parameters(config), ConfigError, **LARGE)
    assert says.startswith("The model needs at least 77.3 GB of memory, but ") or available_memory() > 77.4e9


def test_the_limit_is_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < available_memory() < 2**50
    monkeypatch.setattr(memory_of_the_machine, "available_memory", lambda: 999)
    with pytest.raises(
        ConfigError, match=r"^It needs at least 1 kB of memory, but the free memory is 999 bytes; choose"
    ):
        check_fits("It", 1000, ConfigError)
    check_fits("It", 999, ConfigError)


@for_each(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (23_456_789, "23.5 MB"), (10**30, "1e+06 YB")],
)
def test_bytes_as_text(count: int, text: str) -> None:
    assert in_bytes(count) == text


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 8,
}


NUMBERS = {
    "rope_theta": 10**400,
    "rms_norm_eps": 10**400,
    "vocab_size": 2**31,
    "hidden_size": 10**400,
    "num_hidden_layers": 10**6,
    "max_position_embeddings": 2**63,
    "num_attention_heads": 10**30,
    "head_dim": -(10**400),
}


@for_each("field", NUMBERS)
def test_an_absurd_number_in_a_checkpoint(tmp_path: Path, field: str) -> None:
    folder = checkpoint(tmp_path, LLAMA | {field: NUMBERS[field]})
    refusal_at_once(lambda: import_checkpoint(folder), CheckpointError, **LARGE)


@for_each("number", ["1e400", "-1e400", "NaN", "Infinity", "1" * 5000, "1" * 4000, '"1"', "true", "[1]"])
@for_each("field", ["rope_theta", "hidden_size"])
def test_a_number_that_is_none(tmp_path: Path, field: str, number: str) -> None:
    text = json.dumps(LLAMA | {field: "HERE"}).replace('"HERE"', number)
    refusal_at_once(lambda: import_checkpoint(checkpoint(tmp_path, text)), TransparityError, **LARGE)
    ours = json.dumps(TINY.as_dict() | {"rope_theta": "HERE"}).replace('"HERE"', number)
    refusal_at_once(lambda: TransformerConfig.from_json(ours), ConfigError, **LARGE)
