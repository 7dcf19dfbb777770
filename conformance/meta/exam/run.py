"""Check code with one bug in this process, and apply the common rules to its logits."""

import contextlib
import dataclasses
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meta.exam.bug import exam
from meta.exam.rules import LONG, SHORT, failed
from meta.pool.bug import Bug, PatchedFinder, PoolError
from meta.pool.judge import answer_of
from transparity.config import TransformerConfig
from transparity_conformance import check
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.checkpoints.examples import EXAMPLES
from transparity_conformance.checkpoints.importing import configuration, family_called
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.running.hub import loaded_here
from transparity_conformance.running.process.running import built, run
from transparity_numpy.transformer import transformer

Port = Callable[..., Any]


def install(bug: Bug, folder: Path) -> Path:
    """Write the changed file into `folder`, let imports find this file, and return its path. Raise if the original is
    already imported."""
    patched = folder / bug.file
    patched.parent.mkdir(parents=True, exist_ok=True)
    patched.write_text(bug.text(), encoding="utf-8")
    if is_imported(bug.path):
        raise PoolError(f"{bug.file} was imported before it was patched.")
    sys.meta_path.insert(0, PatchedFinder(bug.path, patched))
    return patched


def is_imported(file: Path) -> bool:
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return any(found is not None and Path(found).resolve() == file.resolve() for found in files)


def config_of(bug: Bug, subject: Any) -> TransformerConfig:
    if not bug.family:
        return dataclasses.replace(subject.CONFIG, **bug.config)
    family = family_called(bug.family)
    fields = {**EXAMPLES[bug.family], **getattr(subject, "FIELDS", {}).get(bug.family, {}), **bug.config}
    return configuration(family, fields, family.names)


def port_of(bug: Bug, subject: Any) -> Port:
    name = bug.port or ("load" if hasattr(subject, "load") else "build")
    port: Port = getattr(subject, name)
    return port


def result_of(bug: Bug, folder: Path) -> dict[str, Any]:
    patched = None if bug.is_twin else install(bug, folder)
    subject = importlib.import_module(f"meta.exam.subjects.{bug.subject}")
    port, config = port_of(bug, subject), config_of(bug, subject)
    began = time.perf_counter()
    result: dict[str, Any] = {"id": bug.id, "error": "", "verdict": "", "faults": [], "audit": {}}
    try:
        family: dict[str, Any] = {"family": bug.family} if bug.family else {}
        result |= answer_of(check(port, config=config, dtype=bug.dtype, **family), folder)
    except PortError as error:
        result |= {"error": str(error)}
    result["seconds"] = round(time.perf_counter() - began, 1)
    result["rules"] = rules_failed(port, config, bug.family)
    if patched is not None and not is_imported(patched):
        raise PoolError(f"{bug.id}: the subject never imports {bug.file}.")
    return result


def rules_failed(port: Port, config: TransformerConfig, family: str) -> list[str]:
    """Return the names of the rules that a port fails on one text without padding."""
    parameters = probe_parameters(config)
    random = np.random.default_rng(0)
    answers: dict[int, np.ndarray | None] = {}
    right: dict[int, np.ndarray] = {}
    with loaded_here(port, family) if family else contextlib.nullcontext(port) as build:
        for tokens in (SHORT, LONG):
            probe = _unpadded(config, parameters, tokens, random)
            answer = transformer(config, probe.exact, **probe.inputs)  # type: ignore[arg-type]
            right[tokens] = np.atleast_2d(answer[0])  # a pooled output is one vector
            try:
                answers[tokens] = np.atleast_2d(run(built(build, probe), probe, logits_only=True)["logits"][0])
            except PortError:
                answers[tokens] = None
    return failed(answers, right)


def _unpadded(config: TransformerConfig, parameters: Any, tokens: int, random: np.random.Generator) -> Probe:
    """Return one image, or random ids of ordinary tokens. If the model pools the end token, the last id is this
    token."""
    special, length = {config.pad_id, config.bos_id, config.eos_id}, min(tokens, config.max_length)
    drawn = mixed_inputs(config)
    inputs = {name: drawn[name][:1] for name in config.input_names if name not in config.token_inputs}
    for name in config.token_inputs:
        vocabulary = range(config.stack_vocab_size(config.input_stack(name)))
        inputs[name] = random.choice([token for token in vocabulary if token not in special], (1, length))
        if config.is_pooled and config.pooling == "eos":
            inputs[name][:, -1] = config.eos_id
    further = {
        name: np.ones((1, length), np.int64) if name == "attention_mask" else np.zeros((1, length), np.int64)
        for name in config.further_inputs
    }
    return Probe("rules", f"{tokens} tokens", "", config, parameters, inputs | further)


def results(name: str, folder: str, way: str = "run") -> Iterator[dict[str, Any]]:
    yield importlib.import_module(f"meta.exam.{way}").result_of(exam()[name], Path(folder))
