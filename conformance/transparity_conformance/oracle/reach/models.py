"""Calls with many lengths, batch sizes and widths; only their logits are compared."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.config.probe_sizes import PROBE_SIZES
from transparity.presets import preset
from transparity.taps import Tap, identity, lengths_of
from transparity_conformance.cache import kept_arrays
from transparity_conformance.oracle.budgets import HALF, NEIGHBOURS_OF_RECURRENT, epsilon, rounded
from transparity_conformance.oracle.oracle import Arrays, Oracle, budget_of, neighbour
from transparity_conformance.oracle.probes import Probe, frame_inputs, is_huge, is_large, pixel_inputs, probe_parameters
from transparity_conformance.oracle.reach.thresholds import (
    BATCHES,
    LONGEST,
    LONGEST_THRESHOLD,
    SHORT,
    edge_tokens,
    lengths_up_to,
    longest_length,
    thresholds,
)
from transparity_conformance.oracle.variants import IN_BLOCKS, IN_SEQUENCE, has_tables
from transparity_conformance.report.comparison import gap
from transparity_conformance.storage.mapped import LARGE
from transparity_numpy.transformer import transformer

VOCABULARY = 2**16 + 3
"""More tokens than 16 bits can index."""

AFFORDABLE = 2e8
"""The largest product of parameters and tokens in one call (about 0.2 s); longer calls use a narrower model."""

WITHOUT_LIMIT = 12
"""The number of calls of each model that run even after the time limit."""


ITSELF = "the model itself"
PURPOSE = "behavior that depends on sizes"


class LogitsOracle(Oracle):
    def __init__(self, config: TransformerConfig, parameters: Arrays, inputs: Mapping[str, Any]) -> None:
        self.kind, given = "", dict(inputs)
        # At late positions, position tables cause most of the error.
        self.has_tables = has_tables(config)
        self.points = NEIGHBOURS_OF_RECURRENT if config.is_recurrent else 0

        def run(arrays: Arrays, tap: Tap) -> None:
            # Without a tap, the reference computes attention in blocks, which takes less memory.
            inner = (lambda name, value: rounded(value, self.kind)) if self.kind in HALF else identity
            tap("logits", transformer(config, arrays, **given, tap=inner))

        super().__init__(run, parameters)
        self.given = [config.as_dict()], given
        self._again: dict[tuple[str, int], float] = {}

    @functools.cached_property
    def expected(self) -> Mapping[str, np.ndarray]:
        identity = None if self.identity is None else f"{self.identity}-expected"
        return kept_arrays(identity, lambda: dict(self._evaluate(self.arrays, "float64")))

    def _evaluate(
        self, arrays: Arrays, dtype: str, index: int = 0, choices: Mapping[str, np.ndarray] | None = None
    ) -> MutableMapping[str, np.ndarray]:
        given, _, computed = dtype.partition(":")
        self.kind = computed or given
        return super()._evaluate(arrays, dtype, index, choices)

    def _measure(self, dtype: str) -> dict[str, float]:
        if dtype == "float64":
            return super()._measure(dtype)
        errors = [self._error(dtype, index) for index in (IN_BLOCKS if self.has_tables else IN_BLOCKS[:1])]
        errors += [self._error(dtype, index, neighbour(self.arrays, index)) for index in range(self.points)]
        return {"logits": max(errors)}

    def measure_again(self, dtype: str, points: int = 1) -> float:
        """Return the largest error so far, including the first `points` points (see `variants`)."""
        measured = "float32" if dtype == "float64" else dtype
        for index in range(IN_SEQUENCE, points):
            if (dtype, index) not in self._again:
                error = self._error(measured, index, neighbour(self.arrays, index) if index else None)
                self._again[dtype, index] = error * (epsilon(dtype) / epsilon(measured))
        return self.known_again(dtype)

    def known_again(self, dtype: str) -> float:
        return max((error for (kind, _), error in self._again.items() if kind == dtype), default=0.0)

    def release(self) -> None:
        """Free large logits; a later read computes them again."""
        if "expected" in self.__dict__ and self.expected["logits"].size >= LARGE:
            del self.expected

    def _error(self, dtype: str, index: int, arrays: Arrays | None = None) -> float:
        truth = self.expected if arrays is None else self._evaluate(arrays, "float64")
        return gap(self._evaluate(arrays or self.arrays, dtype, index)["logits"], truth["logits"])


@dataclass(frozen=True, eq=False)
class ReachProbe(Probe):
    model: ReachModel = field(kw_only=True)

    @functools.cached_property
    def oracle(self) -> LogitsOracle:
        return LogitsOracle(self.config, self.parameters, self.inputs)

    @property
    def batch(self) -> int:
        return len(self.inputs[self.config.input_names[0]])

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(lengths_of(self.config, self.inputs)[name] for name in self.config.input_names)

    def budget(self, dtype: str, *, in_sequence: bool = False) -> float:
        """Return the tolerance of the logits, at least the tolerance of the model's short calls. With `in_sequence`,
        also measure rounding with running totals as sums over keys, which takes long."""
        noise = max(self.oracle.noise(dtype)["logits"], self.model.typical_noise(dtype))
        noise = max(noise, self.oracle.measure_again(dtype)) if in_sequence else noise
        return budget_of(noise, self.oracle.scale("logits"), dtype)


@dataclass(eq=False)
class ReachModel:
    name: str
    """`ITSELF`, `given a mask`, `long`, `deep`, `wide` or `vocabulary`."""
    config: TransformerConfig
    parameters: Arrays
    calls: list[tuple[int, tuple[int, ...]]]
    """(batch size, length of each input) of each call."""
    is_asked: bool = False
    """Whether `config` is the configuration that the user gave."""
    _noise: dict[str, float] = field(default_factory=dict, init=False)

    @functools.cached_property
    def probes(self) -> list[ReachProbe]:
        """The calls, the most informative first. One call is repeated at once with another mask, if the model reads
        masks."""
        maskable = [call for call in self.calls if min(call[1]) > 2]  # the masks of shorter calls may be equal
        repeated = maskable[:1] if "attention_mask" in self.config.further_inputs else []
        found = [self.probe(*call) for call in self.calls]
        again = [self.probe(*call, "another mask") for call in repeated]
        after = 1 + self.calls.index(repeated[0]) if repeated else 0
        return [*found[:after], *again, *found[after:], *self._in_turns(found)]

    def _in_turns(self, found: Sequence[ReachProbe]) -> list[ReachProbe]:
        """Return calls with a text, with its single tokens, and with the text again. A port may take a single token for
        the next token of the earlier text."""
        texts = [probe for probe in found if probe.batch == 1 and probe.lengths[-1] > 1]
        if not texts or not any(probe.batch == probe.lengths[-1] == 1 for probe in found):
            return []
        text = min(texts, key=lambda probe: max(probe.lengths))
        *others, last = self.config.input_names
        is_token = text.inputs[last] != self.config.pad_id
        shown = np.flatnonzero(is_token if others else text.inputs.get("attention_mask", is_token))  # of one row
        cut = {last, *([] if others else self.config.further_inputs)}

        def token(index: int) -> ReachProbe:
            inputs = {name: value[:, [index]] if name in cut else value for name, value in text.inputs.items()}
            return dataclasses.replace(text, name=f"token {index} of {text.name}", inputs=inputs)

        return [text, token(shown[1]), token(shown[0]), text] if len(shown) > 1 else []

    def probe(self, batch: int, lengths: tuple[int, ...], variant: str = "") -> ReachProbe:
        inputs = reach_inputs(self.config, batch, lengths, bool(variant))
        said = f"length {lengths[0]}" if len(set(lengths)) == 1 else f"lengths {' and '.join(map(str, lengths))}"
        model = "" if self.name == ITSELF else f"{self.name}, "
        name = ", ".join(filter(None, (f"{model}{said}", f"batch {batch}", variant)))
        return ReachProbe(self.name, name, PURPOSE, self.config, self.parameters, inputs, model=self)

    def typical_noise(self, dtype: str) -> float:
        if dtype not in self._noise:
            short = [probe for probe in self.probes if max(probe.lengths) <= SHORT][:6]
            self._noise[dtype] = max((probe.oracle.noise(dtype)["logits"] for probe in short), default=0.0)
        return self._noise[dtype]


def reach_inputs(config: TransformerConfig, batch: int, lengths: tuple[int, ...], masks: int = 0) -> Arrays:
    """Draw inputs with the first and last tokens of the vocabulary. Padding is on the right or inside, in patterns that
    differ between inputs; `masks` selects another attention mask."""
    if config.reads_pixels:
        return {"pixels": pixel_inputs(config, batch, batch)}
    random = np.random.default_rng([batch, *lengths])
    inputs: Arrays = {}
    for number, (name, length) in enumerate(zip(config.input_names, lengths, strict=True)):
        if name not in config.token_inputs:
            inputs[name] = frame_inputs(config, batch, batch)
            continue
        size = config.stack_vocab_size(config.input_stack(name))
        tokens = random.integers(0, size, (batch, length))
        if config.pad_id is not None and size > 1:
            tokens[tokens == config.pad_id] = (config.pad_id + 1) % size
        edges = edge_tokens(config, size)
        if edges:
            places = tokens[:, ::2]
            places[...] = np.resize(np.roll(edges, number - length), places.shape)
        if "attention_mask" in config.further_inputs and config.pad_id is None and batch > 2:
            tokens[-1] = tokens[0]  # under another mask
        _pad(config, tokens, number)
        inputs[name] = tokens
    return inputs | _further(config, inputs, random, masks)


def _pad(config: TransformerConfig, tokens: np.ndarray, number: int) -> None:
    """Write padding into some rows of the input `number`. Padding is shorter than a sliding window, so that every query
    sees a token, and does not cover all positions beyond a threshold."""
    windows = [own.sliding_window or LONGEST_THRESHOLD for own in config.layer_kinds.values()]
    (batch, length), window = tokens.shape, min(windows)
    if config.pad_id is None or length < 3 or window < 2:
        return
    run, middle = min(max(1, length // (4 + number)), window - 1), length // (2 + number)
    phase = length + (length > SHORT) + len(config.input_names) - 1 - number
    for row in range(batch):
        inside = slice(middle, middle + min(row, run))
        tokens[row, slice(length - run, None) if (row + phase) % 2 else inside] = config.pad_id


def _further(config: TransformerConfig, inputs: Arrays, random: np.random.Generator, masks: int) -> Arrays:
    """Return an attention mask and token types, if the model reads them. The mask hides either nothing, or padding and
    one token, or padding and some first tokens. The sum of batch size, length and `masks` selects one of these."""
    tokens = inputs[config.input_names[0]]
    further: Arrays = {}
    if "attention_mask" in config.further_inputs:
        mask = tokens != (-1 if config.pad_id is None else config.pad_id)
        batch, length = mask.shape
        rows, places, half = np.arange(batch)[:, None], np.arange(length), max(1, length // 2)
        kind = (batch + length + masks) % 3
        if kind == 0:
            mask[:] = True
        elif kind == 1:
            mask &= places != 1 + (length // 3 + rows) % max(1, length - 1)
        else:
            mask &= places >= (rows + half - 1) % half
        further["attention_mask"] = mask.astype(np.int64)
    if config.num_token_types:
        further["token_types"] = random.integers(0, config.num_token_types, tokens.shape)
    return further


@functools.cache
def reach_of_preset(name: str) -> tuple[ReachModel, ...]:
    config = preset(name)
    few: dict[str, Any] = {"max_length": SHORT + 3}
    wide = config.resized(num_heads=9, embed_dim=306, **few)
    many = config.resized(embed_dim=6, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, **few)
    return (
        _model("long", narrow(config, LONGEST)),
        *deep_models(config),
        ReachModel("wide", wide, probe_parameters(wide, 7), few_calls(wide)),
        # few positions, because the logits of each position take 0.5 MB
        ReachModel("vocabulary", many, probe_parameters(many, 8), [(1, _sides(many, 9, 8)), (2, _sides(many, 2, 3))]),
    )


Accepts = Callable[[TransformerConfig], bool]
"""Whether a port accepts a configuration; a loader accepts only its own family."""


def reach_of(
    config: TransformerConfig, parameters: Arrays, *, is_drawn: bool = True, accepts: Accepts = lambda config: True
) -> tuple[ReachModel, ...]:
    """Return the given model and, for random parameters, a narrow model for longer texts, and a deep model."""
    size = sum(value.size for value in parameters.values())
    longest, affordable = longest_length(config), max(1, int(AFFORDABLE / size))
    calls = few_calls(config) if is_large(parameters) else list(_calls(config, min(longest, affordable)))
    calls = [] if is_huge(parameters) else calls
    itself = ReachModel(ITSELF, config, parameters, calls, is_asked=True)
    if not is_drawn:
        return (itself,)
    reached = max((max(lengths) for _, lengths in calls), default=0)
    found = [itself]
    if not config.reads_pixels and reached < (far := max(longest, LONGEST)) and accepts(long := narrow(config, far)):
        found.append(_model("long", long, reached))
    return *found, *deep_models(config, accepts)


def _model(name: str, config: TransformerConfig, reached: int = 0) -> ReachModel:
    """Return a model and its calls. `reached` is the longest length that another model covers; beyond it, call only
    lengths near a threshold or a power of two. In this case, all other calls are short or have the length `RAGGED`."""
    calls = list(_calls(config, config.max_length))
    if reached:
        crossing = {*_crossing(config, config.max_length), *(number for number in thresholds(config).values())}
        far = [call for call in calls if max(call[1]) in crossing and max(call[1]) > reached]
        calls = [*few_calls(config), *far, (2, _sides(config, RAGGED, RAGGED // 2))]
    return ReachModel(name, config, probe_parameters(config, 6), calls)


RAGGED = 100
"""The length of a call with two rows and padding; most other long calls have a single row."""


GIVEN_A_MASK = "given a mask"


def masked_model(config: TransformerConfig, parameters: Arrays) -> ReachModel | None:
    """Return the model with an attention mask as a further input, different in each call. Return None for a large
    model, and if the model always or never reads a mask."""
    is_plain = config.architecture == "decoder" and config.padding == "token" and config.target_mask == "causal"
    if not is_plain or config.is_pooled or config.position_count != "all" or is_large(parameters):
        return None
    masked = dataclasses.replace(config, padding="attention-mask")
    calls: list[tuple[int, tuple[int, ...]]]
    calls = [(batch, (min(length, config.max_length),)) for batch, length in ((2, 7), (1, 9), (7, 10))]
    return ReachModel(GIVEN_A_MASK, masked, parameters, calls, is_asked=True)


DEPTH = 7
"""The number of layers of the deep model, which is odd: three kinds of layers, at least twice each."""


def deep_models(config: TransformerConfig, accepts: Accepts = lambda config: True) -> tuple[ReachModel, ...]:
    """Return a model with more layers, because a port may be wrong only in later layers."""
    for types in _deep_types(config):
        depth = max(DEPTH, len(types))
        layers = {name: depth for name in ("num_encoder_layers", "num_decoder_layers") if getattr(config, name)}
        longest = SHORT + 3 if not config.reads_pixels else config.max_length
        deep = narrow(config, longest, **layers, layer_types=types)
        if accepts(deep):
            return (ReachModel("deep", deep, probe_parameters(deep, 9), few_calls(deep)),)
    return ()


def _deep_types(config: TransformerConfig) -> Iterator[tuple[str, ...]]:
    """Yield orders of the kinds of layers in a deep model, because some families allow only some orders."""
    kinds = tuple(config.layer_kinds) if config.layer_types else ()
    depth = max(DEPTH, 2 * len(kinds))
    if not kinds:
        yield ()
        return
    yield tuple(config.layer_types[layer % len(config.layer_types)] for layer in range(depth))
    yield tuple(kinds[layer * len(kinds) // depth] for layer in range(depth))
    yield (kinds[0], *(kinds[1:][layer % len(kinds[1:])] for layer in range(depth - 1)))


SPECIAL_TOKENS = ("pad_id", "bos_id", "eos_id")


def small_system(config: TransformerConfig, **sizes: Any) -> TransformerConfig:
    """Return the configuration with small sizes, or the given `sizes`. Special tokens beyond a small vocabulary get
    other ids. With a vocabulary up to GPT-2's end token, the logits of a thousand positions would take 400 MB."""
    small: dict[str, Any] = {
        name: min(size, PROBE_SIZES[name])
        for name in ("source_vocab_size", "target_vocab_size")
        if (size := getattr(config, name)) is not None
    }
    if config.shared_embedding:
        small["source_vocab_size"] = small["target_vocab_size"]
    given = {name: token for name in SPECIAL_TOKENS if (token := getattr(config, name)) is not None}
    free = [token for token in range(min(small.values(), default=0) - 1) if token not in given.values()]
    beyond = sorted({token for token in given.values() if token >= min(small.values(), default=0)})
    moved = dict(zip(beyond, reversed(free), strict=False))
    ids: dict[str, Any] = {name: moved.get(token, token) for name, token in given.items()}
    without = {name: 0 for name in ("num_encoder_layers", "num_decoder_layers") if getattr(config, name) == 0}
    return dataclasses.replace(config, **ids).resized(**(small | without | sizes))


