"""Capabilities that return logits: for documents that are packed into rows, and for a model with LoRA adapters."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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
    Shapes,
    Way,
    judging,
    kept_in,
)
from transparity_conformance.capabilities.faults import Edited, SimulatedFault
from transparity_conformance.capabilities.port_calls import call_port
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, as_given, sees_something
from transparity_conformance.oracle.reach.models import ReachProbe, crossing_calls
from transparity_conformance.oracle.undetermined import undetermined_positions
from transparity_conformance.report.comparison import as_numbers, gap
from transparity_numpy.transformer import transformer


class Part(NamedTuple):
    """Rows and positions of a result, with the probe and the rows of this probe that give the expected logits."""

    rows: np.ndarray
    positions: slice
    probe: Probe
    rows_of_probe: np.ndarray | slice = slice(None)


@dataclass(frozen=True, eq=False)
class LogitsRequest:
    name: str
    probe: Probe
    """The port's model, and the inputs of the call."""
    parts: tuple[Part, ...]
    simulate: Callable[[SimulatedFault], np.ndarray]
    """A function that returns the logits of a port with a known fault."""
    given: tuple[Any, ...] = ()
    """The arguments of the port's method besides the inputs."""
    named: Mapping[str, Any] = field(default_factory=dict)
    conventions: Callable[[], Iterable[np.ndarray]] = tuple
    """A function that returns logits under other conventions; the checker also accepts these logits."""
    sizes: tuple[int, ...] = ()
    """For decoding with a cache: the number of tokens in each step. The answer has a tensor for each step."""
    batches: tuple[slice, ...] = (slice(None),)
    """The rows of each batch. The port decodes one step of each batch in turn, with a separate cache for each batch."""

    @property
    def shape(self) -> tuple[int, ...]:
        rows = 1 + max(int(part.rows.max()) for part in self.parts)
        return rows, *logits_shape(self.probe.config, self.probe.inputs)[1:]

    def shapes(self, key: str) -> Shapes:
        if not self.sizes:
            return {f"{key}/logits": self.shape}
        return {f"{key}.{i}": (self.shape[0], size, self.shape[-1]) for i, size in enumerate(self.sizes)}

    def logits(self, key: str, answers: Answers) -> np.ndarray:
        return np.concatenate([answers[name].astype(np.float64) for name in self.shapes(key)], axis=1)

    def expected(self) -> np.ndarray:
        whole = np.zeros(self.shape)
        for rows, positions, probe, rows_of_probe in self.parts:
            whole[rows, positions] = probe.oracle.expected["logits"][rows_of_probe]
        return whole

    def is_judged(self, logits: np.ndarray, dtype: str) -> np.ndarray:
        """Return a mask of the positions to judge. Leave out positions without a visible key, and positions that depend
        on a near-tie between experts. The mask has the shape of the logits without their last axis."""
        if self.probe.config.reads_pixels:  # an image has no padding
            return np.ones(self.shape[:-1], bool)
        found = np.zeros(self.shape[:-1], bool)
        for rows, positions, probe, rows_of_probe in self.parts:
            where = sees_something(probe.config, probe.inputs)[rows_of_probe]
            free = None if isinstance(probe, ReachProbe) else undetermined_positions(probe, dtype).get("logits")
            if free is not None:
                is_free = np.any(free, axis=-1)[rows_of_probe] & np.isfinite(logits[rows, positions]).all(-1)
                where = where & ~is_free
            found[rows, positions] = where
        return found


def as_logits(answer: Any, shape: tuple[int, ...], name: str) -> np.ndarray:
    logits = as_numbers(answer)
    if logits.shape != shape or logits.dtype.kind != "f":
        given = f"the logits have the shape {logits.shape} and the dtype {logits.dtype}"
        raise TypeError(f"{given}; expected floats {shape}, {name}")
    return logits


