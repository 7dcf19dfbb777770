"""Entry points that build or call a model of each of the three backends with wrong arguments."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from meta.fuzz.files import PARAMETERS, TINY
from meta.fuzz.outcome import ACCEPTED
from meta.fuzz.strategies import Draw, names, objects
from transparity.sampling import Sampling
from transparity.training import Training
from transparity_conformance.oracle.backends import backend, installed

LONG, ENDLESS = 10, 2**62
"""A drawn number of tokens is below `LONG` or at least `ENDLESS`. A number of tokens between these limits would take
too long to generate."""

TOKENS = np.array([[1, 2, 3]])
TRAINING = st.sampled_from([field.name for field in dataclasses.fields(Training)])
OPTIONS = st.sampled_from(("dtype", "device", "mode", "weights", "activations"))


@functools.cache
def model(name: str) -> Any:
    return backend(name)(TINY, PARAMETERS)


def column_build(draw: Draw, folder: Path) -> str:
    build: Any = backend(draw(st.sampled_from(sorted(installed()))))
    known = st.sampled_from(("float32", "bfloat16", "cuda", "int8"))
    wrong = draw(objects)
    given, named = draw(
        st.one_of(
            st.builds(lambda option, value: ((TINY, PARAMETERS), {option: value}), OPTIONS, names | known | objects),
            st.sampled_from([*PARAMETERS]).map(lambda name: ((TINY, {**PARAMETERS, name: wrong}), {})),
            st.sampled_from([((wrong, PARAMETERS), {}), ((TINY, wrong), {})]),
        )
    )
    build(*given, **named)
    return ACCEPTED


def column_call(draw: Draw, folder: Path) -> str:
    forward = model(draw(st.sampled_from(sorted(installed()))))
    wrong, name, other = draw(objects), draw(TRAINING), draw(names)
    steps = 3 if isinstance(wrong, int | float) and LONG <= wrong < ENDLESS else wrong
    calls: tuple[Callable[[], Any], ...] = (
        lambda: forward(tokens=wrong),
        lambda: forward.logits(tokens=wrong),
        lambda: forward(**{other.replace("tokens", ""): TOKENS}),
        lambda: forward.logits(tokens=TOKENS, attention_mask=wrong),
        lambda: forward.loss(wrong, tokens=TOKENS),
        lambda: forward.step(wrong),
        lambda: forward.step(TOKENS, valid_lengths=wrong),
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
    draw(st.sampled_from(calls))()
    return ACCEPTED
