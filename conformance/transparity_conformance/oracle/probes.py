"""Probes: models with weights and inputs that reveal faults, which usual initial weights and short prompts hide. All
sizes of the inputs differ, so that no two axes can be confused."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.config.probe_sizes import feed_forward_width, recurrent_width, shared_expert_width
from transparity.errors import ConfigError
from transparity.parameters import parameter_shapes
from transparity.presets import preset
from transparity_conformance.oracle.budgets import HALF, NEIGHBOURS, NEIGHBOURS_OF_HOT, NEIGHBOURS_OF_RECURRENT
from transparity_conformance.oracle.cases import text_inputs
from transparity_conformance.oracle.memory import check_memory
from transparity_conformance.oracle.oracle import Arrays, Oracle, Room, forward_oracle
from transparity_conformance.storage.mapped import LARGE
from transparity_conformance.storage.on_disk import OnDisk
from transparity_numpy.masks import target_mask, visible_keys
from transparity_numpy.positions.in_attention import window_mask

BATCH, SOURCE, TARGET = 8, 9, 7

SCORE_SPREAD = 2.0
WEIGHT_SPREAD = 0.3
"""The standard deviation of gains around 1, and of biases around 0."""


@dataclass(frozen=True, eq=False)
class Probe:
    """A configuration with weights and inputs, on which a port is compared with the reference."""

    case: str
    name: str
    purpose: str
    config: TransformerConfig
    parameters: Arrays
    inputs: Arrays
    kept: frozenset[str] | None = field(default=None, kw_only=True)
    """The activations that the oracle keeps; None for all."""
    visible_changes: dict[tuple[str, str], bool] = field(default_factory=dict, init=False)
    """A cache for `reach.features`: whether each change of a field changes the results."""

    @functools.cached_property
    def oracle(self) -> Oracle:
        options: dict[str, Any] = {"neighbours": self.neighbours, "kept": self.kept, "room": self.room}
        return forward_oracle(self.config, self.parameters, self.inputs, **options)

    @functools.cached_property
    def exact(self) -> Arrays:
        return {name: value.astype(np.float64) for name, value in self.parameters.items()}

    def budget(self, dtype: str) -> float:
        return self.oracle.budget("logits", dtype)

    @property
    def is_large(self) -> bool:
        return is_large(self.parameters)

    @property
    def keeps_exact(self) -> bool:
        return not self.is_large

    @property
    def room(self) -> Room:
        """The mapping for activations: on disk for a large model."""
        return OnDisk if self.is_large else dict

    @property
    def neighbours(self) -> int:
        """The number of points at which the oracle measures rounding."""
        if self.is_large:
            return 1
        if self.name == "hot":
            return NEIGHBOURS_OF_HOT
        return NEIGHBOURS_OF_RECURRENT if self.config.is_recurrent else NEIGHBOURS


def single_row(probe: Probe) -> Probe:
    """Return the probe with its first row that contains padding, or row 0."""
    tokens, pad = probe.inputs[probe.config.input_names[-1]], probe.config.pad_id
    padded = np.zeros(len(tokens), bool) if pad is None else (tokens == pad).any(1) & (tokens != pad).any(1)
    row = int(padded.argmax())
    inputs = {name: value[row : row + 1] for name, value in probe.inputs.items()}
    return dataclasses.replace(probe, name="single", purpose="a batch with one row", inputs=inputs, kept=None)


def lean(probe: Probe, shown: Collection[str], progress: Callable[[str, int, int], None]) -> Probe:
    """Return a copy of a large model's probe, whose oracle keeps only the activations `shown`, and reports each layer.
    Return other probes unchanged."""
    if not probe.is_large:
        return probe
    lean, config = dataclasses.replace(probe, kept=frozenset(shown)), probe.config
    outputs = [
        f"{stack}.layers.{layer}.output" for stack in config.stacks for layer in range(config.stack_num_layers(stack))
    ]
    numbers = {name: number for number, name in enumerate(outputs)}

    def watch(name: str) -> None:
        if name in numbers:
            progress("computing the reference", numbers[name], len(numbers))

    lean.oracle.watch = watch
    return lean


def twin(probe: Probe) -> Probe:
    """Return a copy in which tokens (or patches) are rotated by one position, except in the first row. First tokens
    stay in place."""
    inputs, purpose = dict(probe.inputs), "the inputs of another probe in another order"
    for name in probe.config.input_names:
        moved = inputs[name].copy()
        if name in probe.config.token_inputs:
            moved[1:, 1:] = np.roll(moved[1:, 1:], 1, axis=1)
        else:
            moved[1:] = np.roll(moved[1:], 1, axis=-1)
        inputs[name] = moved
    return dataclasses.replace(probe, name="twin", purpose=purpose, inputs=inputs, kept=None)


DECAY_RATE = 0.4
"""The median decay rate; part of a state remains after all tokens of a probe."""

BIAS_OFFSET = 7.0
"""The offset of a router's correction biases for odd seeds: near 7, bfloat16 makes biases equal."""

