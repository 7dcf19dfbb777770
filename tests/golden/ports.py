"""Correct and wrong ports for the golden reports: our columns, and the independent port as a GPT-2, with changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.helpers import LIKE_GPT2, tiny

from meta.independent.model import Model
from transparity.config import TransformerConfig
from transparity_conformance.oracle.cases import CASES
from transparity_numpy.port import build as numpy_build
from transparity_pytorch.port import build as pytorch_build

Arrays = dict[str, np.ndarray]
Build = Callable[[TransformerConfig, Arrays], Any]

SCORES = "decoder.layers.0.self_attention.scores"

SIZES = {"target_vocab_size": 31, "max_length": 16, "embed_dim": 24, "num_heads": 3, "feed_forward_dim": 40}
GPT2 = tiny(**SIZES, **LIKE_GPT2, num_decoder_layers=2, activation="gelu")


def answered(answer: Callable[[Any, TransformerConfig, Arrays], Any]) -> Build:
    """Return a port that calls `answer` with the NumPy column, the configuration and the tokens."""

    def build(config: TransformerConfig, parameters: Arrays) -> Any:
        forward = numpy_build(config, parameters)
        return lambda **tokens: answer(forward, config, tokens)

    return build


def with_taps(change: Callable[[Arrays], Any]) -> Build:
    return answered(lambda forward, config, tokens: change(dict(forward(**tokens))))


def spoiled(tap: str, change: Callable[[np.ndarray], np.ndarray]) -> Build:
    return with_taps(lambda taps: taps | {tap: change(taps[tap].copy())})


def with_number(tap: str, index: int, number: float) -> Build:
    def change(value: np.ndarray) -> np.ndarray:
        value.flat[index] = number
        return value

    return spoiled(tap, change)


def noisy() -> Build:
    draw = np.random.default_rng(0)
    return with_taps(lambda taps: {"logits": taps["logits"] + draw.normal(0, 0.1, taps["logits"].shape)})


def wrong_when(condition: Callable[[TransformerConfig, Arrays], Any]) -> Build:
    """Return a port whose logits are wrong by 1 % if `condition` holds for the configuration and the tokens."""
    return answered(
        lambda forward, config, tokens: forward.logits(**tokens) * (1.01 if condition(config, tokens) else 1)
    )


def length(tokens: Arrays) -> int:
    return max(ids.shape[1] for ids in tokens.values())


def batch(tokens: Arrays) -> int:
    return len(next(iter(tokens.values())))


def in_integers(dtype: Any) -> Build:
    """Return a port that converts tokens to the integer type `dtype`."""

    def answer(forward: Any, config: TransformerConfig, tokens: Arrays) -> Any:
        narrow = {name: ids.astype(dtype).astype(int) % config.vocab_size for name, ids in tokens.items()}
        return forward.logits(**narrow)

    return answered(answer)


def with_fields(**fields: Any) -> Build:
    return lambda config, parameters: numpy_build(dataclasses.replace(config, **fields), parameters).logits


def refusing(what: str) -> Build:
    """Return a port for 24 features and 3 heads; for other sizes, its build or its calls raise, as `what` says."""

    def expect(config: TransformerConfig) -> None:
        if (config.embed_dim, config.num_heads) != (24, 3):
            raise ValueError("24 features and 3 heads, please")

    def answer(forward: Any, config: TransformerConfig, tokens: Arrays) -> Any:
        if what == "to be called" or tokens["tokens"].size > 1:
            expect(config)
        return forward.logits(**tokens)

    def build(config: TransformerConfig, parameters: Arrays) -> Any:
        if what == "to be built":
            expect(config)
        return answered(answer)(config, parameters)

    return build


class Replaced:
    """The PyTorch column with one method replaced; `state` persists between calls."""

    def __init__(self, right: Any, wrong: Callable[..., Any], name: str, offers: tuple[str, ...]) -> None:
        self.right, self.wrong, self.name, self.state = right, wrong, name, dict[Any, Any](calls=0)
        for offer in offers:
            setattr(self, offer, self._called(offer))

    def _called(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            method = self.right.logits if name == "forward" else getattr(self.right, name)
            if name != self.name:
                self.state[name] = True
                return method(*args, **named)
            self.state["calls"] += 1
            return self.wrong(self.state, method, *args, **named)

        return call

    def __call__(self, **tokens: np.ndarray) -> Any:
        return self._called("forward")(**tokens)


def replaced(wrong: Callable[..., Any], name: str = "forward", *offers: str) -> Build:
    return lambda config, parameters: Replaced(pytorch_build(config, parameters), wrong, name, offers)


def nudged_if(condition: Callable[[dict[Any, Any]], Any]) -> Callable[..., Any]:
    """Return a method whose logits are wrong by 0.1 % if `condition` holds for the state."""
    return lambda state, forward, **tokens: forward(**tokens) * (1.001 if condition(state) else 1)


def raises_if(condition: Callable[[dict[Any, Any]], Any]) -> Callable[..., Any]:
    def wrong(state: dict[Any, Any], forward: Callable[..., Any], **tokens: Any) -> Any:
        if condition(state):
            raise RuntimeError("out of slots")
        return forward(**tokens)

    return wrong


def kept_by(key: Callable[[np.ndarray], Any], first: int = 0) -> Callable[..., Any]:
    """Return a method that repeats earlier logits for tokens with the same key, after the first calls."""

    def wrong(state: dict[Any, Any], forward: Callable[..., Any], **tokens: Any) -> Any:
        (given,) = tokens.values()
        logits = forward(**tokens)
        return logits if state["calls"] <= first else state.setdefault((given.shape, key(given)), logits)

    return wrong


def after_a_longer_input(state: dict[Any, Any], forward: Callable[..., Any], **tokens: Any) -> Any:
    """Return wrong logits in the call after inputs of 11 and 1 tokens, as if a buffer kept the longer input."""
    (given,) = tokens.values()
    lengths = state["lengths"] = [*state.get("lengths", []), given.shape[1]]
    return forward(**tokens) * (1.001 if lengths[-3:-1] == [11, 1] else 1)


def adds_up(state: dict[Any, Any], method: Callable[..., Any], *args: Any, **tokens: Any) -> Any:
    """Return gradients that include the gradients of earlier calls on the same tokens."""
    loss, gradients = method(*args, **tokens)
    key = next(iter(tokens.values())).tobytes()
    kept = state.setdefault(key, {name: np.zeros_like(value) for name, value in gradients.items()})
    state[key] = {name: kept[name] + value for name, value in gradients.items()}
    return loss, state[key]


def changes_tokens(state: dict[Any, Any], forward: Callable[..., Any], tokens: np.ndarray) -> Any:
    logits = forward(tokens=tokens.copy())
    tokens[:, -1] = 0
    return logits


def changes_targets(state: dict[Any, Any], loss: Callable[..., Any], targets: np.ndarray, **tokens: Any) -> Any:
    found = loss(targets.copy(), **tokens)
    targets[targets == 0] = -100
    return found


def loss_of_one_row(state: dict[Any, Any], loss: Callable[..., Any], targets: np.ndarray, **tokens: Any) -> Any:
    return loss(targets, **tokens) * (1.01 if len(targets) == 1 else 1.0)


def ends_otherwise(state: dict[Any, Any], method: Callable[..., Any], prompt: Any, steps: int, **named: Any) -> Any:
    """Change the last token of repeated generations."""
    tokens = np.array(method(prompt, steps, **named))
    if state.setdefault(str(steps), 0) and tokens.shape[1] > 3:
        tokens[:, -1] = (tokens[:, -1] + 1) % 20
    state[str(steps)] += 1
    return tokens


def wrong_step(state: dict[Any, Any], step: Callable[..., Any], tokens: Any, cache: Any, **named: Any) -> Any:
    logits, after = step(tokens, cache, **named)
    return logits * (1.01 if cache is not None else 1), after


class ScaledByTheWidth(Model):
    def scale(self) -> float:
        return float(self.c.embed_dim**-0.5)


def answering(change: Callable[[torch.Tensor], torch.Tensor], kind: type[Model] = Model) -> type[Model]:
    class Answering(kind):  # type: ignore[misc, valid-type]
        def __call__(self, **tokens: Any) -> torch.Tensor:
            return change(super().__call__(**tokens))

    return Answering


class HiddenStates(Model):
    def head(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Showing(ScaledByTheWidth):
    """A GPT-2 that returns two taps of each layer: one right tap, and one tap times two."""

    def __call__(self, **tokens: Any) -> Any:
        logits = super().__call__(**tokens)
        norms = {name: x for name, x in self.heard.items() if name.endswith("self_attention_norm")}
        doubled = {name: 2 * x for name, x in self.heard.items() if name.endswith("self_attention.output")}
        return {"logits": logits, **norms, **doubled}


class ReluOfOneRow(Model):
    def act(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x) if len(x) > 1 else F.relu(x)


class WrongFromSixtyFive(Model):
    def scores(self, query: torch.Tensor, key: torch.Tensor, bias: Any) -> torch.Tensor:
        width = self.c.embed_dim if query.shape[2] > 64 else self.head_dim
        return query @ key.mT * width**-0.5


def fixing(is_allowed: Callable[[TransformerConfig], bool], kind: type[Model] = Model) -> Build:
    def build(config: TransformerConfig, parameters: Arrays) -> Model:
        assert is_allowed(config), "these sizes are not supported"
        return kind(config, parameters)

    return build


WINDOW = dataclasses.replace(CASES["qwen"], max_length=200, sliding_window=70)
BUCKETS = dataclasses.replace(CASES["t5"], max_length=300, relative_buckets=32, relative_max_distance=128)
ORIGINAL_LENGTH = dataclasses.replace(CASES["llama"], max_length=300, rotary_original_length=256)
