import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transparity.checked import Execution
from transparity.config import TransformerConfig
from transparity.parameters import open_parameters, parameter_shapes, save_parameters
from transparity.parts.plan import plan, report
from transparity.presets import PRESETS, preset
from transparity_conformance.capabilities.port_calls import PortCallError
from transparity_conformance.oracle.backends import backend, harness
from transparity_conformance.oracle.cases import CASES, IMAGES
from transparity_conformance.oracle.probes import probes_of
from transparity_conformance.running.process.isolation import IsolatedBuild
from transparity_conformance.suite.ranks import RanksError, RemoteBackend, RemoteForward, sharded_backend, started

CONFIG = CASES["llama"].resized(target_vocab_size=32)
MESHES = ((1, 4), (2, 2), (4, 1))

parts_of: Callable[[str], Any] = harness


def own_rank(config: TransformerConfig, parameters: Any) -> Callable[..., Any]:
    """Return a wrong port, which returns +0 on rank 0 and −0 on rank 1."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return lambda tokens: np.copysign(np.zeros((*tokens.shape, config.vocab_size)), 0.5 - dist.get_rank())


def test_ranks_that_disagree_are_an_error() -> None:
    with contextlib.closing(IsolatedBuild(started(parts_of("pytorch"), 2, f"{__file__}:own_rank"))) as make:
        forward = RemoteForward(make(CONFIG, {}))
        with pytest.raises(RanksError, match="__call__: ranks return different results"):
            forward(tokens=np.zeros((1, 2), int))


@pytest.fixture(params=["pytorch", "flax"])
def name(request: pytest.FixtureRequest) -> str:
    column: str = request.param
    return column


def over(name: str, data: int, tensor: int) -> RemoteBackend:
    return RemoteBackend(backend(name), parts_of(name), data, tensor)


def reads(config: TransformerConfig, path: str, module: str, mesh: tuple[int, int]) -> Callable[..., Any]:
    """Build a model from a file; return a function that returns the parameter and the bytes of each slice that this
    rank reads."""
    read: list[tuple[str, int]] = []

    class Counted:
        def __init__(self, name: str, source: Any) -> None:
            self.name, self.source = name, source

        def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
            value: np.ndarray = self.source[index]
            read.append((self.name, value.nbytes))
            return value

    made = sharded_backend(module, mesh)
    with open_parameters(path, config) as source:
        counted = {name: Counted(name, value) for name, value in source.items()}
        made._build(config, counted, Execution("float32", made.devices()[0], made.modes[0]))
    return lambda: read


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_no_rank_reads_the_whole(name: str, mesh: tuple[int, int], tmp_path: Path) -> None:
    path, parameters = str(tmp_path / "parameters.safetensors"), probes_of(CONFIG, "llama")["mixed"].parameters
    save_parameters(path, parameters)
    parts = parts_of(name)
    large = {
        name
        for name, value in parameters.items()
        if value.ndim == 2 and not name.endswith(("key.weight", "value.weight"))
    }
    shards = 4 if name == "pytorch" else mesh[1]  # FSDP shards over data ranks, too; JAX replicates over them
    with contextlib.closing(IsolatedBuild(started(parts, 4, f"{__file__}:reads"))) as make:
        by_rank = make(CONFIG, path, module=parts.SHARDED, mesh=mesh).answers_by_rank("__call__")
    for read in by_rank:
        assert {name for name, _ in read} == set(parameters)
        for parameter, size in read:
            if parameter in large:
                assert size == parameters[parameter].nbytes // shards


@pytest.mark.slow
def test_a_file_of_another_model_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    path, parameters = tmp_path / "parameters.safetensors", probes_of(CONFIG, "llama")["mixed"].parameters
    save_parameters(path, parameters | {"head.weight": parameters["head.weight"][1:]})
    with pytest.raises(
        PortCallError, match=r"^ParameterError: Parameter 'head.weight' has the shape \(31, 24\), not \(32, 24\)"
    ):
        over(name, 1, 2).from_file(CONFIG, str(path), "float32")
    with pytest.raises(PortCallError, match="ParameterError: There is no file"):
        over(name, 1, 2).from_file(CONFIG, str(tmp_path / "other"), "float32")


@pytest.mark.slow
def test_more_ranks_than_there_are_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(PortCallError, match="BackendError: 4 data ranks × 2 tensor ranks need 8"):
        over(name, 4, 2)(CONFIG, probes_of(CONFIG, "llama")["mixed"].parameters)


CONFIGS = {name: preset(name).resized() for name in PRESETS} | CASES | {"vit": IMAGES}


@pytest.fixture(params=[True, False], ids=["even", "uneven"])
def evenly(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def sharded(config: TransformerConfig, ranks: int, evenly: bool) -> dict[str, int]:
    placed = plan(config, ranks, evenly=evenly)
    return {name: it.axis for name, it in placed.items() if it.axis is not None}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("case", CONFIGS)
def test_every_parameter_is_placed_by_the_table_or_reported(evenly: bool, case: str, ranks: int) -> None:
    placed, shapes = plan(CONFIGS[case], ranks, evenly=evenly), parameter_shapes(CONFIGS[case])
    assert list(placed) == list(shapes)
    matrices = {
        name
        for name, shape in shapes.items()
        if len(shape) == 2 and not name.endswith(("n_embedding.weight", "r.weight"))
    }
    kept = ("position_embedding.weight", "token_type_embedding.weight", "class_embedding.weight", "projection.weight")
    tables = {name for name in shapes if name.endswith(kept)}
    whole = {name for name in matrices - tables - {"pooler.weight"} if placed[name].axis is None}
    reported = {line.partition(":")[0] for line in report(placed)}
    assert whole <= reported if ranks > 1 else not reported
    assert reported == {name for name, it in placed.items() if it.fallback}


def test_heads_are_not_cut(evenly: bool) -> None:
    says = report(plan(CASES["gemma"], 2, evenly=evenly))
    scope = "decoder.layers.0.self_attention"
    why = "the number of heads (1) is not a multiple of the number of ranks (2)"
    assert f"{scope}.key.weight: replicated, since {why}" in says
    assert not any("query" in line for line in says)
    placed = plan(preset("shared-heads").resized(num_heads=4), 2, evenly=evenly)
    assert placed["encoder.layers.0.self_attention.query.weight"].fallback == "one map serves all heads"
    assert placed["encoder.layers.0.self_attention.output.weight"].axis == 1


def test_an_odd_vocabulary_is_sharded_unevenly_or_by_features() -> None:
    config = dataclasses.replace(CASES["llama"], target_vocab_size=31)
    assert sharded(config, 2, evenly=False)["head.weight"] == 0
    assert sharded(config, 2, evenly=True)["head.weight"] == 1
    why = "the size 31 is not a multiple of the number of ranks (2)"
    assert f"head.weight: sharded by features, since {why}" in report(plan(config, 2, evenly=True))
    few = dataclasses.replace(config, target_vocab_size=6)
    why = "the size 6 is too small: one of 4 ranks would have no elements"
    assert f"head.weight: replicated, since {why}" in report(plan(few, 4, evenly=False))


def test_ranks_have_whole_heads_of_keys_of_a_recurrence_and_what_shares_them(evenly: bool) -> None:
    scope = "decoder.layers.0.recurrence"
    for case in ("qwen3-next", "mamba2"):
        config = CASES[case]
        cut, of = sharded(config, 2, evenly), {name for name in parameter_shapes(config) if name.startswith(scope)}
        whole = {"output.bias", *(("gated_norm.weight",) if case == "qwen3-next" else ())}
        assert of - set(cut) == of & {f"{scope}.{name}" for name in whole}
        assert {name: axis for name, axis in cut.items() if name in of and axis} == {f"{scope}.output.weight": 1}
        assert not of & set(sharded(config, 4, evenly))
        why = "the number of heads of keys (2) is not a multiple of the number of ranks (4)"
        assert f"{scope}.query_convolution.weight: replicated, since {why}" in report(plan(config, 4, evenly=evenly))