HOT_SPREAD = 40.0
"""The standard deviation of scores in `hot`, whose exponentials overflow in float32."""


def probe_parameters(
    config: TransformerConfig, seed: int = 0, embedding: float = 1.0, spread: float = SCORE_SPREAD
) -> Arrays:
    """Draw float32 weights that reveal faults. `embedding` is the standard deviation of embeddings; below 1, it also
    scales biases. `spread` is the standard deviation of attention scores."""
    random = np.random.default_rng(seed)
    parameters = {}
    for name, shape in parameter_shapes(config).items():
        value = random.normal(size=shape)
        if name.endswith("running_var"):
            value = np.exp(value * WEIGHT_SPREAD)
        elif name.endswith("A_log"):
            value = np.log(DECAY_RATE) + WEIGHT_SPREAD * value
        elif name.endswith(("gated_norm.weight", ".D")):
            value = 1 + WEIGHT_SPREAD * value
        elif name.endswith("norm.weight"):
            value = (config.norm_gain == "weight") + WEIGHT_SPREAD * value
            if spread > SCORE_SPREAD and name.endswith(("query_norm.weight", "key_norm.weight")):
                value = _heated(config, value, spread)
        elif name.endswith(("relative_bias.weight", ".sinks")):
            pass  # added to scores: keep the standard deviation 1
        elif name.endswith(("bias", "running_mean", "router_score_bias")):
            value = WEIGHT_SPREAD * value * (1 if "norm" in name else min(1, embedding))
            value += BIAS_OFFSET * (seed % 2) * name.endswith("router_score_bias")
        elif name.endswith(("patch_projection.weight", "second_convolution.weight")):
            value = value * embedding / math.prod(shape[1:]) ** 0.5
        elif name.endswith("token_embedding.weight"):
            value = value * embedding / config.token_scale
        elif name.endswith("embedding.weight"):
            value = value * embedding
        else:
            value = value * _gain(config, name, spread) / math.prod(shape[1:]) ** 0.5
        parameters[name] = value.astype(np.float32)
    return parameters


def scoped_parameters(parameters: Arrays, scope: str) -> Arrays:
    scope += "."
    return {name.removeprefix(scope): value for name, value in parameters.items() if name.startswith(scope)}


def _gain(config: TransformerConfig, name: str, spread: float) -> float:
    """Return the factor of a parameter's random numbers. Scores get the standard deviation `spread`, and some gate and
    up projections exceed a `gate_limit`."""
    if config.gate_limit is not None and name.endswith(("gate.weight", "up.weight")):
        return config.gate_limit
    if config.gate_limit is not None and name.endswith("down.weight"):
        return 1 / config.gate_limit
    if ".recurrence." in name or not name.endswith(("query.weight", "key.weight", "key_rotary.weight")):
        return 1.0
    return float((spread / config.score_scale / config.head_dim**0.5) ** 0.5)


