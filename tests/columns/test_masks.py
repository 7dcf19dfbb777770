import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.helpers import refused
from tests.looping import for_each

from transparity.config import TransformerConfig
from transparity.errors import InputError
from transparity.protocol import Backend
from transparity.taps import Tap, identity, recording
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.report.comparison import as_numbers
from transparity_numpy.mixers.attention import attention
from transparity_numpy.state.context import Context

PADDING, LENGTH = 3, 6
# these models use only distances between positions, or count only visible tokens, so padding shifts nothing
SHIFTED = {
    "llama": dataclasses.replace(CASES["llama"], padding="attention-mask"),
    "bloom": dataclasses.replace(CASES["bloom"], padding="attention-mask"),
    "opt": CASES["opt"],
    "opt from 0": dataclasses.replace(CASES["opt"], position_offset=0),
}
COUNTED_FROM_THE_LEFT = dataclasses.replace(CASES["opt"], position_count="all")


def padded(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.random.default_rng(seed).integers(1, 31, (2, PADDING + LENGTH))
    mask = np.ones(tokens.shape, int)
    mask[:, :PADDING] = 0
    return tokens, mask


def apart(backend: Backend, case: str, dtype: str, config: Any = None) -> tuple[float, float]:
    """Return the largest difference between padded rows and the same rows without padding, and its budget."""
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


TOKENS, MASK = padded()
REFUSED: list[tuple[Any, str, dict[str, Any], str]] = [
    *(
        (SHIFTED["llama"], "logits", {"tokens": TOKENS, "attention_mask": mask}, says)
        for mask, says in (
            (MASK[:, :8], "attention_mask has the shape (2, 8) and dtype int64; expected (2, 9) bool."),
            (MASK * 1.0, "attention_mask has the shape (2, 9) and dtype float64; expected (2, 9) bool."),
            (MASK + 1, "attention_mask[0, 3] is 2; expected 0 to 1."),
            (None, "forward was given tokens; this decoder takes tokens, attention_mask."),
        )
    ),
    (
        CASES["bert"],
        "logits",
        {"tokens": TOKENS, "attention_mask": MASK, "token_types": MASK + 1},
        "token_types[0, 3] is 2; expected 0 to 1.",
    ),
    (
        CASES["llama"],
        "step",
        {"tokens": TOKENS, "attention_mask": MASK},
        "A step of this decoder does not read the given attention_mask; omit the mask.",
    ),
    (
        CASES["roberta"],
        "loss",
        {"targets": TOKENS, "tokens": TOKENS},
        "head is 'hidden', so the model has no loss; expected head 'logits'.",
    ),
]


@for_each(("config", "method", "given", "says"), REFUSED)
def test_an_input_that_the_model_does_not_read_is_refused(
    backend: Backend, config: TransformerConfig, method: str, given: dict[str, Any], says: str
) -> None:
    with refused(InputError, says):
        getattr(backend(config, probe_parameters(config)), method)(**given)


HEADS, HEAD_DIM = 2, 3


def attended(query: Any, key: Any, value: Any, mask: Any, hidden: float, tap: Tap = identity) -> np.ndarray:
    """Return the reference's attention with a `mask_value` of `hidden`, and scores times 0.5."""
    given: Any = {"mask": mask, "positions": None, "is_token": None, "tap": tap}
    scaled: Any = {"attention_scale": "none", "attention_multiplier": 0.5, "mask_value": hidden}
    config = TransformerConfig(architecture="decoder", target_vocab_size=2, **scaled)
    return attention(config, query, key, value, Context(**given))


def test_what_is_hidden_by_little_is_not_left_out() -> None:
    """Document 000 prints the masked score −1e−20 by mistake; with this score, masked keys keep a weight."""
    random = np.random.default_rng(1)
    query, key, value = (random.normal(size=(1, HEADS, 4, HEAD_DIM)) for _ in range(3))
    shown = np.tri(4, dtype=bool)[None, None]
    fast = attended(query, key, value, shown, -1e-20)
    np.testing.assert_array_equal(fast, attended(query, key, value, shown, -1e-20, recording({})))
    # under a causal mask, the first query sees only the first key
    hiding = attended(query, key, value, shown, -1e20)
    first = value[:, :, 0].reshape(1, HEADS * HEAD_DIM)
    np.testing.assert_array_equal(hiding[:, 0], first)
    assert (fast[:, 0] != first).all()
