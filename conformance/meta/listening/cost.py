"""The pool `listening`: the cost of recording operations.

A GPT-2 in each framework is measured at a probe's size, and with 12 layers at 128 positions. The measures are the
times of an eager and of a recorded pass, and the size of the recorded values relative to the taps. A recorded pass
may take as long as three eager passes plus 2 s.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import math
import time
import timeit
from typing import Any

import numpy as np

from meta.trial import Measure, Trial
from transparity.config import TransformerConfig
from transparity.taps import tap_shapes
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.listening.listen import listen
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import probe_parameters

PASSES, SECONDS = 3, 2.0
"""The limit for a recorded pass: this many eager passes plus this many seconds."""

SMALL: dict[str, Any] = {"target_vocab_size": 50257, "max_length": 128, "num_decoder_layers": 12}
GPT2 = example_config("gpt2").resized(**SMALL, embed_dim=768, num_heads=12, feed_forward_dim=3072)

SIZES = {"probe": (GPT2.resized(), 8, 9), "gpt2": (GPT2, 1, 128)}
"""The configuration, the number of rows and the length, by the name of the size."""

FRAMEWORKS = {"pytorch": "torch", "jax": "jax.numpy", "numpy": "numpy"}


class Model:
    """A textbook GPT-2 that uses the arrays of a framework `xp`."""

    def __init__(self, config: TransformerConfig, parameters: Arrays, xp: Any) -> None:
        self.c, self.xp = config, xp
        make = xp.tensor if hasattr(xp, "tensor") else xp.asarray
        self.p = {name: make(value) for name, value in parameters.items()}
        self.make = make

    def dense(self, name: str, x: Any) -> Any:
        return x @ self.p[f"{name}.weight"].T + self.p[f"{name}.bias"]

    def norm(self, name: str, x: Any) -> Any:
        mean = x.mean(-1)[..., None]
        variance = ((x - mean) ** 2).mean(-1)[..., None]
        return (x - mean) / self.xp.sqrt(variance + self.c.norm_eps) * self.p[f"{name}.weight"] + self.p[f"{name}.bias"]

    def heads(self, x: Any) -> Any:
        return self.xp.swapaxes(x.reshape(*x.shape[:-1], self.c.num_heads, -1), 1, 2)

    def attend(self, at: str, x: Any) -> Any:
        xp, length = self.xp, x.shape[1]
        query, key, value = (self.heads(self.dense(f"{at}.{name}", x)) for name in ("query", "key", "value"))
        scores = query @ xp.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])
        scores = xp.where(self.make(np.tri(length, dtype=bool)), scores, -math.inf)
        weights = xp.exp(scores - self.largest(scores))
        weights = weights / weights.sum(-1)[..., None]
        return self.dense(f"{at}.output", xp.swapaxes(weights @ value, 1, 2).reshape(x.shape))

    def largest(self, x: Any) -> Any:
        return self.xp.amax(x, -1)[..., None]

    def feed(self, at: str, x: Any) -> Any:
        x = self.dense(f"{at}.up", x)
        x = 0.5 * x * (1 + self.xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return self.dense(f"{at}.down", x)

    def __call__(self, tokens: np.ndarray) -> Any:
        embedding = self.p["decoder.token_embedding.weight"]
        x = embedding[self.make(tokens)] + self.p["decoder.position_embedding.weight"][: tokens.shape[1]]
        for i in range(self.c.num_decoder_layers):
            at = f"decoder.layers.{i}"
            x = x + self.attend(f"{at}.self_attention", self.norm(f"{at}.self_attention_norm", x))
            x = x + self.feed(f"{at}.feed_forward", self.norm(f"{at}.feed_forward_norm", x))
        return self.finished(self.norm("decoder.final_norm", x) @ embedding.T)

    def finished(self, logits: Any) -> Any:
        return logits.block_until_ready() if hasattr(logits, "block_until_ready") else logits


def measured(framework: str, size: str) -> dict[str, Any]:
    """Return the fastest eager and recorded seconds, and the numbers of operations and of bytes."""
    config, rows, length = SIZES[size]
    model = Model(config, probe_parameters(config), importlib.import_module(FRAMEWORKS[framework]))
    tokens = np.random.default_rng(0).integers(0, config.target_vocab_size or 1, (rows, length))
    model(tokens)
    eager = min(timeit.repeat(lambda: model(tokens), number=1, repeat=PASSES))
    listened, operations = math.inf, list[Operation]()
    for _ in range(PASSES):
        began = time.perf_counter()
        _, operations = listen(lambda: model(tokens), framework)
        listened = min(listened, time.perf_counter() - began)
    taps = 8 * sum(map(math.prod, tap_shapes(config, rows, tokens=length).values()))
    recorded = sum(each.value.nbytes for each in operations)
    found = {"eager": eager, "listened": listened, "operations": len(operations), "recorded": recorded, "taps": taps}
    ratios = {"times": listened / eager, "times_the_taps": recorded / taps}
    return {**found, **ratios, "is_within": listened <= PASSES * eager + SECONDS}


def trials(options: argparse.Namespace) -> list[Trial]:
    pairs = itertools.product(SIZES, FRAMEWORKS)
    return [Trial(f"{size} {framework}", functools.partial(measured, framework, size)) for size, framework in pairs]


MEASURES = (Measure("at most three eager passes plus 2 s", lambda _, answer: answer["is_within"], 1.0),)
