"""The parameters: flat names, PyTorch's orientation `(out, in)`, safetensors files.

`parameter_shapes` is the one source of truth for initialising, checking, loading and saving.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, ParameterError, as_array, shown
from transparity.limits.files import check_header, file_size
from transparity.limits.mapped import Mapped, blocks_of
from transparity.limits.memory import check_fits
from transparity.text import VALUE, reason, safe

Parameters = Mapping[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]

FLOATS = {"F16": "float16", "F32": "float32", "F64": "float64"}


def parameter_shapes(config: TransformerConfig) -> Shapes:
    """Return the shape of every parameter by name, in the order of the forward pass."""
    shapes: Shapes = {}
    for stack in config.stacks:
        shapes |= _stack_shapes(stack, config)
    if config.has_pooler:
        shapes |= _linear("pooler", config.embed_dim, config.embed_dim, bias=True)
    if config.head_transform:
        shapes |= _linear("head_transform", config.embed_dim, config.embed_dim, bias=config.head_transform_bias)
        shapes |= _norm_shapes("head_norm", config)
    if config.head not in ("logits", "classes"):
        return shapes
    head = _linear("head", config.head_size, config.embed_dim, bias=config.head_bias)
    return shapes | {name: head[name] for name in head if not (config.has_tied_head and name == "head.weight")}


def shared(config: TransformerConfig, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `parameters` with a shared embedding under both its names."""
    if not config.shared_embedding:
        return parameters
    return {**parameters, "decoder.token_embedding.weight": parameters["encoder.token_embedding.weight"]}


def is_learned(name: str) -> bool:
    """Return whether the parameter has a gradient; the running statistics of a batch norm and what corrects a router's
    choice have none."""
    return not name.endswith((".running_mean", ".running_var", ".router_score_bias"))


def _stack_shapes(stack: str, config: TransformerConfig) -> Shapes:
    shapes: Shapes = {}
    if config.reads_pixels:
        shapes |= _linear(f"{stack}.patch_projection", config.embed_dim, config.patch_dim, bias=config.patch_bias)
        shapes |= {f"{stack}.class_embedding.weight": (1, config.embed_dim)} if config.class_token else {}
    elif config.reads_frames and stack == "encoder":
        for name, channels in (("first", config.mel_bins or 0), ("second", config.embed_dim)):
            shapes |= _linear(f"{stack}.{name}_convolution", config.embed_dim, 3 * channels, bias=True)
    elif not (config.shared_embedding and stack == "decoder"):
        shapes[f"{stack}.token_embedding.weight"] = (config.stack_vocab_size(stack), config.embed_dim)
    if config.num_token_types:
        shapes[f"{stack}.token_type_embedding.weight"] = (config.num_token_types, config.embed_dim)
    own = config.for_stack(stack)
    if own.positions == "learned":
        shapes[f"{stack}.position_embedding.weight"] = (own.num_positions, config.embed_dim)
    if config.embedding_norm:
        shapes |= _norm_shapes(f"{stack}.embedding_norm", config)
    if config.has_relative_bias:
        shapes[f"{stack}.relative_bias.weight"] = (config.relative_buckets, config.num_heads)
    for layer in range(config.stack_num_layers(stack)):
        scope = f"{stack}.layers.{layer}"
        own = config.for_layer(stack, layer)
        mixer_shapes = _attention_shapes if own.mixer == "attention" else _recurrence_shapes
        shapes |= mixer_shapes(f"{scope}.{own.mixer_scope}", own)
        if own.attention_norm:
            shapes |= _sublayer_norm_shapes(f"{scope}.self_attention", config)
        if stack == "decoder" and config.has_encoder:
            shapes |= _attention_shapes(f"{scope}.cross_attention", config)
            shapes |= _sublayer_norm_shapes(f"{scope}.cross_attention", config)
            if config.memory_norm:
                shapes |= _norm_shapes(f"{scope}.memory_norm", config)
        if own.feed_forward_dim:
            shapes |= _feed_forward_shapes(f"{scope}.feed_forward", own)
        if own.feed_forward_dim and config.branches != "parallel-one-norm":
            shapes |= _sublayer_norm_shapes(f"{scope}.feed_forward", config)
    if config.final_norm:
        shapes |= _norm_shapes(f"{stack}.final_norm", config)
    return shapes


