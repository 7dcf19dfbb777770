import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from transparity_numpy.port import build as right

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LAST = RANK == RANKS - 1 > 0


def build(config: Any, parameters: Any) -> Callable[..., Any]:
    model = right(config, parameters, dtype="float32")
    forward: Callable[..., Any] = functools.partial(model.logits)
    return forward


def failing(fails: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the `build` of a port that applies `fails` to its logits on the last rank."""

    def build_failing(config: Any, parameters: Any) -> Callable[..., Any]:
        forward = build(config, parameters)
        return lambda **tokens: fails(forward(**tokens)) if LAST else forward(**tokens)

    return build_failing


def wait(logits: Any) -> Any:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    time.sleep(600)


def complain(logits: Any) -> Any:
    raise ValueError("no peace on this rank")


dies, hangs, raises = failing(lambda logits: os._exit(7)), failing(wait), failing(complain)
narrow, off = failing(lambda logits: logits[..., :-1]), failing(lambda logits: logits + np.float32(1e-3))


def waits_for_it(config: Any, parameters: Any) -> Callable[..., Any]:
    """Return a port whose last rank raises while the other ranks wait for it."""
    right_forward = build(config, parameters)

    def forward(**tokens: Any) -> Any:
        if LAST:
            complain(0)
        if RANKS > 1:
            time.sleep(600)
        return right_forward(**tokens)

    return forward


def padded(config: Any, parameters: Any) -> Callable[..., Any]:
    forward = build(config, parameters)
    return lambda **tokens: np.pad(forward(**tokens), [(0, 0), (0, 0), (0, 4 * (RANKS - 1))])


def one_refuses(config: Any, parameters: Any) -> Callable[..., Any]:
    assert RANKS > 1, "more than one rank"
    return build(config, parameters)


def declared(placements: Any) -> Callable[..., Any]:
    def build_declared(config: Any, parameters: Any) -> Any:
        forward: Any = build(config, parameters)
        forward.placements = placements
        return forward

    return build_declared


nonsense = declared({"logits": "somewhere"})
by_rank = declared({"logits": f"rank:{RANK}"})
