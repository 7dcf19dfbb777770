"""Correct and wrong ports for the golden reports: our columns with changes, and a GPT-2 in PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.alignment.test_alignment import GPT2, Gpt2, ScaledByTheWidth

from transparity.config import TransformerConfig
from transparity_conformance.oracle.cases import CASES
from transparity_numpy.port import build as numpy_build
from transparity_pytorch.port import build as pytorch_build

__all__ = ["GPT2", "Gpt2", "ScaledByTheWidth"]

Arrays = dict[str, np.ndarray]
Build = Callable[[TransformerConfig, Arrays], Any]

SCORES = "decoder.layers.0.self_attention.scores"


def with_taps(change: Callable[[Arrays], Any]) -> Build:
    """Return the NumPy column with `change` applied to the taps that it returns."""

    def build(config: TransformerConfig, parameters: Arrays) -> Any:
        forward = numpy_build(config, parameters)

        def answer(**tokens: Any) -> Any:
            taps = dict(forward(**tokens))
            replaced = change(taps)
            return taps if replaced is None else replaced

        return answer

    return build


def spoiled(tap: str, change: Callable[[np.ndarray], np.ndarray]) -> Build:
    return with_taps(lambda taps: taps.update({tap: change(taps[tap].copy())}))


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

    def build(config: TransformerConfig, parameters: Arrays) -> Any:
        forward = numpy_build(config, parameters)

        def answer(**tokens: Any) -> Any:
            logits = forward.logits(**tokens)
            return logits * 1.01 if condition(config, tokens) else logits

        return answer

    return build


def length(tokens: Arrays) -> int:
    return max(ids.shape[1] for ids in tokens.values())


def batch(tokens: Arrays) -> int:
    return len(next(iter(tokens.values())))


def in_integers(dtype: Any) -> Build:
    """Return a port that converts tokens to the integer type `dtype`."""

    def build(config: TransformerConfig, parameters: Arrays) -> Any:
        forward, size = numpy_build(config, parameters), config.vocab_size
        return lambda **tokens: forward.logits(
            **{name: ids.astype(dtype).astype(int) % size for name, ids in tokens.items()}
        )

    return build


def with_fields(**fields: Any) -> Build:
    return lambda config, parameters: numpy_build(dataclasses.replace(config, **fields), parameters).logits


def refusing(what: str) -> Build:
    """Return a port for 24 features and 3 heads; for other sizes, its build or its calls raise, as `what` says."""

    def build(config: TransformerConfig, parameters: Arrays) -> Any:
        fits = config.embed_dim == 24 and config.num_heads == 3
        if what == "to be built" and not fits:
            raise ValueError("24 features and 3 heads, please")
        forward = numpy_build(config, parameters)

        def answer(**tokens: Any) -> Any:
            if not fits and (what == "to be called" or tokens["tokens"].size > 1):
                raise ValueError("24 features and 3 heads, please")
            return forward.logits(**tokens)

        return answer

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


def answering(change: Callable[[torch.Tensor], torch.Tensor], kind: type[Gpt2] = Gpt2) -> type[Gpt2]:
    class Answering(kind):  # type: ignore[misc, valid-type]
        def __call__(self, tokens: Any) -> torch.Tensor:
            return change(super().__call__(tokens))

    return Answering


class HiddenStates(Gpt2):
    def __call__(self, tokens: Any) -> torch.Tensor:
        kept: list[torch.Tensor] = []

        def norm(name: str, x: torch.Tensor) -> torch.Tensor:
            kept.append(Gpt2.norm(self, name, x))
            return kept[-1]

        self.norm = norm  # type: ignore[method-assign]
        super().__call__(tokens)
        return kept[-1]


class Showing(ScaledByTheWidth):
    """A GPT-2 that returns two taps of each layer: one right tap, and one tap times two."""

    def attend(self, at: str, x: torch.Tensor) -> torch.Tensor:
        self.shown |= {f"{at}_norm": x, f"{at}.output": 2 * super().attend(at, x)}
        return self.shown[f"{at}.output"] / 2

    def __call__(self, tokens: Any) -> Any:
        self.shown: dict[str, torch.Tensor] = {}
        return {"logits": super().__call__(tokens), **self.shown}


class ReluOfOneRow(Gpt2):
    def feed_forward(self, at: str, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(f"{at}.up", x)
        h = F.gelu(h) if len(x) > 1 else F.relu(h)
        return self.linear(f"{at}.down", h)


class WrongFromSixtyFive(Gpt2):
    def scale(self, width: int) -> float:
        return float(width**-0.5) if self.is_long else super().scale(width)

    def attend(self, at: str, x: torch.Tensor) -> torch.Tensor:
        self.is_long = x.shape[1] > 64
        return super().attend(at, x)


def fixing(is_allowed: Callable[[TransformerConfig], bool], kind: type[Gpt2] = Gpt2) -> Build:
    def build(config: TransformerConfig, parameters: Arrays) -> Gpt2:
        assert is_allowed(config), "these sizes are not supported"
        return kind(config, parameters)

    return build


WINDOW = dataclasses.replace(CASES["qwen"], max_length=200, sliding_window=70)
BUCKETS = dataclasses.replace(CASES["t5"], max_length=300, relative_buckets=32, relative_max_distance=128)
ORIGINAL_LENGTH = dataclasses.replace(CASES["llama"], max_length=300, rotary_original_length=256)
