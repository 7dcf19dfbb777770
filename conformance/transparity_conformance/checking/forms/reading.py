"""A port whose answers are in another form, called as if it returned logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import lengths_of, tap_shapes
from transparity_conformance.checking.forms.recognise import Form
from transparity_conformance.checking.reach.calls import Ran
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.running.answers import taps_in
from transparity_conformance.running.process.running import RemotePort


class _InForm:
    """A built port whose answers are read as logits; all that it offers is its own."""

    def __init__(self, forward: Any, form: Form, config: TransformerConfig) -> None:
        self.forward, self.form, self.config = forward, form, config

    def __call__(self, **tokens: np.ndarray) -> Any:
        return self._read(self.forward(**tokens), tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.forward, name)

    def _read(self, returned: Any, tokens: Mapping[str, np.ndarray]) -> dict[str, Any]:
        lengths = lengths_of(self.config, tokens)
        shape = tap_shapes(self.config, len(next(iter(tokens.values()))), **lengths)["logits"]
        taps = taps_in(returned, self.config)
        return {**taps, "logits": self.form.logits(as_numbers(taps["logits"]), shape)}


class _RemoteInForm(_InForm, RemotePort):
    """The same in a process of its own."""

    def listened(
        self, method: str = "", /, *args: Any, whole_numbers: bool = False, **named: Any
    ) -> tuple[Any, list[Operation]]:
        returned, operations = self.forward.listened(method, *args, whole_numbers=whole_numbers, **named)
        return returned if method else self._read(returned, named), operations


def in_form(ran: Ran, form: Form, probes: Mapping[str, Probe]) -> Ran:
    """The same answers, and the same ports, with logits in place of their form."""
    configs = {id(probe.parameters): probe.config for probe in probes.values()}
    forwards: dict[int, Callable[..., Any]] = {
        key: (_RemoteInForm if isinstance(forward, RemotePort) else _InForm)(forward, form, configs[key])
        for key, forward in ran.forwards.items()
        if key in configs
    }
    actual: dict[str, Mapping[str, np.ndarray]] = {
        key: {**taps, "logits": form.logits(taps["logits"], probes[key].oracle.expected["logits"].shape)}
        for key, taps in ran.actual.items()
    }
    forward = forwards[next(iter(forwards))]
    return dataclasses.replace(ran, actual=actual, forward=forward, forwards=forwards)
