"""Greedy generation of a port, held to the reference: token by token, through the port's own tokens.

A token is right if no other is likelier by more than rounding, given those before it; so a near-tie is no mistake, and
one wrong token makes not all behind it wrong.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.transformer import transformer
from transparity_conformance.bench import as_numbers
from transparity_conformance.besides import Besides, rivals
from transparity_conformance.evidence import share
from transparity_conformance.mistakes.generation import GENERATIONS, Generation, generated
from transparity_conformance.oracle import Arrays, forward_oracle
from transparity_conformance.probes import Probe
from transparity_conformance.verdict import Cause, Fault, Held

ROWS = 4
PROMPT = 2

Build = Callable[[TransformerConfig, Arrays], Any]


@dataclass(frozen=True)
class Request:
    """What a port is asked to go on with."""

    name: str
    config: TransformerConfig
    parameters: Arrays
    prompt: np.ndarray
    steps: int
    source: np.ndarray | None

    def context(self, tokens: np.ndarray) -> dict[str, Any]:
        """What the model is shown to say what follows `tokens`."""
        shown = tokens[:, -self.config.max_length :]
        return {"tokens": shown} if self.source is None else {"source": self.source, "target": shown}

    def expected(self, how: Generation) -> np.ndarray:
        return generated(self.config, self.parameters, self.prompt, self.steps, self.source, how)


@functools.cache
def requests(probe: Probe) -> tuple[Request, ...]:
    """One that goes on beyond `max_length`; and, if there is an end token, one whose rows come to it one by one."""
    config = probe.config
    source = probe.inputs["source"][:ROWS] if config.has_encoder else None
    prompt = np.random.default_rng(5).integers(1, config.vocab_size, (ROWS, PROMPT))
    if config.bos_id is not None:
        prompt[:, 0] = config.bos_id
    # No token is likelier than another for all that came before it, or the same one would come again and again.
    usual = probe.oracle.expected["logits"].mean(axis=(0, 1)).astype(np.float32)
    parameters = probe.parameters | {"head.bias": probe.parameters["head.bias"] - usual}
    beyond = Request("beyond max_length", config, parameters, prompt, config.max_length + 2, source)
    if config.eos_id is None:
        return (beyond,)
    never = dataclasses.replace(beyond, parameters=_pushed(parameters, config.eos_id, -100.0))
    push = _push(never, config.eos_id, parameters)
    ending = _pushed(parameters, config.eos_id, push)
    return never, dataclasses.replace(never, name="to the end token", parameters=ending)


def _pushed(parameters: Arrays, token: int, push: float) -> Arrays:
    """The parameters, with `push` added to the logit of `token`."""
    bias = parameters["head.bias"].copy()
    bias[token] += push
    return parameters | {"head.bias": bias}


def _push(never: Request, eos_id: int, parameters: Arrays) -> float:
    """What has to be added to the end token's logit for the rows to end at as many different steps as can be. Until a
    row ends, it is the same whatever is added."""
    tokens, begin = never.expected(Generation()), never.prompt.shape[1]
    behind = []
    for position in range(begin, tokens.shape[1]):
        logits = transformer(never.config, parameters, **never.context(tokens[:, :position]))[:, -1]
        behind.append(np.delete(logits, eos_id, axis=1).max(axis=1) - logits[:, eos_id])
    margins = np.stack(behind, axis=1).astype(np.float64)
    ordered = np.unique(margins)
    between = (ordered[1:] + ordered[:-1]) / 2

    def steps(push: float) -> tuple[bool, int, int]:
        """Whether all rows end in time, at how many different steps, and how late the first does."""
        ended = [int(np.argmax(row < push)) for row in margins if (row < push).any()]
        in_time = len(ended) == len(margins) and max(ended) + 1 < margins.shape[1]
        return in_time, len(set(ended)), min(ended, default=0)

    return float(max(between, key=steps))


def decode(build: Build, probe: Probe, dtype: str) -> Besides:
    """Ask the port, and judge. Raises whatever the port raises, and `TypeError` for what are no tokens."""
    asked = requests(probe)
    said = {request.name: _asked(build, request) for request in asked}
    worst, notes = Held("generate", "agrees", 0.0, 0.0, asked[0].name), []
    for request in asked:
        error, budget, where, near = _behind(request, said[request.name], dtype)
        notes += near
        if share(error, budget) > share(worst.error, worst.budget):
            verdict = "agrees" if share(error, budget) <= 1 else "diverges"
            worst = Held("generate", verdict, error, budget, where)  # type: ignore[arg-type]
    if worst.verdict == "agrees":
        return Besides((worst,), notes=tuple(notes))
    explaining = [
        how for how in GENERATIONS if all(_same(said[request.name], request.expected(how)) for request in asked)
    ]
    causes = tuple(Cause(how.id, how.says, None, 0.0, 1.0) for how in explaining[:1])
    fault = Fault("generate", worst.error, worst.budget, causes, rivals(explaining), probe=probe.name)
    return Besides((worst,), (fault,), notes=tuple(notes))


def _asked(build: Build, request: Request) -> np.ndarray:
    parameters = {name: value.copy() for name, value in request.parameters.items()}
    forward = build(request.config, parameters)
    named = {} if request.source is None else {"source": request.source.astype(np.int64)}
    tokens = as_numbers(forward.generate(request.prompt.astype(np.int64), request.steps, **named))
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu":
        raise TypeError(
            f"tokens of the shape {tokens.shape} and dtype {tokens.dtype}, expected (batch, length) of integers"
        )
    return tokens


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def _behind(request: Request, tokens: np.ndarray, dtype: str) -> tuple[float, float, str, list[str]]:
    """How far any token's logit is behind the likeliest's, the budget of that, where, and near-ties; infinitely far
    where the prompt, the padding or the length is another."""
    config, prompt = request.config, request.prompt
    begin = prompt.shape[1]
    if len(tokens) != len(prompt) or not _same(tokens[:, :begin], prompt):
        return np.inf, 0.0, f"the prompt, {request.name}", []
    if tokens.min() < 0 or tokens.max() >= config.vocab_size:
        return np.inf, 0.0, f"a token outside the vocabulary, {request.name}", []
    ended = np.zeros(len(prompt), bool)
    worst: tuple[float, float, str] = (0.0, 0.0, f"token {begin}, {request.name}")
    near: list[str] = []
    for position in range(begin, tokens.shape[1]):
        where = f"token {position}, {request.name}"
        if ended.all():
            return np.inf, 0.0, f"{where}: behind the end of every row", near
        oracle = forward_oracle(config, request.parameters, request.context(tokens[:, :position]), neighbours=1)
        logits = oracle.expected["logits"][:, -1]
        chosen = np.take_along_axis(logits, tokens[:, position, None], 1)[:, 0]
        error = float(np.where(ended, 0.0, logits.max(axis=-1) - chosen).max())
        budget = 2 * oracle.budget("logits", dtype)
        near += [f"generate: {where} is a tie to within rounding"] if 0 < error <= budget else []
        if error > budget:  # what comes behind a wrong token may be wrong because of it
            return error, budget, where, near
        worst = max(worst, (error, budget, where), key=lambda item: share(item[0], item[1]))
        if (tokens[ended, position] != (config.eos_id if config.pad_id is None else config.pad_id)).any():
            return np.inf, 0.0, f"{where}: no padding behind the end of a row", near
        if config.eos_id is not None:
            ended |= tokens[:, position] == config.eos_id
    if tokens.shape[1] != begin + request.steps and not ended.all():
        return np.inf, 0.0, f"the length, {request.name}", near
    return *worst, near