def _attention_shapes(scope: str, config: TransformerConfig) -> Shapes:
    shapes = _latent_shapes(scope, config) if config.kv_lora_rank else {}
    for role in ("query", "key", "value"):
        heads = config.num_heads if role == "query" else config.key_value_heads
        widths = {"query": config.head_dim, "key": config.projected_key_dim, "value": config.value_dim}
        rank = config.q_lora_rank if role == "query" else config.kv_lora_rank
        out, into = heads * widths[role], rank or config.embed_dim
        if config.projection == "shared-per-head":
            out, into = config.head_dim, config.head_dim
        shapes |= _linear(f"{scope}.{role}", out, into, bias=config.qkv_bias and (config.key_bias or role != "key"))
        if config.query_key_norm and role != "value":
            over = heads if config.query_key_norm_over == "projection" else 1
            shapes[f"{scope}.{role}_norm.weight"] = (over * config.head_dim,)
    if config.attention_sinks:
        shapes[f"{scope}.sinks"] = (config.num_heads,)
    if config.attention_gate:
        shapes |= _linear(f"{scope}.gate", config.context_dim, config.embed_dim, bias=config.qkv_bias)
    return shapes | _linear(f"{scope}.output", config.embed_dim, config.context_dim, bias=config.output_bias)


def _recurrence_shapes(scope: str, config: TransformerConfig) -> Shapes:
    shapes: Shapes = {}
    bias, is_delta = config.recurrent_bias, config.mixer == "gated-delta"
    for role, features in config.convolution_dims.items():
        shapes |= _linear(f"{scope}.{role}", features, config.embed_dim, bias=bias)
        wide = config.convolution_width
        shapes |= _linear(f"{scope}.{role}_convolution", features, wide, bias=config.convolution_bias)
    for role in ("decay", "beta") if is_delta else ("decay",):
        shapes |= _linear(f"{scope}.{role}", config.recurrent_heads, config.embed_dim, bias=bias)
    for role in ("dt_bias", "A_log") if is_delta else ("dt_bias", "A_log", "D"):
        shapes[f"{scope}.{role}"] = (config.recurrent_heads,)
    shapes |= _linear(f"{scope}.gate", config.recurrent_dim, config.embed_dim, bias=bias)
    shapes[f"{scope}.gated_norm.weight"] = (config.recurrent_value_dim if is_delta else config.recurrent_dim,)
    return shapes | _linear(f"{scope}.output", config.embed_dim, config.recurrent_dim, bias=bias)


def _latent_shapes(scope: str, config: TransformerConfig) -> Shapes:
    shapes: Shapes = {}
    for role, rank in (("query", config.q_lora_rank), ("key_value", config.kv_lora_rank)):
        if rank:
            shapes[f"{scope}.{role}_latent.weight"] = (rank, config.embed_dim)
            shapes[f"{scope}.{role}_latent_norm.weight"] = (rank,)
    return shapes | {f"{scope}.key_rotary.weight": (config.rotated_dim, config.embed_dim)}


def _feed_forward_shapes(scope: str, config: TransformerConfig) -> Shapes:
    if not config.num_experts:
        return _expert_shapes(scope, config, config.feed_forward_dim)
    shapes = _linear(f"{scope}.router", config.num_experts, config.embed_dim, bias=config.router_bias)
    if config.router_score_bias:
        shapes[f"{scope}.router_score_bias"] = (config.num_experts,)
    for expert in range(config.num_experts):
        shapes |= _expert_shapes(f"{scope}.experts.{expert}", config, config.feed_forward_dim)
    if config.shared_expert_dim:
        shapes |= _expert_shapes(f"{scope}.shared_expert", config, config.shared_expert_dim)
    if config.shared_expert_dim and config.shared_expert_gate:
        shapes |= _linear(f"{scope}.shared_expert_gate", 1, config.embed_dim, bias=False)
    return shapes


def _expert_shapes(scope: str, config: TransformerConfig, wide: int) -> Shapes:
    shapes: Shapes = {}
    for role in ("gate", "up") if config.gated else ("up",):
        shapes |= _linear(f"{scope}.{role}", wide, config.embed_dim, bias=config.feed_forward_bias)
    return shapes | _linear(f"{scope}.down", config.embed_dim, wide, bias=config.feed_forward_bias)


