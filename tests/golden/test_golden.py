"""Test golden reports (golden.json): each port's verdict, causes, lines and notes. `python -m tests.golden.test_golden
[WORD …]` rewrites the reports of ports whose name contains a word. Review the diff."""

import dataclasses
import json
import math
import operator
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.golden import ports as p

from transparity.errors import TransparityError
from transparity_conformance import check
from transparity_conformance.checking.stages import reach
from transparity_conformance.oracle.probes import probe_parameters
from transparity_numpy.port import build as numpy_build
from transparity_pytorch.port import build as pytorch_build

FILE = Path(__file__).with_name("golden.json")

Case = tuple[Callable[..., Any], dict[str, Any]]


def of_gpt2(port: Any, **arguments: Any) -> Case:
    return port, {"config": p.GPT2, "budget": 120.0} | arguments


def of(port: Any, preset: str = "notes-lm", **arguments: Any) -> Case:
    return port, {"preset": preset, "budget": 0.0} | arguments


FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "vocabulary before positions": lambda x: x.transpose(1, 2),
    "positions before rows": lambda x: x.transpose(0, 1),
    "an axis too many": lambda x: x[None],
    "a padded vocabulary": lambda x: F.pad(x, (0, 33)),
    "rows and positions in one axis": lambda x: x.flatten(0, 1),
    "the last position": lambda x: x[:, -1],
    "one row": lambda x: x[0],
    "probabilities of the last position": lambda x: x[:, -1].softmax(-1),
    "token ids": lambda x: x.argmax(-1),
    "log-probabilities": lambda x: x.log_softmax(-1),
    "probabilities": lambda x: x.softmax(-1),
    "no known form": lambda x: x.mean((1, 2)),
    "a token too few": lambda x: x[..., :-1],
}

CONDITIONS: dict[str, Callable[..., Any]] = {
    **{f"length {n}": lambda config, tokens, n=n: p.length(tokens) == n for n in (4, 16, 17, 33, 129, 513)},
    "lengths from 100 on": lambda config, tokens: p.length(tokens) >= 100,
    **{f"batch {n}": lambda config, tokens, n=n: p.batch(tokens) == n for n in (1, 2, 3, 5, 13)},
    "wide heads": lambda config, tokens: config.head_dim > 16,
    "many heads": lambda config, tokens: config.num_heads > 8,
    "odd widths": lambda config, tokens: config.embed_dim % 4,
    "the last token": lambda config, tokens: any((ids == config.vocab_size - 1).any() for ids in tokens.values()),
}

HISTORIES: dict[str, tuple[Any, ...]] = {
    "from call 20 on": (p.nudged_if(lambda state: state["calls"] > 20),),
    "one call in twenty": (p.nudged_if(lambda state: state["calls"] % 20 == 19),),
    "answers kept by shape": (p.kept_by(lambda given: None, 10),),
    "answers kept by sum": (p.kept_by(lambda given: int(given.sum())),),
    "answers kept by first tokens": (p.kept_by(lambda given: given[:, 0].tobytes()),),
    "after a longer input": (p.after_a_longer_input,),
    "raises later": (p.raises_if(lambda state: state["calls"] > 50),),
    "raises at call 3": (p.raises_if(lambda state: state["calls"] == 3),),
    "raises": (p.raises_if(lambda state: True),),
    **{
        f"after {offer}": (p.nudged_if(operator.methodcaller("get", offer)), "forward", offer)
        for offer in ("train", "step", "loss_and_gradients", "generate")
    },
    "right": (p.nudged_if(lambda state: False),),
    "gradients that add up": (p.adds_up, "loss_and_gradients", "loss_and_gradients"),
    "tokens changed in place": (p.changes_tokens,),
    "targets changed in place": (p.changes_targets, "loss", "loss"),
    "the loss of one row": (p.loss_of_one_row, "loss", "loss"),
    "a generation that goes on": (p.ends_otherwise, "generate", "generate"),
    "a wrong step": (p.wrong_step, "step", "step"),
}

TAPS: dict[str, Any] = {
    **{
        f"{number} at {tap}": p.with_number(tap, -1, number)
        for number, tap in ((np.nan, "logits"), (np.inf, p.SCORES), (np.nan, "decoder.embedding"))
    },
    "one number of the scores": p.with_number(p.SCORES, 0, 0.01),
    "logits that are no numbers": p.spoiled("logits", lambda x: x * np.nan),
    "scores of one row": p.spoiled(p.SCORES, lambda x: x[:1]),
    "scores with rows and heads swapped": p.spoiled(p.SCORES, lambda x: x.swapaxes(0, 1)),
    "logits cut": p.spoiled("logits", lambda x: x[..., :-1]),
    "a name that is no tap": p.with_taps(lambda taps: {"logits": taps["logits"], "decoder.layer.0.output": 0}),
    "no logits": p.with_taps(lambda taps: {p.SCORES: taps[p.SCORES]}),
    "nothing": p.with_taps(lambda taps: {}),
    "text": p.with_taps(lambda taps: taps | {"logits": "x"}),
    "complex numbers": p.with_taps(lambda taps: taps["logits"].astype(complex)),
    "objects": p.with_taps(lambda taps: np.round(taps["logits"], 2).astype(object)),
    "noise": p.noisy(),
}

