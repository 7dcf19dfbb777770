"""Recurrences by themselves: the rules of their states, step by step and in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transparity.taps import Tap
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.report.comparison import Evidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim
from transparity_numpy.recurrent.recurrence import gated_delta_rule, state_space_rule

RULES = {"gated_delta_rule": gated_delta_rule, "state_space_rule": state_space_rule}

LENGTH, CUT = 131, 70
"""More positions than two chunks have, and where the second call goes on: in the middle of one."""

NAMES = ("query", "key", "value", "log_decay", "beta", "state")


def _drawn() -> Arrays:
    """Two rows of three heads; keys and queries of length 1, decays that leave something of the state, or little."""
    random = np.random.default_rng(3)
    query, key = (random.normal(size=(2, 3, LENGTH, 5)) for _ in range(2))
    unit = {name: x / np.linalg.norm(x, axis=-1, keepdims=True) for name, x in (("query", query), ("key", key))}
    numbers = random.normal(size=(2, 2, 3, LENGTH))
    found = unit | {"value": random.normal(size=(2, 3, LENGTH, 7)), "state": random.normal(size=(2, 3, 5, 7))}
    found |= {"log_decay": -np.exp(2 * numbers[0] - 2), "beta": 1 / (1 + np.exp(-numbers[1]))}
    return {name: found[name].astype(np.float32) for name in NAMES}


def _run(arrays: Arrays, tap: Tap) -> None:
    for name, rule in RULES.items():
        read, state = rule(*(arrays[name] for name in NAMES))
        tap(f"read of {name}", read)
        tap(f"state of {name}", state)


@claim(dtypes=("float32", "float64"), harness=True)
def steps(bench: Bench) -> Iterator[Evidence]:
    """The rules of states give what they give step by step, over more positions than a chunk has, and where a second
    call goes on from the state of the first."""
    arrays = _drawn()
    oracle, record = Oracle(_run, arrays), bench.evidence("recurrence.steps", f"{LENGTH} positions")
    *given, begun = (arrays[name] for name in NAMES)
    for name in RULES:
        rule = bench.function(f"recurrent.recurrence.{name}")
        read, state = rule(*given, begun)
        yield record.oracle(oracle, f"read of {name}", read)
        yield record.oracle(oracle, f"state of {name}", state)
        first, between = rule(*(x[:, :, :CUT] for x in given), begun)
        second, state = rule(*(x[:, :, CUT:] for x in given), np.asarray(between))
        whole = np.concatenate([np.asarray(first), np.asarray(second)], axis=2)
        yield record.oracle(oracle, f"read of {name} in two calls", whole, f"read of {name}")
        yield record.oracle(oracle, f"state of {name} after two calls", state, f"state of {name}")
