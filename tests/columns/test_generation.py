import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.helpers import tiny

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, InputError
from transparity.sampling import Sampling
from transparity.taps import Tap
from transparity_conformance.oracle.backends import backend, installed
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.oracle.probes import probe_parameters
from transparity_numpy.port import build
from transparity_numpy.transformer import transformer

VOCAB, NEW, END, FILLING = 5, 3, 2, 0


def small(**fields: Any) -> TransformerConfig:
    return tiny(**{"max_length": 6, "embed_dim": 8, "num_heads": 2, "feed_forward_dim": 8, "eos_id": END} | fields)


def log_probabilities(config: TransformerConfig, parameters: Arrays, tokens: list[int]) -> np.ndarray:
    logits = transformer(config, parameters, tokens=np.array([tokens]))[0, -1]
    shifted: np.ndarray = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def score_of(
    config: TransformerConfig, parameters: Arrays, prompt: list[int], added: Sequence[int], power: float = 0.0
) -> float:
    """Return the log-probability of the added tokens, divided by ((5 + number of added tokens) / 6)^power."""
    before = ([*prompt, *added[:i]] for i in range(len(added)))
    score = sum(
        log_probabilities(config, parameters, tokens)[token] for tokens, token in zip(before, added, strict=True)
    )
    return float(score / ((5 + len(added)) / 6) ** power)


def score_budget(config: TransformerConfig, parameters: Arrays, *given: Any) -> float:
    """Return the largest error of `score_of` that float64 rounding explains."""

    def run(arrays: Arrays, tap: Tap) -> None:
        tap("score", np.asarray(score_of(config, arrays, *given)))

    return Oracle(run, parameters).budget("score", "float64")


def likeliest(
    config: TransformerConfig, parameters: Arrays, prompt: list[int], power: float
) -> tuple[float, tuple[int, ...]]:
    every = itertools.product(range(VOCAB), repeat=NEW)
    ended = {tokens[: tokens.index(END) + 1] if END in tokens else tokens for tokens in every}
    return max((score_of(config, parameters, prompt, tokens, power), tokens) for tokens in ended)


@pytest.mark.parametrize("power", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_enough_beams_find_what_is_likeliest_of_all(seed: int, power: float) -> None:
    config = small()
    parameters = {name: value.astype(np.float64) for name, value in probe_parameters(config, seed).items()}
    forward = build(config, parameters)
    prompt = np.array([[1, 3], [4, 4]])
    tokens, scores = forward.beam_search(prompt, NEW, VOCAB**NEW, length_penalty=power)
    for row in range(2):
        score, expected = likeliest(config, parameters, prompt[row].tolist(), power)
        assert abs(scores[row] - score) <= score_budget(config, parameters, prompt[row].tolist(), expected, power)
        filling = [FILLING] * (tokens.shape[1] - 2 - len(expected))
        assert tokens[row, 2:].tolist() == [*expected, *filling]


@pytest.mark.parametrize("name", installed())
def test_what_cannot_be_generated_is_said_in_one_sentence(name: str) -> None:
    config = small()
    forward = backend(name)(config, probe_parameters(config))
    prompt = np.array([[1, 3], [4, 4]])
    for said, call in (
        ("lengths range from 0 to 2; expected 1 to 2", lambda: forward.generate(prompt, 2, lengths=[0, 2])),
        ("lengths has the shape (3,)", lambda: forward.generate(prompt, 2, lengths=[1, 1, 1])),
        ("beams is 0; expected a whole number", lambda: forward.beam_search(prompt, 2, 0)),
        ("length_penalty is nan", lambda: forward.beam_search(prompt, 2, 2, length_penalty=float("nan"))),
        ("a row with its cached tokens has 7 tokens; expected at most 6", lambda: beyond(forward)),
        ("tokens[0, 0] is 9, outside the vocabulary", lambda: forward.step(np.array([[9]]))),
        (
            "batch size of tokens is 1, but the batch size of the cache is 2",
            lambda: forward.step(np.array([[1]]), forward.step(prompt)[1]),
        ),
        ("valid_lengths range from 3 to 3; expected 1 to 2", lambda: forward.step(prompt, valid_lengths=[3, 3])),
        ("takes no source", lambda: forward.step(prompt, source=prompt)),
    ):
        with pytest.raises(InputError) as raised:
            call()
        assert said in str(raised.value) and "\n" not in str(raised.value)


def beyond(forward: Any) -> None:
    _, cache = forward.step(np.ones((1, 4), int))
    forward.step(np.ones((1, 3), int), cache)


@pytest.mark.parametrize("name", installed())
def test_rows_of_different_lengths_need_a_mask_that_hides(name: str) -> None:
    config = small(mask_value=-1e-20)
    forward = backend(name)(config, probe_parameters(config))
    prompt = np.array([[1, 3], [4, 4]])
    with pytest.raises(InputError, match="rows would attend to their padding"):
        forward.generate(prompt, 2, lengths=[1, 2])
    with pytest.raises(InputError, match="use a full forward pass"):
        forward.step(prompt)
    assert forward.generate(prompt, 2, lengths=[1, 1]).shape == (2, 3)


def test_a_cache_of_another_column_is_refused() -> None:
    config = small(architecture="decoder", target_vocab_size=VOCAB)
    columns = [backend(name)(config, probe_parameters(config, 0)) for name in installed()]
    for one, other in itertools.permutations(columns, 2):
        _, cache = one.step(np.array([[1]]))
        with pytest.raises(InputError, match="expected the cache that the previous step returned"):
            other.step(np.array([[1]]), cache)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"temperature": 0}, "temperature is 0; it should be a finite number, at least 1e-30"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 1e-40}, "temperature is 1e-40; it should be"),  # no float32 can be divided by it
        ({"top_k": 0}, "top_k is 0; it should be a whole number, at least 1"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"top_p": 0.0}, "top_p is 0.0; it should be above 0 and at most 1"),
        ({"top_p": True}, "top_p is True"),
    ],
)
def test_an_impossible_sampling_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Sampling(**fields)
    assert says in str(raised.value)
