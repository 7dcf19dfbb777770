"""Checks of a model's inputs: tokens, images, audio, targets, masks, prompts and random numbers."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import InputError, as_array, is_finite, is_whole, shown
from transparity.limits.memory import check_fits
from transparity.parts.tables import INPUTS
from transparity.taps import lengths_of, logits_shape
from transparity.text import listed
from transparity.training import dropout_shapes

T = TypeVar("T")


class InputForm(NamedTuple):
    """The form of an input: whether it has integers or floats, and the sizes of its axes after the batch."""

    is_float: bool
    axes: tuple[int | None, ...]
    """The size of each axis. None means any size from 1 to `max_length`."""

    def has_shape(self, config: TransformerConfig, shape: Sequence[int]) -> bool:
        """Return whether an input of this form may have `shape`, which starts with the batch."""
        if len(shape) != 1 + len(self.axes) or min(shape) < 1:
            return False
        bounds = [(1, config.max_length) if size is None else (size, size) for size in self.axes]
        return all(least <= size <= most for size, (least, most) in zip(shape[1:], bounds, strict=True))


def input_form(config: TransformerConfig, name: str) -> InputForm:
    axes = config.input_of(name).axes if name in config.input_names else None
    return InputForm(False, (None,)) if axes is None else InputForm(True, axes(config))


def check_length(config: TransformerConfig, length: int, name: str = "a sequence") -> None:
    """Raise `InputError` if a sequence is longer than `max_length`; JAX knows the length even while it traces."""
    if length > config.max_length:
        raise InputError(f"{name} has {length} tokens; expected at most {config.max_length} (max_length).")


def check_inputs(config: TransformerConfig, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs as arrays, tokens as int64 (batch, length): the main inputs in their order, then any others.

    Raises `InputError` for missing or unknown inputs, and for wrong shapes or dtypes. Tokens outside the vocabulary,
    and inputs that are empty, longer than `max_length` or of different numbers of rows, also raise `InputError`.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    expected = config.input_names + config.further_inputs
    if set(given) != set(expected):
        names = listed(sorted(given, key=str)) or "nothing"
        raise InputError(f"forward was given {names}; this {config.architecture} takes {', '.join(expected)}.")
    checked = {name: _checked_input(config, name, given[name]) for name in config.input_names}
    batches = {name: len(tokens) for name, tokens in checked.items()}
    if len(set(batches.values())) > 1:
        raise InputError(
            f"The batch size of source is {batches['source']}, but the batch size of target is {batches['target']}; "
            "expected equal batch sizes."
        )
    shape = checked[config.input_names[0]].shape
    return checked | {name: _checked_further(config, name, given[name], shape) for name in config.further_inputs}


def inputs_by_name(config: TransformerConfig, inputs: Sequence[T], named: Mapping[str, T | None]) -> dict[str, T]:
    """Return the inputs of a model by name; `inputs` were given by position, and `named` by name.

    Raises `InputError` for a missing, repeated or unknown input. `named` may contain inputs of other models if their
    values are None.
    """
    others = {"source", "target", *(kind.name for kind in INPUTS.values())}
    absent = {name for name in others if named.get(name) is None}
    if unknown := [name for name in named if name not in config.input_names and name not in absent]:
        takes = " and ".join(config.input_names)
        raise InputError(f"The model has no input {listed(unknown)}; it takes {takes}, attention_mask and token_types.")
    by_name = {name: value for name, value in named.items() if value is not None}
    given = dict(zip(config.input_names, inputs, strict=False)) | by_name
    if set(given) != set(config.input_names) or len(given) != len(inputs) + len(by_name):
        passed = f"inputs given by position: {len(inputs)}, by name: {', '.join(by_name) or 'none'}"
        raise InputError(f"The model takes {' and '.join(config.input_names)}; {passed}.")
    return given


def _checked_input(config: TransformerConfig, name: str, value: Any) -> np.ndarray:
    if name in config.token_inputs:
        return _checked_tokens(config, name, value)
    floats, form = as_array(name, value, InputError), input_form(config, name)
    if not form.has_shape(config, floats.shape):
        turned = " (it looks transposed)" if floats.shape[1:] == form.axes[::-1] else ""
        expected = config.input_of(name).expected.format(*form.axes)
        raise InputError(f"{name} has the shape {floats.shape}{turned}; expected {expected}.")
    if floats.dtype.kind != "f":
        raise InputError(f"{name} has the dtype {floats.dtype}; expected finite floats.")
    if not np.isfinite(floats).all():
        raise InputError(f"{name} has a number that is not finite; expected finite floats.")
    return floats


def _checked_further(config: TransformerConfig, name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return an `attention_mask` as bool or `token_types` as int64, in the `shape` of the tokens."""
    array = as_array(name, value, InputError)
    kinds, most = ("biu", 1) if name == "attention_mask" else ("iu", config.num_token_types - 1)
    if array.shape != shape or array.dtype.kind not in kinds:
        given = f"the shape {array.shape} and dtype {array.dtype}"
        raise InputError(
            f"{name} has {given}; expected {shape} {'bool' if most == 1 and 'b' in kinds else 'integers'}."
        )
    outside = (array < 0) | (array > most)
    if outside.any():
        row, position = (int(index) for index in np.argwhere(outside)[0])
        raise InputError(f"{name}[{row}, {position}] is {array[row, position]}; expected 0 to {most}.")
    return array.astype(bool if name == "attention_mask" else np.int64)