def _linear(scope: str, out: int, into: int, *, bias: bool) -> Shapes:
    weight: Shapes = {f"{scope}.weight": (out, into)}
    return weight | {f"{scope}.bias": (out,)} if bias else weight


def _sublayer_norm_shapes(scope: str, config: TransformerConfig) -> Shapes:
    """Return the shapes of the norms of the sublayer `scope`."""
    shapes = _norm_shapes(f"{scope}_norm", config)
    return shapes | _norm_shapes(f"{scope}_post_norm", config) if config.norm_position == "sandwich" else shapes


def _norm_shapes(scope: str, config: TransformerConfig) -> Shapes:
    names = ["weight"] + ["bias"] * config.has_norm_bias + ["running_mean", "running_var"] * (config.norm == "batch")
    return {f"{scope}.{name}": (config.embed_dim,) for name in names}


HEADS = ("query", "key", "value", "output")
"""Maps of attention, of which each rank would have some heads."""


def why_uncut(config: TransformerConfig, name: str, ranks: int) -> str | None:
    """Return why a parameter cannot be distributed over `ranks` as its heads or its features are; None if it can, or
    if it has neither."""
    role = "sinks" if name.endswith(".sinks") else name.split(".")[-2]
    if re.search(r"\.(router|experts|shared_expert|shared_expert_gate)\.", name):
        return "experts are not distributed yet"
    if role == "head_transform":
        return "what is in front of the head is not distributed"
    if ".recurrence." in name:
        return _why_recurrence_uncut(config, name, ranks)
    if config.kv_lora_rank and ".self_attention." in name:
        return "latent attention is not distributed yet"
    if role in ("query", "key", "value") and config.projection == "shared-per-head":
        return "one map serves all heads"
    if role in HEADS and config.query_key_norm and config.query_key_norm_over == "projection":
        return "queries and keys are normalised over all heads"
    heads = dict.fromkeys(("query", "output", "relative_bias", "sinks"), config.num_heads)
    heads |= dict.fromkeys(("key", "value"), config.key_value_heads)
    role = "output" if role == "gate" and "attention." in name else role  # a gate of the heads' context
    count = heads.get(role, ranks)
    return f"{count} heads cannot be distributed over {ranks} ranks" if count % ranks else None


def _why_recurrence_uncut(config: TransformerConfig, name: str, ranks: int) -> str | None:
    """Return why a parameter of a recurrence is not distributed over `ranks`, of which each would have whole heads of
    keys, and the heads of values that share them."""
    stack, _, layer, *_ = name.split(".")
    if ".gated_norm." in name and config.for_layer(stack, int(layer)).mixer == "gated-delta":
        return "one gain serves all heads"
    heads = config.recurrent_key_heads
    return f"{heads} heads of keys cannot be distributed over {ranks} ranks" if heads % ranks else None


