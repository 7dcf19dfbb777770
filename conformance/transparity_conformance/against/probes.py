"""The inputs on which the port and the reference are compared."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transparity.errors import TransparityError, shown
from transparity.text import describe_error
from transparity_conformance.against.reference import Inputs, RefusedError, text_config
from transparity_conformance.capabilities.port_calls import PortError, call_port, signature_of
from transparity_conformance.identify.fitting.inputs import first_answer, longest_taken, with_further
from transparity_conformance.identify.fitting.subject import FittedModel
from transparity_conformance.oracle.reach.thresholds import LONGEST
from transparity_conformance.report.comparison import share
from transparity_conformance.running.adapters.model import made_by
from transparity_conformance.running.frameworks.modules import kept
from transparity_conformance.running.loading import load_file
from transparity_conformance.running.ways import LABELS, is_cache

TEXTS = ((11, 2), (1, 1), (2, 3), (16, 1), (33, 1), (65, 1))
"""(length, batch) of each text. Some lengths lie next to powers of two, and some exceed the windows of small models."""

REPEATED = 16, 2
"""(largest length, batch) of a text in which each row repeats one token."""

PADDED = {"left": (11, 3), "right": (17, 2)}
"""(length, batch) of a padded text, by the side of the padding."""

GIVE = "give the inputs: --inputs FILE, or inputs=[{…}, …] in Python"

OTHERS = ((11, 1), (11, 2), (11, 3))
"""(length, batch) of images, audio and other inputs; only the batch size applies to images."""


@dataclass(frozen=True, eq=False)
class Answer:
    probe: str
    inputs: Inputs
    error: float
    budget: float
    actual: np.ndarray
    changed: int
    """The number of elements whose error exceeds the budget."""
    first: int
    """The first position with a wrong element; 0 if the answer has a wrong size."""
    shape: tuple[int, ...]

    @property
    def agrees(self) -> bool:
        return self.error <= self.budget and not self.is_misshapen

    @property
    def share(self) -> float:
        return share(self.error, self.budget)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_misshapen(self) -> bool:
        return self.actual.shape != self.shape

    @property
    def is_reshaped(self) -> bool:
        return self.is_misshapen and self.actual.size == self.size


@dataclass(frozen=True)
class Source:
    draw: Callable[[int, int, int], Inputs]
    """A function of a length, a batch size and a seed that returns inputs; no mask hides a position."""
    longest: int
    is_text: bool
    """Whether `draw` returns texts, rather than images and audio, which have a fixed length."""
    accepts: Callable[[Inputs], bool] = lambda inputs: False
    """A function of inputs that returns whether the model runs on them."""
    with_arguments: Callable[[Inputs], Mapping[str, Inputs]] = lambda inputs: {}
    """A function of inputs that returns, for each optional argument of the model, the inputs with this argument."""

    def title(self, length: int, batch: int) -> str:
        return f"{batch} × {length}" if self.is_text else f"batch of {batch}"

    def arguments(self, signature: inspect.Signature | None) -> tuple[dict[str, Inputs], list[str]]:
        """Return inputs with one optional argument each, by the argument's name. Also return a message for each
        argument that the port does not take."""
        found, left_out = dict[str, Inputs](), list[str]()
        names = signature.parameters if signature else ()
        for name, inputs in self._with_arguments.items():
            lacking = [each for each in inputs if each not in names and (each == name or "mask" in each)]
            if lacking:
                left_out.append(f"{name}: the port takes no {lacking[-1]}")
            else:
                found[name] = inputs
        return found, left_out

    @functools.cached_property
    def _with_arguments(self) -> Mapping[str, Inputs]:
        length, batch = TEXTS[0]
        try:
            return self.with_arguments(self.draw(min(length, self.longest), batch, 0))
        except RefusedError:  # the model accepts only other lengths
            return {}

    def of_text(self) -> Source | None:
        """Return a source of the same texts without images and audio, if the model runs on such texts."""
        length, batch = TEXTS[0]
        if not self.is_text or is_only_text(self.draw(length, batch, 0)):
            return None
        source = dataclasses.replace(self, draw=lambda length, *given: _text_of(self.draw(length, *given), length))
        return source if self.accepts(source.draw(length, batch, 0)) else None


def _text_of(inputs: Inputs, length: int) -> Inputs:
    """Return inputs without images and audio. Keep the last `length` tokens, which follow the placeholder tokens."""
    shape = next(iter(inputs.values())).shape
    text = {name: value for name, value in inputs.items() if not is_of_features(name)}
    return {name: value[:, -length:] if value.shape[:2] == shape else value for name, value in text.items()}


def is_of_features(text: str) -> bool:
    return any(word in text for word in ("pixel", "image", "video", "feature", "spatial", "aspect", "target_sizes"))


def is_only_text(inputs: Inputs) -> bool:
    return not any(map(is_of_features, inputs))


def source_of(model: Any) -> Source:
    """Return a source of inputs, from the model's `transformers` configuration or, if it has none, from calls of the
    model."""
    if not is_configured(model):
        return _found_by_calls(model)
    names = ("max_position_embeddings", "max_seq_len", "max_target_positions", "max_decoder_position_embeddings")
    given = (getattr(text_config(model.config), name, None) for name in names)
    limits = [limit for limit in given if limit and limit > 0]  # -1 means no limit
    is_text = getattr(model, "main_input_name", "input_ids") == "input_ids"
    longest = min([LONGEST, *map(int, limits)])

    def accepts(inputs: Inputs) -> bool:
        from transparity_conformance.against.small.inputs import error_on

        return error_on(model, inputs) is None

    def with_arguments(inputs: Inputs) -> Mapping[str, Inputs]:
        from transparity_conformance.against.small import inputs as small

        return small.with_arguments(model, inputs)

    return Source(functools.partial(_draw, model, {}), longest, is_text, accepts, with_arguments)


def probes_of(source: Source) -> tuple[dict[str, Inputs], list[str]]:
    """Draw inputs of several shapes. Return the inputs by description, and a message for each refused shape."""
    found: dict[str, Inputs] = {}
    refused: dict[str, RefusedError] = {}

    def draw(title: str, length: int, batch: int, seed: int) -> Inputs | None:
        try:
            return source.draw(length, batch, seed)
        except RefusedError as error:
            refused[title] = error
            return None

    for number, (length, batch) in enumerate(TEXTS if source.is_text else OTHERS):
        title = source.title(length, batch)
        if length <= source.longest and (inputs := draw(title, length, batch, number)) is not None:
            found[title] = inputs
    length, batch = min(REPEATED[0], source.longest), REPEATED[1]
    title = f"{batch} × {length}, one token"
    text = draw(title, length, batch, length) if source.is_text else None
    if text is not None and is_only_text(text):
        tokens = next(iter(text))
        found[title] = {**text, tokens: np.repeat(text[tokens][:, :1], length, 1)}
    for side, (length, batch) in PADDED.items() if source.is_text else ():
        title = f"{batch} × {length}, padded on the {side}"
        text = draw(title, length, batch, length) if length <= source.longest else None
        hidden = None if text is None else padded(text, side)
        if hidden is not None and (is_only_text(hidden) or source.accepts(hidden)):
            found[title] = hidden
    if refused and not found:
        raise next(iter(refused.values()))
    if (texts := source.of_text()) is not None:
        length, batch = TEXTS[0]
        found[f"{texts.title(length, batch)}, only text"] = texts.draw(length, batch, 0)
    return found, [f"{title}: {error}" for title, error in refused.items()]


def is_configured(model: Any) -> bool:
    return hasattr(getattr(model, "config", None), "to_dict")


def _found_by_calls(model: Any) -> Source:
    is_pair = isinstance(model, functools.partial) and len(model.args) == 1  # see `bound`
    try:
        with kept(model):
            make = (lambda: (model.func, copy.deepcopy(model.args[0]))) if is_pair else model
            subject = FittedModel(made_by(make, None))
            rows, plain = first_answer(subject)
            longest = LONGEST if subject.positions else min(LONGEST, longest_taken(subject, plain))
    except PortError as error:
        raise TransparityError(
            f"The reference {type(model).__qualname__} has no configuration, and no inputs were found by calling it "
            f"({str(error).rstrip('.')}); {GIVE}."
        ) from error

    def draw(length: int, batch: int, seed: int) -> Inputs:
        random = np.random.default_rng(seed)
        inputs = {
            name: random.integers(0, rows[name], (batch, length))
            if name in subject.tokens
            else random.normal(size=(batch, *value.shape[1:])).astype(value.dtype)
            for name, value in plain.items()
            if name in subject.inputs
        }
        return {subject.names[name]: value for name, value in with_further(subject, inputs, rows).items()}

    return Source(draw, longest, is_text=not subject.positions)


def length_of(inputs: Inputs) -> int:
    return max((each.shape[1] for each in inputs.values() if each.dtype.kind in "iu" and each.ndim == 2), default=0)


def _draw(model: Any, places: dict[str, int], length: int, batch: int, seed: int) -> Inputs:
    from transparity_conformance.against.small.inputs import example_inputs

    try:
        inputs = example_inputs(model, length, batch, seed, places)
    except Exception as error:
        raise RefusedError(
            f"No inputs of length {length} can be drawn for {type(model).__qualname__}: "
            f"{describe_error(error)}; {GIVE}."
        ) from error
    return {name: np.ones_like(value) if name == "attention_mask" else value for name, value in inputs.items()}


def undrawn(model: Any, drawn: Collection[str], signature: inspect.Signature | None) -> list[str]:
    """Return a message for each tensor argument that is not in `drawn`: images and audio of the reference, and
    arguments of both implementations."""
    reference = signature_of(getattr(model, "forward", model))
    parameters = {} if reference is None else dict(reference.parameters)
    lacking = list[str]()
    if is_configured(model):
        from transparity_conformance.against.small.media import MEDIA

        media = [*(each.argument for each in MEDIA), "input_values"]
        lacking += [name for name in media if name in parameters.keys() - drawn]
    shared = parameters.keys() & (signature.parameters if signature else {}).keys()
    for name in sorted(shared.difference(drawn, [LABELS], lacking, [each for each in shared if is_cache(each)])):
        each = parameters[name]
        is_tensor = each.annotation is each.empty or any(word in str(each.annotation) for word in ("Tensor", "rray"))
        lacking += [name] if each.default is None and is_tensor else []
    return [f"{name}: the checker draws no such argument; {GIVE}" for name in lacking]


def without_mask(inputs: Inputs) -> Inputs:
    """Remove masks that hide no position; some recurrent models refuse a mask together with a cache."""
    return {name: value for name, value in inputs.items() if "mask" not in name or is_of_features(name)}


def padded(inputs: Inputs, side: str) -> Inputs | None:
    """Hide positions in all rows except the last. Return None if the inputs have no mask."""
    if "attention_mask" not in inputs:
        return None
    mask = np.ones_like(inputs["attention_mask"])
    for row in range(len(mask) - 1):
        hidden = slice(0, row + 2) if side == "left" else slice(-(row + 2), None)
        mask[row, hidden] = 0
    return {**inputs, "attention_mask": mask}


def read_inputs(given: str | Path | Sequence[Inputs]) -> dict[str, Inputs]:
    """Return inputs by description from a list of dicts of arrays, or from a Python file that defines `inputs`."""
    found: Any = given
    where = str(given) if isinstance(given, str | Path) else "the call"
    if isinstance(given, str | Path):
        found = getattr(load_file(Path(given), "inputs"), "inputs", None)
        found = call_port(found) if callable(found) else found
    is_list = isinstance(found, list | tuple) and found and all(isinstance(each, Mapping) and each for each in found)
    if not is_list:
        raise TransparityError(f"The inputs of {where} are {shown(found)}; expected a list of dicts of arrays by name.")
    calls = [{str(name): np.asarray(value) for name, value in each.items()} for each in found]
    shapes = [", ".join(" × ".join(map(str, value.shape)) for value in each.values()) for each in calls]
    return {f"{number} ({shape})": each for number, (shape, each) in enumerate(zip(shapes, calls, strict=True), 1)}


def is_padded(inputs: Inputs) -> bool:
    return any("mask" in name and not is_of_features(name) and not value.all() for name, value in inputs.items())


def telling(probes: Mapping[str, Inputs]) -> dict[str, Inputs]:
    first = next(iter(probes))
    return {name: inputs for name, inputs in probes.items() if name == first or is_padded(inputs)}


def taken(
    probes: Mapping[str, Inputs], signature: inspect.Signature | None, are_drawn: bool = True
) -> tuple[dict[str, Inputs], list[str]]:
    """Return the probes that the port accepts, and a message for every skipped probe. Remove masks that hide nothing if
    the port takes no mask. If no probe remains, return all probes, so that the port's own error names the missing
    input."""
    if signature is None or any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
        return dict(probes), []
    names = set(signature.parameters)
    is_renamed = any(map(is_of_features, names.difference(*probes.values())))
    found: dict[str, Inputs] = {}
    left_out, needed = [], set[str]()
    for name, inputs in probes.items():
        needless = {each for each in inputs if each not in names and "mask" in each and bool(np.all(inputs[each]))}
        lacking = [each for each in [*inputs][1:] if each not in names | needless]
        required = [each for each in lacking if "mask" not in each and (is_renamed or not is_of_features(each))]
        if lacking and not required and (are_drawn or all("mask" in each for each in lacking)):
            left_out.append(f"{name}: the port takes no {max(lacking, key=is_of_features)}")
            needed.update(each for each in lacking if "mask" not in each)
        else:
            found[name] = {each: value for each, value in inputs.items() if each not in needless}
    return (found, left_out) if found or not needed else (dict(probes), [])


def most_telling(wrong: Sequence[Answer]) -> Answer:
    """Return the wrong answer whose cause is easiest to find. Prefer answers for texts of more than two tokens."""

    def key(each: Answer) -> tuple[Any, ...]:
        rows, tokens = (
            min(min(value.shape[axis : axis + 1], default=1) for value in each.inputs.values()) for axis in (0, 1)
        )
        return (
            rows > 1 and tokens > 1,
            tokens > 2,
            not is_padded(each.inputs),
            round(each.changed / each.size, 1),
            -each.size,
        )

    return max(wrong, key=key)
