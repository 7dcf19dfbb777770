import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transparity.checked import Execution
from transparity.config import TransformerConfig
from transparity.errors import BackendError, InputError, ParameterError
from transparity.parameters import open_parameters, save_parameters
from transparity_conformance.oracle.backends import backend, harness
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import probes_of
from transparity_conformance.suite import ranks as processes
from transparity_conformance.suite.ranks import Ranks, RanksError, RemoteBackend, State, _agreed, _backend, launched

CONFIG = CASES["llama"].resized(target_vocab_size=32)
MODULE = "transparity_pytorch.parallel.port"
MESHES = ((1, 4), (2, 2), (4, 1))


@pytest.fixture
def two() -> Iterator[Ranks]:
    ranks = Ranks(MODULE, 2, devices=1)
    yield ranks
    ranks.stop()


def number(state: State) -> int:
    return state.rank


def refusing(state: State) -> None:
    raise InputError("It is refused.")


def waiting(state: State) -> None:
    if state.rank:
        time.sleep(60)
    raise InputError("One rank fails.")


def dying(state: State) -> None:
    os._exit(3)


def stuck(state: State) -> None:
    time.sleep(60)


def test_the_error_of_all_ranks_is_raised_and_they_go_on(two: Ranks) -> None:
    with pytest.raises(InputError, match="refused"):
        two.do(refusing)
    assert two.do(number) == [0, 1]


def test_ranks_of_which_one_waits_for_another_that_has_failed_are_ended(two: Ranks) -> None:
    with pytest.raises(InputError, match="One rank"):
        two.do(waiting)
    assert not two.alive


def test_ranks_that_die_or_do_not_answer_are_an_error(two: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Ranks(MODULE, 2, devices=1)
    assert two.do(number) == other.do(number)
    monkeypatch.setattr(processes, "PATIENCE", 0.5)
    with pytest.raises(RanksError, match="stuck: ranks \\[0, 1\\] do not answer"):
        two.do(stuck)
    with pytest.raises(RanksError, match="a rank has died"):
        other.do(dying)
    assert not two.alive and not other.alive
    with pytest.raises(RanksError, match="an earlier failure ended"):
        two.do(number)


def test_ranks_that_disagree_are_an_error() -> None:
    assert _agreed("logits", [("a", 1), ("a", None), None]) == 1
    with pytest.raises(RanksError, match="logits: ranks return different results"):
        _agreed("logits", [("a", 1), ("b", None)])


@pytest.fixture(params=["pytorch", "flax"])
def name(request: pytest.FixtureRequest) -> str:
    column: str = request.param
    return column


def over(name: str, data: int, tensor: int) -> RemoteBackend:
    parts: Any = harness(name)
    return RemoteBackend(backend(name), parts, data, tensor)


def bytes_read(state: State, mesh: tuple[int, int], config: TransformerConfig, path: str) -> list[tuple[str, int]]:
    """Build a model from a file; return the parameter and the bytes of each slice that this rank reads."""
    read: list[tuple[str, int]] = []

    class Counted:
        def __init__(self, name: str, source: Any) -> None:
            self.name, self.source = name, source

        def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
            value: np.ndarray = self.source[index]
            read.append((self.name, value.nbytes))
            return value

    made = _backend(state, mesh)
    with open_parameters(path, config) as source:
        counted = {name: Counted(name, value) for name, value in source.items()}
        made._build(config, counted, Execution("float32", made.devices()[0], made.modes[0]))
    return read


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_no_rank_reads_the_whole(name: str, mesh: tuple[int, int], tmp_path: Path) -> None:
    path, parameters = str(tmp_path / "parameters.safetensors"), probes_of(CONFIG, "llama")["mixed"].parameters
    save_parameters(path, parameters)
    parts: Any = harness(name)
    large = {
        name
        for name, value in parameters.items()
        if value.ndim == 2 and not name.endswith(("key.weight", "value.weight"))
    }
    shards = 4 if name == "pytorch" else mesh[1]  # FSDP shards over data ranks, too; JAX replicates over them
    for read in launched(parts).do(bytes_read, mesh, CONFIG, path):
        assert {name for name, _ in read} == set(parameters)
        for parameter, size in read:
            if parameter in large:
                assert size == parameters[parameter].nbytes // shards


@pytest.mark.slow
def test_a_file_of_another_model_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    path, parameters = tmp_path / "parameters.safetensors", probes_of(CONFIG, "llama")["mixed"].parameters
    save_parameters(path, parameters | {"head.weight": parameters["head.weight"][1:]})
    with pytest.raises(ParameterError, match=r"^Parameter 'head.weight' has the shape \(31, 24\), not \(32, 24\).$"):
        over(name, 1, 2).from_file(CONFIG, str(path), "float32")
    with pytest.raises(ParameterError, match="There is no file"):
        over(name, 1, 2).from_file(CONFIG, str(tmp_path / "other"), "float32")


@pytest.mark.slow
def test_more_ranks_than_there_are_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(BackendError, match="4 data ranks × 2 tensor ranks need 8"):
        over(name, 4, 2)(CONFIG, probes_of(CONFIG, "llama")["mixed"].parameters)