WIDE = dataclasses.replace(p.GPT2, feed_forward_dim=4 * p.GPT2.embed_dim)
HEADS = dataclasses.replace(p.GPT2, embed_dim=64, num_heads=2, feed_forward_dim=128)
GIVEN = {"parameters": probe_parameters(p.GPT2)}
FIXED: dict[str, tuple[Any, Callable[..., bool]]] = {
    "4 × embed_dim": (WIDE, lambda config: config.feed_forward_dim == 4 * config.embed_dim),
    "head_dim": (HEADS, lambda config: config.head_dim == 32),
    "vocabulary and length": (p.GPT2, lambda config: (config.target_vocab_size, config.max_length) == (31, 16)),
    "all sizes": (p.GPT2, lambda config: config == p.GPT2),
}

CASES: dict[str, Case] = {
    "right: NumPy": of(numpy_build),
    **{f"taps: {name}": of(port) for name, port in TAPS.items()},
    **{f"form: {name}": of_gpt2(p.answering(change)) for name, change in FORMS.items()},
    "form: hidden states": of_gpt2(p.HiddenStates),
    "form: the last position, wrong": of_gpt2(p.answering(FORMS["the last position"], p.ScaledByTheWidth)),
    "form: transposed, wrong": of_gpt2(p.answering(FORMS["vocabulary before positions"], p.ScaledByTheWidth)),
    "recorded: scaled by the width": of_gpt2(p.ScaledByTheWidth),
    "recorded: by logits alone": of_gpt2(p.ScaledByTheWidth, logits_only=True),
    **{f"sizes: {name}": of(p.wrong_when(wrong)) for name, wrong in CONDITIONS.items()},
    "sizes: batch 5 of two inputs": of(p.wrong_when(CONDITIONS["batch 5"]), "translation"),
    "sizes: length 17 of two inputs": of(p.wrong_when(CONDITIONS["length 17"]), "translation"),
    **{f"tokens: {dtype}": of(p.in_integers(dtype)) for dtype in ("int8", "uint8", "int16", "uint16")},
    **{f"refuses {what}": of(p.refusing(what)) for what in ("to be built", "to be called", "two tokens")},
    **{f"fixed: {name}": of_gpt2(p.fixing(allows), config=config) for name, (config, allows) in FIXED.items()},
    "fixed, wrong: head_dim": of_gpt2(p.fixing(FIXED["head_dim"][1], p.ScaledByTheWidth), config=HEADS),
    **{
        f"history: {name}": of(p.replaced(*wrong), "notes-attention", logits_only=True)
        for name, wrong in HISTORIES.items()
    },
    "asked: no system": (numpy_build, {}),
    "asked: parameters alone": (numpy_build, {"parameters": {}}),
    "asked: an unknown family": (numpy_build, {"family": "llamas"}),
    "asked: a length beyond max_length": of_gpt2(pytorch_build, lengths=[1000], **GIVEN),
}
"""A port and the arguments of its check, by name."""

NUMBERS = re.compile(r"[\d.]+(e[+-]?\d+)?(?= ?[%×])|\d\.\d+(e[+-]?\d+)?|\d+e[+-]?\d+")
"""Matches shares, errors and seconds, which differ from computer to computer."""


def summary(name: str) -> dict[str, Any]:
    port, arguments = CASES[name]
    torch.manual_seed(0)
    try:
        with mock.patch.object(reach, "SECONDS_OF_A_PORT", math.inf):  # use all calls, even on a slow machine
            report = check(port, **arguments)
    except TransparityError as error:
        return {"raises": type(error).__name__, "says": str(error)}
    faults = [
        {
            "where": fault.where,
            "causes": {cause.mistake: cause.says for cause in fault.causes},
            "ties": list(fault.indistinguishable),
            "line": fault.source["code"] if fault.source else "",
            "probe": fault.probe,
            "is_misshapen": fault.is_misshapen,
        }
        for fault in report.faults
    ]
    found = {
        "verdict": report.verdict,
        "first_divergence": report.first_divergence,
        "faults": faults,
        "claims": {claim.id: claim.verdict for claim in report.claims},
        "notes": list(report.notes),
        "not_compared": list(report.not_compared),
        "coverage": report.coverage.line,
    }
    rounded: dict[str, Any] = json.loads(NUMBERS.sub("N", json.dumps(found, ensure_ascii=False)))
    return rounded


def main() -> None:
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for name in [name for name in CASES if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]:
        known[name] = summary(name)
        print(name, known[name].get("verdict", known[name].get("raises")), flush=True)  # noqa: T201
        text = json.dumps({name: known[name] for name in CASES if name in known}, indent=1, ensure_ascii=False)
        FILE.write_text(text + "\n", encoding="utf-8")


SLOW = (
    *("recorded: ", "fixed, wrong", "form: transposed, wrong", "sizes: length 17 of", "sizes: batch 5 of", "fixed: 4"),
    *("sizes: length 513", "sizes: many heads", "sizes: the last token", "tokens: uint8", "tokens: int16"),
    *("fixed: vocabulary", "fixed: head_dim", "history: after loss", "history: after generate", "history: after train"),
    *("sizes: length 4", "sizes: length 16", "sizes: length 33", "sizes: batch 2", "sizes: batch 3", "sizes: batch 13"),
)
"""The beginnings of the names of ports that only `nox -s nightly` checks; other ports of the same kind are quicker."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * name.startswith(SLOW)) for name in CASES]
)
def test_a_port_has_its_golden_report(name: str) -> None:
    assert summary(name) == json.loads(FILE.read_text(encoding="utf-8"))[name]


def test_every_golden_report_is_of_a_port() -> None:
    assert list(json.loads(FILE.read_text(encoding="utf-8"))) == list(CASES)


if __name__ == "__main__":
    main()
