"""The capability `train`: a few training steps of a tiny model, compared with the reference's steps."""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import check_parameters, is_learned
from transparity.training import Training
from transparity_conformance.capabilities.capability import (
    Answered,
    Answers,
    BuiltPort,
    Capability,
    ForwardPass,
    Judged,
    Requests,
    Shapes,
    Way,
    judging,
    kept_in,
)
from transparity_conformance.capabilities.faults import OF_RANKS, OPTIMIZER_FAULTS, SimulatedFault, optimizer_faults
from transparity_conformance.capabilities.learning.loss import why_no_loss
from transparity_conformance.oracle.budgets import WIDE
from transparity_conformance.oracle.differentiation.derivatives import loss_and_gradients, training_oracle
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.oracle.probes import Probe, as_given, frame_inputs, further_inputs, probe_parameters
from transparity_conformance.report.comparison import SHARE, as_numbers, gap
from transparity_conformance.report.formatting import some

STEPS, ROWS, TOKENS = 3, 3, 6

KEPT_CONFIGURATIONS = 16
"""The largest number of cached configurations, which exceeds the number of presets."""

CLIPPED = "sgd with momentum, clipped"

# `eps` is large, so that a port without `eps` fails. The last step is the first after the warm-up: further steps would
# take longer, and increase the rounding errors of Adam.
TRAININGS = {
    CLIPPED: Training("sgd", learning_rate=0.05, momentum=0.9, max_norm=0.5),
    "adamw, warmed up": Training(
        "adamw", learning_rate=0.1, eps=1e-3, weight_decay=0.1, max_norm=1000.0, warmup_steps=2
    ),
}


def tiny(config: TransformerConfig, ranks: int = 1) -> TransformerConfig:
    """Return a tiny version of a configuration, because the reference computes the derivative for each parameter
    element separately. Sizes that may be sharded are multiples of `ranks`."""
    grouped = config.key_value_heads < config.num_heads
    shared = grouped and (ranks == 1 or config.key_value_heads == 1)
    heads = max(2, ranks * (1 + (grouped and not shared)))
    tokens = ranks * math.ceil(TOKENS / ranks)
    sizes: dict[str, Any] = {"embed_dim": 2 * heads, "num_heads": heads, "feed_forward_dim": max(2, ranks)}
    sizes |= {"num_key_value_heads": 1 if shared else ranks if grouped else None}
    sizes |= {"attention_head_dim": None, "rotary_dim": None, "max_length": 4}
    sizes |= _special_tokens(config)
    for stack, has in (("encoder", config.has_encoder), ("decoder", config.has_decoder)):
        vocabulary = "source_vocab_size" if stack == "encoder" else "target_vocab_size"
        sizes |= {f"num_{stack}_layers": 1, vocabulary: tokens} if has else {}
    sizes |= {"source_vocab_size": None, "mel_bins": 2, "num_frames": 4} if config.reads_frames else {}
    return config.with_sizes(**sizes)


def _special_tokens(config: TransformerConfig) -> dict[str, int | None]:
    given = {name: getattr(config, name) for name in ("pad_id", "bos_id", "eos_id")}
    used = sorted({token for token in given.values() if token is not None})
    free = [token for token in reversed(range(TOKENS)) if token not in used]
    becomes = {token: token if token < TOKENS else free.pop(0) for token in used}
    return {name: None if token is None else becomes[token] for name, token in given.items()}


@functools.lru_cache(maxsize=KEPT_CONFIGURATIONS)
def batches(config: TransformerConfig) -> tuple[Arrays, ...]:
    random = np.random.default_rng(3)
    made = []
    for step in range(STEPS):
        batch: Arrays = {"source": frame_inputs(config, ROWS, step)} if config.reads_frames else {}
        for name in config.token_inputs:
            size = config.stack_vocab_size(config.input_stack(name))
            drawn = random.integers(0, size, (ROWS, config.max_length + 1))
            batch |= {name: drawn[:, :-1], "targets": drawn[:, 1:]}
        made.append(batch | further_inputs(config, batch, random))
    return tuple(made)


@dataclass(frozen=True, eq=False)
class TrainingRequest:
    name: str
    config: TransformerConfig
    parameters: Arrays
    batches: tuple[Arrays, ...]
    training: Training

    @kept_in(0)
    def oracle(self, fault: SimulatedFault | None = None) -> Oracle:
        by = fault.simulate if fault else None
        return training_oracle(self.config, self.parameters, self.batches, self.training, by)