def initialize_parameters(config: TransformerConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Initialise parameters in float32: matrices uniformly within Glorot's bound (document 003), gains, skips and
    variances to 1, everything else to 0, including gains that are added to 1. Raises `ConfigError` if they do not fit
    in memory."""
    random, shapes = np.random.default_rng(seed), parameter_shapes(config)
    check_fits("The model", 4 * sum(map(math.prod, shapes.values())), ConfigError)
    parameters = {}
    for name, shape in shapes.items():
        if len(shape) == 2:
            bound = math.sqrt(6 / sum(shape))
            parameters[name] = random.uniform(-bound, bound, shape).astype(np.float32)
        else:
            gains = ("norm.weight",) if config.norm_gain == "weight" else ("gated_norm.weight",)
            ones = name.endswith((*gains, "running_var", ".D"))
            parameters[name] = np.full(shape, 1 if ones else 0, np.float32)
    return parameters


def check_parameters(config: TransformerConfig, parameters: Mapping[str, Any]) -> None:
    """Raise `ParameterError` unless `parameters` are exactly those of `config`, floats of the right shapes, and finite
    in float32."""
    if not isinstance(config, TransformerConfig):
        raise ConfigError(f"The configuration is {shown(config)}; it should be a TransformerConfig.")
    if not isinstance(parameters, Mapping):
        raise ParameterError(f"The parameters are {shown(parameters)}; they should be arrays by name.")
    for name, shape in check_names(config, parameters).items():
        value = parameters[name]
        value = value if isinstance(value, Mapped) else as_array(f"Parameter {name!r}", value, ParameterError)
        _check_shape(name, value.shape, shape)
        _check_dtype(repr(name), value.dtype.name)
        largest = np.finfo(np.float32).max
        if not all(-largest <= block.min(initial=0) and block.max(initial=0) <= largest for block in blocks_of(value)):
            value = np.asarray(value)
            where = tuple(int(index) for index in np.argwhere(~(np.abs(value) <= largest))[0])
            raise ParameterError(f"Parameter {name!r} is {value[where]} at {list(where)}; it should be finite.")
        if name.endswith("running_var") and (value < 0).any():
            raise ParameterError(f"Parameter {name!r} is negative ({value.min()}); a variance should be ≥ 0.")


def check_names(config: TransformerConfig, names: Collection[str]) -> Shapes:
    """Return the shapes of the parameters of `config`; raise `ParameterError` unless `names` are exactly theirs."""
    shapes = parameter_shapes(config)
    for name in names:
        if name not in shapes:
            close = difflib.get_close_matches(safe(name, 2 * VALUE), shapes, 1)
            hint = f"; the nearest name is {close[0]!r}" if close else ""
            raise ParameterError(f"Parameter {shown(name)} does not belong to this configuration{hint}.")
    for name, shape in shapes.items():
        if name not in names:
            raise ParameterError(f"Parameter {name!r} is missing; it should have the shape {shape}.")
    return shapes


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        transposed = " (it looks transposed)" if shape == expected[::-1] else ""
        raise ParameterError(f"Parameter {name!r} has the shape {shown(shape)}, not {expected}{transposed}.")


def _check_dtype(name: str, dtype: str) -> None:
    if dtype not in FLOATS.values():
        raise ParameterError(f"Parameter {name} has the dtype {dtype}; expected one of {', '.join(FLOATS.values())}.")


def save_parameters(path: str | os.PathLike[str], parameters: Parameters) -> None:
    """Write a safetensors file; raises `ParameterError` if a parameter is not a float or `path` cannot be written."""
    arrays = {name: as_array(f"Parameter {shown(name)}", value, ParameterError) for name, value in parameters.items()}
    for name, value in arrays.items():
        _check_dtype(shown(name), value.dtype.name)
    try:
        save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, path)
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise ParameterError(f"{path} cannot be written as a safetensors file: {reason(error)}.") from None


def load_parameters(path: str | os.PathLike[str], config: TransformerConfig | None = None) -> dict[str, np.ndarray]:
    """Read a safetensors file, and check it against `config` if given.

    Raises `ParameterError` if the file is missing or not safetensors, or if NumPy lacks the dtype of a tensor.
    """
    check_header(path, ParameterError)
    try:
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            if config is not None:
                check_names(config, names)
            for name in names:
                dtype = file.get_slice(name).get_dtype()
                _check_dtype(f"{shown(name)} of {path}", FLOATS.get(dtype, dtype))
            check_fits(f"{path}", file_size(path, ParameterError), ParameterError)
            parameters = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, TypeError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(f"{path} cannot be read as a safetensors file: {reason(error)}.") from None
    if config is not None:
        check_parameters(config, parameters)
    return parameters


@contextmanager
def open_parameters(path: str | os.PathLike[str], config: TransformerConfig) -> Iterator[Mapping[str, Any]]:
    """Context manager that yields the parameters of `config` in a safetensors file by name. Each is read when it is
    sliced, and of it the slice alone; whether its numbers are finite is not checked.

    Raises `ParameterError` as `load_parameters` does.
    """
    check_header(path, ParameterError)
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            for name, shape in check_names(config, slices).items():
                _check_shape(name, tuple(slices[name].get_shape()), shape)
                dtype = slices[name].get_dtype()
                _check_dtype(f"{shown(name)} of {path}", FLOATS.get(dtype, dtype))
            yield slices
    except (OSError, SafetensorError) as error:
        raise ParameterError(f"{path} cannot be read as a safetensors file: {reason(error)}.") from None
