"""An attention mask hides padding on any side: a row padded on the left has the same logits as without padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from transparity.errors import InputError
from transparity.protocol import Backend
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.report.comparison import as_numbers

Refused = Callable[..., AbstractContextManager[None]]

PADDING, LENGTH = 3, 6
# these models use only distances between positions, or count only visible tokens, so padding shifts nothing
SHIFTED = {
    "llama": dataclasses.replace(CASES["llama"], padding="attention-mask"),
    "qwen": dataclasses.replace(CASES["qwen"], padding="attention-mask"),
    "bloom": dataclasses.replace(CASES["bloom"], padding="attention-mask"),
    "opt": CASES["opt"],
}
COUNTED_FROM_THE_LEFT = dataclasses.replace(CASES["opt"], position_count="all")


def padded(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens (2, length) with padding on the left, and their mask."""
    tokens = np.random.default_rng(seed).integers(1, 31, (2, PADDING + LENGTH))
    mask = np.ones(tokens.shape, int)
    mask[:, :PADDING] = 0
    return tokens, mask


def apart(backend: Backend, case: str, dtype: str, config: Any = None) -> tuple[float, float]:
    """Return the difference between padded rows and the same rows without padding, and its budget."""
    config = config or SHIFTED[case]
    parameters, (tokens, mask) = probe_parameters(config), padded()
    forward = backend(config, parameters, dtype=dtype)
    whole = {"tokens": tokens, "attention_mask": mask}
    bare = {name: value[:, PADDING:] for name, value in whole.items()}
    said = [as_numbers(forward.logits(**inputs)).astype(float) for inputs in (whole, bare)]
    budgets = [forward_oracle(config, parameters, inputs).budget("logits", dtype) for inputs in (whole, bare)]
    return float(np.abs(said[0][:, PADDING:] - said[1]).max()), sum(budgets)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", SHIFTED)
def test_padding_on_the_left_makes_no_difference(backend: Backend, case: str, dtype: str) -> None:
    error, budget = apart(backend, case, dtype)
    assert error <= budget


def test_it_does_where_positions_count_what_is_hidden(backend: Backend) -> None:
    error, budget = apart(backend, "opt", "float64", COUNTED_FROM_THE_LEFT)
    assert error > 1e6 * budget


@pytest.mark.parametrize("case", SHIFTED)
def test_a_cache_hides_what_the_mask_hides(backend: Backend, case: str) -> None:
    config, (tokens, mask) = SHIFTED[case], padded(1)
    parameters = probe_parameters(config)
    forward = backend(config, parameters, dtype="float64")
    oracle = forward_oracle(config, parameters, {"tokens": tokens, "attention_mask": mask})
    said, cache, begin = [], None, 0
    for size in (4, 1, 4):
        chunk = slice(begin, begin + size)
        logits, cache = forward.step(tokens[:, chunk], cache, attention_mask=mask[:, chunk])
        said.append(as_numbers(logits))
        begin += size
    # padded queries see no key, and in a full pass they average over later keys too
    error = np.abs(np.concatenate(said, axis=1) - oracle.expected["logits"])[:, PADDING:].max()
    assert error <= oracle.budget("logits", "float64")


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (np.ones((2, 8), int), "attention_mask has the shape (2, 8) and dtype int64; expected (2, 9) bool."),
        (np.ones((2, 9)), "attention_mask has the shape (2, 9) and dtype float64; expected (2, 9) bool."),
        (np.full((2, 9), 2), "attention_mask[0, 0] is 2; expected 0 to 1."),
        (None, "forward was given tokens; for this decoder it takes tokens, attention_mask."),
    ],
)
def test_a_mask_that_is_none(backend: Backend, refused: Refused, mask: Any, says: str) -> None:
    config = SHIFTED["llama"]
    with refused(InputError, says):
        backend(config, probe_parameters(config)).logits(tokens=padded()[0], attention_mask=mask)


def test_token_types_that_there_are_not(backend: Backend, refused: Refused) -> None:
    config = CASES["bert"]
    tokens, mask = padded()
    with refused(InputError, "token_types[0, 0] is 2; expected 0 to 1."):
        backend(config, probe_parameters(config)).logits(
            tokens=tokens, attention_mask=mask, token_types=np.full(tokens.shape, 2)
        )


def test_a_cache_that_reads_no_mask(backend: Backend, refused: Refused) -> None:
    config = CASES["llama"]
    tokens, mask = padded()
    with refused(InputError, "A step of this decoder was given an attention_mask, which it does not read."):
        backend(config, probe_parameters(config)).step(tokens, attention_mask=mask)


def test_features_have_no_loss(backend: Backend, refused: Refused) -> None:
    config = CASES["roberta"]
    tokens = padded()[0]
    with refused(InputError, "head is 'hidden': the model has no logits, and therefore no loss."):
        backend(config, probe_parameters(config)).loss(tokens, tokens=tokens)
