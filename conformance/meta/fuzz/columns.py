"""The doors of the three backends: models built with wrong arguments, and called with wrong inputs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from meta.fuzz.documents import PARAMETERS, TINY
from meta.fuzz.outcome import ACCEPTED
from meta.fuzz.wild import NAMES, wild_object
from transparity.sampling import Sampling
from transparity.training import Training
from transparity_conformance.oracle.backends import backend, installed

LONG, ENDLESS = 1000, 2**62
"""Numbers of tokens between these are valid, and would be generated."""

TOKENS = np.array([[1, 2, 3]])


@functools.cache
def model(name: str) -> Any:
    return backend(name)(TINY, PARAMETERS)


def column_build(random: Random, folder: Path) -> str:
    """A model of a backend with a wrong precision, device, mode, configuration or parameters."""
    build: Any = backend(random.choice(sorted(installed())))
    named: dict[str, Any] = {}
    given: list[Any] = [TINY, PARAMETERS]
    choice = random.random()
    if choice < 0.6:
        named[random.choice(("dtype", "device", "mode", "weights", "activations"))] = random.choice(
            (*NAMES, "float32", "bfloat16", "cuda", "int8", wild_object(random))
        )
    elif choice < 0.8:
        given[1] = {**PARAMETERS, random.choice([*PARAMETERS, *NAMES]): wild_object(random)}
    else:
        given[random.randrange(2)] = wild_object(random)
    build(*given, **named)
    return ACCEPTED


def column_call(random: Random, folder: Path) -> str:
    """A call of a right model with one wrong argument."""
    forward = model(random.choice(sorted(installed())))
    wrong = wild_object(random)
    steps = 3 if isinstance(wrong, int) and LONG <= wrong < ENDLESS else wrong
    name = random.choice([field.name for field in dataclasses.fields(Training)])
    calls: tuple[Callable[[], Any], ...] = (
        lambda: forward(tokens=wrong),
        lambda: forward.logits(tokens=wrong),
        lambda: forward(**{random.choice([name for name in NAMES if name != "tokens"]): TOKENS}),
        lambda: forward.logits(tokens=TOKENS, attention_mask=wrong),
        lambda: forward.loss(wrong, tokens=TOKENS),
        lambda: forward.step(wrong),
        lambda: forward.step(TOKENS, counts=wrong),
        lambda: forward.step(TOKENS, source=wrong),
        lambda: forward.generate(wrong, 1),
        lambda: forward.generate(TOKENS, steps),
        lambda: forward.generate(TOKENS, 1, lengths=wrong),
        lambda: forward.generate(TOKENS, 1, uniforms=wrong),
        lambda: forward.beam_search(TOKENS, 1, steps),
        lambda: forward.beam_search(TOKENS, 1, 2, length_penalty=wrong),
        lambda: forward.train(wrong, Training()),
        lambda: forward.train([{"tokens": TOKENS, "targets": wrong}], Training()),
        lambda: forward.generate(TOKENS, 1, sampling=Sampling(wrong)),
        lambda: forward.generate(TOKENS, 1, sampling=wrong),
        lambda: forward.step(TOKENS, wrong),
        lambda: forward.train([{"tokens": TOKENS, "targets": TOKENS}], Training(**{name: wrong})),
    )
    random.choice(calls)()
    return ACCEPTED
