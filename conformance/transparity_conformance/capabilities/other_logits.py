"""Capabilities that return logits: for documents that are packed into rows, and for a model with LoRA adapters."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import in_layer, logits_shape
from transparity_conformance.capabilities.capability import (
    Answered,
    Answers,
    BuiltPort,
    Capability,
    ForwardPass,
    Judged,
    Requests,
    Way,
    judging,
    kept_in,
)
from transparity_conformance.capabilities.decoding.steps import as_logits, is_judged
from transparity_conformance.capabilities.faults import Edited, SimulatedFault
from transparity_conformance.capabilities.port_calls import call_port
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, as_given
from transparity_conformance.oracle.reach.models import crossing_calls
from transparity_conformance.report.comparison import gap
from transparity_numpy.transformer import transformer


class Part(NamedTuple):
    """Some rows and positions of a result, and the probe with the expected logits for these rows and positions."""

    rows: np.ndarray
    positions: slice
    probe: Probe


@dataclass(frozen=True, eq=False)
class LogitsRequest:
    name: str
    probe: Probe
    """The port's model, and the inputs of the call."""
    parts: tuple[Part, ...]
    given: tuple[Any, ...]
    """The arguments of the port's method besides the inputs."""
    named: Mapping[str, Any]
    simulate: Callable[[SimulatedFault], np.ndarray]
    """A function that returns the logits of a port with a known fault."""
    conventions: Callable[[], Iterable[np.ndarray]] = tuple
    """A function that returns the logits of other conventions, which the checker also accepts."""

    @property
    def tokens(self) -> np.ndarray:
        return self.probe.inputs[self.probe.config.input_names[-1]]

    @property
    def shape(self) -> tuple[int, ...]:
        return logits_shape(self.probe.config, self.probe.inputs)

    def expected(self) -> np.ndarray:
        whole = np.zeros(self.shape)
        for rows, positions, probe in self.parts:
            whole[rows, positions] = probe.oracle.expected["logits"]
        return whole

    def budget(self, dtype: str) -> float:
        return max(part.probe.budget(dtype) for part in self.parts)

    def is_judged(self, logits: np.ndarray, dtype: str) -> np.ndarray:
        """Return a mask of the positions to judge. The mask has the shape of the logits without their last axis."""
        if self.probe.config.reads_pixels:  # an image has no padding
            return np.ones(self.shape[:-1], bool)
        found = np.zeros(self.shape[:-1], bool)
        for rows, positions, probe in self.parts:
            found[rows, positions] = is_judged(probe, slice(None), logits[rows, positions], dtype)
        return found


def ask_for_logits(method: str, port: BuiltPort, way: Way, key: str, request: LogitsRequest) -> Answers:
    given, named = (_copied(each) for each in (request.given, request.named))
    answer = call_port(getattr(port.of(request.probe), method), *given, **named)
    return {f"{key}/logits": as_logits(answer, request.shape, request.name)}


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_copied, value))
    return as_given(value) if isinstance(value, np.ndarray) else value


def _judged(answered: Answered, fault: SimulatedFault | None) -> Judged:
    request, logits, dtype = answered.request, answered.value("logits"), answered.forward.dtype
    where = request.is_judged(logits, dtype)
    alike = (request.expected(), *request.conventions()) if fault is None else [request.simulate(fault)]
    error = min(gap(logits[where], each[where]) for each in alike)
    return Judged(error, request.budget(dtype), request.name, probe=request.probe.name)


judge_logits = judging(_judged)


def _why_no_logits(probe: Probe, dtype: str) -> str:
    if probe.config.head != "logits":
        return f"the head is {probe.config.head!r}, which returns no logits"
    return "the reference would take too long in a model of this size" if probe.is_large else ""


# Packed documents

SHORT, ROWS = 12, 4


