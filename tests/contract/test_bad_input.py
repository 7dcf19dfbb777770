from typing import Any

import numpy as np
import pytest
from tests.helpers import refused
from tests.looping import for_each

from transparity import initialize_parameters, preset
from transparity.errors import BackendError, ConfigError, InputError, ParameterError, TransparityError
from transparity.protocol import Backend, Forward

CONFIG = preset("translation").resized(num_encoder_layers=1, num_decoder_layers=1)
PARAMETERS = initialize_parameters(CONFIG)
WEIGHT = PARAMETERS["head.weight"]
SOURCE, TARGET = np.array([[3, 4, 5], [6, 7, 8]]), np.array([[1, 9], [1, 4]])
BATCH_NORM = preset("notes-lm").resized(norm="batch")
VARIANCE = "decoder.final_norm.running_var"
ENCODER = preset("translation").resized(architecture="encoder")


class Unreadable:
    """An object whose conversion to NumPy raises, like a tensor with gradients."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not today.\nAsk again")


@pytest.fixture
def forward(backend: Backend) -> Forward:
    return backend(CONFIG, PARAMETERS)


def not_finite(value: float) -> np.ndarray:
    changed = WEIGHT.copy()
    changed[2, 5] = value
    return changed


WEIGHTS: list[tuple[Any, str]] = [
    (WEIGHT.T, "has the shape (24, 31), not (31, 24) (it looks transposed)."),
    (WEIGHT[:-1], "has the shape (30, 24), not (31, 24)."),
    (WEIGHT[None], "has the shape (1, 31, 24), not (31, 24)."),
    (3.0, "has the shape (), not (31, 24)."),
    (not_finite(np.nan), "is nan at [2, 5]; it should be finite."),
    (not_finite(-np.inf), "is -inf at [2, 5]; it should be finite."),
    (not_finite(0).astype(np.float64) + 1e300, "is 1e+300 at [0, 0]; it should be finite."),
    (WEIGHT.astype(np.int64), "has the dtype int64; expected one of float16, float32, float64."),
    (WEIGHT.astype(bool), "has the dtype bool; expected one of"),
    (WEIGHT.astype(np.complex128), "has the dtype complex128; expected one of"),
    (WEIGHT.astype(object), "has the dtype object; expected one of"),
    (WEIGHT.astype(np.longdouble), "has the dtype "),
    ([[1.0], [2.0, 3.0]], "is [[1.0], [2.0, 3.0]]; expected an array (setting an array element with a sequence)."),
    (Unreadable(), "is <"),
]
WITHOUT_BIAS = {name: value for name, value in PARAMETERS.items() if name != "head.bias"}
NEGATIVE = initialize_parameters(BATCH_NORM)
NEGATIVE[VARIANCE] = NEGATIVE[VARIANCE] - 2

MODELS: list[tuple[Any, Any, type[TransparityError], str]] = [
    *(
        (CONFIG, PARAMETERS | {"head.weight": value}, ParameterError, f"Parameter 'head.weight' {says}")
        for value, says in WEIGHTS
    ),
    (CONFIG, WITHOUT_BIAS, ParameterError, "Parameter 'head.bias' is missing; it should have the shape (31,)."),
    (
        CONFIG,
        PARAMETERS | {"head.wieght": WEIGHT},
        ParameterError,
        "Parameter 'head.wieght' does not belong to this configuration; the nearest name is 'head.weight'.",
    ),
    (BATCH_NORM, NEGATIVE, ParameterError, f"Parameter '{VARIANCE}' has the value -1.0; a variance should"),
    *((CONFIG, value, ParameterError, "The parameters are ") for value in (None, 3, [("head.bias", 0.0)], "head.bias")),
    *((value, PARAMETERS, ConfigError, "The configuration is ") for value in (None, "translation", CONFIG.as_dict())),
]


@for_each(("config", "parameters", "error", "says"), MODELS)
def test_a_model_that_cannot_be_built(
    backend: Backend, config: Any, parameters: Any, error: type[TransparityError], says: str
) -> None:
    with refused(error, says):
        backend(config, parameters)


@for_each(
    ("choice", "value"),
    [("dtype", "float8"), ("dtype", np.float32), ("device", "abacus"), ("device", None), ("mode", "fast"), ("mode", 1)],
)
def test_a_choice_is_not_offered(backend: Backend, choice: str, value: Any) -> None:
    with refused(BackendError, f"{choice} is "):
        backend(CONFIG, PARAMETERS, **{choice: value})


TOKENS: list[tuple[Any, str]] = [
    ([[1, 2], [3, 99]], "[1, 1] is 99, outside the vocabulary of 3"),
    ([[1, 2], [-1, 3]], "[1, 0] is -1, outside the vocabulary of 3"),
    (np.full((2, 2), 2**63, np.uint64), "[0, 0] is 9223372036854775808, outside the vocabulary of 3"),
    (np.ones((2, 12), int), " has 12 tokens; expected at most 11 (max_length)."),
    (np.ones((0, 2), int), " is empty: it has the shape (0, 2); expected at least one row and one token."),
    (np.ones((2, 0), int), " is empty: it has the shape (2, 0); expected at least one row and one token."),
    ([], " has the shape (0,); expected (batch, length)."),
    ([1, 2], " has the shape (2,); expected (batch, length)."),
    ([[[1, 2]], [[1, 2]]], " has the shape (2, 1, 2); expected (batch, length)."),
    ([[1.0, 2.0], [1.0, 2.0]], " has the dtype float64; expected integers."),
    ([[True, False], [True, False]], " has the dtype bool; expected integers."),
    ([["a", "b"], ["c", "d"]], " has the dtype <U1; expected integers."),
    ([[1, 2], [3]], " is [[1, 2], [3]]; expected an array (setting an array element with a sequence)."),
    ("ab", " has the shape (); expected (batch, length)."),
    (Unreadable(), " is <"),
]
NAMES = "this encoder-decoder takes source, target."

INPUTS: list[tuple[dict[str, Any], str]] = [
    *(
        ({"source": SOURCE, "target": TARGET} | {name: value}, f"{name}{says}")
        for name in ("source", "target")
        for value, says in TOKENS
    ),
    (
        {"source": SOURCE[:1], "target": TARGET},
        "The batch size of source is 1, but the batch size of target is 2; expected equal batch sizes.",
    ),
]


@for_each("fast", [False, True])
@for_each(("inputs", "says"), INPUTS)
def test_tokens_that_no_model_can_read(forward: Forward, inputs: dict[str, Any], says: str, fast: bool) -> None:
    with refused(InputError, says):
        (forward.logits if fast else forward)(**inputs)


@for_each("inputs", [{}, {"source": SOURCE}, {"tokens": SOURCE}, {"source": SOURCE, "target": TARGET, "mask": SOURCE}])
def test_inputs_by_other_names(forward: Forward, inputs: dict[str, Any]) -> None:
    with refused(InputError, f"forward was given {', '.join(sorted(inputs)) or 'nothing'}; {NAMES}"):
        forward(**inputs)


@for_each(
    ("targets", "says"),
    [
        (TARGET[:, :1], "targets has the shape (2, 1); expected the shape of target, (2, 2)."),
        (TARGET[0], "targets has the shape (2,); expected (batch, length)."),
        (TARGET + 30, "targets[0, 0] is 31, outside the vocabulary of 31 tokens."),
        (TARGET - 2, "targets[0, 0] is -1, outside the vocabulary of 31 tokens."),
        (TARGET * 1.0, "targets has the dtype float64; expected integers."),
        (None, "targets has the shape (); expected (batch, length)."),
    ],
)
def test_targets_that_the_logits_are_not_of(forward: Forward, targets: Any, says: str) -> None:
    with refused(InputError, says):
        forward.loss(targets, source=SOURCE, target=TARGET)


@for_each(
    ("arguments", "says"),
    [
        (
            {"prompt": TARGET[:1]},
            "The batch size of prompt is 1, but the batch size of source is 2; expected equal batch sizes.",
        ),
        ({"prompt": TARGET + 30}, "prompt[0, 0] is 31, outside the vocabulary of 31 tokens."),
        ({"prompt": TARGET[:, :0]}, "prompt is empty: it has the shape (2, 0); expected at least one row and"),
        ({"source": None}, "Generation with this encoder-decoder needs a source."),
        ({"max_new_tokens": -1}, "max_new_tokens is -1; expected a whole number, at least 0."),
        ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5; expected a whole number, at least 0."),
        ({"uniforms": np.zeros((2, 2))}, "uniforms has the shape (2, 2); expected (batch, max_new_tokens), (2, 3)."),
        ({"uniforms": np.zeros((2, 3), int)}, "uniforms has the dtype int64; expected floats."),
        ({"uniforms": np.ones((2, 3))}, "uniforms range from 1.0 to 1.0; expected at least 0 and less than 1."),
        ({"uniforms": np.full((2, 3), np.nan)}, "uniforms range from nan to nan; expected at least 0"),
    ],
)
def test_generation_from_nothing_sensible(forward: Forward, arguments: dict[str, Any], says: str) -> None:
    sensible: dict[str, Any] = {"prompt": TARGET, "max_new_tokens": 3, "source": SOURCE}
    with refused(InputError, says):
        forward.generate(**sensible | arguments)


def test_a_lone_encoder_does_not_generate(backend: Backend) -> None:
    with refused(InputError, "The model is only an encoder, which cannot generate; expected a model with a decoder."):
        backend(ENCODER, initialize_parameters(ENCODER)).generate(SOURCE, 1)
