"""What a model may be shown: integer tokens inside the vocabulary, no longer than `max_length`."""

from __future__ import annotations

from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import InputError


def check_length(config: TransformerConfig, length: int) -> None:
    """Raise `InputError` if a sequence is longer than there are positions; its length is known while tracing, too."""
    if length > config.max_length:
        raise InputError(f"A sequence of {length} tokens was given, but max_length is {config.max_length}.")


def check_inputs(config: TransformerConfig, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
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


def check_prompt(config: TransformerConfig, prompt: Any, source: Any = None) -> dict[str, np.ndarray]:
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
    inputs["prompt"] = _checked_tokens(config, "target", prompt, any_length=True)
    if source is not None and len(inputs["prompt"]) != len(inputs["source"]):
        rows = f"{len(inputs['prompt'])} rows and source {len(inputs['source'])}"
        raise InputError(f"The prompt has {rows}; expected as many.")
    return inputs


def _checked_tokens(
    config: TransformerConfig, name: str, value: Any, *, any_length: bool = False
) -> np.ndarray:
    tokens = np.asarray(value)
    if tokens.ndim != 2:
        raise InputError(f"{name} has the shape {tokens.shape}; expected (batch, length).")
    if 0 in tokens.shape:
        raise InputError(f"{name} is empty: it has the shape {tokens.shape}; expected at least one row and one token.")
    if tokens.dtype.kind not in "iu":
        raise InputError(f"{name} has the dtype {tokens.dtype}; expected integers.")
    if not any_length:
        check_length(config, tokens.shape[1])
    vocab_size = config.stack_vocab_size(config.input_stack(name))
    outside = (tokens < 0) | (tokens >= vocab_size)
    if outside.any():
        row, position = (int(index) for index in np.argwhere(outside)[0])
        raise InputError(
            f"{name}[{row}, {position}] is {tokens[row, position]}, outside the vocabulary of {vocab_size} tokens."
        )
    return tokens.astype(np.int64)
