"""Calls that together contain every token of a checkpoint, whose embedding table may have a single wrong row."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, frame_inputs
from transparity_conformance.oracle.reach.models import AFFORDABLE, ITSELF, ReachModel, ReachProbe

PURPOSE = "every token of the vocabulary"

ROW = 16

MOST_CALLS = 4
"""The largest number of calls. Their logits take about a second, and the tolerances several."""


def every_token(config: TransformerConfig, parameters: Arrays) -> ReachModel:
    """Return a model with calls that contain all token ids, or as many as the time allows."""
    model = ReachModel(ITSELF, config, parameters, [], is_asked=True)
    length = min(ROW, config.max_length)
    rows = -(-max((len(_tokens(config, name)) for name in config.token_inputs), default=0) // length)
    at_once = AFFORDABLE / sum(value.size for value in parameters.values()) / length
    rows = min(rows, int(MOST_CALLS * at_once))
    if rows:
        calls = max(1, min(MOST_CALLS, rows, -(-rows // max(1, int(at_once)))))
        model.calls = [(-(-rows // calls), (length,) * len(config.input_names))] * calls
    inputs = {name: _shared(config, name, model.calls) for name in config.token_inputs if rows}
    if inputs and config.reads_frames:
        batch = len(inputs["target"][0])
        inputs["source"] = np.stack([frame_inputs(config, batch, seed) for seed in range(len(model.calls))])
    every = ({name: parts[number] for name, parts in inputs.items()} for number in range(len(model.calls)))
    model.probes = [_probe(model, given) for given in every]
    return model


def _probe(model: ReachModel, inputs: Arrays) -> ReachProbe:
    first, config, further = inputs[model.config.token_inputs[0]], model.config, Arrays()
    if "attention_mask" in config.further_inputs:
        further["attention_mask"] = np.ones_like(first)
    if config.num_token_types:
        further["token_types"] = np.zeros_like(first)
    said = f"tokens {first.min()} to {first.max()}, batch {len(first)}"
    return ReachProbe(model.name, said, PURPOSE, config, model.parameters, inputs | further, model=model)


def unseen_tokens(config: TransformerConfig, probes: Iterable[Probe]) -> list[str]:
    calls, lines = [probe for probe in probes if probe.config == config], []
    for name in config.token_inputs:
        seen = {int(token) for probe in calls for token in np.unique(probe.inputs[name])}
        wanted = _tokens(config, name)
        if missing := len(set(wanted.tolist()) - seen):
            lines.append(f"{missing:,} of {len(wanted):,} {name}: left out, because more calls would take too long")
    return lines


def _tokens(config: TransformerConfig, name: str) -> np.ndarray:
    every = np.arange(config.stack_vocab_size(config.input_stack(name)))
    return every[every != config.pad_id] if config.pad_id is not None and len(every) > 1 else every


def _shared(config: TransformerConfig, name: str, calls: list[tuple[int, tuple[int, ...]]]) -> np.ndarray:
    """Return the tokens of an input (calls, batch, length): all ids in order, or evenly spaced ids if there are more
    ids than positions."""
    batch, lengths = calls[0]
    count, every = len(calls) * batch * lengths[0], _tokens(config, name)
    if count < len(every):
        every = every[np.linspace(0, len(every) - 1, count).astype(int)]
    return np.resize(every, (len(calls), batch, lengths[0]))