def narrow(config: TransformerConfig, longest: int, **others: Any) -> TransformerConfig:
    """Return a narrow configuration with few layers, and the thresholds of `config`. Rotary heads keep their width, on
    which angles depend."""
    kept = ("rotary_original_length", "query_temperature_length", "relative_buckets", "relative_max_distance")
    sizes: dict[str, Any] = {name: getattr(config, name) for name in (*kept, "sliding_window", "layer_overrides")}
    sizes["max_length"] = longest
    for name in ("num_encoder_layers", "num_decoder_layers"):
        sizes[name] = min(max(PROBE_SIZES[name], len(config.layer_kinds)), getattr(config, name))
    if config.positions == "rotary":
        sizes |= _real_heads(config)
    return small_system(config, **(sizes | others))


def _real_heads(config: TransformerConfig) -> dict[str, Any]:
    heads = {config.num_heads: 2, 1: 2}.get(config.key_value_heads, 4)
    is_whole = config.attention_head_dim is None or config.attention_dim == config.embed_dim
    sizes: dict[str, Any] = {"num_heads": heads, "rotary_dim": config.rotary_dim}
    if is_whole:
        return sizes | {"embed_dim": heads * config.head_dim, "attention_head_dim": None}
    return sizes | {"attention_head_dim": config.head_dim}


