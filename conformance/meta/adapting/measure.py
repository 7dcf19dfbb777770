"""The pools `adapting` and `adapters`: ports that `adapt` must match without asking the user, and ports with a bug.

Each bug is an edit of a port's source. In the adapter of the wrong port, every line that differs
from the adapter of the correct port must be marked as undetermined.
"""

import argparse
import dataclasses
import functools
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from meta.adapting import arrays, decoders, encoders
from meta.adapting.decoders import put
from meta.audits.loaders import bert_module, t5_functional
from meta.pool.bug import edited, rows
from meta.trial import Measure, Trial
from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity_conformance.checking.adapting import summary
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.identify.adapting.adapt import Adapted, adapt
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.running.loading import load_file

LOADERS = {"bert": bert_module, "t5": t5_functional}
"""Loaders of Hugging Face folders, by family; the loaded model is the port."""

FILES = {name: module for module in (decoders, encoders, arrays) for name in module.PORTS} | LOADERS
"""The module that defines each port, by the port's name."""

_ROWS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))


def _config(name: str) -> TransformerConfig:
    fields = dict(_ROWS[name])
    if fields.pop("own_keys", False):
        fields["num_key_value_heads"] = None
    like = fields.pop("like", "")
    if not like:
        return TransformerConfig(**fields)
    if like in _ROWS and like != name:
        return dataclasses.replace(_config(like), **fields)
    return dataclasses.replace(preset(like).resized() if like in PRESETS else example_config(like), **fields)


CONFIGS = {name: _config(name) for name in _ROWS if name in FILES}
GPT2, LLAMA, ALIKE = CONFIGS["nanogpt"], CONFIGS["hub-llama"], CONFIGS["to-kv"]
"""`ALIKE` is a Llama with as many key and value heads as query heads."""


class Functional(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.made, self.c = type(model), model.c
        for name, value in model.p.items():
            put(self, name, nn.Parameter(value))

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.made(self.c, dict(self.named_parameters()))(input_ids, decoder_input_ids, attention_mask)


def port_in(module: Any, name: str) -> Callable[[TransformerConfig], Any]:
    """Return the function that makes a port; for a loader, this function writes a Hugging Face folder and loads it."""

    def loaded(config: TransformerConfig) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            export_checkpoint(name, config, probe_parameters(config), Path(folder))
            model = module.load(folder)
        return model if isinstance(model, nn.Module) else Functional(model)

    made: Callable[[TransformerConfig], Any] = loaded if name in LOADERS else module.PORTS[name]
    return made


PORTS = {name: (port_in(FILES[name], name), config) for name, config in CONFIGS.items()}

BUGS = rows(Path(__file__).with_name("wrong.toml"), "fault")
"""The bugs; each row has a port, the replaced text in its file, and the replacement."""

KINDS = ("no bug", "asked", "settled", "wrong")
"""The outcomes for a bug. `no bug`: the edit only changes a layout, or has no effect. `asked`: the adapter marks
lines as undetermined. `settled`: every line is right. `wrong`: a line is wrong and is not marked."""


@functools.cache
def adapted(name: str) -> Adapted:
    make, config = PORTS[name]
    return adapt(make, config)


def matched(name: str) -> dict[str, Any]:
    lines, code = summary(adapted(name))
    return {"code": code, "says": f"{lines[0]}; {lines[-1]}"}


def broken(folder: Path, port: str, old: str, new: str, nth: int | None = None) -> Callable[[TransformerConfig], Any]:
    origin = str(FILES[port].__file__)
    text = Path(origin).read_text(encoding="utf-8").replace("__file__", repr(origin))
    path = folder / f"wrong_{port.replace('-', '_')}_{abs(hash((old, new)))}.py"
    path.write_text(edited(text, old, new, nth, port), encoding="utf-8")
    return port_in(load_file(path), port)


def mismatched(bug: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = adapt(broken(Path(folder), **bug), PORTS[bug["port"]][1], budget=8)
    right, found = adapted(bug["port"]).found.lines, result.found
    wrong = [name for name, text in found.lines.items() if right[name] != text]
    faults = {each.fault.id for each in found.faults}
    told = f"{len(found.unsettled)} undetermined lines, no match from {found.lost_at} on" if found.lost_at else ""
    return {"kind": kind_of(result, wrong), "wrong": wrong, "told": told or f"{faults or ''}"}


def kind_of(result: Adapted, wrong: Sequence[str]) -> str:
    if result.is_proved:
        return "no bug"
    return "wrong" if wrong else "settled" if result.is_settled else "asked"


def trials(options: argparse.Namespace) -> list[Trial]:
    if options.pool == "adapting":
        return [Trial(name, functools.partial(matched, name), "right") for name in PORTS]
    return [Trial(f"{bug['port']}: {bug['new']!r}", functools.partial(mismatched, bug), "bug") for bug in BUGS]


def _is(kind: str) -> Callable[[Trial, Any], bool]:
    return lambda _, answer: answer["kind"] == kind


MEASURES = (
    Measure("matched without asking", lambda _, answer: answer["code"] == 0, kind="right"),
    *(Measure(kind, _is(kind), kind="bug") for kind in KINDS),
)
