"""The pool `listening`: the time and memory of recording all operations of a forward pass.

Each framework runs a small GPT-2, and a GPT-2 with 12 layers and 128 positions. The pool measures an eager pass, a
recorded pass, and the size of the recorded values relative to the taps. A recorded pass may take as long as three
eager passes plus 2 s.
"""

import argparse
import functools
import itertools
import math
import time
import timeit
from typing import Any

import numpy as np

from meta.adapting.measure import PORTS
from meta.trial import Measure, Trial
from transparity.taps import tap_shapes
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.listening.listen import listen
from transparity_conformance.listening.operation import Operation
from transparity_conformance.running.adapters.model import made_by

PASSES, SECONDS = 3, 2.0
"""The limit for a recorded pass: this many eager passes plus this many seconds."""

SMALL: dict[str, Any] = {"target_vocab_size": 50257, "max_length": 128, "num_decoder_layers": 12}
GPT2 = example_config("gpt2").resized(**SMALL, embed_dim=768, num_heads=12, feed_forward_dim=3072)

SIZES = {"probe": (GPT2.resized(), 8, 9), "gpt2": (GPT2, 1, 128)}
"""The configuration, the number of rows and the length, by the name of the size."""

PORTS_OF = {"pytorch": "gpt2-conv1d", "jax": "nnx", "numpy": "picogpt"}
"""By framework, the name of a GPT-2 in the pool `adapting`."""


def measured(framework: str, size: str) -> dict[str, Any]:
    """Return the shortest times of an eager and of a recorded pass, and the number and size of recorded values."""
    config, rows, length = SIZES[size]
    model = made_by(PORTS[PORTS_OF[framework]][0], config)
    tokens = np.random.default_rng(0).integers(0, config.target_vocab_size or 1, (rows, length))
    model(tokens=tokens)
    eager = min(timeit.repeat(lambda: model(tokens=tokens), number=1, repeat=PASSES))
    listened, operations = math.inf, list[Operation]()
    for _ in range(PASSES):
        began = time.perf_counter()
        _, operations = listen(lambda: model(tokens=tokens), framework)
        listened = min(listened, time.perf_counter() - began)
    taps = 8 * sum(map(math.prod, tap_shapes(config, rows, tokens=length).values()))
    recorded = sum(each.value.nbytes for each in operations)
    found = {"eager": eager, "listened": listened, "operations": len(operations), "recorded": recorded, "taps": taps}
    ratios = {"times": listened / eager, "times_the_taps": recorded / taps}
    return {**found, **ratios, "is_within": listened <= PASSES * eager + SECONDS}


def trials(options: argparse.Namespace) -> list[Trial]:
    pairs = itertools.product(SIZES, PORTS_OF)
    return [Trial(f"{size} {framework}", functools.partial(measured, framework, size)) for size, framework in pairs]


MEASURES = (Measure("at most three eager passes plus 2 s", lambda _, answer: answer["is_within"], 1.0),)