def _heated(config: TransformerConfig, gain: np.ndarray, spread: float) -> np.ndarray:
    """Scale the gain of a query or key norm, so that scores have the standard deviation `spread`."""
    offset = float(config.norm_gain != "weight")
    return (gain + offset) * (spread / config.score_scale / config.head_dim**0.5) ** 0.5 - offset


ROWS = (
    "all different tokens",
    "padding on the right",
    "padding on the left",
    "padding inside",
    "one token repeated",
    "all padding in the source",
    "the first row with its last tokens swapped",
    "only padding after the first token",
)


def mixed_inputs(config: TransformerConfig, seed: int = 0, source: int = SOURCE, target: int = TARGET) -> Arrays:
    """Return a batch with one row for each entry of `ROWS`; in a target, the second and fourth row are swapped."""
    if config.reads_pixels:
        return {"pixels": pixel_inputs(config, BATCH, seed)}
    random = np.random.default_rng(seed)
    lengths = {"source": source, "target": target, "tokens": source}
    pad = 0 if config.pad_id is None else config.pad_id
    inputs = {"source": frame_inputs(config, BATCH, seed)} if config.reads_frames else {}
    for name in config.token_inputs:
        length, size = lengths[name], config.stack_vocab_size(config.input_stack(name))
        if size < 2:
            raise ConfigError(f"The vocabulary of {name} has {size} token; expected at least 2.")
        tokens = random.integers(0, size - 1, (BATCH, length))
        tokens += tokens >= pad  # skip the padding token
        tokens[0] = (pad + 1 + random.permutation(min(size - 1, length))[np.arange(length) % (size - 1)]) % size
        right, inside, left = (3, 1, 3) if name == "target" else (1, 3, 2)  # source and target have different padding
        tokens[right, -2:], tokens[2, :left], tokens[inside, length // 2] = pad, pad, pad
        tokens[4] = tokens[4, 0]
        tokens[6] = np.concatenate([tokens[0, :-2], tokens[0, :-3:-1]])
        tokens[7, 1:] = pad
        if name != "target":
            tokens[5] = pad
        if length == 1 and config.is_recurrent:  # transformers treats a single token as generated
            tokens[tokens == pad] = tokens[0, 0]
        if config.is_pooled and config.pooling in ("eos", "largest"):
            # The pooled token occurs twice in some rows, and once in others.
            marked = size - 1 if config.pooling == "largest" else config.eos_id or 0
            tokens[1::2, length // 2], tokens[1::4, length // 3] = marked, marked
        inputs[name] = tokens[:, :length]
    return inputs | further_inputs(config, inputs, random)


def pixel_inputs(config: TransformerConfig, batch: int, seed: int) -> np.ndarray:
    """Draw random images. The second is the transpose of the first; the third has one color."""
    shape = batch, config.image_channels, config.image_size, config.image_size
    pixels = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    pixels[1:2] = pixels[:1].swapaxes(-1, -2)
    pixels[2:3] = pixels[2:3, :, :1, :1]
    return pixels


def frame_inputs(config: TransformerConfig, batch: int, seed: int) -> np.ndarray:
    """Draw random spectrograms. The second reverses the frames of the first; the third ends with silence."""
    shape = batch, config.mel_bins or 0, config.num_frames
    frames = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    frames[1:2] = frames[:1, :, ::-1]
    frames[2:3, :, config.num_frames // 4 :] = -1.0
    return frames


def as_given(value: np.ndarray) -> np.ndarray:
    """Return a copy in the dtype that ports get: int64 for tokens, masks and token types."""
    return np.array(value, None if value.dtype.kind == "f" else np.int64)


def shortened(config: TransformerConfig, inputs: Arrays, length: int | None) -> Arrays:
    whole = [name for name in config.input_names if name not in config.token_inputs]
    return {name: value if name in whole else value[:, :length] for name, value in inputs.items()}


def further_inputs(config: TransformerConfig, inputs: Arrays, random: np.random.Generator) -> Arrays:
    """Return an attention mask and token types, if the model reads them. The mask hides padding and, in the first row,
    one other token; in the fourth row, nothing."""
    tokens = inputs[config.input_names[0]]
    further = {}
    if "attention_mask" in config.further_inputs:
        mask = tokens != (0 if config.pad_id is None else config.pad_id)
        mask[0, mask.shape[1] // 2] = mask.shape[1] == 1
        mask[3 % len(mask)] = True
        further["attention_mask"] = mask.astype(np.int64)
    if config.num_token_types:
        further["token_types"] = random.integers(0, config.num_token_types, tokens.shape)
    return further


TEXT_TOKENS = 31
"""The smallest vocabulary that can encode the text."""

HUGE = 200_000_000
"""A checkpoint with at least this number of parameters is called on one probe."""


LONGEST = 256
"""The largest length of a probe; the memory of attention weights grows with its square."""


def can_read_text(config: TransformerConfig) -> bool:
    sizes = (config.stack_vocab_size(config.input_stack(name)) for name in config.token_inputs)
    return min(sizes, default=0) >= TEXT_TOKENS


def _text(config: TransformerConfig, source: int, target: int, rows: int | None = None) -> Arrays:
    text: Arrays = {name: tokens[:rows] for name, tokens in text_inputs(config, source, target).items()}
    if config.reads_frames:
        text = {"source": frame_inputs(config, len(text["target"]), 9)} | text
    return text | further_inputs(config, text, np.random.default_rng(0))


def is_large(parameters: Arrays) -> bool:
    """Return whether a model is called on only some probes."""
    return sum(value.size for value in parameters.values()) >= LARGE


def is_huge(parameters: Arrays) -> bool:
    """Return whether a checkpoint is called on only one probe."""
    return sum(value.size for value in parameters.values()) >= HUGE


@functools.cache
def probes(case: str) -> dict[str, Probe]:
    return probes_of(preset(case).resized(), case)


def probes_of(config: TransformerConfig, case: str) -> dict[str, Probe]:
    longest = config.max_length
    source, target = min(SOURCE, longest), min(TARGET, longest)
    check_memory(config, BATCH, source=source, target=target, tokens=source, pixels=longest)
    ordinary = probe_parameters(config)
    mixed = mixed_inputs(config, 0, source, target)
    made = [
        ("mixed", "a batch of different rows", config, ordinary, mixed),
        *[("one", "length 1", config, ordinary, mixed_inputs(config, 1, 1, 1))] * (not config.reads_pixels),
        ("tiny", "activations so small that eps matters", config, probe_parameters(config, 3, 1e-3), mixed),
    ]
    if config.angle_limits:
        short = min(source, *(own.rotary_original_length for own in config.layer_kinds.values()))
        made.insert(2, ("short", "the original length", config, ordinary, mixed_inputs(config, 6, short, short)))
    if not is_large(ordinary):
        hot = probe_parameters(config, 4, spread=HOT_SPREAD)
        made.append(("hot", "scores so large that their exponentials overflow", config, hot, mixed))
        if longest <= LONGEST and not config.reads_pixels:
            made.append(("longest", "max_length", config, ordinary, mixed_inputs(config, 2, longest, longest)))
        if can_read_text(config):
            made.insert(1, ("text", "real text", config, ordinary, _text(config, source, target)))
        square, purpose = other_sizes(config)[0], "square weights, which also fit if transposed"
        made.append(("square", purpose, square, probe_parameters(square, 5), mixed_inputs(square, 0, source, target)))
    return {
        name: Probe(case, name, purpose, config, parameters, inputs)
        for name, purpose, config, parameters, inputs in made
    }


def other_sizes(config: TransformerConfig, ranks: int = 2) -> list[TransformerConfig]:
    """Return copies with other sizes, which are multiples of `ranks`. In the first copy, all matrices are square. Ports
    may fix a ratio of sizes, such as the feed-forward's width to the model's width."""
    count, width = 2 * ranks, 8 * ranks
    # With one head, both keys of this dict are 1, and the value None applies.
    shared = {1: 1, config.num_heads: None}.get(config.key_value_heads, ranks)
    heads: dict[str, Any] = {"num_heads": count, "num_key_value_heads": shared}
    narrow = heads | {"attention_head_dim": None, "rotary_dim": None if config.rotary_dim is None else 2}
    wide = count * config.head_dim if config.attention_head_dim is None else width
    sizes = (
        (width, width, narrow),
        (width, feed_forward_width(config, width), narrow),
        (wide, feed_forward_width(config, wide), heads),
    )
    return list(dict.fromkeys(_of_width(config, *each) for each in sizes))


def _of_width(config: TransformerConfig, width: int, widened: int, others: dict[str, Any]) -> TransformerConfig:
    sizes = others | {"embed_dim": width, "feed_forward_dim": widened if config.feed_forward_dim else 0}
    sizes |= recurrent_width(config, width, config.recurrent_heads) | ({"num_heads": 1} if config.attends_never else {})
    if config.shared_expert_dim:
        sizes["shared_expert_dim"] = shared_expert_width(config, width, widened)
    return config.with_sizes(**sizes)


def in_other_sizes(probe: Probe, config: TransformerConfig) -> Iterator[Probe]:
    for sizes in other_sizes(config):
        if sizes not in (probe.config, config):
            parameters = probe_parameters(sizes, 5)
            yield dataclasses.replace(probe, purpose="another size", config=sizes, parameters=parameters)


def probes_left_out(config: TransformerConfig, made: Collection[str], dtype: str) -> list[str]:
    """Return a line for each missing probe, with the reason."""
    longest = f"max_length is {config.max_length}; long calls compare only the logits"
    reasons = {
        "text": "the model is large" if "square" not in made else f"a vocabulary has fewer than {TEXT_TOKENS} tokens",
        "hot": f"scores above 100 leave too few digits in {dtype}" if dtype in HALF else "the model is large",
        "longest": longest if config.max_length > LONGEST else "the model is large",
        "square": "the model is large",
    }
    of_tokens = ("text", "longest") if config.reads_pixels else ()
    return [f"probe {name}: {reason}" for name, reason in reasons.items() if name not in (*made, *of_tokens)]


TEXT_OF_A_CHECKPOINT = 48
"""The text tokens for a checkpoint; faults of windows, angles and distances show only in long texts."""


def probes_with(config: TransformerConfig, parameters: Arrays, case: str) -> dict[str, Probe]:
    """Return the probes of a model with given parameters, such as a checkpoint."""
    source, target = min(SOURCE, config.max_length), min(TARGET, config.max_length)
    made = [("mixed", "a batch of different rows", mixed_inputs(config, 0, source, target))]
    if can_read_text(config) and not is_huge(parameters):
        longest = min(TEXT_OF_A_CHECKPOINT, config.max_length)
        text = _text(config, longest, longest, 2 if is_large(parameters) else None)
        made.append(("text", "real text", text))
    if not (config.reads_pixels or is_huge(parameters)):
        made.append(("one", "length 1", mixed_inputs(config, 1, 1, 1)))
    return {name: Probe(case, name, purpose, config, parameters, inputs) for name, purpose, inputs in made}


def sees_something(config: TransformerConfig, inputs: Arrays) -> np.ndarray:
    """Return a mask (batch, length) of the decoder's tokens that see a token other than padding. Other tokens weight
    all keys equally, so their results depend on the number of keys, which a cache reduces."""
    tokens, mask = inputs[config.input_names[-1]], inputs.get("attention_mask") if not config.has_encoder else None
    positions, visible = np.arange(tokens.shape[1])[None], visible_keys(tokens, config.pad_id, mask)
    seen = target_mask(positions, visible, config.decoder_mask)
    for own in config.layer_kinds.values():
        if own.sliding_window is not None:
            seen = seen & window_mask(positions, tokens.shape[1], own.sliding_window, own.window_kind)
    return np.broadcast_to(np.any(seen, axis=(1, 3)), tokens.shape)