def few_calls(config: TransformerConfig) -> list[tuple[int, tuple[int, ...]]]:
    if config.reads_pixels:
        return [(1, (config.max_length,)), (2, (config.max_length,))]
    pairs = [(1, (SHORT, 9)), (2, (6, 7))]
    longest = config.max_length
    return [(batch, _sides(config, *(min(length, longest) for length in lengths))) for batch, lengths in pairs]


def _calls(config: TransformerConfig, longest: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield short calls, calls just beyond thresholds and powers of two, and calls of all other lengths."""
    if config.reads_pixels:
        yield from ((batch, (config.max_length,)) for batch in BATCHES)
        return
    yield from dict.fromkeys(_calls_of_tokens(config, longest))


def _calls_of_tokens(config: TransformerConfig, longest: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    lengths = lengths_up_to(longest, thresholds(config).values())
    long = [length for length in reversed(lengths) if length > SHORT]
    short = [length for length in lengths if length <= SHORT]
    first = _crossing(config, longest)
    pairs = [(length, length if length <= SHORT // 2 else SHORT + 1 - length) for length in short]
    if len(config.input_names) > 1:
        pairs += [(target, source) for source, target in pairs if source != target]
    of_short = [(BATCHES[i % len(BATCHES)], _sides(config, *pair)) for i, pair in enumerate(pairs)]
    yield from of_short[: len(BATCHES)]
    yield from ((1, _sides(config, length, length)) for length in first)
    yield from of_short[len(BATCHES) :]
    for i, length in enumerate(length for length in long if length not in first):
        source, target = (length, length // 2 + 1) if i % 2 else (length // 2 + 1, length)
        lone = len(config.input_names) == 1
        yield 1 + (length < 100), _sides(config, length if lone else source, target)


def _crossing(config: TransformerConfig, longest: int) -> list[int]:
    """Return the lengths just beyond a threshold or a power of two, and the longest length, in descending order."""
    numbers = thresholds(config).values()
    lengths, crossed = lengths_up_to(longest, numbers), {1 + value for value in numbers}
    crossed |= {lengths[-1], *(length for length in lengths if not length - 1 & length - 2)}
    return [length for length in reversed(lengths) if length > SHORT and length in crossed]


def crossing_calls(reached: Iterable[ReachProbe]) -> list[ReachProbe]:
    """Return each model's longest call, and calls just beyond a threshold, in ascending order of length. Leave out
    large models, `wide` and `vocabulary`."""
    chosen: dict[tuple[int, int], ReachProbe] = {}
    every = [probe for probe in reached if probe.name.partition(",")[0] not in ("wide", "vocabulary")]
    longest: dict[int, int] = {}
    for probe in every:
        longest[id(probe.parameters)] = max(longest.get(id(probe.parameters), 0), probe.lengths[-1])
    for probe in sorted(every, key=lambda probe: probe.batch):
        length, key = probe.lengths[-1], id(probe.parameters)
        is_told = length - 1 in thresholds(probe.config).values() or length == longest[key]
        if is_told and length > 2 and not probe.is_large:
            chosen.setdefault((key, length), probe)
    return sorted(chosen.values(), key=lambda probe: probe.lengths[-1])


def _sides(config: TransformerConfig, source: int, target: int) -> tuple[int, ...]:
    source = config.frame_positions if config.reads_frames else source
    return (source, target)[: len(config.input_names)]