@functools.lru_cache(maxsize=KEPT_CONFIGURATIONS)
def training_requests(config: TransformerConfig, ranks: int = 1) -> dict[str, TrainingRequest]:
    """Return one request for each of `TRAININGS`, on a tiny model with this configuration's features."""
    small = tiny(config, ranks)
    parameters, given = probe_parameters(small, 6), batches(small)
    trainings = {**TRAININGS, CLIPPED: _clipping(small, parameters, given[0], TRAININGS[CLIPPED])}
    requests = [TrainingRequest(name, small, parameters, given, each) for name, each in trainings.items()]
    return {f"train.{index}": request for index, request in enumerate(requests)}


def _clipping(config: TransformerConfig, parameters: Arrays, batch: Arrays, training: Training) -> Training:
    """Return the training with a `max_norm` of at most half the norm of the first gradients, so that the first step
    clips gradients."""
    exact = {name: value.astype(np.float64) for name, value in parameters.items()}
    _, gradients = loss_and_gradients(config, exact, training=True, **batch)
    norm = math.sqrt(sum(float((each * each).sum()) for each in gradients.values()))
    return dataclasses.replace(training, max_norm=min(training.max_norm or norm, float(f"{norm / 2:.2g}")))


ONE_STEP = "sgd, clipped, one step"


def _requests(forward: ForwardPass) -> Requests:
    """Return the training requests, with sizes that are multiples of the number of ranks. On several ranks, add a
    request with one step: if ranks clip by different norms, only the first step shows the cause."""
    requests = training_requests(forward.first.config, forward.sharding.ranks)
    if forward.sharding.ranks == 1:
        return requests
    first = next(iter(requests.values()))
    once = dataclasses.replace(first, name=ONE_STEP, batches=first.batches[:1])
    return requests | {f"train.{len(requests)}": once}


def _shapes(key: str, request: TrainingRequest) -> Shapes:
    learned = {name: value.shape for name, value in request.parameters.items() if is_learned(name)}
    return {f"{key}/{name}": shape for name, shape in {"losses": (len(request.batches),), **learned}.items()}


def _ask(port: BuiltPort, way: Way, key: str, request: TrainingRequest) -> Answers:
    """Train a model with a port; return the losses and the learned parameters. Raise `TypeError` for a missing name or
    a wrong shape, and any exception that the port raises."""
    parameters = request.parameters
    copied = [{name: as_given(value) for name, value in batch.items()} for batch in request.batches]
    losses, became = port.built_for(request.config, parameters).train(copied, request.training)
    answers = {str(name): as_numbers(value).astype(np.float64) for name, value in dict(became).items()}
    missing = [name for name in parameters if is_learned(name) and name not in answers]
    if missing:
        raise TypeError(f"no {some(missing)}")
    answers["losses"] = np.array([float(as_numbers(loss).reshape(())) for loss in losses])
    shapes = {name: value.shape for name, value in parameters.items()} | {"losses": (len(request.batches),)}
    for name, value in answers.items():
        if value.shape != (expected := shapes.get(name, value.shape)):
            raise TypeError(f"{name} has the shape {value.shape}; expected {expected}")
    return {f"{key}/{name}": value for name, value in answers.items()}


def _judged(answered: Answered, fault: SimulatedFault | None) -> Judged:
    request, dtype = answered.request, answered.forward.dtype
    if fault is not None and fault.id == OF_RANKS and request.name != ONE_STEP:
        return Judged(0.0, 0.0, request.name)
    oracle = request.oracle(fault)  # faults that make steps larger also make rounding errors larger
    return max(
        (
            Judged(gap(answered.value(name), expected), oracle.budget(name, dtype), f"{name}, {request.name}")
            for name, expected in oracle.expected.items()
        ),
        key=SHARE,
    )


def _tensors(request: TrainingRequest, probe: Probe) -> Arrays:
    parameters = {f"parameters/{name}": value for name, value in request.parameters.items()}
    numbered = enumerate(request.batches)
    return parameters | {f"batches/{index}/{name}": value for index, batch in numbered for name, value in batch.items()}


def _received(request: TrainingRequest, fields: Mapping[str, Any], tensors: Answers) -> TrainingRequest:
    parameters = {name: tensors[f"parameters/{name}"] for name in request.parameters}
    check_parameters(request.config, parameters)
    return dataclasses.replace(request, parameters=parameters)


def _describe(request: TrainingRequest) -> dict[str, Any]:
    training = dataclasses.asdict(request.training)
    return {"name": request.name, "config": json.loads(request.config.to_json()), "training": training}


TRAINING = Capability(
    name="training",
    attribute="train",
    purpose="the learned parameters of a tiny model, trained one step on each batch, and the loss before each step",
    ways=(Way("train", _requests, OPTIMIZER_FAULTS, optimizer_faults),),
    ask=_ask,
    shapes=_shapes,
    judge=judging(_judged),
    why_not=why_no_loss,
    dtypes=WIDE,
    describe=_describe,
    file="training.safetensors",
    tensors=_tensors,
    received=_received,
)