def check_targets(config: TransformerConfig, targets: Any, inputs: Mapping[str, Any]) -> np.ndarray:
    """Return the expected tokens, one per position; raise `InputError` if they are wrong or the model has no logits."""
    if config.head != "logits":
        raise InputError(f"head is {config.head!r}, so the model has no loss; expected head 'logits'.")
    name = config.input_names[-1]
    checked = _checked_tokens(config, name, targets, called="targets")
    if checked.shape != inputs[name].shape:
        raise InputError(f"targets has the shape {checked.shape}; expected the shape of {name}, {inputs[name].shape}.")
    return checked


def check_masks(config: TransformerConfig, masks: Any, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the dropout masks by activation (`transparity.training.dropout_masks`).

    Raises `InputError` for an activation that is not in `dropout_at`, or a wrong shape or dtype.
    """
    batch = len(inputs[config.input_names[0]])
    shapes = dropout_shapes(config, batch, **lengths_of(config, inputs))
    checked = {}
    for name, value in dict(masks or {}).items():
        if name not in shapes:
            raise InputError(
                f"masks has {shown(name)}; expected only activations in dropout_at: {', '.join(config.dropout_at)}."
            )
        mask = as_array(f"the mask of {name}", value, InputError)
        if mask.shape != shapes[name] or mask.dtype != bool:
            given = f"the shape {mask.shape} and dtype {mask.dtype}"
            raise InputError(f"The mask of {name} has {given}; expected {shapes[name]} bool.")
        checked[name] = mask
    return checked


def check_out(config: TransformerConfig, out: Any, inputs: Mapping[str, Any]) -> Any:
    """Return `out`; raise `InputError` unless `out` has the shape of the logits for the checked `inputs`."""
    expected, given = logits_shape(config, inputs), getattr(out, "shape", None)
    if given is None or tuple(given) != expected:
        raise InputError(f"out is {shown(out) if given is None else f'of shape {tuple(given)}'}; expected {expected}.")
    return out


def check_batches(config: TransformerConfig, batches: Any) -> list[dict[str, Any]]:
    """Return the checked batches of a training run; raise `InputError` if a batch is wrong."""
    try:
        given = list(batches)
    except Exception:  # noqa: BLE001 - `__iter__` of any object may raise anything
        raise InputError(f"batches is {shown(batches)}; expected a sequence of batches.") from None
    return [check_batch(config, batch) for batch in given]


def check_batch(config: TransformerConfig, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked inputs and `targets` of one training step; raise `InputError` if any of them is wrong."""
    if not isinstance(batch, Mapping):
        raise InputError(f"A batch is {shown(batch)}; expected a dict of targets and inputs by name.")
    inputs = check_inputs(config, {name: tokens for name, tokens in batch.items() if name != "targets"})
    return inputs | {"targets": check_targets(config, batch.get("targets"), inputs)}


def check_step(
    config: TransformerConfig, tokens: Any, lengths: Any, source: Any, valid_lengths: Any, attention_mask: Any = None
) -> dict[str, Any]:
    """Return the arguments of `transparity.protocol.Forward.step` as arrays; raise `InputError` if an argument is
    wrong.

    `lengths` (batch,) are the numbers of tokens in the cache; None means that there is no cache yet. The result leaves
    out an absent `source`. For every other absent argument, the result has None.
    """
    _check_can_step(config, lengths is None, source is not None)
    checked = {"tokens": _checked_tokens(config, config.input_names[-1], tokens, called="tokens")}
    batch, length = checked["tokens"].shape
    if source is not None:
        checked["source"] = _checked_input(config, "source", source)
    rows = len(checked.get("source", checked["tokens"])) if lengths is None else len(lengths)
    if rows != batch:
        others = "cache" if source is None else "source"
        says = f"The batch size of tokens is {batch}, but the batch size of the {others} is {rows}"
        raise InputError(f"{says}; expected equal batch sizes.")
    longest = length + (0 if lengths is None else int(np.max(lengths)))
    check_length(config, longest, "a row with its cached tokens")
    if lengths is not None:
        _check_angles(config, np.asarray(lengths), longest)
    if attention_mask is not None:
        if config.padding != "attention-mask" or (config.has_encoder and source is None):
            raise InputError(
                f"A step of this {config.architecture} does not read the given attention_mask; omit the mask."
            )
        shape = checked.get("source", checked["tokens"]).shape
        attention_mask = _checked_further(config, "attention_mask", attention_mask, shape)
    if valid_lengths is not None:
        valid_lengths = _checked_lengths("valid_lengths", valid_lengths, batch, length)
    return checked | {"attention_mask": attention_mask, "valid_lengths": valid_lengths}


def _check_can_step(config: TransformerConfig, first: bool, with_source: bool) -> None:
    """Raise `InputError` if the model cannot decode with a cache, or if a `source` is missing or given needlessly."""
    if not config.has_decoder:
        raise InputError("The model is only an encoder, which has no cache; expected a model with a decoder.")
    if not config.mask_is_exact:
        raise InputError(
            f"mask_value is {config.mask_value:g}, so masked tokens keep a weight and cached values would change with "
            "every token; use a full forward pass."
        )
    if (first and config.has_encoder) != with_source:
        needs = "takes no source" if with_source else "needs a source"
        step = "The first step" if first else "A step with a cache"
        raise InputError(f"{step} of this {config.architecture} {needs}.")


def _check_angles(config: TransformerConfig, lengths: np.ndarray, longest: int) -> None:
    """Raise `InputError` if a row of `longest` tokens needs other rotary angles than the keys in the cache have."""
    for limit in config.angle_limits:
        if lengths.min() <= limit < longest:
            raise InputError(
                f"Rotary angles depend on the length, so cached keys change beyond {limit} tokens; use a full "
                "forward pass, or a longer first step."
            )


def check_prompt(config: TransformerConfig, prompt: Any, source: Any = None, lengths: Any = None) -> dict[str, Any]:
    """Return `prompt`, `lengths` and, for an encoder-decoder, `source` as arrays by name.

    `transparity.protocol.Forward.generate` explains the arguments. Raises `InputError` for a wrong argument, and for a
    row that has only masked padding.
    """
    if not config.has_decoder:
        raise InputError("The model is only an encoder, which cannot generate; expected a model with a decoder.")
    if config.has_encoder != (source is not None):
        needs = "needs a source" if config.has_encoder else "takes no source"
        raise InputError(f"Generation with this {config.architecture} {needs}.")
    inputs = {} if source is None else {"source": _checked_input(config, "source", source)}
    if prompt is None:
        if config.bos_id is None or source is None:
            raise InputError("The prompt is missing; generation without a prompt needs a source and a bos_id.")
        prompt = np.full((len(inputs["source"]), 1), config.bos_id)
    inputs["prompt"] = _checked_tokens(config, config.input_names[-1], prompt, called="prompt")
    if source is not None and len(inputs["prompt"]) != len(inputs["source"]):
        says = f"The batch size of prompt is {len(inputs['prompt'])}, but the batch size of source is"
        raise InputError(f"{says} {len(inputs['source'])}; expected equal batch sizes.")
    checked = None if lengths is None else _checked_lengths("lengths", lengths, *inputs["prompt"].shape)
    _check_something_is_seen(config, inputs["prompt"], checked)
    if checked is None:
        return inputs | {"lengths": None}
    if len(set(checked.tolist())) > 1 and not config.prefixes_agree:
        says = "the rotary angles of all rows depend on the longest row"
        if not config.mask_is_exact:
            says = f"mask_value is {config.mask_value:g}, so rows would attend to their padding"
        raise InputError(f"lengths differ, but {says}; pass the prompts one at a time.")
    return inputs | {"prompt": inputs["prompt"][:, : checked.max()], "lengths": checked}


def _check_something_is_seen(config: TransformerConfig, prompt: np.ndarray, lengths: np.ndarray | None) -> None:
    """Raise `InputError` if a row has only masked padding; unused positions of the cache would then get a weight."""
    if "padding" not in config.decoder_mask or config.padding == "attention-mask":
        return
    counted = np.arange(prompt.shape[1]) < (prompt.shape[1] if lengths is None else lengths[:, None])
    if (rows := np.flatnonzero(~(counted & (prompt != config.pad_id)).any(axis=1))).size:
        raise InputError(
            f"Row {rows[0]} of prompt has only padding (token {config.pad_id}), and target_mask masks padding; put "
            "another token into every row."
        )


def check_draws(batch: int, max_new_tokens: Any, uniforms: Any) -> tuple[int, np.ndarray | None]:
    """Return the number of tokens to generate, and the random numbers that sample the tokens, or None."""
    steps = _checked_whole("max_new_tokens", max_new_tokens, 0)
    check_fits(f"Generation with batch size {batch} and max_new_tokens {shown(steps)}", 8 * batch * steps, InputError)
    if uniforms is None:
        return steps, None
    drawn = as_array("uniforms", uniforms, InputError)
    if drawn.shape != (batch, steps):
        raise InputError(f"uniforms has the shape {drawn.shape}; expected (batch, max_new_tokens), {(batch, steps)}.")
    if drawn.dtype.kind != "f":
        raise InputError(f"uniforms has the dtype {drawn.dtype}; expected floats.")
    if not ((drawn >= 0) & (drawn < 1)).all():
        raise InputError(f"uniforms range from {drawn.min()} to {drawn.max()}; expected at least 0 and less than 1.")
    return steps, drawn


def check_beams(config: TransformerConfig, rows: int, beams: Any, length_penalty: Any) -> tuple[int, float]:
    count = _checked_whole("beams", beams, 1)
    check_fits(f"A beam search with beams = {shown(count)}", 8 * count * rows * config.vocab_size, InputError)
    if not is_finite(length_penalty):
        raise InputError(f"length_penalty is {shown(length_penalty)}; expected a finite number.")
    return count, float(length_penalty)


def _checked_whole(name: str, value: Any, least: int) -> int:
    if not is_whole(value, least):
        raise InputError(f"{name} is {shown(value)}; expected a whole number, at least {least}.")
    return operator.index(value)


def _checked_lengths(name: str, value: Any, batch: int, length: int) -> np.ndarray:
    found = as_array(name, value, InputError)
    if found.shape != (batch,) or found.dtype.kind not in "iu":
        raise InputError(f"{name} has the shape {found.shape} and dtype {found.dtype}; expected ({batch},) integers.")
    if found.min() < 1 or found.max() > length:
        raise InputError(f"{name} range from {found.min()} to {found.max()}; expected 1 to {length} for each row.")
    return found.astype(np.int64)


def _checked_tokens(config: TransformerConfig, read_as: str, value: Any, *, called: str | None = None) -> np.ndarray:
    """Return `value` as int64 if it is valid for the input `read_as`; error messages use the name `called`."""
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
