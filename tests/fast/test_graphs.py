import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from transparity.sampling import Sampling
from transparity_conformance.oracle.cases import MODELS
from transparity_conformance.oracle.probes import probe_parameters, probes, probes_of
from transparity_pytorch.decoding.generation import generate
from transparity_pytorch.decoding.replayed import Generation, ReplayedGeneration
from transparity_pytorch.decoding.steps import step
from transparity_pytorch.fast import graphs
from transparity_pytorch.port import PytorchForward, build
from transparity_pytorch.transformer import Transformer

A, B, LONGER = (torch.tensor(values) for values in ([1.0, 2.0], [3.0, 5.0], [1.0, 2.0, 4.0]))


NEW_TOKENS = 6


def doubled(model: Any, inputs: dict[str, Any]) -> Tensor:
    return inputs["x"] * 2


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Replace CUDA's recorder by a CPU recorder, whose replay runs the function again; return the recordings."""
    made: list[Callable[[], None]] = []

    def recorded(change: Callable[[], None]) -> Callable[[], None]:
        made.append(change)
        return change

    monkeypatch.setattr(graphs, "recorded", recorded)
    return made


def test_a_run_is_recorded_at_the_second_call_of_a_shape(recordings: list[Callable[[], None]]) -> None:
    run = graphs.Replayed(doubled)
    for x, count in ((A, 0), (B, 1), (A, 1), (LONGER, 1), (A, 1), (A, 2)):
        assert torch.equal(run(None, {"x": x, "mask": None}), 2 * x)
        assert len(recordings) == count


def test_a_replayed_result_is_not_overwritten_by_the_next(recordings: list[Callable[[], None]]) -> None:
    run = graphs.Replayed(doubled)
    results = [run(None, {"x": x}) for x in (A, A, B)]
    assert torch.equal(results[1], 2 * A) and torch.equal(results[2], 2 * B)
    assert len(recordings) == 1


@pytest.fixture
def without_memory(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Make every recording run out of memory; return the attempted recordings."""
    tried: list[Callable[[], None]] = []

    def full(change: Callable[[], None]) -> Callable[[], None]:
        tried.append(change)
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(graphs, "recorded", full)
    return tried


def test_without_memory_for_a_recording_runs_are_launched(without_memory: list[Callable[[], None]]) -> None:
    run = graphs.Replayed(doubled)
    for x in (A, B, A):
        assert torch.equal(run(None, {"x": x}), 2 * x)
    assert len(without_memory) == 1


def without_values(inputs: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return meta tensors with the inputs' shapes and dtypes; as in a CUDA graph, values cannot be read."""
    return {name: torch.as_tensor(value).to("meta") for name, value in inputs.items()}


@pytest.mark.parametrize("case", MODELS)
def test_what_is_recorded_reads_no_value(case: str) -> None:
    probe = probes_of(MODELS[case], case)["mixed"]
    config, inputs = probe.config, without_values(probe.inputs)
    with torch.device("meta"), torch.no_grad():
        model = Transformer(config).eval()
        assert model(**inputs).is_meta
        if config.has_decoder and config.prefixes_agree:
            generation = Generation(
                model,
                NEW_TOKENS,
                Sampling(top_k=3, top_p=0.9),
                step,
                prompt=inputs[config.input_names[-1]],
                lengths=torch.ones(len(probe.inputs[config.input_names[-1]]), dtype=torch.long),
                source=inputs.get("source"),
                uniforms=torch.zeros(len(probe.inputs[config.input_names[-1]]), NEW_TOKENS),
            )
            generation.add_next()
            assert generation.written.tokens.is_meta


def requests(device: str = "cpu") -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [
        {
            "prompt": torch.tensor(random.integers(3, 20, (2, length)), device=device),
            "source": torch.tensor(random.integers(3, 20, (2, 2)), device=device),
            "lengths": torch.tensor(random.integers(1, length + 1, 2), device=device),
            "uniforms": torch.tensor(random.random((2, NEW_TOKENS)), device=device),
        }
        for length in (3, 3, 3, 3, 2)
    ]


def generating_model(max_length: int) -> PytorchForward:
    config = dataclasses.replace(probes("translation")["mixed"].config, max_length=max_length)
    forward = build(config, probe_parameters(config))
    assert isinstance(forward, PytorchForward)
    return forward


def assert_replays(replayed: ReplayedGeneration, model: Transformer, **request: Any) -> None:
    expected = generate(model, max_new_tokens=NEW_TOKENS, **request)
    assert torch.equal(replayed(model, max_new_tokens=NEW_TOKENS, **request), expected)


@pytest.mark.parametrize(
    ("max_length", "recorded"), [(16, [1, 3, 3, 3, 4]), (5, [1, 3, 3, 3, 4]), (2, [0, 0, 0, 0, 0])]
)
def test_a_generation_is_replayed_with_its_own_inputs(
    recordings: list[Callable[[], None]], max_length: int, recorded: list[int]
) -> None:
    """Try three sizes of the cache: large enough, full before the generation ends, and shorter than every prompt."""
    model, replayed, counts = generating_model(max_length).model, ReplayedGeneration(), []
    for request in requests():
        assert_replays(replayed, model, **request)
        counts.append(len(recordings))
    assert counts == recorded


def test_without_memory_for_a_recording_generations_are_launched(without_memory: list[Callable[[], None]]) -> None:
    model, replayed = generating_model(16).model, ReplayedGeneration()
    for request in requests():
        assert_replays(replayed, model, **request)
    assert without_memory


def test_a_generation_with_other_sampling_is_not_replayed(recordings: list[Callable[[], None]]) -> None:
    model, replayed, request = generating_model(16).model, ReplayedGeneration(), requests()[0]
    for sampling in (None, Sampling(top_k=1), None, Sampling(temperature=3.0)):
        assert_replays(replayed, model, sampling=sampling, **request)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # TensorFloat32 is off on purpose
@pytest.mark.parametrize("mode", ["eager", "compile"])
@pytest.mark.parametrize("max_length", [16, 5])
def test_a_gpu_replays_what_it_and_a_processor_compute(mode: str, max_length: int) -> None:
    expected = generating_model(max_length)
    forward = build(expected.config, probe_parameters(expected.config), device="cuda", mode=mode)
    for request in requests():
        given = {name: value.numpy() for name, value in request.items()}
        options: Any = {"prompt": given.pop("prompt"), "max_new_tokens": NEW_TOKENS, **given}
        assert np.array_equal(forward.generate(**options), expected.generate(**options))
    inputs = {"source": requests()[0]["source"].numpy(), "target": requests()[0]["prompt"].numpy()}
    turned = {name: np.roll(value, 1, axis=-1) for name, value in inputs.items()}
    launched = [forward.logits(**each).cpu() for each in (inputs, turned)]
    for _ in range(2):
        for each, result in zip((inputs, turned), launched, strict=True):
            assert torch.equal(forward.logits(**each).cpu(), result)