def _ask(method: str, port: BuiltPort, way: Way, key: str, request: LogitsRequest) -> Answers:
    given, named = (_copied(each) for each in (request.given, request.named))
    answer = call_port(getattr(port.of(request.probe), method), *given, **named)
    return {f"{key}/logits": as_logits(answer, request.shape, request.name)}


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_copied, value))
    return as_given(value) if isinstance(value, np.ndarray) else value


def judged(answered: Answered, fault: SimulatedFault | None) -> Judged:
    request, dtype = answered.request, answered.forward.dtype
    logits = request.logits(answered.key, answered.answers)
    where = request.is_judged(logits, dtype)
    alike = (request.expected(), *request.conventions()) if fault is None else [request.simulate(fault)]
    error = min(gap(logits[where], each[where]) for each in alike)
    budget = max(part.probe.budget(dtype) for part in request.parts)
    return Judged(error, budget, request.name, probe=request.probe.name)


def of_logits(attribute: str, *ways: Way, **given: Any) -> Capability:
    """Return a capability whose answers are logits; `given` sets further fields of the capability."""
    usual: dict[str, Any] = {
        "name": attribute,
        "ask": functools.partial(_ask, attribute),
        "shapes": lambda key, request: request.shapes(key),
        "judge": judging(judged),
        "sizes": lambda request: (request.shape[0], sum(request.sizes) or request.shape[1]),
    }
    return Capability(attribute=attribute, ways=ways, **usual | given)


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

    return LogitsRequest(f"rows of {length} tokens", whole, tuple(parts), simulate, (tokens, documents))


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
"""Faults of ports with packed rows, as edits of the reference. Without a recurrence, the first edit changes no
logits."""


def _packed_requests(forward: ForwardPass) -> Requests:
    return {"packed.0": _packed(forward.first, min(SHORT, forward.first.config.max_length), ROWS)}


def _packed_further(forward: ForwardPass) -> Requests:
    longest = crossing_calls(forward.reached)[-1:]
    return {f"packed.{i}": _packed(probe, probe.lengths[-1], 2) for i, probe in enumerate(longest, 1)}


PACKED = of_logits(
    "packed",
    Way("packed", _packed_requests, PACKED_FAULTS, further=_packed_further),
    purpose="the logits of rows that contain several documents. `documents` has the number of each token's document. A "
    "document has the same logits as in a row of its own",
    why_not=_why_not_packed,
    file="packed.safetensors",
    tensors=lambda request, probe: dict(zip(("tokens", "documents"), request.given, strict=True)),
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

    return LogitsRequest("with adapters", probe, (part,), simulate, (adapters_of(probe), ALPHA), named)


SCALES = {"α": ALPHA, "α / √rank": ALPHA / math.sqrt(RANK), "α / rank": ALPHA / RANK, "1": 1.0, "0": 0.0}


def _way_of_adapters(claim: str, right: str, *, rank_stabilized: bool) -> Way:
    def requests(forward: ForwardPass) -> Requests:
        return {f"{claim}.0": _adapted(forward.first, rank_stabilized)}

    wrong = {says: f"the adapters are scaled by {says} instead of {right}" for says in SCALES if says != right}
    faults = [SimulatedFault("adapter-scale", wrong[each], functools.partial(SCALES.get, each)) for each in wrong]
    return Way(claim, requests, faults, keywords=("rank_stabilized",) * rank_stabilized)


ADAPTERS = of_logits(
    "adapted",
    _way_of_adapters("adapted", "α / rank", rank_stabilized=False),
    _way_of_adapters("adapted.rank_stabilized", "α / √rank", rank_stabilized=True),
    name="adapters",
    purpose="the logits of the first probe, with scale · B A added to each weight that has adapters. The scale is "
    "alpha / rank, or alpha / √rank if rank_stabilized is true",
    why_not=_why_no_logits,
    describe=lambda request: {"alpha": ALPHA, "rank_stabilized": request.named.get("rank_stabilized", False)},
    file="adapters.safetensors",
    tensors=lambda request, probe: request.given[0],
)