def _why_not_packed(probe: Probe, dtype: str) -> str:
    config = probe.config
    if len(config.stacks) > 1 or not config.token_inputs or config.num_token_types:
        return "documents are packed only for models with a single input, which must be tokens"
    if not config.mask_is_exact:
        return "masked keys keep a nonzero weight in this model, so documents would see each other"
    if config.angle_limits:
        return "rotary angles depend on the length, and a document is shorter than its row"
    return _why_no_logits(probe, dtype) or (
        "" if config.max_length > 2 else "max_length is too small for two documents"
    )


def _document_inputs(config: TransformerConfig, tokens: np.ndarray) -> Arrays:
    return {config.input_names[0]: tokens} | dict.fromkeys(config.further_inputs, np.ones_like(tokens))


@kept_in(0)
def _packed(probe: Probe, length: int, rows: int) -> LogitsRequest:
    config = probe.config
    size, pad = config.vocab_size, -1 if config.pad_id is None else config.pad_id
    tokens = np.random.default_rng(length).integers(0, size - 1, (rows, length))
    tokens += (pad >= 0) & (tokens >= pad)
    documents, parts = np.zeros_like(tokens), []
    for half, ends in enumerate(((length // 3, length // 3 + 1, length), (2, length))):
        chosen = np.arange(half, rows, 2)
        for number, (begin, end) in enumerate(zip((0, *ends), ends, strict=False)):
            documents[chosen, begin:end] = number
            inputs = _document_inputs(config, tokens[chosen, begin:end])
            parts.append(Part(chosen, slice(begin, end), dataclasses.replace(probe, inputs=inputs, kept=None)))
    whole = dataclasses.replace(probe, inputs=_document_inputs(config, tokens), kept=None)
    begins = np.diff(documents, axis=1, prepend=0) != 0
    starts = np.maximum.accumulate(np.where(begins, np.arange(length), 0), axis=1)

    def simulate(fault: SimulatedFault) -> np.ndarray:
        return fault.simulate(config, whole.exact, documents=documents, starts=starts, **whole.inputs)

    return LogitsRequest(f"rows of {length} tokens", whole, tuple(parts), (tokens, documents), {}, simulate)


SAME = "(documents[:, None, :, None] == documents[:, None, None, :])"
SIGNATURE = ("    tap: Tap = identity,", "    tap: Tap = identity,\n    documents: Any = 0,\n    starts: Any = 0,")
PACKED_FAULTS = [
    SimulatedFault("documents-mixed", says, Edited((SIGNATURE, *edits), "transformer.transformer", ()))
    for says, edits in {
        "the state of a recurrence continues from one document to the next": (
            ("Context(mask, positions,", f"Context(mask & {SAME}, positions - starts,"),
        ),
        "documents in a row see each other": (("Context(mask, positions,", "Context(mask, positions - starts,"),),
        "positions continue from one document to the next": (("Context(mask,", f"Context(mask & {SAME},"),),
        "documents in a row see each other, and positions continue from one document to the next": (),
    }.items()
]
"""Faults of ports with packed rows, as edits of the reference. The first row is a fault only with a recurrence."""


def _packed_requests(forward: ForwardPass) -> Requests:
    return {"packed.0": _packed(forward.first, min(SHORT, forward.first.config.max_length), ROWS)}


def _packed_further(forward: ForwardPass) -> Requests:
    longest = crossing_calls(forward.reached)[-1:]
    return {f"packed.{i}": _packed(probe, probe.lengths[-1], 2) for i, probe in enumerate(longest, 1)}


PACKED = Capability(
    name="packed",
    attribute="packed",
    purpose="the logits of rows that contain several documents. `documents` has the number of each token's document. A "
    "document has the same logits as in a row of its own",
    ways=(Way("packed", _packed_requests, PACKED_FAULTS, further=_packed_further),),
    ask=functools.partial(ask_for_logits, "packed"),
    shapes=lambda key, request: {f"{key}/logits": request.shape},
    judge=judge_logits,
    why_not=_why_not_packed,
    file="packed.safetensors",
    tensors=lambda request, probe: dict(zip(("tokens", "documents"), request.given, strict=True)),
    sizes=lambda request: request.tokens.shape,
)


# LoRA adapters

RANK, ALPHA, UNIT = 3, 2.0, 64
"""The adapters' rank and α, and the denominator of their elements. With rank 1, α / rank would equal α / √rank."""


@kept_in(0)
def adapters_of(probe: Probe) -> Arrays:
    """Draw A (rank, in) and B (out, rank) for each linear map in a layer: multiples of 1/64, exact in every dtype."""
    random, drawn = np.random.default_rng(31), {}
    for name, value in probe.parameters.items():
        base = name.removesuffix(".weight")
        if in_layer(name) and value.ndim == 2 and base != name and not base.endswith("_convolution"):
            out, into = value.shape
            most = max(1, round(UNIT / math.sqrt(into)))
            drawn[f"{base}.lora_A"] = random.integers(-most, most + 1, (RANK, into)) / np.float32(UNIT)
            drawn[f"{base}.lora_B"] = random.integers(-UNIT // 2, UNIT // 2 + 1, (out, RANK)) / np.float32(UNIT)
    return {name: value.astype(np.float32) for name, value in drawn.items()}


def _merged(probe: Probe, scale: float) -> Arrays:
    adapters, exact = adapters_of(probe), dict(probe.exact)
    for name in [name.removesuffix(".lora_A") for name in adapters if name.endswith(".lora_A")]:
        up, down = (adapters[f"{name}.lora_{part}"].astype(np.float64) for part in "BA")
        exact[f"{name}.weight"] = exact[f"{name}.weight"] + scale * (up @ down)
    return exact


@kept_in(0)
def _adapted(probe: Probe, rank_stabilized: bool) -> LogitsRequest:
    scale = SCALES["α / √rank" if rank_stabilized else "α / rank"]
    merged = dataclasses.replace(probe, parameters=_merged(probe, scale), kept=None)
    part = Part(np.arange(len(next(iter(probe.inputs.values())))), slice(None), merged)
    named = {**probe.inputs, "rank_stabilized": True} if rank_stabilized else probe.inputs

    def simulate(fault: SimulatedFault) -> np.ndarray:
        return transformer(probe.config, _merged(probe, fault.simulate()), **dict(probe.inputs))  # type: ignore[arg-type]

    return LogitsRequest("with adapters", probe, (part,), (adapters_of(probe), ALPHA), named, simulate)


SCALES = {"α": ALPHA, "α / √rank": ALPHA / math.sqrt(RANK), "α / rank": ALPHA / RANK, "1": 1.0, "0": 0.0}


def _way_of_adapters(claim: str, right: str, *, rank_stabilized: bool) -> Way:
    def requests(forward: ForwardPass) -> Requests:
        return {f"{claim}.0": _adapted(forward.first, rank_stabilized)}

    wrong = {says: f"the adapters are scaled by {says} instead of {right}" for says in SCALES if says != right}
    faults = [SimulatedFault("adapter-scale", wrong[each], functools.partial(SCALES.get, each)) for each in wrong]
    return Way(claim, requests, faults, keywords=("rank_stabilized",) * rank_stabilized)


ADAPTERS = Capability(
    name="adapters",
    attribute="adapted",
    purpose="the logits of the first probe, with scale · B A added to each weight that has adapters. The scale is "
    "alpha / rank, or alpha / √rank if rank_stabilized is true",
    ways=(
        _way_of_adapters("adapted", "α / rank", rank_stabilized=False),
        _way_of_adapters("adapted.rank_stabilized", "α / √rank", rank_stabilized=True),
    ),
    ask=functools.partial(ask_for_logits, "adapted"),
    shapes=lambda key, request: {f"{key}/logits": request.shape},
    judge=judge_logits,
    why_not=_why_no_logits,
    describe=lambda request: {"alpha": ALPHA, "rank_stabilized": request.named.get("rank_stabilized", False)},
    file="adapters.safetensors",
    tensors=lambda request, probe: request.given[0],
    sizes=lambda request: request.tokens.shape,
)
