"""What a model may be shown: integer tokens inside the vocabulary, no longer than `max_length`."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import InputError, as_array, shown


def check_length(config: TransformerConfig, length: int, name: str = "a sequence") -> None:
    """Raise `InputError` if a sequence is longer than there are positions; its length is known while tracing, too."""
    if length > config.max_length:
        raise InputError(f"{name} has {length} tokens; expected at most {config.max_length} (max_length).")


def check_inputs(config: TransformerConfig, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens as int64 arrays (batch, length), in the order of `config.input_names`.

    Raises `InputError` for a missing or an unknown input, another shape or dtype, an empty batch or sequence, a token
    outside the vocabulary, a sequence longer than `max_length`, and batches of different sizes.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    expected = config.input_names
    if set(given) != set(expected):
        names = ", ".join(sorted(given)) or "nothing"
        raise InputError(f"forward was given {names}; for this {config.architecture} it takes {', '.join(expected)}.")
    checked = {name: _checked_tokens(config, name, given[name]) for name in expected}
    batches = {name: len(tokens) for name, tokens in checked.items()}
    if len(set(batches.values())) > 1:
        raise InputError(f"source has {batches['source']} rows and target {batches['target']}; expected as many.")
    return checked


def check_targets(config: TransformerConfig, targets: Any, inputs: Mapping[str, Any]) -> np.ndarray:
    """The tokens that should have come, one for each that the logits are of. Raises `InputError` as `check_inputs`."""
    name = config.input_names[-1]
    checked = _checked_tokens(config, name, targets, called="targets")
    if checked.shape != inputs[name].shape:
        raise InputError(f"targets has the shape {checked.shape}; expected that of {name}, {inputs[name].shape}.")
    return checked


def check_batch(config: TransformerConfig, batch: Mapping[str, Any]) -> dict[str, Any]:
    """What a model is trained on: its inputs, and `targets`. Raises `InputError` as `check_inputs`."""
    inputs = check_inputs(config, {name: tokens for name, tokens in batch.items() if name != "targets"})
    return inputs | {"targets": check_targets(config, batch.get("targets"), inputs)}


def check_prompt(config: TransformerConfig, prompt: Any, source: Any = None) -> dict[str, Any]:
    """What generation starts from: `prompt` (None: `<bos>` for each row of the source), and a `source` if one is read.

    A prompt may be longer than `max_length`: the model sees its end. Raises `InputError` as `check_inputs` does.
    """
    if not config.has_decoder:
        raise InputError("A lone encoder cannot generate: it has no decoder.")
    if config.has_encoder != (source is not None):
        needs = "needs a source" if config.has_encoder else "takes no source"
        raise InputError(f"Generation with this {config.architecture} {needs}.")
    inputs = {} if source is None else {"source": _checked_tokens(config, "source", source)}
    if prompt is None:
        if config.bos_id is None or source is None:
            raise InputError("Generation was given no prompt, and there is no source and bos_id to start one from.")
        prompt = np.full((len(inputs["source"]), 1), config.bos_id)
    inputs["prompt"] = _checked_tokens(config, config.input_names[-1], prompt, called="prompt")
    if source is not None and len(inputs["prompt"]) != len(inputs["source"]):
        rows = f"{len(inputs['prompt'])} rows and source {len(inputs['source'])}"
        raise InputError(f"prompt has {rows}; expected as many.")
    return inputs


def check_draws(batch: int, max_new_tokens: Any, uniforms: Any) -> tuple[int, np.ndarray | None]:
    """How many tokens to generate, and the numbers in [0, 1) that draw them: (batch, max_new_tokens), or None."""
    try:
        steps = -1 if isinstance(max_new_tokens, bool) else operator.index(max_new_tokens)
    except TypeError:
        steps = -1
    if steps < 0:
        raise InputError(f"max_new_tokens is {shown(max_new_tokens)}; expected a whole number, at least 0.")
    if uniforms is None:
        return steps, None
    drawn = as_array("uniforms", uniforms, InputError)
    if drawn.shape != (batch, steps):
        raise InputError(f"uniforms has the shape {drawn.shape}; expected (batch, max_new_tokens), {(batch, steps)}.")
    if drawn.dtype.kind != "f":
        raise InputError(f"uniforms has the dtype {drawn.dtype}; expected floats.")
    if not ((drawn >= 0) & (drawn < 1)).all():
        raise InputError(f"uniforms go from {drawn.min()} to {drawn.max()}; expected at least 0 and less than 1.")
    return steps, drawn


def _checked_tokens(config: TransformerConfig, read_as: str, value: Any, *, called: str | None = None) -> np.ndarray:
    """Tokens of the vocabulary of the input `read_as`, which an error calls `called`. A prompt may be of any length."""
    name = called or read_as
    tokens = as_array(name, value, InputError)
    if tokens.ndim != 2:
        raise InputError(f"{name} has the shape {tokens.shape}; expected (batch, length).")
    if 0 in tokens.shape:
        raise InputError(f"{name} is empty: it has the shape {tokens.shape}; expected at least one row and one token.")
    if tokens.dtype.kind not in "iu":
        raise InputError(f"{name} has the dtype {tokens.dtype}; expected integers.")
    if name != "prompt":
        check_length(config, tokens.shape[1], name)
    vocab_size = config.stack_vocab_size(config.input_stack(read_as))
    outside = (tokens < 0) | (tokens >= vocab_size)
    if outside.any():
        row, position = (int(index) for index in np.argwhere(outside)[0])
        raise InputError(
            f"{name}[{row}, {position}] is {tokens[row, position]}, outside the vocabulary of {vocab_size} tokens."
        )
    return tokens.astype(np.int64)
